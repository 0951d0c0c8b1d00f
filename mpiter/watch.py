"""Who has made no progress for too long: a pure decision from the notice board and a clock.

Runs in the prefetch thread, which looks from time to time while it waits for answers.  Only time counts in which this
process itself was running (``awake``).  Guarantees that a worker is called stuck only after ``patience`` seconds on one
sample (or on getting ready, for which it has a minute at least); and all of them only if nothing has happened at all
on work that was handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from .awake import Awake, interval_for
from .board import Line

START_S = 60.0  # the least that a worker may take to get ready, however impatient one is with samples


class Watch:
    """Looks at the board of one generation of workers."""

    def __init__(self, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval = interval_for(patience)
        self._patience, self._awake = patience, Awake(self.interval, clock)
        self._seen: list[Line] = []
        self._still: list[float] = []  # seconds that each worker has not moved
        self._standstill = 0.0  # seconds that nothing at all has moved
        self._answers = -1

    @property
    def is_due(self) -> bool:
        return self._awake.since >= self.interval

    def look(self, lines: Sequence[Line], answers: int, stopped: Collection[int] = ()) -> list[int] | None:
        """The stuck workers; an empty list if all stand still and none can be blamed; None if there is progress.

        ``answers`` counts what has come back so far; an idle worker may be so, unless it is among the ``stopped``.
        To be called while something is out.
        """
        passed = self._awake.lap()
        if len(self._seen) != len(lines):
            self._seen, self._still = list(lines), [0.0] * len(lines)
        moved = [new != old for new, old in zip(lines, self._seen, strict=True)]
        self._still = [
            0.0 if has_moved or (_is_idle(line) and at not in stopped) else seconds + passed
            for at, (has_moved, line, seconds) in enumerate(zip(moved, lines, self._still, strict=True))
        ]
        self._standstill = 0.0 if any(moved) or answers != self._answers else self._standstill + passed
        self._seen, self._answers = list(lines), answers
        stuck = [at for at, (line, still) in enumerate(zip(lines, self._still, strict=True)) if still > self.due(line)]
        none_is_starting = all(line.ready for line in lines)
        return stuck or ([] if none_is_starting and self._standstill > self._patience else None)

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


def _is_idle(line: Line) -> bool:
    return bool(line.ready and not line.active)
