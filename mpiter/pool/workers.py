"""What every Pool has: workers by number, what they have been asked, and what happens, as values.

A Pool is used by one thread.  Only ``wait`` waits, and gives answers, Lost and Died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from ..bell import Bell
from ..worker.board import Line

NAME = "mpiter-worker-"  # processes and threads are named so, with their numbers


class State(Enum):
    """The state of a worker."""

    STARTING = "its initializer runs"
    READY = "it takes blocks"
    RETIRING = "it takes no more blocks, and ends after its last"


_READY = State.READY


class Died(NamedTuple):
    """A worker has ended."""

    number: int
    pid: int
    code: int | None  # as multiprocessing has it; None: it would not die, and was left to itself
    state: State  # that it was in
    blocks: tuple[Any, ...]  # that it had
    how: str = ""  # in words, where its code says nothing


@dataclass(eq=False, kw_only=True)
class Worker:
    """One worker, and the blocks that it has."""

    number: int
    state: State = State.STARTING
    out: dict[int, Any] = field(default_factory=dict)  # blocks, by number
    is_doomed: bool = False  # it has been killed, and is still to die

    @property
    def takes_blocks(self) -> bool:
        return self.state is _READY and not self.is_doomed

    def is_ready(self) -> None:
        """Note that the initializer has returned."""
        if self.state is State.STARTING:
            self.state = State.READY

    def died(self, pid: int, code: int | None) -> Died:
        return Died(self.number, pid, code, self.state, tuple(self.out.values()))


class Workers:
    """The base of all Pools, which add four verbs.

    ``map_async(func, blocks)`` has ``func`` called with each block, for which there must be a vacancy.
    ``start(number)`` starts a worker in a place that is empty; ``kill(number)`` ends one whatever it does, and ``wait``
    tells when it is gone.  ``close(timeout)`` ends all, and says whether they have ended in time.
    """

    shares_fate = False  # the end of a worker is the end of all
    width = 0  # how many may be at work, where the others stay all the same

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._workers: dict[int, Any] = {}
        self._events: list[Any] = []  # that wait() has still to give
        self._arrived: deque[tuple[Any, ...]] = deque()  # words that other threads have left
        self._waits = True
        self._last = 0  # the worker that was given something last

    def retire(self, number: int) -> None:
        """Have a worker end after the blocks that it has, unless it has ended already."""

    def abandon(self, number: int) -> None:
        """Abandon a worker that was killed and doesn't end."""

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait until something happens; return answers, Lost and Died in the order they came, or an empty list."""
        self._waits = True  # before it looks: what arrives from now on rings
        self._bell.wait(timeout, at_once=bool(self._arrived or self._events))
        self._waits = False
        while self._arrived:
            self._hear(*self._arrived.popleft())
        events, self._events = self._events, []
        return events

    def _post(self, *word: Any) -> None:
        """Add an event for ``wait``; may be called from any thread."""
        self._arrived.append(word)
        if self._waits:
            self._bell.ring()

    def _hear(self, *word: Any) -> None:
        """Handle an event."""

    def vacancies(self, most: int) -> int:
        """The number of further blocks for the workers, if each may have ``most``."""
        found = 0
        for worker in self._workers.values():
            if worker.takes_blocks and len(worker.out) < most:
                found += most - len(worker.out)
        return found

    def _least_busy(self) -> Any:
        """The worker with the fewest blocks; of several, the one after the last that was chosen."""
        least, last = 1 << 30, self._last
        for worker in self._workers.values():
            if worker.takes_blocks and (load := 2 * len(worker.out) + (worker.number <= last)) < least:
                least, chosen = load, worker
        self._last = chosen.number
        return chosen

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the workers on this machine, by number."""
        return {}

    def out(self, number: int) -> int:
        """The number of blocks that a worker has."""
        worker = self._workers.get(number)
        return 0 if worker is None else len(worker.out)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """The workers among these that have blocks."""
        return {number for number in lines if self.out(number)}
