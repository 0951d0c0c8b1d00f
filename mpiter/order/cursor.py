"""Chainer's iterator state machine: from one place in the epochs to the next, and what lies between.

Pure: functions of values, no thread, no clock.  Guarantees Chainer's epoch arithmetic exactly (``wrap=True`` is its
``repeat=True``: a batch runs on into the next epoch, several times if it is larger than the dataset; ``wrap=False``
with ``epochs=1`` its ``repeat=False``: the last batch is short).  A place is that of all ranks, where there are
several.  The order sampler is asked once per epoch boundary, with the order and the position that Chainer passes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptionError
from .order import Indices, Order, Sampled
from .share import WHOLE, Range, Share

_NONE: Indices = np.empty(0, np.int64)


class Cursor(NamedTuple):
    """A place between two batches: what the user has been handed so far."""

    position: int  # samples of this epoch already handed out
    epoch: int
    is_new_epoch: bool  # did the last batch cross an epoch boundary?
    order: Order
    previous_epoch_detail: float = -1.0  # -1 stands for "no batch yet", as in Chainer's snapshots

    @property
    def epoch_detail(self) -> float:
        length = len(self.order)
        return self.epoch + self.position / length if length else float(self.epoch)


class Stretch(NamedTuple):
    """A run of samples within one epoch: the ``indices`` at ``position``, ``position + 1``, … of ``epoch``."""

    row: int
    epoch: int
    position: int
    indices: Indices | tuple[Any, ...]  # or what else a sampler has given


class Plan(NamedTuple):
    """One batch to come: which samples, and where the iterator stands once it has been handed out."""

    number: int
    rows: int
    stretches: Iterable[Stretch]
    before: Cursor
    after: Cursor
    samples: int | None = None  # if a row isn't one
    fills: int = 0  # of them, the last: they come a second time, to fill up a step of all ranks


def batches_of(length: int, batch_size: int, drop_last: bool, share: Share = WHOLE) -> int:
    """How many batches come of ``length`` samples."""
    return share.batches(length, batch_size, drop_last)


class Plans:
    """What comes after a place."""

    epochs: int | None = None  # that there are in all; None: a loader's, one after the other, or no end

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        """The batch that follows ``cursor``; None at the end."""
        raise NotImplementedError

    def knows(self, cursor: Cursor) -> bool:
        """Is it known what comes next?  Else it will be soon."""
        return True

    def end_at(self, cursor: Cursor) -> bool:
        """Is it plain that nothing comes?  Else that is found out by asking."""
        return False

    def shared(self, share: Share) -> Plans:
        """The batches that one of several ranks gets."""
        raise NotImplementedError

    def samples_before(self, cursor: Cursor) -> int:
        """How many of its epoch all ranks have been handed out there; batches, where a sampler makes them."""
        return cursor.position

    def beyond(self, cursor: Cursor, start: int, stop: int) -> Indices:
        """The samples that come after ``cursor``, from the ``start``-th to before the ``stop``-th, or some of the first
        of these; none where that isn't known yet."""
        return _NONE


@dataclass(frozen=True, slots=True)
class Pace(Plans):
    """How a stream of batches is cut from the epochs."""

    batch_size: int
    wrap: bool = True
    epochs: int | None = None
    drop_last: bool = False
    share: Share = WHOLE

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        return step(cursor, self, number)

    def end_at(self, cursor: Cursor) -> bool:
        return self.epochs is not None and (cursor.epoch >= self.epochs or len(cursor.order) == 0)

    def shared(self, share: Share) -> Pace:
        return replace(self, share=share)

    def beyond(self, cursor: Cursor, start: int, stop: int) -> Indices:
        if not (length := len(cursor.order)):
            return _NONE
        epochs, positions = self._ahead(cursor.position, length, start, stop)
        if self.epochs is not None and cursor.epoch + epochs >= self.epochs:
            return _NONE
        if epochs and isinstance(cursor.order, Sampled):
            return _NONE  # its sampler would have to be asked
        return taken_at(positions, cursor.order.later(epochs) if epochs else cursor.order)

    def _ahead(self, position: int, length: int, start: int, stop: int) -> tuple[int, Indices]:
        """How many epochs on our ``start``-th sample comes, and the positions of those up to the ``stop``-th there."""
        each, share = self.batch_size, self.share
        if self.wrap:  # one epoch after the other, without a seam
            found = position + share.positions(each, start, stop)
            epochs = int(found[0]) // length if len(found) else 0
            return epochs, found[found < (epochs + 1) * length] - epochs * length
        left, whole = (share.samples(one, each, self.drop_last) for one in (length - position, length))
        if start < left:
            return 0, (position + share.positions(each, start, min(stop, left), length - position)) % length
        epochs, within = divmod(start - left, max(1, whole))
        return 1 + epochs, share.positions(each, within, min(within + stop - start, whole), length) % length


def taken_at(positions: Indices, order: Order) -> Indices:
    """What an order has at these positions; it is not disturbed."""
    order = copy.copy(order)  # which keeps what was asked for last
    runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
    return np.concatenate([order.take(int(run[0]), int(run[-1]) + 1) for run in runs]) if len(positions) else _NONE


def step(cursor: Cursor, pace: Pace, number: int = 0) -> Plan | None:
    """The batch that follows ``cursor``, or None at the end."""
    if pace.epochs is not None and cursor.epoch >= pace.epochs:
        return None
    return _wrapped(cursor, pace, number) if pace.wrap else _bounded(cursor, pace, number)


def _wrapped(cursor: Cursor, pace: Pace, number: int) -> Plan:
    together = pace.share.step(pace.batch_size)
    ours = pace.share.rows(pace.batch_size, together)
    stop = cursor.position + together
    if stop < len(cursor.order):  # as most do
        after = Cursor(stop, cursor.epoch, False, cursor.order, cursor.epoch_detail)
        stretch = _stretch(cursor, cursor.position + ours[0], cursor.position + ours[1])
        return Plan(number, pace.batch_size, (stretch,), cursor, after)
    if len(cursor.order) == 0:
        raise OptionError("Epoch size must be positive for an iterator that repeats: the dataset is empty.")
    epochs, position = divmod(stop, len(cursor.order))
    order = cursor.order.following(cursor.position).later(epochs - 1)
    after = Cursor(position, cursor.epoch + epochs, True, order, cursor.epoch_detail)
    return Plan(number, pace.batch_size, _Crossing(cursor, after, ours), cursor, after)


@dataclass(frozen=True, slots=True)
class _Crossing:
    """Our stretches of a step that runs on into other epochs, perhaps millions: found as they are asked for."""

    before: Cursor
    after: Cursor
    ours: Range

    def __iter__(self) -> Iterator[Stretch]:
        place, row, last = self.before, 0, self.after._replace(position=0)
        while place.epoch < last.epoch:
            yield from self._part(place, len(place.order), row)
            row += len(place.order) - place.position
            place = last if place.epoch + 1 == last.epoch else _next_epoch(place)
        yield from self._part(last, self.after.position, row)

    def _part(self, place: Cursor, stop: int, row: int) -> Iterator[Stretch]:
        """What is ours from ``place`` to ``stop``, where the step's ``row``-th row comes first."""
        low, high = (max(0, one - row) + place.position for one in self.ours)
        if low < (high := min(high, stop)):
            yield _stretch(place, low, high, row + low - place.position - self.ours[0])


def _bounded(cursor: Cursor, pace: Pace, number: int) -> Plan | None:
    length, each, share = len(cursor.order), pace.batch_size, pace.share
    stop = cursor.position + each
    if share is WHOLE and stop + each <= length:  # as most do: another whole one follows
        after = Cursor(stop, cursor.epoch, False, cursor.order, cursor.epoch_detail)
        return Plan(number, each, (_stretch(cursor, cursor.position, stop),), cursor, after)
    left = length - cursor.position
    if not share.has_more(each, left, pace.drop_last):
        return step(_next_epoch(cursor), pace, number) if share.has_more(each, length, pace.drop_last) else None
    first, end = share.rows(each, left)
    stop = cursor.position + min(left, share.step(each))
    over = not share.has_more(each, length - stop, pace.drop_last)
    place = _next_epoch(cursor) if over else cursor._replace(position=stop, is_new_epoch=False)
    place = place._replace(previous_epoch_detail=cursor.epoch_detail)
    ours = tuple(_filled(cursor, cursor.position + first, cursor.position + end))
    return Plan(number, end - first, ours, cursor, place, fills=max(0, end - max(first, left)))


def _filled(cursor: Cursor, start: int, stop: int) -> Iterator[Stretch]:
    """From one position to another; beyond the epoch's end lie its first samples, once more."""
    row, length = 0, len(cursor.order)
    while row < stop - start:
        first = (start + row) % length
        stretch = _stretch(cursor, first, min(length, first + stop - start - row), row)
        row += len(stretch.indices)
        yield stretch


def _stretch(cursor: Cursor, start: int, stop: int, row: int = 0) -> Stretch:
    return Stretch(row, cursor.epoch, start, cursor.order.take(start, stop))


def _next_epoch(cursor: Cursor) -> Cursor:
    return cursor._replace(
        position=0,
        epoch=cursor.epoch + 1,
        is_new_epoch=True,
        order=cursor.order.following(cursor.position),
    )
