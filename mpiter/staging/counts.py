"""What has been read where and kept so far, counted by all processes: the numbers behind ``Staging.stats()``.

Runs wherever samples are fetched or copied.  A line of a shared sheet for each thread, by the system's number of it, so
that nobody waits for anybody; two threads whose numbers are a multiple of the lines apart may lose a count.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from .own import Own
from .sheet import Sheet

_LINES = 1021


class Cell(IntEnum):
    """Of a line."""

    HITS = 0
    HIT_BYTES = 1
    STORE_READS = 2  # by who wanted the sample
    STORE_BYTES = 3
    KEPT = 4
    KEPT_BYTES = 5
    REFUSED = 6  # for want of room
    DAMAGED = 7
    LAST_KEPT_NS = 8
    ENDED = 9  # the system's number of why
    SAMPLES = 10  # of the datasets
    FOUND = 11  # of them, that had been copied before


@dataclass(frozen=True, slots=True)
class StagingStats:
    """What a ``Staging`` has done: ``staging.stats()``.

    Attributes:
        hits: samples that were read from the tier.
        hit_bytes: their bytes.
        fallbacks: samples that were read from the store by a worker, since the tier did not have them.
        fallback_bytes: their bytes.
        copied: samples that were copied into the tier.
        copied_bytes: their bytes.
        refused: samples that were not kept for want of room.
        damaged: copies that were found damaged, and were made again.
        samples: samples of the datasets.
        held: samples that the tier has; several that have one source count once.  Whoever is killed
            between keeping a copy and counting it leaves it out.
        held_bytes: bytes of all copies in the tier, other datasets' included.
        capacity: bytes that there may be.
        is_full: whether there is no room for one more of the average size.
        staged_s: seconds until the tier had all that it will have; None: it hasn't yet.
        ended: why nothing more is copied, if the tier could not be written to.

    >>> from mpiter.staging import StagingStats
    >>> print(StagingStats(hits=3, fallbacks=1, samples=4, held=3, held_bytes=3_000, capacity=1_000_000_000))
    75% of 4 reads were local; 3 of 4 samples held; 3 kB of 1 GB used
    """

    hits: int = 0
    hit_bytes: int = 0
    fallbacks: int = 0
    fallback_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    refused: int = 0
    damaged: int = 0
    samples: int = 0
    held: int = 0
    held_bytes: int = 0
    capacity: int = 0
    is_full: bool = False
    staged_s: float | None = None
    ended: str = ""

    @property
    def hit_rate(self) -> float:
        """How many of the samples were read from the tier: 0 to 1."""
        read = self.hits + self.fallbacks
        return self.hits / read if read else 0.0

    def since(self, before: StagingStats) -> StagingStats:
        """What has been read and copied since then."""
        names = ("hits", "hit_bytes", "fallbacks", "fallback_bytes", "copied", "copied_bytes", "refused", "damaged")
        past = {name: getattr(self, name) - getattr(before, name) for name in names}
        return StagingStats(**{**{name: getattr(self, name) for name in self.__slots__}, **past})

    def __str__(self) -> str:
        """A line to read."""
        parts = [
            f"{self.hit_rate:.0%} of {self.hits + self.fallbacks:,} reads were local",
            f"{self.held:,} of {self.samples:,} samples held",
            f"{_words(self.held_bytes)} of {_words(self.capacity)} used",
        ]
        if self.staged_s is not None:
            parts.append(f"{'full' if self.held < self.samples else 'complete'} after {self.staged_s:.1f} s")
        if self.ended:
            parts.append(f"nothing more is copied: {self.ended}")
        return "; ".join(parts)


def _words(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


class Counts:
    """The sheet."""

    def __init__(self) -> None:
        self._lines = Own(_lines_of, Sheet(8 * _LINES * len(Cell)))

    def _line(self) -> Any:
        return self._lines()[threading.get_native_id() % _LINES]

    def read(self, cell: Cell, size: int) -> None:
        """A sample of this size was read from the tier, or from the store."""
        line = self._line()
        line[cell] += 1
        line[cell + 1] += size

    def kept(self, size: int, now_ns: int) -> None:
        """A copy has been made."""
        self.read(Cell.KEPT, size)
        self._line()[Cell.LAST_KEPT_NS] = now_ns

    def add(self, cell: Cell, count: int = 1) -> None:
        """So many more."""
        self._line()[cell] += count

    def total(self, cell: Cell) -> int:
        return int(self._lines()[:, cell].sum())

    def largest(self, cell: Cell) -> int:
        return int(self._lines()[:, cell].max())

    def end(self, error: OSError) -> None:
        """Nothing more is to be copied."""
        self._line()[Cell.ENDED] = error.errno or errno.EIO

    @property
    def why_ended(self) -> str:
        """Why nothing more is copied; empty as long as something may be."""
        number = self.largest(Cell.ENDED)
        return os.strerror(number) if number else ""


def _lines_of(sheet: Sheet) -> Any:
    return np.frombuffer(sheet.map(), np.int64).reshape(_LINES, len(Cell))
