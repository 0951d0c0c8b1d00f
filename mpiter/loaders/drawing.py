"""The batches of one epoch of a loader: slices of an order, or what a sampler gives.

``Drawn`` asks a sampler, in the user's own thread and no further ahead than is useful, since samplers draw from
generators that belong to the user; the loop plans what has been drawn.  Guarantees that a sampler is asked for each
batch once, however often the loop starts again, that its error comes in the place of the batch, and that a checksum
tells whether two samplers have given the same."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ..errors import StateError
from ..order.cursor import Cursor, Pace, Plan, Plans, Stretch
from ..order.order import Indices
from .place import Place
from .walk import Walk

_MANY = 1 << 12  # keys that are passed by at once
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # which is another in each process


@dataclass(frozen=True, slots=True)
class InOne(Pace):
    """Slices of an order of which each travels as one row, since one worker makes the batch."""

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        plan = Pace.step(self, cursor, number)
        if plan is None:
            return None
        stretches = tuple(plan.stretches)
        keys = np.concatenate([stretch.indices for stretch in stretches]).tolist()
        stretch = Stretch(0, cursor.epoch, stretches[0].position, (keys,))
        return plan._replace(rows=1, stretches=(stretch,), samples=len(keys))


class Drawn(Plans):
    """The batches that are made of the keys that ``walk`` gives, or of its lists of keys where there is no size."""

    def __init__(self, walk: Walk, batch_size: int | None, drop_last: bool, in_one: bool, place: Place) -> None:
        self._walk, self._elements, self._size = walk, walk.elements(), batch_size
        self._drop_last, self._in_one = drop_last, in_one
        begun = place if place.told else Place(place.epoch, told=walk.state())
        self._last = begun._replace(position=begun.drawn, generators=None)  # what follows isn't drawn yet
        self._places = {self._last.position: self._last}
        self._lots: dict[int, tuple[int, list[Any] | Exception]] = {}  # by position: samples before it, and its keys
        self._has_ended = False

    def go_to(self, place: Place, generators: dict[str, Any]) -> None:
        """Leave out what lies before a place, unless the sampler, which has these ``generators``, gives other keys."""
        self.skip(place.drawn)
        saved, mine = (place.generators or {}).get("share"), generators.get("share")
        if place.drawn and isinstance(saved, list) and len(saved) == 2 and mine and saved != mine:
            if saved[1:] != mine[1:]:
                raise StateError(f"the state was saved by one of {saved[-1]} processes, this is one of {mine[-1]}.")
            # else it was saved by another of them, which is as far in its own share
        elif place.drawn and (self._last.drawn, self._last.checksum) != (place.drawn, place.checksum):
            raise StateError(
                "the sampler gives other batches than before the state was saved.  Give it a generator of its own to "
                "draw from (an attribute: torch.Generator, numpy Generator or RandomState), or restore what it needs."
            )
        self.skip(place.position)

    def skip(self, position: int) -> None:
        """Have the sampler asked for what lies before a position, if it hasn't been."""
        while self._last.position < position and not self._has_ended:
            self._ask(min(position - self._last.position, _MANY))
        self._places.setdefault(position, self._last._replace(position=position))  # if it has ended before

    def draw(self, here: int, batches: int) -> None:
        """Have so many batches drawn from here on; what lies before is forgotten."""
        for position in [position for position in self._places if position < here]:
            self._lots.pop(position, None)
            del self._places[position]
        while len(self._lots) < batches and not self._has_ended:
            last = self._last
            keys = self._ask(self._size, self._drop_last)
            if keys is not None:
                self._lots[last.position] = last.samples, keys
                self._has_ended = isinstance(keys, Exception)  # not before the loop can find it

    def _ask(self, count: int | None, whole: bool = False) -> list[Any] | Exception | None:
        """The next so many keys, or the next list of them; an error of the sampler's; or None at the end."""
        last = self._last
        try:
            keys = list(next(self._elements) if self._size is None else islice(self._elements, count))
        except StopIteration:
            keys = None
        except Exception as error:
            return error
        if keys is None or (self._size and (not keys or (whole and len(keys) < self._size))):
            self._has_ended = True
            return None
        position = last.position + (1 if self._size is None else len(keys))
        checksum = zlib.crc32(_ADDRESS.sub("", repr(keys)[1:-1] + ", ").encode(), last.checksum)
        samples, told = last.samples + len(keys), self._walk.state()
        self._last = Place(last.epoch, position, None, position, checksum, samples, told)
        self._places[position] = self._last
        return keys

    def forget_error(self, error: Exception) -> None:
        """The user has it; the sampler's own comes once, and then the end."""
        self._lots = {position: lot for position, lot in self._lots.items() if lot[1] is not error}

    def place(self, position: int) -> Place:
        """Where the sampler can go on."""
        return self._places.get(position, self._last)

    def knows(self, cursor: Cursor) -> bool:
        return self._has_ended or cursor.position in self._lots

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        if cursor.position not in self._lots:
            return None
        start, keys = self._lots[cursor.position]
        if isinstance(keys, Exception):
            raise keys
        count = len(keys)
        after = cursor._replace(position=cursor.position + (1 if self._size is None else count))
        if self._in_one:
            return Plan(number, 1, (Stretch(0, cursor.epoch, start, (keys,)),), cursor, after, count)
        return Plan(number, count, (Stretch(0, cursor.epoch, start, _compact(keys)),), cursor, after)

    def beyond(self, cursor: Cursor, start: int, stop: int) -> Indices:
        before = self.place(cursor.position).samples
        return np.array(self._walk.foreseen()[before + start : before + stop], np.int64)


def _compact(keys: list[Any]) -> Indices | tuple[Any, ...]:
    if set(map(type, keys)) == {int}:
        try:
            return np.array(keys, np.int64)
        except OverflowError:
            pass
    return tuple(keys)
