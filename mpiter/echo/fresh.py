"""Which samples are fetched, each once, when what is handed out has repeats in it.

Runs in the prefetch thread; pure but for the order of later epochs.  A run that begins within an epoch begins with the
samples that are owed, in the order of need, each at its own position.  A place is the number of samples fetched
in the epoch, so that a delivery tells by it which they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..order.cursor import Cursor, Pace, Plan, Plans, Stretch, taken_at
from ..order.order import Indices

KeysOf = Callable[[int, int, Indices, Indices], "Indices | tuple[Any, ...]"]  # epoch, its length, positions, indices


def plainly(epoch: int, length: int, positions: Indices, indices: Indices) -> Indices:
    """The dataset is asked for its indices."""
    return indices


class Fresh(Plans):
    """The ``batch_size`` samples that are needed next, up to the end of the epoch; and so on."""

    def __init__(
        self, batch_size: int, epochs: int | None, epoch: int, head: Indices, upto: int, keys_of: KeysOf = plainly
    ) -> None:
        self._each, self._epochs, self._keys_of = batch_size, epochs, keys_of
        self._epoch, self._head, self._upto = epoch, head, upto  # of this epoch: the head, and what lies from there on
        self._at = {position: number for number, position in enumerate(head.tolist())}

    def count(self, epoch: int, length: int) -> int:
        """How many are fetched of an epoch."""
        return len(self._head) + length - self._upto if epoch == self._epoch else length

    def positions(self, epoch: int, start: int, stop: int) -> Indices:
        """Where in their epoch they lie."""
        if epoch != self._epoch:
            return np.arange(start, stop, dtype=np.int64)
        head = self._head[start:stop]
        shift = self._upto - len(self._head)
        return np.concatenate([head, np.arange(shift + start + len(head), shift + stop, dtype=np.int64)])

    def number_of(self, epoch: int, position: int) -> int:
        """The opposite: how many are fetched before it."""
        if epoch != self._epoch:
            return position
        return self._at.get(position, position - self._upto + len(self._head))

    def delivered(self, after: Cursor, length: int) -> tuple[int, int, int]:
        """Which a delivery has brought that ends at ``after``: the epoch, and from which to which."""
        epoch, stop = (after.epoch, after.position) if after.position else (after.epoch - 1, 0)
        stop = stop or self.count(epoch, length)
        return epoch, (stop - 1) // self._each * self._each, stop

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        length = len(cursor.order)
        if not length or (self._epochs is not None and cursor.epoch >= self._epochs):
            return None
        count, start = self.count(cursor.epoch, length), cursor.position
        if start >= count:
            return self.step(_next_epoch(cursor), number)
        stop = min(count, start + self._each)
        after = cursor._replace(position=stop, is_new_epoch=False) if stop < count else _next_epoch(cursor)
        return Plan(number, stop - start, tuple(self._stretches(cursor, start, stop)), cursor, after)

    def beyond(self, cursor: Cursor, start: int, stop: int) -> Indices:
        shift = 0
        if cursor.epoch == self._epoch:
            head = self._head[cursor.position + start : cursor.position + stop]
            if len(head):
                return taken_at(head, cursor.order)
            shift = self._upto - len(self._head)
        return Pace(self._each, epochs=self._epochs).beyond(cursor, start + shift, stop + shift)

    def _stretches(self, cursor: Cursor, start: int, stop: int) -> Iterator[Stretch]:
        positions = self.positions(cursor.epoch, start, stop)
        row, length = 0, len(cursor.order)
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            first = int(run[0])
            indices = cursor.order.take(first, first + len(run))
            yield Stretch(row, cursor.epoch, first, self._keys_of(cursor.epoch, length, run, indices))
            row += len(run)


def _next_epoch(cursor: Cursor) -> Cursor:
    return cursor._replace(
        position=0, epoch=cursor.epoch + 1, is_new_epoch=True, order=cursor.order.following(cursor.position)
    )
