"""Loaders: epoch after epoch over one dataset, each ``iter()`` one of them, by workers that stay.

Runs in the consumer process.  ``Loading`` is what ``mpiter.DataLoader`` and ``mpiter.torch.DataLoader`` have in common:
exact state, and the workers between epochs.  A state says which epoch, how many batches of it were handed out,
and what the sampler's draws depended on when the epoch began; to go on from it, the sampler is asked once more and the
batches already handed out are left out, unloaded.
"""

from __future__ import annotations

import contextlib
from typing import Any

from . import resuming
from .bundles import users
from .drawing import Drawn, Sliced
from .engine import Engine
from .epochs import Epoch, Home, Trip
from .errors import IteratorClosed
from .luck import Aside, Luck
from .options import Options
from .order import Order
from .resuming import Place
from .shards import Cut
from .stats import Stats
from .streams import Fleet, StreamTrip

_FEW = 4  # batches that a sampler is asked for at once, when nobody knows yet how many are needed


class Loading:
    """What loaders have in common; a subclass says what an epoch's batches are."""

    _refreshes = True  # are changes of the dataset brought to the workers?
    _cut: Cut | None = None  # how batches are made of a stream; None where the dataset has keys

    def _begin(self, options: Options, persistent: bool) -> None:
        """To be called by constructors."""
        self._recipe = options
        options.prepare()
        self._home = Home(persistent)
        self._trip: Trip | StreamTrip | None = None
        self._next = Place(epoch=0)  # where the next iter() begins

    # -- what a subclass says ------------------------------------------------------------------------------------

    def _plans(self) -> Sliced | Drawn:
        """The batches of an epoch; a sampler is asked for an iterator, not yet for batches."""
        raise NotImplementedError

    def _order(self, epoch: int) -> Order:
        """What slices are cut from."""
        raise NotImplementedError

    def _opens(self, contents: Any) -> Any:
        """What the user gets for the contents of a batch."""
        raise NotImplementedError

    def _seed_of_epoch(self) -> int:
        """Of the samples' randomness."""
        raise NotImplementedError

    def _luck(self) -> Luck:
        """The random generators that the sampler may draw from."""
        raise NotImplementedError

    def _agreed(self) -> dict[str, Any]:
        """What a state must agree with."""
        raise NotImplementedError

    def _length(self) -> int | None:
        """Batches in an epoch, if that is known."""
        raise NotImplementedError

    def _count(self, batches: int) -> None:
        """So many have been handed out."""

    # -- epochs --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        if self._home.closed:
            raise IteratorClosed("the loader is closed; make a new one.")
        place = self._next
        aside = self._aside(place)
        with aside or contextlib.nullcontext():
            trip = self._stream_trip(place) if self._cut is not None else self._map_trip(place)
        trip.aside = aside or trip.aside
        trip.engine = self._engine()
        epoch = Epoch(trip, self._home, self._length(), self._count)
        trip.go()
        self._trip, self._next = trip, Place(place.epoch + 1)
        return epoch

    def _stream_trip(self, place: Place) -> StreamTrip:
        begun_with = self._luck().save()
        return StreamTrip(place, self._seed_of_epoch(), self._recipe.workers, begun_with)

    def _map_trip(self, place: Place) -> Trip:
        begun_with = self._luck().save()
        trip = Trip(
            epoch=place.epoch,
            plans=self._plans(),  # before the seed, as torch does: a sampler may draw as soon as it is asked
            seed=self._seed_of_epoch(),
            order=self._order(place.epoch),
            luck=begun_with,
            batches=place.batches,
            ahead=min(_FEW, self._recipe.most_ahead),
            most=self._recipe.most_ahead,
        )
        trip.plans.draw(max(trip.batches - 1, 0) + trip.ahead)  # as far as when the last of them was handed out
        resuming.verify(place, trip.plans)
        if place.skipped:
            trip.batches += place.skipped
            trip.draw()
        return trip

    def _aside(self, place: Place) -> Aside | None:
        """Have the sampler find its generators as they were; None where nobody else draws from them."""
        if place.luck is None:
            return None
        mine = self._luck()
        now = mine.globals_now()
        mine.restore(place.luck)
        saved = mine.globals_now()
        if saved == now:  # restored by the user: then they go on from here, as they did the first time
            return None
        mine.put_back(now)
        return Aside(mine, saved)

    def _engine(self) -> Any:
        engine = self._home.leave()
        if engine is None and self._cut is not None:
            engine = Fleet(self._recipe, users(self._recipe.dataset), self._cut)
        elif engine is None:
            engine = Engine(self._recipe, self._opens)
        elif self._refreshes:
            engine.refresh()
        self._home.going.add(engine)
        return engine

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out, as JSON-able values; its size doesn't depend on the dataset."""
        trip = self._trip
        if trip is None or trip.has_ended or self._next.is_elsewhere:
            place = self._next if self._next.luck is not None else self._next.with_luck(self._luck().save())
        else:
            place = trip.place()
        return resuming.save(place, self._seed, self._agreed())

    def load_state_dict(self, state: Any) -> None:
        """Have the next ``iter()`` go on from where ``state`` was saved, by whatever number of workers."""
        self._next, self._seed = resuming.load(state, self._agreed())

    def skip(self, batches: int) -> None:
        """Leave out the next ``batches``, without loading them: of the epoch under way, or of the next one."""
        batches = resuming.checked_skip(batches)
        trip = self._trip
        if trip is None or trip.engine is None or self._next.is_elsewhere:
            self._next = self._next.beyond(batches)
        else:
            trip.skip(batches)

    # -- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers; batches already handed out stay valid."""
        self._home.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A pickle or a copy is a loader like this one, at the same place, with workers of its own."""
        state = dict(self.__dict__)
        home, trip = state.pop("_home"), state.pop("_trip")
        return state | {"_home": home.persistent, "_trip": None if trip is None else self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        persistent, place = state.pop("_home"), state.pop("_trip")
        self.__dict__.update(state)
        self._home, self._trip = Home(persistent), None
        if place is not None:
            self.load_state_dict(place)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes of the moment."""
        engine = self._somebody()
        return () if engine is None else engine.worker_pids

    def stats(self) -> Stats:
        """A snapshot of the counters."""
        engine = self._somebody()
        return Stats() if engine is None else engine.stats()

    def _somebody(self) -> Engine | Fleet | None:
        under_way = None if self._trip is None else self._trip.engine
        return under_way or self._home.resting
