"""A Pool of processes with ``multiprocessing.Pool``'s ``map_async``, a pair of pipes for each worker, and no thread.

Runs in the thread that uses it: only ``wait`` waits, for answers, ends of workers and its bell, and gives what has
happened as values.  Guarantees that one worker's end is no concern of the others: its pipes are its own, what it sent
counts, and its place is filled beside them.  A block is with the ready worker that has least to do.
"""

from __future__ import annotations

import os
import pickle
import selectors
import time
import weakref
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from typing import Any

from ..bell import Bell
from ..worker.block import Lost
from . import starting
from .member import Died, Member, State, end_all, started
from .pipes import READY, Answer


class Pool:
    """Worker processes that call functions.

    Args:
        processes, initializer, initargs, context: as ``multiprocessing.Pool`` has them.
        bell: what wakes ``wait``.

    >>> from mpiter.bell import Bell
    >>> pool = Pool(1, bell=Bell())
    >>> while not pool.vacancies(1):
    ...     assert pool.wait() == []
    >>> pool.map_async(abs, [-1])
    >>> pool.wait()
    [1]
    >>> pool.close()
    True
    """

    shares_fate = False  # one worker's end is one worker's matter

    def __init__(
        self,
        processes: int,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        context: Any = None,
        bell: Bell,
    ) -> None:
        self._context = context or get_context()
        self._begin = initializer, tuple(initargs)
        self._bell = bell
        self._workers: dict[int, Member] = {}
        self._numbers = 0
        self._last = 0  # the worker that was given something last
        self._events: list[Any] = []  # that wait() has still to give
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell, selectors.EVENT_READ)
        self._finalizer = weakref.finalize(self, _kill_all, self._workers, os.getpid())
        self._finalizer.atexit = False  # multiprocessing ends its daemons itself
        try:
            starting.start_tracker()
            for number in range(processes):
                self.start(number)
        except BaseException:
            self.close()
            raise

    # -- blocks --------------------------------------------------------------------------------------------------

    def map_async(self, func: Callable[[Any], Any], blocks: Iterable[Any]) -> None:
        """Have ``func`` called with each block; there must be a vacancy.  ``wait`` gives what it returns, or Lost."""
        for block in blocks:
            able = [worker for worker in self._workers.values() if worker.takes_blocks]
            chosen = min(able, key=lambda worker: (len(worker.out), worker.number <= self._last))
            self._numbers, self._last = self._numbers + 1, chosen.number
            pickled = pickle.dumps((func, block), 5)
            chosen.out[self._numbers] = block
            self._wait_for_room(chosen, not chosen.end.send(self._numbers, pickled))

    def vacancies(self, most: int) -> int:
        """How many more blocks they can take if each may have ``most``."""
        return sum(max(0, most - len(worker.out)) for worker in self._workers.values() if worker.takes_blocks)

    def _wait_for_room(self, worker: Member, wanted: bool) -> None:
        """Have ``wait`` look out for room in its pipe, or no longer."""
        if wanted and not worker.is_full:
            self._selector.register(worker.end.tasks, selectors.EVENT_WRITE, worker)
        elif worker.is_full and not wanted:
            self._selector.unregister(worker.end.tasks)
        worker.is_full = wanted

    # -- what happens --------------------------------------------------------------------------------------------

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait until something happens: answers, Lost and Died, as they came; or nothing of these."""
        for key, _ in self._selector.select(0 if self._events else timeout):
            worker: Member | None = key.data
            if worker is None:
                self._bell.hush()
            elif self._workers.get(worker.number) is not worker:
                continue  # of its end we may be told before we are told of what came before
            elif key.fd == worker.death:
                self._has_died(worker)
            elif key.fileobj is worker.end.tasks:
                self._wait_for_room(worker, not worker.end.flush())
            else:
                self._hear(worker)
        events, self._events = self._events, []
        return events

    def _hear(self, worker: Member) -> None:
        """Read its answers."""
        try:
            for answer in worker.end.receive():
                if answer[0] == READY:
                    worker.state = State.READY if worker.state is State.STARTING else worker.state
                else:
                    self._events.append(_opened(answer, worker.out.pop(answer[0])))
        except Exception as error:  # there is no memory for what it sends, say: the rest makes no sense any more
            worker.kill()
            self._events.extend(Lost(block.number, error) for block in worker.out.values())
            worker.out.clear()
        if worker.end.has_ended and worker.end.answers in self._selector.get_map():
            self._selector.unregister(worker.end.answers)  # it is dead, or dies when it answers

    # -- workers come and go -------------------------------------------------------------------------------------

    def start(self, number: int) -> None:
        """Start a worker in a place that is empty."""
        assert number not in self._workers
        worker = self._workers[number] = started(self._context, number, self._begin, self._workers.values())
        self._selector.register(worker.end.answers, selectors.EVENT_READ, worker)
        self._selector.register(worker.death, selectors.EVENT_READ, worker)

    def retire(self, number: int) -> None:
        """Have a worker end after the blocks that it has, unless it has ended already."""
        worker = self._workers.get(number)
        if worker is not None and worker.state is not State.RETIRING:
            worker.state = State.RETIRING
            self._wait_for_room(worker, not worker.end.send_end())

    def kill(self, number: int) -> None:
        """End a worker whatever it does; ``wait`` notices when it is gone."""
        if number in self._workers:
            self._workers[number].kill()

    def abandon(self, number: int) -> None:
        """Leave a worker that would not die to itself."""
        if (worker := self._workers.get(number)) is not None:
            starting.leave_behind([worker.process])
            self._forget(worker, None)
            self._bell.ring()

    def _has_died(self, worker: Member) -> None:
        """Take what it said before, and let go of it."""
        worker.is_doomed = True
        self._hear(worker)
        self._forget(worker, worker.reap())

    def _forget(self, worker: Member, code: int | None) -> None:
        del self._workers[worker.number]
        self._wait_for_room(worker, wanted=False)
        for place in (worker.end.answers, worker.death):
            if place in self._selector.get_map():
                self._selector.unregister(place)
        worker.let_go()
        self._events.append(Died(worker.number, worker.pid, code, worker.state, tuple(worker.out.values())))

    @property
    def pids(self) -> dict[int, int]:
        """The worker processes of the moment, by number."""
        return {number: worker.pid for number, worker in sorted(self._workers.items())}

    def out(self, number: int) -> int:
        """How many blocks a worker has."""
        worker = self._workers.get(number)
        return 0 if worker is None else len(worker.out)

    def busy(self, lines: Iterable[int]) -> set[int]:
        """Those of these that have something to do."""
        return {number for number in lines if self.out(number)}

    def close(self, timeout: float = 5.0) -> bool:
        """End all workers at once; False if one would not die in time, which is then left to itself."""
        end = time.monotonic() + timeout
        workers = list(self._workers.values())
        left = end_all(workers, end)
        for worker in workers:
            worker.let_go()
            if worker not in left:
                worker.reap(end - time.monotonic())
        starting.leave_behind([worker.process for worker in left])
        self._workers.clear()
        self._finalizer.detach()
        self._selector.close()
        return not left


def _opened(answer: Answer, block: Any) -> Any:
    """What a worker has answered to a block."""
    _, pickled, buffers = answer
    error: BaseException | None
    try:
        value, error = pickle.loads(pickled, buffers=buffers)
    except Exception as problem:
        error = problem
    return value if error is None else Lost(block.number, error)


def _kill_all(workers: dict[int, Member], home: int) -> None:
    """End a Pool that nobody has closed, when nobody can use it any more."""
    if os.getpid() == home:  # a fork of its process has the same Pool, but not the workers
        for worker in workers.values():
            worker.kill()
            worker.let_go()
        workers.clear()
