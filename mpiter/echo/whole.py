"""Whole batches several times each, one time after the other.

Runs in the consumer's thread.  An iterator's cursor stays before a batch until that has been handed out for the last
time; its ``extra`` says how often it has been before, and the epoch's factor.  A loader's place is the number of
batches handed out, which says the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from ..engine.run import Delivery
from ..loaders.drawing import Sliced
from ..order.cursor import Cursor, Pace, Plans, batches_of
from .factors import Factors
from .held import private
from .order import Repeats


class EchoedBatches:
    """A composer of batches."""

    def __init__(self, name: str, factors: Factors) -> None:
        self.name, self._factors = name, factors
        self.taken, self.is_sound = 0, True
        self._kept: tuple[tuple[int, int], Delivery] | None = None  # the place before a batch, and the batch
        self._plans: Pace | Sliced = Pace(1)
        self._seed = 0

    def begin(self, cursor: Cursor, plans: Plans, seed: int) -> tuple[Cursor, Plans]:
        assert isinstance(plans, (Pace, Sliced))
        self._plans, self._seed = plans, seed
        self._factors.begin(cursor.epoch, cursor.extra[1] if cursor.extra else None)
        self._kept, self.taken = None, 0
        number, _ = self._place(cursor)
        fetched = cursor.position if isinstance(plans, Pace) else number
        return cursor._replace(position=fetched, extra=()), plans

    def _place(self, cursor: Cursor) -> tuple[int, int]:
        """The batch of the epoch that comes next, and how often it has come before."""
        if isinstance(self._plans, Pace):
            return cursor.position // self._plans.batch_size, round(cursor.extra[0]) if cursor.extra else 0
        repeats = self._repeats(cursor)
        number = bisect_right(range(repeats.length + 1), cursor.position, key=repeats.before) - 1
        return number, cursor.position - repeats.before(number)

    def _repeats(self, cursor: Cursor) -> Repeats:
        plans, length = self._plans, len(cursor.order)
        if isinstance(plans, Pace):
            batches = batches_of(length, plans.batch_size, plans.drop_last)
        else:
            batches = plans.batches(length)
        return Repeats(batches, self._factors.of(cursor.epoch), self._seed, cursor.epoch)

    def next(self, cursor: Cursor, take: Callable[[], Delivery], sample_s: float) -> Delivery:
        self._factors.asked(sample_s)
        number, before = self._place(cursor)
        if self._kept is None or self._kept[0] != (cursor.epoch, number):
            delivery = take()
            self._kept = None if delivery.contents is None else ((cursor.epoch, number), delivery)
            self.taken += 1
            if not delivery.counts:
                return delivery
        else:
            delivery = self._kept[1]
        repeats = self._repeats(cursor)
        is_last = delivery.contents is None or before + 1 >= repeats.times(number)
        here = cursor._replace(is_new_epoch=False, previous_epoch_detail=cursor.epoch_detail)
        if isinstance(self._plans, Sliced):
            position = repeats.before(number + 1) if is_last else cursor.position + 1
            after = here._replace(position=position, extra=(0.0, self._factors.of(here.epoch)))
        elif is_last:
            after = delivery.after._replace(extra=(0.0, self._factors.of(delivery.after.epoch)))
        else:
            after = here._replace(extra=(before + 1.0, self._factors.of(here.epoch)))
        if delivery.contents is None:
            return replace(delivery, after=after)
        rows = delivery.contents.rows - len(delivery.contents.failed) if delivery.samples is None else delivery.samples
        self._factors.gave(rows)
        contents = delivery.contents if is_last else private(delivery.contents)
        return replace(delivery, after=after, contents=contents, fresh=0 if before else rows)

    def handed_out(self) -> None:
        """The cursor says so."""

    def extra_of(self, epoch: int) -> tuple[float, ...]:
        return 0.0, self._factors.of(epoch)

    def batches(self, length: int, batch_size: int, drop_last: bool) -> int | None:
        if not self._factors.is_known:
            return None
        return Repeats(batches_of(length, batch_size, drop_last), self._factors.of(0), 0, 0).total

    def batches_before(self, cursor: Cursor, batch_size: int) -> int:
        number, before = self._place(cursor)
        return self._repeats(cursor).before(number) + before
