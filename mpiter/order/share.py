"""A rank's part of an order that all ranks go through together: arithmetic, so that they need not talk.

What all ranks are handed out at one time is a *step*: one stretch of the order, cut into a batch for each.  So a place,
the number of samples that all of them together have been handed out, is the same on every rank, and another number of
ranks can go on from it.  The batches of a step are all of it and nothing twice, but for the samples from the epoch's
beginning that fill up its last step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """What one of ``size`` ranks takes."""

    rank: int = 0
    size: int = 1
    exact: bool = False  # the last step is not filled up: some ranks get less of it than others, or nothing

    def step(self, batch_size: int) -> int:
        """Samples that all ranks take at one time."""
        return batch_size * self.size

    def rows(self, batch_size: int, left: int) -> tuple[int, int]:
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
        """How many samples are in those batches, the fillings included."""
        full, left = divmod(length, self.step(batch_size))
        first, stop = self.rows(batch_size, left) if self.has_more(batch_size, left, drop_last) else (0, 0)
        return full * batch_size + stop - first


WHOLE = Share()
