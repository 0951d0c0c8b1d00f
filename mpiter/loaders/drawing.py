"""What comes in an epoch of a loader, and from which place on: slices of an order, or what a sampler gives.

``Drawn`` asks a sampler, in the user's own thread and no further ahead than is useful, since samplers draw from
generators that belong to the user; the loop plans what has been drawn.  Guarantees that a sampler is asked for each
batch once, however often the loop starts again, that its error comes in the place of the batch, and that a checksum
tells whether two samplers have given the same.

A state says a place as JSON-able values.  Guarantees that whatever is loaded has been checked before anything changes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ..errors import StateError
from ..order.cursor import Cursor, Pace, Plan, Plans, Stretch
from ..order.order import Indices
from ..order.state import LARGEST, VERSION, check_kind, number_of, of_another_kind, seed_of, typed
from .samplers import Walk, check_told, savable

_MANY = 1 << 12  # keys that are passed by at once
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # which is another in each process


class Place(NamedTuple):
    """Where an epoch begins, or goes on.

    A position counts what a sampler gives, or an order: samples, of all ranks.  Where a batch sampler or a stream makes
    the batches, it counts these.
    """

    epoch: int = 0
    position: int = 0  # what was handed out before, or left out
    generators: dict[str, Any] | None = None  # what the sampler's draws depended on; None: as things are
    drawn: int = 0  # the position of a sampler or stream of which this is known:
    checksum: int = 0  # …of all that it has given before
    samples: int = 0  # …which makes so many samples
    told: Any = None  # …the sampler's own account of its place, if it gives one: what ``Walk.state()`` says
    stream: dict[str, Any] | None = None  # …how far the shards of a stream have got

    @property
    def is_elsewhere(self) -> bool:
        """Has it been said where the next epoch begins?"""
        return self.generators is not None or self.position > 0


def save(place: Place, seed: int, agreed: dict[str, Any]) -> dict[str, Any]:
    told = savable(place.told, "sampler's")
    return {
        "mpiter": VERSION,
        "epoch": place.epoch,
        "position": place.position,
        "drawn": place.drawn,
        "checksum": place.checksum,
        "seed": str(seed),
        "generators": place.generators or {},
        "loader": agreed,
        **({} if place.stream is None else {"stream": place.stream}),
        **({} if told is None else {"sampler": {"samples": place.samples, "told": told}}),
    }


def load(state: Any, agreed: dict[str, Any]) -> tuple[Place, int]:
    """The place and the seed that ``state`` describes, or a StateError that says what is wrong with it."""
    check_kind(state, "loader")
    saved = typed(state, "loader", dict)
    for name, mine in agreed.items():
        if name not in saved or saved[name] != mine:
            if ("sampler" in saved) != ("sampler" in agreed):
                raise of_another_kind(*(f"mpiter.{'torch.' * ('sampler' in one)}DataLoader" for one in (saved, agreed)))
            raise StateError(
                f"the state was saved with {name}={saved.get(name)!r:.40}, this loader has {name}={mine!r}."
            )
    position, length = number_of(state, "position"), agreed.get("dataset_length", LARGEST)
    place = Place(
        epoch=number_of(state, "epoch"),
        position=position,
        generators=typed(state, "generators", dict),
        drawn=number_of(state, "drawn", high=position),
        checksum=number_of(state, "checksum"),
        stream=_stream(state, agreed["batch_size"] or 1) if agreed["kind"] == "stream" and "stream" in state else None,
    )
    if "sampler" in state:
        sampler = typed(state, "sampler", dict)
        told = check_told(typed(sampler, "told", list))
        place = place._replace(samples=number_of(sampler, "samples"), told=told)
    if agreed["kind"] == "stream" and place.drawn and place.stream is None:
        raise StateError("the state is of a stream, but doesn't say how far its shards were.")
    if position > length:
        raise StateError(f"the state's place is after {position} samples of an epoch that has {length}.")
    return place, seed_of(state)


def _stream(state: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """How far the shards have got, checked."""
    stream: dict[str, Any] = typed(state, "stream", dict)
    is_own, shards = typed(stream, "is_own", bool), typed(stream, "shards", list)
    number_of(stream, "turn", high=max(len(shards) - 1, 0) if is_own else LARGEST)
    if not shards:
        raise StateError("the state is of a stream without any shard.")
    for shard in shards:
        if not isinstance(shard, Mapping):
            raise StateError(f"the state's shard {shard!r:.40} is not of type dict.")
        own = number_of(shard, "batches")
        batches = own if is_own else number_of(state, "drawn")
        typed(shard, "has_ended", bool)
        if mark := typed(shard, "mark", list):
            if [*map(type, mark)] != [int, int, bool, str] or min(mark[:2]) < 0:
                raise StateError("the state's mark in a stream is none.")
            if mark[0] > batches or mark[1] > batches * batch_size:
                raise StateError(f"the state's mark in a stream is beyond its place, after {batches} batches.")
            check_told(mark[3])
    return stream


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
