"""The batches of one epoch of a loader: slices of an order, or what a sampler gives.

A place in such an epoch is the number of batches handed out.  ``Sliced`` is arithmetic.  ``Drawn`` asks a sampler, in
the user's own thread and no further ahead than is useful, since samplers draw from generators that belong to the user;
the loop plans what has been drawn.  Guarantees that a sampler is asked for each batch once, however often the loop
starts again, that its error comes in the place of the batch, and that a checksum tells whether two samplers have given
the same."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import StateError
from ..order.cursor import Cursor, Pace, Plan, Plans, Stretch, batches_of
from ..order.order import Indices
from ..order.share import WHOLE, Share
from .walk import Told, Walk

_SHORT_RUN = 1 << 16  # keys that are drawn ahead at the least

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # which is another in each process


@dataclass(frozen=True, slots=True)
class Since:
    """What a sampler has given before, and its place, if it told that: then it goes on from there."""

    batches: int = 0
    samples: int = 0
    checksum: int = 0
    told: Told | None = None


class Sliced(Plans):
    """``batch_size`` samples after ``batch_size`` samples of the cursor's order, after the ``first`` of them."""

    def __init__(self, batch_size: int, drop_last: bool, in_one: bool, first: int = 0, share: Share = WHOLE) -> None:
        self._each, self._drop_last, self._in_one = batch_size, drop_last, in_one
        self.first, self._share = first, share

    def pace(self, epoch: int) -> Pace:
        """The batches of an epoch in the words of iterators, whose places are numbers of samples."""
        return Pace(self._each, wrap=False, epochs=epoch + 1, drop_last=self._drop_last, share=self._share)

    def shared(self, share: Share) -> Sliced:
        return Sliced(self._each, self._drop_last, self._in_one, self.first, share)

    def samples(self, batches: int) -> int:
        """How many of the epoch all ranks have been handed out with so many batches."""
        return self.first + batches * self._share.step(self._each)

    def samples_before(self, cursor: Cursor) -> int:
        return self.samples(cursor.position)

    def draw(self, upto: int) -> None:
        """There is nothing to be asked."""

    def forget(self, before: int) -> None:
        """There is nothing to be forgotten."""

    def forget_error(self, error: Exception) -> None:
        """There is no sampler that it could come from."""

    def checksum(self, batches: int) -> int:
        """None is needed."""
        return 0

    def since(self, batches: int) -> Since | None:
        """There is no sampler that could go on."""
        return None

    def batches(self, length: int) -> int:
        """How many come of ``length`` samples."""
        return batches_of(length - self.first, self._each, self._drop_last, self._share)

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        if cursor.position >= self.batches(len(cursor.order)):
            return None
        plan = self.pace(cursor.epoch).step(self._place(cursor), number)
        assert plan is not None
        plan = plan._replace(before=cursor, after=cursor._replace(position=cursor.position + 1))
        if not self._in_one:
            return plan
        stretches = tuple(plan.stretches)
        keys = np.concatenate([stretch.indices for stretch in stretches]).tolist()
        stretch = Stretch(0, cursor.epoch, stretches[0].position, (keys,))
        return plan._replace(rows=1, stretches=(stretch,), samples=len(keys))

    def beyond(self, cursor: Cursor, start: int, stop: int) -> Indices:
        return self.pace(cursor.epoch).beyond(self._place(cursor), start, stop)

    def _place(self, cursor: Cursor) -> Cursor:
        return cursor._replace(position=self.samples(cursor.position))


@dataclass(frozen=True, slots=True)
class _Lot:
    """A batch that has been drawn."""

    keys: list[Any]
    start: int  # samples before it
    checksum: int  # of all keys up to here
    error: Exception | None = None
    told: Told | StateError | None = None  # the sampler's place after it, if it tells


class Drawn(Plans):
    """The batches that an iterator of lists of keys gives, which are those of ``walk``, or made of it."""

    def __init__(self, batches: Iterator[Sequence[Any]], batch_size: int | None, walk: Walk, since: Since) -> None:
        self._batches, self._walk = batches, walk
        self._in_one = batch_size is None
        self.batch_size = batch_size or 1
        self._count, self._samples, self._checksum = since.batches, since.samples, since.checksum
        before = _Lot([], self._samples, self._checksum, told=_place_told(walk))
        self._lots: dict[int, _Lot] = {self._count - 1: before}
        self._has_ended = False

    def draw(self, upto: int) -> None:
        """Have the batches before the ``upto``-th drawn; what was drawn long ago is forgotten."""
        while self._count < upto and not self._has_ended:
            error = None
            try:
                keys = list(next(self._batches))
            except StopIteration:
                self._has_ended = True
                return
            except Exception as problem:
                keys, error = [], problem
            self._checksum = zlib.crc32(_ADDRESS.sub("", repr(keys)).encode(), self._checksum)
            self._lots[self._count] = _Lot(keys, self._samples, self._checksum, error, _place_told(self._walk))
            self._samples += len(keys)
            self._count += 1
            self._has_ended = error is not None  # not before the loop can find it

    def forget(self, before: int) -> None:
        """Nobody will go back to the batches before this one, the last of them excepted."""
        for number in [number for number in self._lots if number < before - 1]:
            del self._lots[number]

    def forget_error(self, error: Exception) -> None:
        """The user has it; the sampler's own comes once, and then the end."""
        self._lots = {number: lot for number, lot in self._lots.items() if lot.error is not error}

    def checksum(self, batches: int) -> int:
        """What tells this sampler from others, after so many batches."""
        lot = self._lots.get(batches - 1)
        return lot.checksum if lot else 0

    def since(self, batches: int) -> Since | None:
        """Where the sampler can go on after so many batches, if it tells its place."""
        lot = self._lots.get(batches - 1)
        if lot is None or lot.told is None:
            return None
        return Since(batches, lot.start + len(lot.keys), lot.checksum, _known(lot.told))

    def knows(self, cursor: Cursor) -> bool:
        return self._has_ended or cursor.position in self._lots

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        lot = self._lots.get(cursor.position)
        if lot is None:
            return None
        if lot.error is not None:
            raise lot.error
        return _plan(cursor, number, lot.start, _compact(lot.keys), self._in_one)

    def beyond(self, cursor: Cursor, start: int, stop: int) -> Indices:
        last = self._lots.get(cursor.position - 1)
        if last is None:
            return np.empty(0, np.int64)
        before = last.start + len(last.keys)
        return np.array(self._walk.foreseen()[before + start : before + stop], np.int64)


def _plan(cursor: Cursor, number: int, start: int, keys: Indices | tuple[Any, ...], in_one: bool) -> Plan:
    samples = len(keys)
    if in_one:
        keys = (keys.tolist() if isinstance(keys, np.ndarray) else list(keys),)
    after = cursor._replace(position=cursor.position + 1)
    return Plan(number, len(keys), (Stretch(0, cursor.epoch, start, keys),), cursor, after, samples if in_one else None)


def _place_told(walk: Walk) -> Told | StateError | None:
    try:
        return walk.state()
    except StateError as error:  # for those who want the state
        return error


def _known(told: Told | StateError) -> Told:
    if isinstance(told, StateError):
        raise StateError(f"what the sampler's state_dict() returns cannot be saved: {told}")
    return told


def _compact(keys: list[Any]) -> Indices | tuple[Any, ...]:
    if set(map(type, keys)) == {int}:
        try:
            return np.array(keys, np.int64)
        except OverflowError:
            pass
    return tuple(keys)
