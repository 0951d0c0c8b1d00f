"""What all Pools have in common: workers by number, their blocks, and events.

A Pool is used by one thread.  Only ``wait`` waits; it returns events: answers, Lost and
Died.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from ..bell import Bell
from ..worker.block import Block, Fields, Lost
from ..worker.board import Line

# The name of a worker's process or thread, before its number.
NAME = "mpiter-worker-"
# What workers call with each block; it returns the fields of the answer.
Work = Callable[[Fields], Fields]


class State(Enum):
    STARTING = "its initializer runs"
    READY = "it takes blocks"
    RETIRING = "it takes no more blocks, and ends after its last"


class Died(NamedTuple):
    """The event that a worker has ended, and what it hadn't answered."""

    number: int
    pid: int
    # Multiprocessing's exit code, or None if the worker couldn't be killed and was
    # abandoned.
    code: int | None
    # The state that it had before it ended.
    state: State
    # The blocks that it hadn't answered.
    blocks: tuple[Block, ...]
    # How it ended, in words, if its code doesn't say.
    how: str = ""


# What ``wait`` returns: an answer, or what has come in its place.
Event = Fields | Lost | Died


@dataclass(eq=False, kw_only=True)
class Worker:
    """A worker, and the blocks (rows of one batch) that it has and hasn't answered."""

    number: int
    state: State = State.STARTING
    # Its blocks, by number.
    out: dict[int, Block] = field(default_factory=dict)
    # It was killed, but its end hasn't been seen yet.
    is_doomed: bool = False

    @property
    def takes_blocks(self) -> bool:
        return self.state is State.READY and not self.is_doomed

    def is_ready(self) -> None:
        if self.state is State.STARTING:
            self.state = State.READY

    def died(self, pid: int, code: int | None) -> Died:
        return Died(
            number=self.number,
            pid=pid,
            code=code,
            state=self.state,
            blocks=tuple(self.out.values()),
        )


class WorkerPool(Protocol):
    """The verbs of a Pool, by which the engine uses any of them."""

    def map_async(self, func: Work, blocks: Iterable[Block]) -> None:
        """Have workers call ``func`` with each block; each needs a vacancy."""

    def start(self, number: int) -> None:
        """Start a worker, which must not exist yet."""

    def retire(self, number: int) -> None: ...

    def kill(self, number: int) -> None:
        """End a worker at once; ``wait`` reports it when it is gone."""

    def abandon(self, number: int) -> None: ...

    def wait(self, timeout: float | None = None) -> list[Event]: ...

    def vacancies(self, most: int) -> int: ...

    @property
    def pids(self) -> dict[int, int]: ...

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]: ...

    def close(self, timeout: float = 5.0) -> bool:
        """End all workers; return False if one hasn't ended in time."""
        ...


class Workers:
    """The base of all Pools, with the verbs that most have in common.

    They add ``map_async``, ``start``, ``kill`` and ``close``; see ``WorkerPool``.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._workers: dict[int, Any] = {}
        # What ``wait`` hasn't returned yet.
        self._events: list[Event] = []
        # What other threads have posted.
        self._arrived: deque[tuple[Any, ...]] = deque()
        self._waits = True
        # The worker that got the last block.
        self._last = 0

    def retire(self, number: int) -> None:
        """Have a worker end after the blocks that it has, if it hasn't ended yet."""

    def abandon(self, number: int) -> None:
        """Stop waiting for the end of a worker that was killed and doesn't end."""

    def wait(self, timeout: float | None = None) -> list[Event]:
        """Wait until something happens, and return the events in their order.

        These are answers, Lost and Died; there are none if only the bell rang.
        """
        # This is set before we look at what has arrived.  Another thread that posts
        # later sees it and rings the bell; otherwise its event could lie here unseen
        # while we wait.
        self._waits = True
        has_events = bool(self._arrived or self._events)
        self._bell.wait(timeout, at_once=has_events)
        self._waits = False
        while self._arrived:
            self._hear(*self._arrived.popleft())
        events = self._events
        self._events = []
        return events

    def _post(self, *word: Any) -> None:
        """Add an event for ``wait``; may be called from any thread."""
        self._arrived.append(word)
        if self._waits:
            self._bell.ring()

    def _hear(self, *word: Any) -> None:
        """Handle a posted event."""

    def vacancies(self, most: int) -> int:
        """Return how many more blocks the workers take, if each may have ``most``."""
        found = 0
        for worker in self._workers.values():
            if worker.takes_blocks and len(worker.out) < most:
                found += most - len(worker.out)
        return found

    def _least_busy(self) -> Any:
        """Return the worker with the fewest blocks.

        Among equals, it is the one whose number follows that of the last chosen.
        """
        last = self._last

        def turn(worker: Any) -> tuple[int, bool, int]:
            number = worker.number
            return len(worker.out), number <= last, number

        able = [one for one in self._workers.values() if one.takes_blocks]
        chosen = min(able, key=turn)
        self._last = chosen.number
        return chosen

    @property
    def pids(self) -> dict[int, int]:
        """The process ids of the workers on this machine, by number."""
        return {}

    def out(self, number: int) -> int:
        worker = self._workers.get(number)
        if worker is None:
            return 0
        return len(worker.out)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """Return the workers among ``lines`` that have blocks."""
        return {number for number in lines if self.out(number)}
