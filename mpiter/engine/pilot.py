"""What changes the number of workers, and of batches that wait, while batches are handed out: a pilot, which is a hook.

``mpiter.tuning`` has one that follows what it sees.  What wings make the package's face brings here, so that the core
imports none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..errors import OptionError
from ..machine import cores
from ..stats import Stats
from ..worker.block import Done
from .hook import Hook


class Setting(NamedTuple):
    """What may change while batches are handed out."""

    workers: int
    n_prefetch: int


class Pilot(Hook):
    """Looks at each answer, once there is something to see: while workers come and go there isn't."""

    def answered(self, done: Done) -> None:
        loop = self.loop
        if loop.is_settled:
            wanted = self.look(loop.tally.batches, Setting(*loop.setting), partial(loop.stats, looks=False))
            if wanted is not None:
                loop.resize(*wanted)

    def look(self, batches: int, now: Setting, stats: Callable[[], Stats]) -> Setting | None:
        """After so many batches: another setting from now on, or None.  It comes back at once unless it has to look."""
        raise NotImplementedError


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
    """What makes a hook of a wing."""

    pilot: Callable[[Auto | None, Auto | None], Pilot]  # of workers, of batches that wait; None: they stay
    trace: Callable[[str], Any]  # of the file's name
    receipts: Callable[[Any], Any]  # of the folder's


def auto(value: object) -> Auto | None:
    """What is to be found out, if anything is."""
    if isinstance(value, str) and value == "auto":
        return Auto()
    return value if isinstance(value, Auto) else None
