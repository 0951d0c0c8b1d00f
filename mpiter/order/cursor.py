"""Chainer's iterator state machine: from one place in the epochs to the next, and what lies between.

Pure: functions of values, no thread, no clock.  Guarantees Chainer's epoch arithmetic exactly (``wrap=True`` is its
``repeat=True``: a batch runs on into the next epoch, several times if it is larger than the dataset; ``wrap=False``
with ``epochs=1`` its ``repeat=False``: the last batch is short).  The order sampler is asked once per epoch boundary,
with the order and the position that Chainer passes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptionError
from .order import Indices, Order, Sampled

_NONE: Indices = np.empty(0, np.int64)


class Cursor(NamedTuple):
    """A place between two batches: what the user has been handed so far."""

    position: int  # samples of this epoch already handed out
    epoch: int
    is_new_epoch: bool  # did the last batch cross an epoch boundary?
    order: Order
    previous_epoch_detail: float = -1.0  # -1 stands for "no batch yet", as in Chainer's snapshots
    extra: tuple[float, ...] = ()  # what else a composer must know

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


def batches_of(length: int, batch_size: int, drop_last: bool) -> int:
    """How many batches come of ``length`` samples."""
    return length // batch_size if drop_last else -(-length // batch_size)


class Plans:
    """What comes after a place."""

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        """The batch that follows ``cursor``; None at the end."""
        raise NotImplementedError

    def knows(self, cursor: Cursor) -> bool:
        """Is it known what comes next?  Else it will be soon."""
        return True

    def end_at(self, cursor: Cursor) -> bool:
        """Is it plain that nothing comes?  Else that is found out by asking."""
        return False

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

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        return step(cursor, self, number)

    def end_at(self, cursor: Cursor) -> bool:
        return self.epochs is not None and (cursor.epoch >= self.epochs or len(cursor.order) == 0)

    def beyond(self, cursor: Cursor, start: int, stop: int) -> Indices:
        length, first = len(cursor.order), cursor.position + start
        epochs = first // length if length else 0
        if self.epochs is not None and cursor.epoch + epochs >= self.epochs:
            return _NONE
        if epochs and isinstance(cursor.order, Sampled):
            return _NONE  # its sampler would have to be asked
        return stretch_of(cursor.order, epochs, first % length if length else 0, stop - start)


def stretch_of(order: Order, epochs: int, start: int, count: int) -> Indices:
    """So many samples, or as many as there are, of the order so many epochs on; it is not disturbed."""
    order = copy.copy(order.later(epochs) if epochs else order)  # which keeps the part that was asked for last
    return order.take(start, min(start + count, len(order)))


def step(cursor: Cursor, pace: Pace, number: int = 0) -> Plan | None:
    """The batch that follows ``cursor``, or None at the end."""
    if pace.epochs is not None and cursor.epoch >= pace.epochs:
        return None
    return _wrapped(cursor, pace, number) if pace.wrap else _bounded(cursor, pace, number)


def _wrapped(cursor: Cursor, pace: Pace, number: int) -> Plan:
    stop = cursor.position + pace.batch_size
    if stop < len(cursor.order):  # as most do
        after = Cursor(stop, cursor.epoch, False, cursor.order, cursor.epoch_detail)
        return Plan(number, pace.batch_size, (_stretch(cursor, stop, 0),), cursor, after)
    if len(cursor.order) == 0:
        raise OptionError("Epoch size must be positive for an iterator that repeats: the dataset is empty.")
    epochs, position = divmod(stop, len(cursor.order))
    order = cursor.order.following(cursor.position).later(epochs - 1)
    after = Cursor(position, cursor.epoch + epochs, True, order, cursor.epoch_detail)
    return Plan(number, pace.batch_size, _Crossing(cursor, after), cursor, after)


@dataclass(frozen=True, slots=True)
class _Crossing:
    """The stretches of a batch that runs on into other epochs, perhaps millions: found as they are asked for."""

    before: Cursor
    after: Cursor

    def __iter__(self) -> Iterator[Stretch]:
        place, row, last = self.before, 0, self.after._replace(position=0)
        while place.epoch < last.epoch:
            stretch = _stretch(place, len(place.order), row)
            row += len(stretch.indices)
            yield stretch
            place = last if place.epoch + 1 == last.epoch else _next_epoch(place)
        if self.after.position:
            yield _stretch(last, self.after.position, row)


def _bounded(cursor: Cursor, pace: Pace, number: int) -> Plan | None:
    length = len(cursor.order)
    stop = min(length, cursor.position + pace.batch_size)
    if pace.drop_last and stop - cursor.position < pace.batch_size:
        return None if length < pace.batch_size else step(_next_epoch(cursor), pace, number)
    stretch = _stretch(cursor, stop, 0)
    over = stop >= length or (pace.drop_last and length - stop < pace.batch_size)
    place = _next_epoch(cursor) if over else cursor._replace(position=stop, is_new_epoch=False)
    place = place._replace(previous_epoch_detail=cursor.epoch_detail)
    if not length:
        return None  # an empty epoch has no batch to hand out
    return Plan(number, len(stretch.indices), (stretch,), cursor, place)


def _stretch(cursor: Cursor, stop: int, row: int) -> Stretch:
    return Stretch(row, cursor.epoch, cursor.position, cursor.order.take(cursor.position, stop))


def _next_epoch(cursor: Cursor) -> Cursor:
    return cursor._replace(
        position=0,
        epoch=cursor.epoch + 1,
        is_new_epoch=True,
        order=cursor.order.following(cursor.position),
    )
