"""Which workers are stuck, how one is ended without holding up the others, and how workers end, in words.

``Watch`` decides from the notice board and a clock.  Only time counts in which this process itself was running: neither
Ctrl-Z nor a suspended container makes it long.  Guarantees that a worker is called stuck only after ``patience``
seconds without any progress on what it has been given, or on getting ready, for which it has a minute at least.  An
``Eviction`` runs in the prefetch thread, a step at each look: the worker is asked for its stack, killed, and given up
if it would not die.  ``End`` is what the engine hears of a worker that is no more.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..worker.block import Block
from ..worker.board import BlackBox, Line, is_stopped, thread_stack
from ..worker.home import CUT_OFF
from .pool import VANISHED

STEP_S = 0.01  # between two looks at a worker that is being ended
_FOR_A_STACK_S = 0.5  # that a stuck worker has to show it: a stopped one never does
_FOR_DYING_S = 2.0  # once it is killed: more, and it sits in the kernel
START_S = 60.0  # the least that a worker may take to get ready, however impatient one is with samples
_LOOKS = 8  # within a limit…
_MOST_S = 1.0  # …and at least one in so many seconds

_CAUSES = {
    "SIGKILL": "the out-of-memory killer, or kill -9",
    "SIGSEGV": "a crash in native code, a decoder for example",
    "SIGBUS": "a mapped file that has become shorter, or a file system that is full",
    "SIGABRT": "native code that gave up",
    "SIGFPE": "a division by zero in native code",
    "SIGILL": "a library built for another processor",
    "SIGTERM": "it was asked to end",
}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a worker: what it was doing, and the blocks that it had."""

    worker: int
    line: Line
    how: str  # "was killed by SIGKILL"
    cause: str = ""  # likely, if anything is known
    stack: str = ""  # the Python stack, where one could be had
    blocks: tuple[int, ...] = ()  # their numbers
    is_gone: bool = True  # if not, it may still write into the rooms that it was given
    was_asked: bool = False  # to end, after its last block
    was_stuck: bool = False  # and ended for that
    is_proven: bool = True  # a worker in its place has been ready before
    others_work: bool = True  # some worker has answered

    @property
    def was_starting(self) -> bool:
        return not self.line.ready

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"worker {self.worker} (pid {self.line.pid}) {self.how}{cause}"


def interval_for(limit: float | None) -> float:
    """The seconds between two looks, so that the end of ``limit`` seconds is noticed soon."""
    return _MOST_S if limit is None else min(limit / _LOOKS, _MOST_S)


class Stopwatch:
    """A stopwatch that is read once in an interval, and counts two at most, whatever the clock says."""

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = 2 * interval, clock
        self._last = clock()

    @property
    def since(self) -> float:
        """Seconds since the last reading, also those in which we did not run."""
        return self._clock() - self._last

    def lap(self) -> float:
        """Seconds that count since the last reading."""
        now = self._clock()
        passed, self._last = min(now - self._last, self._most), now
        return passed


class Watch:
    """Looks at the lines of workers, in the prefetch thread, from time to time while that waits for answers."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval = interval_for(patience)
        self._patience, self._stopwatch = patience, Stopwatch(self.interval, clock)
        self._seen: dict[int, Line] = {}
        self._still: dict[int, float] = {}  # seconds that each worker has not moved

    @property
    def is_due(self) -> bool:
        return self._stopwatch.since >= self.interval

    def look(self, lines: Mapping[int, Line], busy: Collection[int]) -> list[int]:
        """The workers that are stuck, by their lines on the board; ``busy`` ones have a block."""
        passed = self._stopwatch.lap()
        self._still = {
            worker: self._still.get(worker, 0.0) + passed
            for worker, line in lines.items()
            if line == self._seen.get(worker) and (worker in busy or not line.ready)
        }
        self._seen = dict(lines)
        return [worker for worker, still in self._still.items() if still > self.due(lines[worker])]

    def due(self, line: Line) -> float:
        """Seconds after which a worker with this line counts as stuck."""
        return self._patience if line.ready else max(self._patience, START_S)


class Patience:
    """A consumer's, who waits for one batch: ``limit`` seconds, of which the workers' start is none."""

    def __init__(self, limit: float | None) -> None:
        self._limit, self._of_the_start, self._is_over = limit, 0.0, False

    def ends(self, waited: float, starting: bool) -> bool:
        """Is it over, for the first time, after so many seconds?"""
        if self._limit is None or self._is_over:
            return False
        if starting:
            self._of_the_start = waited
        self._is_over = waited - self._of_the_start > self._limit or (starting and waited > max(self._limit, START_S))
        return self._is_over


class Eviction:
    """Ends a worker that has made no progress for too long."""

    def __init__(self, worker: int, line: Line, limit: float, box: BlackBox | None, is_here: bool) -> None:
        """``is_here``: it runs on this machine."""
        doing = "made no progress" if line.ready else "was not ready to work"
        stands = is_here and is_stopped(line.pid)
        self.how, self.cause = f"{doing} for {limit:g} s", "it is stopped, SIGSTOP" if stands else ""
        self.stack = "" if box or not is_here else thread_stack(line.pid)
        self._worker, self._box, self._came = worker, box, ""
        self._asked = self._killed = 0.0
        if box is not None and not stands:  # else it would not answer
            box.turn_over()
            box.ask(line.pid)
            self._asked = time.monotonic()

    def go_on(self, pool: Any) -> None:
        """The next step, if it is time for it."""
        now = time.monotonic()
        if not self._killed:
            if self._box is not None and now - self._asked < _FOR_A_STACK_S:
                came, self._came = self._came, self._box.read()
                if not came or came != self._came:  # it has not come to rest
                    return
            self.stack = self.stack or self._came
            self._killed = now
            pool.kill(self._worker)
        elif now - self._killed > _FOR_DYING_S:
            pool.abandon(self._worker)


def in_hand(blocks: Sequence[Block], told: Line, stood_still: bool) -> Line:
    """The line of a worker elsewhere that had the first of these blocks in hand, and told us another line before."""
    if not blocks or (stood_still and told.active == 1 and told.block == blocks[0].number):
        return told
    is_sure = blocks[0].singly and blocks[0].rows == 1
    return told._replace(block=blocks[0].number, row=0, active=1 if is_sure else 2)


def ended(code: int) -> str:
    """Say how a process with this exit code ended."""
    if code == VANISHED:
        return "vanished, perhaps with the fork server that had started it"
    return f"was killed by {_name(-code)}" if code < 0 else f"exited with code {code}"


def cause(code: int, out_of_memory: bool) -> str:
    """Say the likely cause."""
    if code == -signal.SIGKILL and out_of_memory:
        return "the out-of-memory killer: use fewer workers, or smaller samples"
    if code == CUT_OFF:
        return "its dataset has closed descriptors that are not its own, os.closerange() for example"
    if code == 1:
        return "an exception that was not caught; see what it printed"
    if code >= 0:
        return "" if code == VANISHED else "code that called os._exit, or a library that did"
    return _CAUSES.get(_name(-code), "")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
