"""Finds workers that have made no progress for too long: pure decisions from the notice board and a clock.

Only time counts in which this process itself was running: neither Ctrl-Z nor a suspended container makes it long.
Guarantees that a worker is called stuck only after ``patience`` seconds without any progress on what it has been given,
or on getting ready, for which it has a minute at least.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from ..worker.board import Line

START_S = 60.0  # the least that a worker may take to get ready, however impatient one is with samples
_LOOKS = 8  # within a limit…
_MOST_S = 1.0  # …and at least one in so many seconds


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
