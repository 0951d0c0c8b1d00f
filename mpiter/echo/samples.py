"""Batches of samples that come several times, far apart.

Runs in the consumer's thread.  What a batch holds is a pure function of the cursor, whose ``extra`` says how many rows
of the epoch are out, and the epoch's factor; this takes fresh samples until all of them are here, gathers copies, and
keeps samples until their last repeat is out.  A sample counts in ``position`` once that is so.  Guarantees that a run
that begins anywhere gives the same batches, as the samples that are owed are fetched again, each as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..engine.run import Delivery
from ..loaders.drawing import Sliced
from ..order.cursor import Cursor, Pace, Plans
from ..order.order import Indices
from .bundles import Key
from .factors import Factors
from .fresh import Fresh, plainly
from .held import Held, part_of
from .order import Echoed, Repeats

_Sample = tuple[int, int]  # epoch and position
_NOWHERE = 1 << 62, 0


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows of a batch that are of one epoch."""

    epoch: int
    stop: int  # rows of the epoch that are out then
    positions: list[int]
    repeats: list[int]


class EchoedSamples:
    """A composer of samples; ``width`` is how many augmentations the workers send of each, 0 where that is the sample
    itself."""

    def __init__(self, name: str, factors: Factors, buffer: int, width: int) -> None:
        self.name, self._factors, self._buffer, self._width = name, factors, buffer, width
        self.taken, self.is_sound = 0, True
        self._pace, self._seed, self._length = Pace(1), 0, 0
        self._counts_batches = False  # a place is a number of batches, as a loader's is, not of samples
        self._fresh: Fresh
        self._orders: dict[int, Echoed] = {}
        self._held = Held()
        self._left: dict[_Sample, int] = {}  # how often those that have come will come again
        self._gone = 0  # samples of the epoch that will not come again
        self._out = 0, 0  # an epoch, and how many rows of it had been handed out when the two above were counted
        self._reached = 0, 0  # an epoch, and how many samples of it the workers have delivered, or found to fail

    # -- places --------------------------------------------------------------------------------------------------

    def begin(self, cursor: Cursor, plans: Plans, seed: int) -> tuple[Cursor, Plans]:
        assert isinstance(plans, (Pace, Sliced))
        epoch, self._counts_batches = cursor.epoch, isinstance(plans, Sliced)
        self._factors.begin(epoch, cursor.extra[1] if cursor.extra else None)
        self._pace = plans.pace(epoch) if isinstance(plans, Sliced) else plans
        self._seed, self._length, self._orders = seed, len(cursor.order), {}
        rows, order = self._rows(cursor), self._order(epoch)
        head, upto = order.needed(rows)
        left, self._gone = order.owed(rows)
        self._left = {(epoch, position): count for position, count in left.items()}
        keys_of = self._keys if self._width else plainly
        self._fresh = Fresh(self._pace.batch_size, self._pace.epochs, epoch, head, upto, keys_of)
        self._held, self._out, self._reached = Held(), (epoch, rows), (epoch, 0)
        self.taken, self.is_sound = 0, True
        return cursor._replace(position=0, is_new_epoch=False, extra=()), self._fresh

    def _rows(self, cursor: Cursor) -> int:
        """How many of the epoch are out."""
        if self._counts_batches:
            return min(cursor.position * self._pace.batch_size, self._order(cursor.epoch).total)
        return round(cursor.extra[0]) if cursor.extra else 0

    def _order(self, epoch: int) -> Echoed:
        if epoch not in self._orders:
            factor = self._factors.of(epoch)
            self._orders[epoch] = Echoed(self._length, factor, self._seed, epoch, self._buffer)
            self._orders.pop(epoch - 2, None)
        return self._orders[epoch]

    def _keys(self, epoch: int, length: int, positions: Indices, indices: Indices) -> tuple[Key, ...]:
        """How often each is wanted; in the prefetch thread."""
        repeats = Repeats(length, self._factors.of(epoch), self._seed, epoch).of(positions)
        return tuple(map(Key, indices.tolist(), repeats.tolist()))

    def _parts(self, cursor: Cursor) -> tuple[list[_Part], Cursor] | None:
        """The batch that follows, and where one is then; but for the cursor's position.  None at the end."""
        pace, need, parts = self._pace, self._pace.batch_size, list[_Part]()
        if (pace.epochs is not None and cursor.epoch >= pace.epochs) or not self._length:
            return None
        extra = float(self._rows(cursor)), self._factors.of(cursor.epoch)
        here = cursor._replace(is_new_epoch=False, previous_epoch_detail=cursor.epoch_detail, extra=extra)
        while need > 0:
            order, out = self._order(here.epoch), round(here.extra[0])
            stop = min(order.total, out + need)
            if out >= order.total or (pace.drop_last and stop - out < need):
                if pace.drop_last and order.total < need:
                    return None
                here = self._next_epoch(here)
                if pace.epochs is not None and here.epoch >= pace.epochs:
                    return None
                continue
            positions, repeats = order.take(out, stop)
            parts.append(_Part(here.epoch, stop, positions.tolist(), repeats.tolist()))
            need -= stop - out
            is_over = stop == order.total or (pace.drop_last and order.total - stop < pace.batch_size)
            if not is_over:
                here = here._replace(extra=(float(stop), self._factors.of(here.epoch)))
                continue
            here = self._next_epoch(here)
            if not pace.wrap:
                break
        return parts, here

    def _next_epoch(self, here: Cursor) -> Cursor:
        return here._replace(
            epoch=here.epoch + 1,
            position=0,
            is_new_epoch=True,
            order=here.order.following(here.position),
            extra=self.extra_of(here.epoch + 1),
        )

    def _gone_after(self, parts: list[_Part], after: Cursor) -> int:
        """How many samples of the epoch will not come again once these rows are out."""
        last = parts[-1]
        if last.epoch != after.epoch:
            return 0
        gone = self._gone if last.epoch == self._out[0] else 0
        return gone + sum(1 for _, left in self._lefts(last) if left == 0)

    def _lefts(self, part: _Part) -> Iterator[tuple[_Sample, int]]:
        """The samples of these rows, and how often each comes after them."""
        repeats = self._order(part.epoch).repeats
        for position, count in Counter(part.positions).items():
            sample = part.epoch, position
            before = self._left.get(sample)
            yield sample, (repeats.times(position) if before is None else before) - count

    # -- batches -------------------------------------------------------------------------------------------------

    def next(self, cursor: Cursor, take: Callable[[], Delivery], sample_s: float) -> Delivery:
        self._factors.asked(sample_s)
        self._note_what_is_out(cursor)
        found = self._parts(cursor)
        if found is None:
            return Delivery(cursor, counts=False)
        parts, after = found
        keys = [(p.epoch, at, k) for p in parts for at, k in zip(p.positions, p.repeats, strict=True)]
        while not all(self._held_as(key) in self._held or self._has_failed(key) for key in keys):
            delivery = take()
            self._take_in(delivery)
            if delivery.error is not None:
                return Delivery(cursor, error=delivery.error, counts=delivery.counts)
        here = [key for key in keys if self._held_as(key) in self._held]
        if self._counts_batches:
            after = cursor._replace(position=cursor.position + 1, extra=(0.0, self._factors.of(cursor.epoch)))
        else:
            after = after._replace(position=self._gone_after(parts, after))
        if not here:
            return Delivery(after)
        self._factors.gave(len(here))
        fresh = sum(1 for *_, repeat in here if repeat == 0)
        return Delivery(after, self._held.gather([self._held_as(key) for key in here]), fresh=fresh)

    def handed_out(self) -> None:
        """The cursor says so."""

    def _held_as(self, key: tuple[int, int, int]) -> tuple[int, int, int]:
        return key if self._width else (*key[:2], 0)

    def _has_failed(self, key: tuple[int, int, int]) -> bool:
        """It isn't here, though later ones are."""
        epoch, taken = self._reached
        return key[0] < epoch or (key[0] == epoch and self._fresh.number_of(*key[:2]) < taken)

    @contextmanager
    def _books_open(self) -> Iterator[None]:
        """Ctrl-C in here has the run begin anew."""
        self.is_sound = False
        yield
        self.is_sound = True

    def _take_in(self, delivery: Delivery) -> None:
        with self._books_open():
            if not delivery.counts:
                self._reached = _NOWHERE  # the end: what isn't here has failed
            else:
                epoch, start, stop = self._fresh.delivered(delivery.after, self._length)
                if delivery.contents is not None:
                    self._keep(delivery.contents, epoch, self._fresh.positions(epoch, start, stop))
                self._reached = epoch, stop
            self.taken += 1

    def _keep(self, contents: Any, epoch: int, positions: Indices) -> None:
        samples = list(enumerate(positions.tolist()))
        if not self._width:
            self._held.put(contents, {row: (epoch, position, 0) for row, position in samples})
            return
        counts = self._order(epoch).repeats.of(positions).tolist()
        for repeat in range(max(counts)):
            keys = {row: (epoch, position, repeat) for row, position in samples if repeat < counts[row]}
            self._held.put(part_of(contents, repeat, self._width), keys)

    def _note_what_is_out(self, cursor: Cursor) -> None:
        """Give up what won't come again after the rows before ``cursor``."""
        here = cursor.epoch, self._rows(cursor)
        if here <= self._out:
            self.is_sound &= here == self._out
            return
        with self._books_open():
            while self._out < here:
                epoch, out = self._out
                order = self._order(epoch)
                stop = here[1] if epoch == here[0] else order.total
                positions, repeats = order.take(out, stop)
                part = _Part(epoch, stop, positions.tolist(), repeats.tolist())
                for sample, left in list(self._lefts(part)):
                    self._left[sample] = left
                    if left:
                        continue
                    del self._left[sample]
                    self._gone += 1
                    for repeat in range(self._width or 1):
                        self._held.drop((*sample, repeat))
                for use in zip(part.positions, part.repeats, strict=True) if self._width else ():
                    self._held.drop((epoch, *use))
                if epoch == here[0]:
                    self._out = here
                else:
                    self._out, self._gone = (epoch + 1, 0), 0

    def extra_of(self, epoch: int) -> tuple[float, ...]:
        return 0.0, self._factors.of(epoch)

    # -- how many ------------------------------------------------------------------------------------------------

    def batches(self, length: int, batch_size: int, drop_last: bool) -> int | None:
        if not self._factors.is_known:
            return None
        total = Repeats(length, self._factors.of(0), 0, 0).total
        return total // batch_size if drop_last else -(-total // batch_size)

    def batches_before(self, cursor: Cursor, batch_size: int) -> int:
        return -(-self._rows(cursor) // batch_size)
