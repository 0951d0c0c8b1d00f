"""Pilots: hooks that change the number of workers while the loop runs.

``mpiter.tuning`` contains the pilot behind "auto".  ``Wings`` holds what the package registers for the core to call, so
that the core imports no wing (a package that attaches from outside).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import OptionError
from ..machine import cores
from ..worker.block import Done
from .hook import Hook


class Look(NamedTuple):
    """The measurements that a pilot decides by, taken since the first batch."""

    batches: int  # handed out
    seconds: float
    wait_s: float  # that the consumer waited
    fetch_s: float  # of all workers together
    in_flight_batches: int
    room_bytes: int  # of one batch
    worker_bytes: int


class Pilot(Hook):
    """Decides after each answer of a worker, unless workers are just starting or ending."""

    def answered(self, done: Done) -> None:
        loop = self.loop
        if loop.is_settled:
            wanted = self.look(loop.tally.batches, loop.width, loop.look)
            if wanted is not None:
                loop.resize(wanted)

    def look(self, batches: int, now: int, look: Callable[[], Look]) -> int | None:
        """Return the number of workers to change to, or None to keep ``now``; ``batches`` were handed out so far.

        ``look()`` returns the measurements; call it seldom, since it is slow: it reads each worker's memory.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Auto:
    """As many workers as help, from ``least`` to ``most``; ``"auto"`` stands for ``Auto()``.

    With ``most=None`` the limit is the number of cores.

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
        """The largest number of workers."""
        return self.most or max(self.least, cores())


class Wings:
    """Functions by which wings make their hooks; they register them here."""

    pilot: Callable[[Auto], Pilot]
    trace: Callable[[str], Any]  # takes the file's name
    receipts: Callable[[Any], Any]  # takes the folder's name


def auto(value: object) -> Auto | None:
    """Return the ``Auto`` that an argument stands for, or None if it is a number."""
    if isinstance(value, str) and value == "auto":
        return Auto()
    return value if isinstance(value, Auto) else None
