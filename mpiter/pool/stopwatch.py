"""Time in which this process was running: what neither Ctrl-Z nor a suspended container can make long.

Runs wherever somebody waits and looks up from time to time.  Guarantees that between two looks never more than twice
the intended interval is counted, whatever the clock says meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOKS = 8  # within a limit…
_MOST_S = 1.0  # …and at least one in so many seconds


def interval_for(limit: float | None) -> float:
    """How often to look up in order to notice soon that ``limit`` seconds are over."""
    return _MOST_S if limit is None else min(limit / _LOOKS, _MOST_S)


class Stopwatch:
    """A stopwatch that is read once in an interval."""

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = 2 * interval, clock
        self._last = clock()

    @property
    def since(self) -> float:
        """Seconds since the last reading, whoever was running."""
        return self._clock() - self._last

    def lap(self) -> float:
        """Seconds that count since the last reading."""
        now = self._clock()
        passed, self._last = min(now - self._last, self._most), now
        return passed
