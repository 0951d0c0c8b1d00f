"""Who changes the number of workers, and of batches that wait, while batches are handed out.

A seam: the loop asks its pilot whenever a task has been answered.  The core's own leaves everything as it was told;
``mpiter.tuning`` has one that follows what it sees, which the package's face makes known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import OptionError
from ..machine import cores
from ..stats import Stats
from .tally import Tracing


class Setting(NamedTuple):
    """What may change while batches are handed out."""

    workers: int
    n_prefetch: int


class Pilot(Protocol):
    """Asked often, so it comes back at once unless there is something to look at."""

    def look(self, batches: int, now: Setting, stats: Callable[[], Stats]) -> Setting | None:
        """After so many batches: another setting from now on, or None."""


class Steady:
    """Everything stays."""

    def look(self, batches: int, now: Setting, stats: Callable[[], Stats]) -> Setting | None:
        return None


@dataclass(frozen=True, slots=True)
class Auto:
    """As many as are of use, from ``least`` to ``most``; None: as many as there are cores, or as memory allows.

    What ``n_processes="auto"`` stands for.

    >>> import mpiter
    >>> with mpiter.batches(range(6), 4, n_processes=mpiter.Auto(most=2), shuffle=False) as stream:
    ...     print(*stream)
    [0 1 2 3] [4 5]
    """

    least: int = 1
    most: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("least", self.least), ("most", self.most)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name}={value!r:.60} must be a whole number from 1 on.")
        if self.most is not None and self.most < self.least:
            raise OptionError(f"most={self.most} is less than least={self.least}.")

    @property
    def bound(self) -> int:
        """How many workers there may be."""
        return self.most or max(self.least, cores())


class Wings:
    """What the core has made by who knows how."""

    pilot: Callable[[Auto | None, Auto | None], Pilot]  # of workers, of batches that wait; None: they stay
    tracer: Callable[[str], Tracing]  # who writes to this file


def auto(value: object) -> Auto | None:
    """What is to be found out, if anything is."""
    if isinstance(value, str) and value == "auto":
        return Auto()
    return value if isinstance(value, Auto) else None
