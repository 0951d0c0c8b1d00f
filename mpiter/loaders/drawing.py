"""The batches of an epoch: slices of an order, or the keys that a sampler gives.

A sampler is opaque: it may draw from a generator that it holds, from the loader's, or
from the global ones.  So ``Drawn`` iterates over it in the user's own thread, and no
further ahead than batches may be in flight.  Guarantees that a sampler is asked for
each batch once, however often the loop starts again; that its error is raised in place
of the batch; and that a checksum shows whether it has given the same keys as before.
"""

from __future__ import annotations

import array
import contextlib
import operator
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np

from ..errors import StateError
from ..order.cursor import (
    Cursor,
    Pace,
    Plan,
    Plans,
    Stretch,
    Whole,
    listed,
    make_cursor,
)
from ..order.order import Keys
from ..order.state import LARGEST, begun, check, number_of, typed
from ..samples.jsonable import decoded, encoded
from ..samples.tensors import torch_with
from ..worker.seeding import give_back, global_generators, state_of
from .shards import check_told

_MANY = 1 << 12  # keys that are skipped at once
_OF_LISTS: type[Iterator[Any]] = type(iter([]))
# An address in a ``repr()`` differs between processes, so it can't be part of a
# checksum that another process compares.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Start(NamedTuple):
    """The place where an epoch begins or goes on.

    ``position`` and ``drawn`` count samples, those of all ranks together; with a batch
    sampler or a stream, batches.
    """

    epoch: int = 0
    # What was handed out before.  A short last batch that is dropped counts as handed
    # out.
    position: int = 0
    # The states of the sampler's random generators; None leaves them as they are now.
    generators: dict[str, Any] | None = None
    # How much of ``position`` the sampler or the stream has given.  The fields below
    # describe that part.
    drawn: int = 0
    checksum: int = 0  # of the sampler's keys
    samples: int = 0  # the number of its keys
    # How far each shard of a stream has been read.
    stream: dict[str, Any] | None = None
    # The epoch has the seed of the one before it, so none is drawn when it begins.
    keeps_seed: bool = False


def save(place: Start, seed: int, agreed: dict[str, Any]) -> dict[str, Any]:
    """Return a state.

    A loader that loads it must agree with the options in ``agreed``.
    """
    state = {
        **begun(agreed, seed),
        "epoch": place.epoch,
        "position": place.position,
        "drawn": place.drawn,
        "checksum": place.checksum,
        "generators": place.generators or {},
    }
    if place.stream is not None:
        state["stream"] = place.stream
    if place.keeps_seed:
        state["keeps_seed"] = True
    return state


def load(state: Any, agreed: dict[str, Any]) -> tuple[Start, int]:
    """Return the place and the seed in ``state``.

    Raise a StateError that says what is wrong with the state if it can't be loaded.
    """
    seed = check(state, agreed, "loader")
    epoch = number_of(state, "epoch")
    furthest = agreed.get("dataset_length", LARGEST)
    position = number_of(state, "position", high=furthest)
    place = Start(
        epoch=epoch,
        position=position,
        generators=typed(state, "generators", dict),
        drawn=number_of(state, "drawn", high=position),
        checksum=number_of(state, "checksum"),
        keeps_seed="keeps_seed" in state and typed(state, "keeps_seed", bool),
    )
    # A stream that nothing was read of needn't have told anything.
    is_read = place.drawn > 0 or "stream" in state
    if agreed["kind"] == "stream" and is_read:
        stream = _stream(state, agreed["batch_size"] or 1)
        place = place._replace(stream=stream)
    return place, seed


def _stream(state: Mapping[str, Any], batch_size: int) -> dict[str, Any]:
    """Return how far each shard of a stream has been read, once that is checked."""
    stream: dict[str, Any] = typed(state, "stream", dict)
    is_own = typed(stream, "is_own", bool)
    shards = typed(stream, "shards", list)
    if not shards:
        raise StateError("the state is of a stream without any shard.")
    last_turn = LARGEST
    if is_own:
        last_turn = len(shards) - 1
    number_of(stream, "turn", high=last_turn)
    for shard in shards:
        batches = number_of(shard, "batches")
        # A shard that the library makes reads the batches of all shards.
        if not is_own:
            batches = number_of(state, "drawn")
        typed(shard, "has_ended", bool)
        mark = typed(shard, "mark", list)
        if not mark:
            continue
        kinds = [*map(type, mark)]
        if (
            kinds != [int, int, bool, str]
            or not 0 <= mark[0] <= batches
            or not 0 <= mark[1] <= batches * batch_size
        ):
            raise StateError(
                f"the state's mark in a stream is none within its {batches} batches."
            )
        check_told(mark[3])
    return stream


@dataclass(frozen=True, slots=True)
class InOne(Pace):
    """Cuts batches from an order, each as one row, since a single worker makes it."""

    # ``Pace`` plans several batches from one slice of the order.  Here each batch has
    # to become a row of its own, so they are planned singly.
    ahead = Plans.ahead

    def whole(self, cursor: Cursor) -> Whole | None:
        found = Pace.whole(self, cursor)
        if found is None:
            return None
        keys, count, position, after = found
        return [listed(keys)], count, position, after

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        plan = Pace.step(self, cursor, number)
        if plan is None:
            return None
        stretches = [*plan.stretches]
        keys = list[Any]()
        for stretch in stretches:
            keys += listed(stretch.indices)
        row = stretches[0]._replace(indices=(keys,))
        return plan._replace(rows=1, stretches=(row,), samples=len(keys))


class _Lot(NamedTuple):
    """What a sampler gave for one batch (keys or an error), and the place before."""

    before: Start
    keys: list[Any] | Exception


class Drawn(Plans):
    """Plans batches of a sampler's keys.

    Each batch has ``batch_size`` of the keys; without a ``batch_size`` the sampler
    gives lists, and each list is a batch.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        place: Start,
        batch_size: int | None,
        drop_last: bool,
        in_one: bool,
        length: int | None = None,
        size: int = 1,
    ) -> None:
        self._sampler = sampler
        # The length of the epoch, if the sampler gives each sample once.
        self._length = length
        # The number of ranks that have such a sampler.
        self._ranks = size
        self._size = batch_size
        self._drop_last = drop_last
        self._in_one = in_one
        self._keys: Iterator[Any] | None = None
        # The place up to which keys are drawn.
        self._last = Start(place.epoch)
        # What the sampler gave last, and at which place.
        self._given: tuple[Start | None, Any] = None, ()
        self._lots: dict[int, _Lot] = {}  # by position
        self._has_ended = False

    @property
    def drops(self) -> int:
        if self._drop_last:
            return (self._size or 1) * self._ranks
        return 0

    def covers(self, cursor: Cursor) -> int | None:
        return self._length

    def begin(self) -> Iterator[Any]:
        """Call the sampler's ``iter()`` now, and return an iterator over its keys.

        Otherwise it is called when the first key is asked for.
        """
        found = iter(self._sampler)
        # Some samplers are their own iterators and begin anew whenever ``iter()`` is
        # called, which ``islice`` does for every batch.  So it is given an iterator
        # that only calls ``next()``; Python's own, and generators, need none.
        is_pythons = type(found).__module__ == "builtins"
        if is_pythons:
            self._keys = found
        else:
            self._keys = map(next, repeat(found))
        return self._keys

    def go_to(self, place: Start, generators: dict[str, Any]) -> None:
        """Skip the keys before ``place``.

        Raise a StateError if they aren't those that were given when it was saved.
        """
        self._pass_by(place.drawn)
        saved: list[int] = (place.generators or {}).get("share") or []
        mine: list[int] = generators.get("share") or []
        is_another_ranks = (
            isinstance(saved, list) and len(saved) == 2 and mine and saved != mine
        )
        if place.drawn and is_another_ranks:
            # Another rank has saved the state.  Its sampler gave other keys, so their
            # checksum tells nothing here, but it was as far in its own share.
            if saved[1:] != mine[1:]:
                raise StateError(
                    f"the state was saved by one of {saved[-1]} processes, this is one "
                    f"of {mine[-1]}."
                )
        elif place.drawn:
            here = (self._last.drawn, self._last.checksum)
            if here != (place.drawn, place.checksum):
                raise StateError(
                    "the sampler gives other batches than before the state was saved.  "
                    "Give it a generator of its own to draw from (an attribute: "
                    "torch.Generator, numpy Generator or RandomState), or restore what "
                    "it needs."
                )
        self._pass_by(place.position)

    def _pass_by(self, position: int) -> None:
        """Draw the keys before ``position`` from the sampler, and drop them."""
        while self._last.position < position and not self._has_ended:
            left = position - self._last.position
            keys = self._ask(min(left, _MANY))
            if isinstance(keys, Exception):
                raise keys
            if keys is not None:
                self._go_behind(keys)

    def draw(self, here: int, batches: int) -> None:
        """Draw until the ``batches`` batches from position ``here`` on are known.

        Those before ``here`` are forgotten.
        """
        lots = self._lots
        # Ctrl-C came after these keys were kept as a lot and before the place behind
        # them was noted.  That is made up for now, since the place must be behind all
        # lots before some of them are dropped, and no keys are drawn after an error.
        if self._last.position in lots:
            self._go_behind(lots[self._last.position].keys)
        for position in [*lots]:
            if position < here:
                del lots[position]
        while len(lots) < batches and not self._has_ended:
            before = self._last
            keys = self._ask(self._size, self._drop_last)
            if keys is not None:
                lots[before.position] = _Lot(before, keys)
                self._go_behind(keys)
                self._go_round_generator()

    def _ask(
        self,
        count: int | None,
        whole: bool = False,
    ) -> list[Any] | Exception | None:
        """Return the sampler's next ``count`` keys, or the next list that it gives.

        They are the same until ``_go_behind``, since Ctrl-C may come between the two.
        If the sampler raises an exception, that is returned.  None is returned at its
        end, or with ``whole`` if too few keys are left.
        """
        given: list[Any] | Exception
        if self._given[0] is self._last:
            given = self._given[1]
        else:
            try:
                if self._size is None:
                    count = 1
                some = islice(self._keys or self.begin(), count)
                # The keys are taken by the interpreter itself, not by a call of
                # list(): a Ctrl-C that came as the call returned would lose them.
                given = [*some]
            except Exception as error:
                given = error
            self._given = self._last, given
        if isinstance(given, Exception):
            return given
        is_short = self._size is not None and len(given) < self._size
        if not given or (whole and is_short):
            self._has_ended = True
            return None
        if self._size is None:
            return list(given[0])
        return given

    def _go_round_generator(self) -> None:
        """Take further keys directly from the list that a generator passes on.

        torch's RandomSampler passes one on by ``yield from``.  To ask the generator
        takes three times as long; when the list has come to its end, it goes on.
        """
        keys = self._keys
        passed_on = getattr(keys, "gi_yieldfrom", None)  # only a generator has it
        if keys is not None and type(passed_on) is _OF_LISTS:
            self._keys = chain(passed_on, keys)

    def _go_behind(self, keys: list[Any] | Exception) -> None:
        """Note that ``keys`` are drawn; no more are after an error."""
        if isinstance(keys, Exception):
            self._has_ended = True
            return
        last = self._last
        position = last.position
        if self._size is None:
            position += 1
        else:
            position += len(keys)
        samples = last.samples + len(keys)
        checksum = zlib.crc32(_told(keys), last.checksum)
        self._last = Start(
            last.epoch,
            position,
            drawn=position,
            checksum=checksum,
            samples=samples,
        )

    def forget_error(self, error: Exception) -> None:
        """Forget the sampler's error, once it has been raised to the user.

        The epoch ends there.
        """
        self._given = None, ()
        self._lots = {
            position: lot
            for position, lot in self._lots.items()
            if lot.keys is not error
        }

    def place(self, position: int) -> Start:
        """Return the ``Start`` to save for the batch at ``position``.

        From there the sampler can continue with that batch.
        """
        if position in self._lots:
            return self._lots[position].before
        return self._last

    def knows(self, cursor: Cursor) -> bool:
        return self._has_ended or cursor.position in self._lots

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        if cursor.position not in self._lots:
            return None
        before, keys = self._lots[cursor.position]
        if isinstance(keys, Exception):
            raise keys
        count = len(keys)
        rows: Keys
        samples: int | None = None
        if self._in_one:
            rows = (keys,)
            samples = count
        else:
            rows = _compact(keys)
        if self._size is None:
            stop = cursor.position + 1
        else:
            stop = cursor.position + count
        after = cursor._replace(position=stop)
        stretch = Stretch(0, cursor.epoch, before.samples, rows)
        return Plan(
            number,
            len(rows),
            (stretch,),
            before=cursor,
            after=after,
            samples=samples,
        )

    def whole(self, cursor: Cursor) -> Whole | None:
        lot = self._lots.get(cursor.position)
        if lot is None or type(lot.keys) is not list or not lot.keys:
            return None
        count = len(lot.keys)
        if self._size is None:
            stop = cursor.position + 1
        else:
            stop = cursor.position + count
        after = make_cursor((stop, *cursor[1:]))
        if self._in_one:
            rows = [lot.keys]
        else:
            rows = lot.keys
        return rows, count, lot.before.samples, after


def _told(keys: list[Any]) -> bytes | array.array[int]:
    """Return what a checksum of keys is computed from.

    Of whole numbers that is their bytes, which takes a quarter as long.
    """
    try:
        return array.array("q", keys)
    except (TypeError, OverflowError):
        # Each key is hashed by itself, because the checksum must not depend on which
        # keys were drawn together.
        return b"".join(map(_told_of_one, keys))


def _told_of_one(key: Any) -> bytes:
    try:
        return array.array("q", [key]).tobytes()
    except (TypeError, OverflowError):
        return _ADDRESS.sub("", repr(key) + ", ").encode()


def _compact(keys: list[Any]) -> Keys:
    if set(map(type, keys)) == {int}:
        with contextlib.suppress(OverflowError):
            return np.array(keys, np.int64)
    return tuple(keys)


class Generators:
    """The random generators that samplers use.

    These are what ``holders`` are or hold, and the global ones that ``global_ones``
    names.
    """

    def __init__(
        self,
        holders: Sequence[Any] = (),
        global_ones: Sequence[str] = (),
    ) -> None:
        self._held = list(_held_by(holders))
        # The samplers that are told the epoch.
        self._told = list[Any]()
        for one in holders:
            if not hasattr(one, "set_epoch"):
                continue
            if type(getattr(one, "epoch", None)) is int:
                self._told.append(one)
        # The rank and the number of ranks of the first sampler that has them.
        self._share = next(filter(None, map(_share_of, holders)), None)
        self._globals = {
            name: known
            for name, known in global_generators().items()
            if name in global_ones
        }

    def save(self) -> dict[str, Any]:
        """Return the states of all these generators as JSON-able values.

        The samplers' epochs and rank are among them.
        """
        found = {
            "held": [encoded(state_of(generator)) for generator in self._held],
            "told": [one.epoch for one in self._told],
            "share": self._share,
        }
        states = self.globals_now()
        for name, state in found.items():
            if state:
                states[name] = state
        return states

    def restore(self, saved: dict[str, Any], within_epoch: bool = False) -> None:
        """Restore the states, or raise a StateError.

        With ``within_epoch``, the samplers' ``set_epoch()`` is called too.
        """
        now = self.save()
        try:
            self._set(saved, within_epoch)
        except Exception as error:
            # Generators raise errors of any type for a wrong state.  Some may have
            # taken theirs already, and all are to be as they were.
            self._set(now, True)
            raise StateError(
                f"the state's random generators don't fit: {type(error).__name__}: "
                f"{error}."
            ) from error

    def _set(self, states: dict[str, Any], tells: bool) -> None:
        held = states.get("held", [])
        if len(held) != len(self._held):
            raise ValueError(
                f"they were {len(held)} in the sampler that was saved, and are "
                f"{len(self._held)} in this (one that makes its generator in iter() "
                "has it once iter() was called)"
            )
        for generator, state in zip(self._held, held, strict=True):
            give_back(generator, decoded(state))
        self.put_back(states)
        if not tells or "told" not in states:
            return
        epochs = map(operator.index, states["told"])
        for one, epoch in zip(self._told, epochs, strict=True):
            if abs(epoch) > LARGEST:
                raise ValueError(f"epoch {epoch} is beyond {LARGEST}")
            one.set_epoch(epoch)

    def globals_now(self) -> dict[str, Any]:
        return {
            name: encoded(state_of(generator))
            for name, generator in self._globals.items()
        }

    def put_back(self, states: dict[str, Any]) -> None:
        for name, generator in self._globals.items():
            if name in states:
                give_back(generator, decoded(states[name]))

    @contextlib.contextmanager
    def aside(self, states: dict[str, Any]) -> Iterator[None]:
        """Give a sampler its own global generators while a ``with`` block runs.

        They have the states ``states`` there, which then become what the sampler has
        left, and the caller's come back.
        """
        others = self.globals_now()
        self.put_back(states)
        try:
            yield
        finally:
            now = self.globals_now()
            # The sampler may have brought a generator to the very state of the
            # caller's own, which was restored.  From here on they share that one.
            kept = {}
            callers = {}
            for name in states:
                callers[name] = others[name]
                if now[name] != others[name]:
                    kept[name] = now[name]
            self.put_back(callers)
            states.clear()
            states.update(kept)


def _held_by(holders: Sequence[Any]) -> Iterator[Any]:
    """Return the random generators among ``holders`` and their attributes, each once.

    Two holders often hold the same one.
    """
    kinds: tuple[type, ...] = (
        np.random.Generator,
        np.random.RandomState,
        random.Random,
    )
    torch = torch_with("Generator")
    if torch is not None:
        kinds = (*kinds, torch.Generator)
    values = list[Any]()
    for holder in holders:
        values.append(holder)
        values += getattr(holder, "__dict__", {}).values()
    found = dict[int, Any]()
    for value in values:
        if isinstance(value, kinds):
            found[id(value)] = value
    return iter(found.values())


def _share_of(holder: object) -> list[int] | None:
    """Return a sampler's rank and number of ranks; None if it has none.

    Their attributes have one pair of names in torch and another in Accelerate.
    """
    of_torch = ("rank", "num_replicas")
    of_accelerate = ("process_index", "num_processes")
    for names in (of_torch, of_accelerate):
        values = list[Any]()
        for name in names:
            values.append(getattr(holder, name, None))
        if {*map(type, values)} == {int}:
            return values
    return None


def samplers_in(sampler: object) -> list[Any]:
    """Return ``sampler``, the sampler that it draws from, and so on."""
    found: list[Any] = []
    while sampler is not None:
        # Samplers may hold each other.
        if any(sampler is one for one in found):
            break
        found.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        if inner is None:
            inner = getattr(sampler, "sampler", None)
        sampler = inner
    return found
