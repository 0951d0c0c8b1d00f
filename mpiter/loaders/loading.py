"""Loaders: epoch after epoch over one dataset, each ``iter()`` one of them, by workers that stay.

Runs in the consumer process.  ``Loading`` is what ``mpiter.DataLoader`` and ``mpiter.torch.DataLoader`` have in common:
exact state, and the workers between epochs.  A state says which epoch, how many batches of it were handed out,
and what the sampler's draws depended on when the epoch began; to go on from it, the sampler is asked once more and the
batches already handed out are left out, unloaded.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, Generic, Self

from ..datasets.access import users
from ..datasets.columns import described
from ..engine.alone import Alone
from ..engine.options import Options
from ..engine.pump import Pump, pump_for
from ..engine.tally import Skipped
from ..errors import BatchTimeout, IteratorClosed, StateError, warn
from ..order.cursor import batches_of
from ..order.order import Order
from ..stats import Stats
from ..typevars import B_co
from . import resuming
from .checks import check_receipts
from .drawing import Drawn, Since, Sliced
from .epochs import Epoch, Home, Pass, how_far
from .generators import Aside, Generators
from .resuming import Place
from .shards import Batching
from .streams import ShardPumps, StreamPass, begun
from .walk import Told, Walk, warn_of_iterators

_FEW = 4  # batches that a sampler is asked for at once, when nobody knows yet how many are needed


class Loading(Generic[B_co]):
    """What loaders have in common; a subclass says what an epoch's batches are."""

    _batching: Batching | None = None  # how batches are made of a stream; None where the dataset has keys
    batch_size: int | None
    drop_last: bool
    _in_one: bool  # is a batch one worker's work, and travels as one row?
    _has_given = False  # has there been a batch, or an epoch without any?

    def _begin(self, options: Options, persistent_workers: bool | None, samples: int | None) -> None:
        """To be called by constructors; an epoch has so many ``samples``, if that is known."""
        self._recipe = options
        if self.drop_last and samples is not None:
            options.check_drop_last(samples, self.batch_size or 1)
        if options.receipts is not None:
            check_receipts(self._batching is not None)
            if samples is not None:
                options.receipts.terms = samples, (self.batch_size or 1) * self.drop_last
        options.prepare()
        self._refreshes = persistent_workers is not True  # are changes of the dataset brought to the workers?
        self._home, self._skipped = Home(persistent_workers is not False), Skipped()
        self._pass: Pass | StreamPass | None = None
        self._next = Place(epoch=0)  # where the next iter() begins

    # -- what a subclass says ------------------------------------------------------------------------------------

    def _plans(self, since: Since) -> Drawn:
        """The batches of an epoch by a sampler, which is asked for an iterator, not yet for batches."""
        raise NotImplementedError

    def _sampled(self) -> Any:
        """What is asked for keys; None where nobody is."""
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

    def _generators(self) -> Generators:
        """The random generators that the sampler may draw from."""
        raise NotImplementedError

    def _agreed(self) -> dict[str, Any]:
        """What a state must agree with."""
        raise NotImplementedError

    def _length(self) -> int | None:
        """Batches in an epoch, if that is known."""
        raise NotImplementedError

    def _count(self, batches: int) -> None:
        """So many have been handed out; 0 says that the epoch has ended without any."""
        if not batches and self._has_given:
            names = ("sampler", "batch_sampler", *["dataset"] * (self._batching is not None))
            warn_of_iterators({name: getattr(self, name, None) for name in names}, is_empty=True)
        elif not batches and self._batching is not None and not hasattr(type(users(self._recipe.dataset)), "__len__"):
            warn(
                f"{described(users(self._recipe.dataset))} gave no batch in a whole epoch: its __iter__ gives nothing, "
                f"or, with drop_last, less than a batch."
            )
        self._has_given = True

    def __repr__(self) -> str:
        current = getattr(self, "_pass", None)
        return f"<{self._task()}: {'no epoch yet' if current is None else how_far(current)}>"

    def _task(self) -> str:
        """What is loaded, and by whom."""
        dataset, size = (getattr(self, name, None) for name in ("dataset", "batch_size"))
        batches = "" if size is None else f" in batches of {size}"
        return f"{type(self).__name__} over {described(dataset)}{batches}"

    def _batches_of(self, samples: int) -> int:
        """How many come of an epoch of so many."""
        left = samples - self._samples_before()
        return batches_of(left, self.batch_size or 1, self.drop_last, self._recipe.share())

    def _samples_before(self) -> int:
        """What of the epoch under way, or the next one, came before its batches were counted."""
        if self._next.is_elsewhere:
            return self._next.samples
        current = self._pass
        return current.samples if isinstance(current, Pass) and not current.has_ended else 0

    # -- epochs --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Epoch[B_co]:
        if self._home.closed:
            raise IteratorClosed("the loader is closed; make a new one.")
        place = self._next
        aside = self._aside(place)
        with aside or contextlib.nullcontext():
            current = self._pass_over_stream(place) if self._batching is not None else self._pass_over_keys(place)
        current.aside = aside or current.aside
        current.left_out = current.batches
        current.pump = self._pump()
        epoch: Epoch[B_co] = Epoch(current, self._home, self._length, self._count, self._task, self)
        current.go()
        self._pass, self._next = current, Place(place.epoch + 1)
        return epoch

    def _pass_over_stream(self, place: Place) -> StreamPass:
        begun_with = self._generators().save()
        return StreamPass(place, self._seed_of_epoch(), self._recipe.workers, begun_with, self._told_by_stream)

    def _told_by_stream(self) -> Told | None:
        """The place of a stream that is read here, and keeps what it notes of itself from epoch to epoch."""
        if self._batching is None or self._recipe.n_workers:
            return None
        return Walk(users(self._recipe.dataset)).state()

    def _pass_over_keys(self, place: Place) -> Pass:
        generators = self._generators()
        begun_with = generators.save()
        # Before the seed, as torch: a sampler may draw when asked.
        plans = self._plans_since(place.since or Since(samples=place.samples))
        seed = self._seed_of_epoch()
        current = Pass(
            epoch=place.epoch,
            plans=plans,
            seed=seed,
            order=self._order(place.epoch),
            generators=begun_with,
            batches=place.batches,
            samples=place.samples,
            is_shared=self._recipe.shard is not None,
            ahead=min(_FEW, self._recipe.most_ahead),
            most=self._recipe.most_ahead,
        )
        try:  # as far as when the last of them was handed out
            current.plans.draw(max(current.batches - 1, 0) + current.ahead)
            resuming.verify(place, current.plans, begun_with)
        except StateError:
            generators.restore(begun_with)
            raise
        if place.skipped:
            current.batches += place.skipped
            current.draw()
        return current

    def _plans_since(self, since: Since) -> Sliced | Drawn:
        sampler = self._sampled()
        if sampler is None:
            return Sliced(self.batch_size or 1, self.drop_last, self._in_one, since.samples, self._recipe.share())
        return self._plans(since)

    def _aside(self, place: Place) -> Aside | None:
        """Have the sampler find its generators as they were; None where nobody else draws from them."""
        if place.generators is None:
            return None
        mine = self._generators()
        now = mine.globals_now()
        mine.restore(place.generators, within_epoch=place.batches + place.samples > 0)
        saved = mine.globals_now()
        if saved == now:  # restored by the user: then they go on from here, as they did the first time
            return None
        mine.put_back(now)
        return Aside(mine, saved)

    def _pump(self) -> Any:
        pump = self._home.leave()
        if pump is None and self._batching is not None:
            pump = ShardPumps(self._recipe, users(self._recipe.dataset), self._batching, _late)
        elif pump is None:
            pump = pump_for(self._recipe, self._opens, _late, skipped=self._skipped)
        elif self._refreshes:
            pump.refresh()
        self._home.going.add(pump)
        return pump

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out, as JSON-able values; its size doesn't depend on the dataset."""
        current, agreed = self._pass, self._must_agree()
        if current is None or current.has_ended or self._next.is_elsewhere:
            place = self._next
            if place.generators is None:
                told = Walk(self._sampled()).state()
                place = place.as_now(self._generators().save(), told)
                if (at := self._told_by_stream()) is not None:
                    place = replace(place, stream=begun(at))
            if self._recipe.shard is not None and place.skipped:
                place = place.of_ranks(self._recipe.share().step(self.batch_size or 1), agreed["dataset_length"])
        else:
            place = current.place()
        return resuming.save(place, self._seed, agreed)

    def load_state_dict(self, state: Any) -> None:
        """Have the next ``iter()`` go on from where ``state`` was saved, by whatever number of workers."""
        self._recipe.warn_of_disorder()
        self._next, self._seed = resuming.load(state, self._must_agree())

    def _must_agree(self) -> dict[str, Any]:
        agreed = self._agreed()
        if self._recipe.shard is not None:
            del agreed["batch_size"]
        return agreed

    def skip(self, batches: int) -> None:
        """Leave out the next ``batches``, without loading them: of the epoch under way, or of the next one."""
        batches = resuming.checked_skip(batches)
        current = self._pass
        if current is None or current.pump is None or self._next.is_elsewhere:
            self._next = self._next.beyond(batches)
        else:
            current.skip(batches)
            current.left_out += batches

    def _left_out(self) -> int:
        """Batches that the ``for`` under way doesn't give, or the next one."""
        if self._next.is_elsewhere:
            return self._next.batches + self._next.skipped
        return 0 if self._pass is None or self._pass.has_ended else self._pass.left_out

    @property
    def is_new_epoch(self) -> bool:
        """Did the last batch complete an epoch?  No, where nobody knows how many there are."""
        current = self._pass
        if current is None or self._next.is_elsewhere:
            return False
        if isinstance(current, Pass) and current.samples:  # ranks share it, or its batches were of another size before
            plans = current.plans
            whole = plans.batches(len(current.order)) if isinstance(plans, Sliced) else self._length()
            return current.has_ended or current.batches == whole
        return current.batches == self._length()

    # -- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers; batches already handed out stay valid."""
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """A pickle or a copy is a loader like this one, at the same place, with workers of its own."""
        state = dict(self.__dict__)
        home, current, _ = state.pop("_home"), state.pop("_pass"), state.pop("_skipped")
        return state | {"_home": home.persistent, "_pass": None if current is None else self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        persistent, place = state.pop("_home"), state.pop("_pass")
        self.__dict__.update(state)
        self._home, self._pass, self._skipped = Home(persistent), None, Skipped()
        if place is not None:
            self.load_state_dict(place)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes of the moment."""
        pump = self._somebody()
        return () if pump is None else pump.worker_pids

    def stats(self) -> Stats:
        """A snapshot of the counters: of the workers of the moment, but of all epochs for what was skipped."""
        pump = self._somebody()
        return Stats(skipped=self._skipped.count, skips=self._skipped.first) if pump is None else pump.stats()

    def _somebody(self) -> Pump | Alone | ShardPumps | None:
        under_way = None if self._pass is None else self._pass.pump
        return under_way or self._home.resting


def _late(limit: float, waited: float, doings: str) -> Exception:
    return BatchTimeout(f"DataLoader timed out after {limit:g} seconds; {doings}.")
