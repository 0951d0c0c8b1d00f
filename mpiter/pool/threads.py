"""Workers that are threads of this process: a queue of blocks for each, and one place for what comes of them.

The threads leave word and ring the bell; ``wait`` passes on what has come.  A thread cannot be ended: one that is stuck
in a dataset is left to itself, and what it says later is not listened to.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from ..bell import Bell
from ..worker.block import Block, Lost
from .member import Died, State

_READY = object()  # what a thread says first: its initializer has returned
_END = None, None  # what it is asked last


@dataclass(eq=False, slots=True)
class _Worker:
    """A thread, and what it has been asked."""

    thread: threading.Thread
    inbox: SimpleQueue[Any]
    state: State = State.STARTING
    out: dict[int, Block] = field(default_factory=dict)


class Threads:
    """Threads that call functions; ``initializer`` is told the number of each as well."""

    shares_fate = False

    def __init__(
        self, workers: int, initializer: Callable[..., object], initargs: tuple[Any, ...], *, bell: Bell
    ) -> None:
        self._begin = initializer, initargs
        self._bell = bell
        self._workers: dict[int, _Worker] = {}
        self._arrived: deque[tuple[Any, ...]] = deque()
        self._events: list[Any] = []
        for number in range(workers):
            self.start(number)

    def start(self, number: int) -> None:
        """Start a thread in a place that is empty."""
        inbox: SimpleQueue[Any] = SimpleQueue()
        name = f"mpiter-worker-{number}"
        thread = threading.Thread(target=self._work, args=(number, inbox), name=name, daemon=True)
        self._workers[number] = _Worker(thread, inbox)
        thread.start()

    def _work(self, number: int, inbox: SimpleQueue[Any]) -> None:
        initializer, arguments = self._begin
        initializer(*arguments, number)
        self._say(number, inbox, None, _READY)
        while True:
            func, block = inbox.get()
            if func is None:
                break
            self._say(number, inbox, block, _called(func, block))
        self._say(number, inbox, None, None)

    def _say(self, *word: Any) -> None:
        self._arrived.append(word)
        self._bell.ring()

    def map_async(self, func: Callable[[Any], Any], blocks: Iterable[Block]) -> None:
        """Have ``func`` called with each block; there must be a vacancy.  ``wait`` gives what comes of it."""
        for block in blocks:
            able = [worker for worker in self._workers.values() if worker.state is State.READY]
            chosen = min(able, key=lambda worker: len(worker.out))
            chosen.out[block.number] = block
            chosen.inbox.put((func, block))

    def vacancies(self, most: int) -> int:
        """How many more blocks they can take if each may have ``most``."""
        return sum(max(0, most - len(one.out)) for one in self._workers.values() if one.state is State.READY)

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait until something happens: answers, Lost and Died, or nothing of these."""
        self._bell.wait(timeout, at_once=bool(self._arrived or self._events))
        events, self._events = self._events, []
        while self._arrived:
            number, inbox, block, value = self._arrived.popleft()
            worker = self._workers.get(number)
            if worker is None or worker.inbox is not inbox:
                continue  # it was given up
            if value is _READY:
                worker.state = State.READY if worker.state is State.STARTING else worker.state
            elif value is None:
                events.append(self._forget(number, 0))
            else:
                del worker.out[block.number]
                events.append(value)
        return events

    def _forget(self, number: int, code: int | None) -> Died:
        worker = self._workers.pop(number)
        return Died(number, worker.thread.native_id or 0, code, worker.state, tuple(worker.out.values()))

    def retire(self, number: int) -> None:
        """Have a thread end after the blocks that it has."""
        if (worker := self._workers.get(number)) is not None and worker.state is not State.RETIRING:
            worker.state = State.RETIRING
            worker.inbox.put(_END)

    def kill(self, number: int) -> None:
        """Leave a thread to itself."""
        if number in self._workers:
            self._workers[number].inbox.put(_END)  # it ends if it ever comes back
            self._events.append(self._forget(number, None))
            self._bell.ring()

    abandon = kill

    @property
    def pids(self) -> dict[int, int]:
        """None: they are no processes."""
        return {}

    def out(self, number: int) -> int:
        """How many blocks a thread has."""
        return len(self._workers[number].out) if number in self._workers else 0

    def busy(self, lines: Iterable[int]) -> set[int]:
        """Those of these that have something to do."""
        return {number for number in lines if self.out(number)}

    def close(self, timeout: float = 5.0) -> bool:
        """End all threads, each after the block in hand; False if one is stuck in it."""
        end = time.monotonic() + timeout
        workers = list(self._workers.values())
        self._workers.clear()
        for worker in workers:
            while not worker.inbox.empty():  # what it has not begun
                worker.inbox.get()
            worker.inbox.put(_END)
        for worker in workers:
            worker.thread.join(max(0.0, end - time.monotonic()))
        return not any(worker.thread.is_alive() for worker in workers)


def _called(func: Callable[[Any], Any], block: Block) -> Any:
    """What comes of a block."""
    try:
        return func(block)
    except BaseException as error:
        return Lost(block.number, error)
