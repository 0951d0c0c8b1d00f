"""A rank's part of an order that all ranks go through together: arithmetic, so that they need not talk.

Pure.  What all ranks are handed out at one time is a *step*: one stretch of the order, cut into a batch for each.  So
a place, the number of samples that all of them together have been handed out, is the same on every rank, and another
number of ranks can go on from it.  Guarantees that the batches of a step are all of it and nothing twice, but for the
samples from the epoch's beginning that fill up its last step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]  # from one number to before another


@dataclass(frozen=True, slots=True)
class Share:
    """What one of ``size`` ranks takes."""

    rank: int = 0
    size: int = 1
    exact: bool = False  # the last step is not filled up: some ranks get less of it than others, or nothing

    def step(self, batch_size: int) -> int:
        """Samples that all ranks take at one time."""
        return batch_size * self.size

    def rows(self, batch_size: int, left: int) -> Range:
        """Which samples of a step are ours, with so many left of the epoch; what lies beyond those fills it up."""
        if left >= self.step(batch_size):
            return self.rank * batch_size, (self.rank + 1) * batch_size
        if self.exact:
            each, more = divmod(left, self.size)
            first = self.rank * each + min(self.rank, more)
            return first, first + each + (self.rank < more)
        each = -(-left // self.size)
        return self.rank * each, (self.rank + 1) * each

    def has_more(self, batch_size: int, left: int, drop_last: bool) -> bool:
        """Is there another batch for us when so many are left of the epoch?"""
        first, stop = self.rows(batch_size, left)
        return first < stop and not (drop_last and left < self.step(batch_size))

    def batches(self, length: int, batch_size: int, drop_last: bool) -> int:
        """How many are ours of so many samples."""
        full, left = divmod(length, self.step(batch_size))
        return full + self.has_more(batch_size, left, drop_last)

    def samples(self, length: int, batch_size: int, drop_last: bool) -> int:
        """How many are ours of so many, the fillings included."""
        full, left = divmod(length, self.step(batch_size))
        first, stop = self.rows(batch_size, left) if self.has_more(batch_size, left, drop_last) else (0, 0)
        return full * batch_size + stop - first

    def positions(self, batch_size: int, start: int, stop: int, length: int | None = None) -> NDArray[np.int64]:
        """Where our ``start``-th to ``stop``-th samples lie in the next ``length``, or in what has no end."""
        ours, step = np.arange(start, max(start, stop), dtype=np.int64), self.step(batch_size)
        found: NDArray[np.int64] = ours + ours // batch_size * (step - batch_size) + self.rank * batch_size
        if length is not None:
            full = length // step
            last = ours >= full * batch_size
            found[last] = ours[last] + full * (step - batch_size) + self.rows(batch_size, length - full * step)[0]
        return found


WHOLE = Share()
