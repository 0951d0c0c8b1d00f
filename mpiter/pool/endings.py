"""How workers end: which are stuck, how one is ended, and the reason in words.

``Watch`` finds stuck workers from their lines on the board (shared integers: what each
is fetching) and a clock.  Only time in which this process itself was running counts,
not time in which Ctrl-Z or a container had suspended it. An ``Eviction`` ends a stuck
worker, one step at a time in the prefetch thread.  ``End`` tells the engine of an end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from .. import machine
from ..worker.block import Block
from ..worker.board import BlackBox, Line, thread_stack
from .pool import VANISHED
from .workers import WorkerPool

# The time between two looks at a worker that is being ended.
STEP_S = 0.01
# The time that a stuck worker has to write its stack.
_FOR_A_STACK_S = 0.5
# The time that a killed worker has to end; after it, it is stuck in a system call.
_FOR_DYING_S = 2.0
# The time that a worker has to start at least, even if ``patience`` is less.
START_S = 60.0
# So many looks are taken within a limit at least, and one in so many seconds.
_LOOKS = 8
_MOST_S = 1.0

_CAUSES = {
    "SIGKILL": "kill -9, or want of memory: then use fewer workers, or smaller samples",
    "SIGSEGV": "a crash in native code, a decoder for example",
    "SIGBUS": "a mapped file that has become shorter, or a file system that is full",
    "SIGABRT": "native code that gave up",
    "SIGFPE": "a division by zero in native code",
    "SIGILL": "a library built for another processor",
    "SIGTERM": "it was asked to end",
}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a worker: what it was doing, why it ended, and the blocks it had."""

    worker: int
    line: Line
    # "was killed by SIGKILL", say, and the likely cause.
    how: str
    # The process's exit code; None if it is unknown, or if we have ended the process.
    code: int | None = None
    # The Python stack, if the worker has written it.
    stack: str = ""
    blocks: tuple[int, ...] = ()  # their numbers
    # If it isn't gone, it may still write into shared memory.
    is_gone: bool = True
    # We had asked it to end after its last block.
    was_asked: bool = False
    # We have ended it because it made no progress.
    was_stuck: bool = False
    # A worker with its number has been ready before.
    is_proven: bool = True
    # Some worker of the iterator has been ready before.
    others_work: bool = True

    @property
    def was_starting(self) -> bool:
        return not self.line.ready

    def __str__(self) -> str:
        return f"worker {self.worker} (pid {self.line.pid}) {self.how}"


def interval_for(limit: float | None) -> float:
    """Return the seconds between two looks, which notice the end of ``limit`` soon."""
    if limit is None:
        return _MOST_S
    return min(limit / _LOOKS, _MOST_S)


class Stopwatch:
    """Counts at most two intervals for each reading.

    So a suspension of this process hardly counts.
    """

    def __init__(
        self,
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = 2 * interval
        self._clock = clock
        self._last = clock()

    @property
    def since(self) -> float:
        """The seconds since the last reading."""
        return self._clock() - self._last

    def lap(self) -> float:
        """Read the stopwatch, and return the seconds since the last reading."""
        passed = min(self.since, self._most)
        self._last = self._clock()
        return passed


class Watch:
    """Finds stuck workers by their lines on the board.

    The prefetch thread looks every ``interval`` seconds.
    """

    def __init__(
        self,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.interval = interval_for(patience)
        self._patience = patience
        self._stopwatch = Stopwatch(self.interval, clock)
        self._seen: dict[int, Line] = {}
        # For how many seconds each worker has made no progress.
        self._still: dict[int, float] = {}

    @property
    def is_due(self) -> bool:
        return self._stopwatch.since >= self.interval

    def look(
        self,
        lines: Mapping[int, Line],
        busy: Collection[int],
    ) -> list[int]:
        """Return the workers that are stuck.

        ``lines`` has each one's line on the board (memory that all share); ``busy`` are
        those that were sent rows.
        """
        passed = self._stopwatch.lap()
        still: dict[int, float] = {}
        for worker, line in lines.items():
            # A worker that is ready and has no block has nothing to do.
            is_to_work = worker in busy or not line.ready
            if is_to_work and line == self._seen.get(worker):
                still[worker] = self._still.get(worker, 0.0) + passed
        self._still = still
        self._seen = dict(lines)
        return [
            worker
            for worker, seconds in still.items()
            if seconds > self.due(lines[worker])
        ]

    def due(self, line: Line) -> float:
        """Return after how many seconds without progress a worker counts as stuck."""
        if line.ready:
            return self._patience
        return max(self._patience, START_S)


class Patience:
    """The time for which ``next()`` may wait for one batch: ``limit`` seconds.

    The start of the workers doesn't count.
    """

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._of_the_start = 0.0
        self._is_over = False

    def ends(
        self,
        waited: float,
        starting: bool,
    ) -> bool:
        """True if the time is over after ``waited`` seconds; once for each batch."""
        if self._limit is None or self._is_over:
            return False
        if starting:
            self._of_the_start = waited
            # Workers may take long to start, but not without end.
            if waited > max(self._limit, START_S):
                self._is_over = True
        if waited - self._of_the_start > self._limit:
            self._is_over = True
        return self._is_over


class Eviction:
    """Ends a worker that has made no progress for too long.

    Each call of ``go_on`` takes a step, if one is due.
    """

    def __init__(
        self,
        worker: int,
        line: Line,
        limit: float,
        box: BlackBox | None,
        shares_memory: bool,
    ) -> None:
        """Ask the worker for its stack.

        If it ``shares_memory`` with this process, it runs on this machine.
        """
        doing = "made no progress" if line.ready else "was not ready to work"
        self.how = f"{doing} for {limit:g} s"
        is_stopped = shares_memory and machine.stat_of(line.pid)[:1] == ["T"]
        if is_stopped:
            self.how += " (it is stopped, SIGSTOP)"
        # Without a box the worker is a thread, whose stack this process can see.
        self.stack = ""
        if shares_memory and not box:
            self.stack = thread_stack(line.pid)
        self._worker = worker
        self._box = box
        self._came = ""
        # When it was asked for its stack, and when it was killed.
        self._asked: float | None = None
        self._killed: float | None = None
        # A stopped process would not answer, so it isn't asked and waited for.
        if box is not None and not is_stopped:
            box.turn_over()
            box.ask(line.pid)
            self._asked = time.monotonic()

    def go_on(self, pool: WorkerPool) -> None:
        """Take the next step: kill the worker, or abandon it if it hasn't ended."""
        now = time.monotonic()
        if self._killed is not None:
            if now - self._killed > _FOR_DYING_S:
                pool.abandon(self._worker)
            return
        box = self._box
        asked = self._asked
        if box is not None and asked is not None and now - asked < _FOR_A_STACK_S:
            before = self._came
            self._came = box.read()
            # Nothing has come yet, or it still grows: half a stack may lack the line
            # that tells where the worker is stuck.
            if not before or before != self._came:
                return
        self.stack = self.stack or self._came
        self._killed = now
        pool.kill(self._worker)


def in_hand(
    blocks: Sequence[Block],
    told: Line,
    stood_still: bool,
) -> Line:
    """Return the line of a worker that doesn't share the board.

    Most likely it was fetching the first of ``blocks``.
    """
    if not blocks:
        return told
    first = blocks[0]
    # A worker that stood still has told us which row it is at.
    if stood_still and told.active == 1 and told.block == first.number:
        return told
    active = 2
    # With a single row there is no doubt which one it was.
    if first.singly and first.rows == 1:
        active = 1
    return told._replace(
        block=first.number,
        row=0,
        active=active,
    )


def ended(code: int) -> str:
    """Return in words how a process with this exit code ended, and the likely cause."""
    if code == VANISHED:
        return "vanished, perhaps with the fork server that had started it"
    if code == 1:
        cause = "an exception that was not caught; see what it printed"
        return f"exited with code {code} ({cause})"
    if code >= 0:
        return f"exited with code {code} (code or a library that called os._exit)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    how = f"was killed by {name}"
    if name in _CAUSES:
        how += f" ({_CAUSES[name]})"
    return how
