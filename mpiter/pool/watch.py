"""Who has made no progress for too long: a pure decision from the notice board and a clock.

Runs in the prefetch thread, which looks from time to time while it waits for answers.  Only time counts in which this
process itself was running (``stopwatch``).  Guarantees that a worker is called stuck only after ``patience`` seconds
without any progress on what it has been given, or on getting ready, for which it has a minute at least.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from ..worker.board import Line
from .stopwatch import Stopwatch, interval_for

START_S = 60.0  # the least that a worker may take to get ready, however impatient one is with samples


class Watch:
    """Looks at the lines of workers."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval = interval_for(patience)
        self._patience, self._stopwatch = patience, Stopwatch(self.interval, clock)
        self._seen: dict[int, Line] = {}
        self._still: dict[int, float] = {}  # seconds that each worker has not moved

    @property
    def is_due(self) -> bool:
        return self._stopwatch.since >= self.interval

    def look(self, lines: Mapping[int, Line], busy: Collection[int]) -> list[int]:
        """The stuck ones among the workers with these lines, of whom the ``busy`` have something to do."""
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
    """Of a consumer who waits for a batch: ``limit`` seconds, of which the workers' start is none."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self.begin()

    def begin(self) -> None:
        """He waits for another batch."""
        self._of_the_start, self._is_over = 0.0, False

    def ends(self, waited: float, starting: bool) -> bool:
        """Is it over, for the first time, after so many seconds?"""
        if self._limit is None or self._is_over:
            return False
        if starting:
            self._of_the_start = waited
            self._is_over = waited > max(self._limit, START_S)
        else:
            self._is_over = waited - self._of_the_start > self._limit
        return self._is_over
