"""What has been read where and kept so far, counted by all processes: the numbers behind ``Staging.stats()``.

Runs wherever samples are fetched or copied.  The numbers lie in memory that all processes map: a forked one inherits
it, another opens it by ``/proc/PID/fd`` of the one that has made it, or else counts for itself.  A thread has a line of
its own; two whose numbers in the system are a multiple of the lines apart may lose a count.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..transport.memory import SharedFile

_LINES = 1021
_LINE = np.dtype([(name, np.int64) for name in ("hits", "fallbacks", "copied", "samples", "held")])


@dataclass(frozen=True, slots=True)
class StagingStats:
    """What a ``Staging`` has done: ``staging.stats()``.

    Attributes:
        hits: samples that were read from the tier.
        fallbacks: samples that a worker has read from the store, since the tier did not have them.
        copied: samples that were copied into the tier.
        samples: samples of the datasets.
        held: samples that the tier has, without those that another program copies meanwhile.
        held_bytes: bytes of all copies in the tier, other datasets' included.
        capacity: the most bytes that there may be.
        is_full: whether there is no room for one more of the average size.
        staged_s: seconds until the tier had all that it will have; None before that.

    >>> from mpiter.staging import StagingStats
    >>> print(StagingStats(hits=3, fallbacks=1, samples=4, held=3, held_bytes=3_000_000, capacity=1_000_000_000))
    75% of 4 reads were local; 3 of 4 samples held; 3.0 of 1,000.0 MB used
    """

    hits: int = 0
    fallbacks: int = 0
    copied: int = 0
    samples: int = 0
    held: int = 0
    held_bytes: int = 0
    capacity: int = 0
    is_full: bool = False
    staged_s: float | None = None

    @property
    def hit_rate(self) -> float:
        """The share of the samples that were read from the tier: 0 to 1."""
        read = self.hits + self.fallbacks
        return self.hits / read if read else 0.0

    def since(self, before: StagingStats) -> StagingStats:
        """The same with what has been read and copied since an earlier look."""
        hits, fallbacks = self.hits - before.hits, self.fallbacks - before.fallbacks
        return replace(self, hits=hits, fallbacks=fallbacks, copied=self.copied - before.copied)

    def __str__(self) -> str:
        end = "full" if self.held < self.samples else "complete"
        return (
            f"{self.hit_rate:.0%} of {self.hits + self.fallbacks:,} reads were local; "
            f"{self.held:,} of {self.samples:,} samples held; "
            f"{self.held_bytes / 1e6:,.1f} of {self.capacity / 1e6:,.1f} MB used"
        ) + ("" if self.staged_s is None else f"; {end} after {self.staged_s:.1f} s")


class Counts:
    """The lines of all threads."""

    def __init__(self) -> None:
        file = SharedFile()
        os.ftruncate(file.fd, _LINES * _LINE.itemsize)
        weakref.finalize(self, file.close)
        self.__setstate__((f"/proc/{os.getpid()}/fd/{file.fd}", os.fstat(file.fd).st_ino))

    def __getstate__(self) -> tuple[str, int]:
        return self._place

    def __setstate__(self, place: tuple[str, int]) -> None:
        self._place = path, inode = place
        self._lines: Any = np.zeros(_LINES, _LINE)
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                self._lines = np.memmap(path, _LINE, "r+", shape=_LINES).view(np.ndarray)

    def add(self, **counts: int) -> None:
        """So many more of each."""
        line = self._lines[threading.get_native_id() % _LINES]
        for name, count in counts.items():
            line[name] += count

    def totals(self) -> dict[str, int]:
        return {name: int(self._lines[name].sum()) for name in _LINE.names or ()}
