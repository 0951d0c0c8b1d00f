"""Loaders: epoch after epoch over one dataset, each ``iter()`` one of them, by workers that stay.

Runs in the consumer process.  ``Loading`` is what ``mpiter.DataLoader`` and ``mpiter.torch.DataLoader`` have in common:
exact state, and the workers between epochs.  A state says which epoch, how much of it was handed out, and what the
sampler's draws depended on when the epoch began; to go on from it, the sampler is asked once more and what was handed
out already is left out, unloaded.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from functools import partial
from numbers import Integral
from typing import Any, Generic, Self, Unpack

from ..datasets.access import users
from ..datasets.columns import Table, described
from ..engine.options import Options
from ..engine.pilot import auto
from ..engine.pump import pump_for
from ..engine.tally import Skipped
from ..errors import BatchTimeout, IteratorClosed, OptionError, SampleError, StateError, warn
from ..iterators.iterators import Ahead
from ..order.cursor import Cursor, Pace, batches_of
from ..order.order import Order, Sequential, Shuffled
from ..pool.backends import Process
from ..stats import Stats
from ..typevars import B_co
from .drawing import Drawn, InOne, Place, load, save
from .samplers import Generators, Walk, savable, warn_of_iterators
from .shards import Batching
from .streams import ShardPumps, Streaming, begun

Aside = Callable[[], contextlib.AbstractContextManager[None]]
Coming = Pace | Drawn | Streaming  # what an epoch's batches come from
_FEW = 4  # batches that a sampler is asked for at once, until it is known how many are needed


def is_whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def workers_of(num_workers: Any) -> int:
    """How many there may be."""
    found = auto(num_workers)
    if found is None and not is_whole(num_workers, 0):
        raise OptionError(f"num_workers={num_workers!r:.60} must be a whole number, 0 for none.")
    return int(num_workers) if found is None else found.bound


class Pass:
    """One epoch under way."""

    aside: Aside = contextlib.nullcontext  # where the sampler's generators are not those that all others draw from
    pump: Any = None  # None: nothing goes on with it
    batches = 0  # that have been handed out
    left_out = 0  # …and that were skipped on the way
    has_ended = False
    _skipped = 0  # samples that the pump had left out when the epoch began
    _has_come = False  # a batch, or an error in its place

    def __init__(
        self, place: Place, plans: Coming, seed: int, order: Order, generators: dict[str, Any], most: int
    ) -> None:
        self.epoch, self.begun, self.position = place.epoch, place.position, place.position
        self.plans, self.generators = plans, generators
        self._seed, self._order, self._most = seed, order, most
        self._ahead = min(_FEW, most)  # batches that are drawn beyond those handed out, for now
        if isinstance(plans, Drawn):  # as far as when the last of them was handed out
            plans.go_to(place, generators)
            plans.draw(self.position, self._ahead - (place.drawn > 0))

    def go(self) -> None:
        """Have the batches from here on fetched."""
        self._skipped = self.pump.skipped
        if isinstance(self.plans, Pace):  # skip() may have gone beyond the end
            self.position = min(self.position, len(self._order))
        self.pump.go(Cursor(self.position, self.epoch, False, self._order), self.plans, self._seed)
        with contextlib.suppress(StopIteration):  # it is plain that nothing comes
            self.pump.start()

    def skip(self, positions: int) -> None:
        """Leave some out."""
        self.position += positions
        if isinstance(self.plans, Drawn):
            with self.aside():
                self.plans.skip(self.position)
                self.plans.draw(self.position, self._ahead)
        self.go()

    def place(self) -> Place:
        """Where it could go on."""
        known = Place(self.epoch) if isinstance(self.plans, Pace) else self.plans.place(self.position)
        return known._replace(position=self.position, generators=self.generators)

    def next(self) -> Any:
        """The next batch."""
        pump = self.pump
        if pump is None:
            raise StopIteration
        self._go_on()
        try:
            batch = pump.next(passed=self._go_on)
            self._has_come = True
            self.batches += 1
            return batch
        except StopIteration:
            if not (self._has_come or self.begun or self.left_out) and pump.skipped > self._skipped:
                self._has_come = True
                raise SampleError("on_error='skip' has left out a whole epoch: stats().skips has the first.") from None
            raise
        except Exception as error:
            self._has_come = True
            if isinstance(self.plans, Drawn):
                self.plans.forget_error(error)
            raise
        finally:
            self._note()

    def _note(self) -> None:
        """Where the pump is."""
        here = self.pump.cursor
        self.position = here.position if here.epoch == self.epoch else len(self._order)

    def _go_on(self) -> None:
        """Ask for what comes next, in the consumer's thread, whose the sampler is."""
        self._note()
        if isinstance(self.plans, Drawn):
            if self.pump.was_hungry():  # one more each time, so that nothing waits for many
                self._ahead = min(self._ahead + 1, self._most)
            with self.aside():
                self.plans.draw(self.position, self._ahead)
            self.pump.wake()


class Home:
    """Where workers stay between epochs."""

    def __init__(self, persistent: bool) -> None:
        self.persistent, self.closed = persistent, False
        self.going: weakref.WeakSet[Any] = weakref.WeakSet()  # the pumps that have been sent out
        self.under_way: weakref.WeakSet[Epoch[Any]] = weakref.WeakSet()
        self.resting: Any = None  # the pump that waits for the next epoch

    def take_back(self, current: Any) -> None:
        """The rest of this epoch isn't wanted.  Called by the garbage collector too, so nothing is waited for: a pump
        that nothing holds ends by itself."""
        pump, current.pump = current.pump, None
        if self.persistent and not self.closed and self.resting is None:
            self.resting = pump

    def close(self) -> None:
        """End all pumps."""
        self.closed = True
        for pump in list(self.going):
            pump.close()
        for epoch in list(self.under_way):  # what an error has come by (its traceback holds them) need not be kept
            epoch._end.detach()


class Epoch(Generic[B_co]):
    """An iterator over the batches of one epoch: what ``iter(loader)`` returns."""

    def __init__(self, loader: Any, current: Any, home: Home) -> None:
        self._loader, self._current, self._home = loader, current, home
        self._one_at_a_time = threading.RLock()
        self._end = weakref.finalize(self, home.take_back, current)
        self._end.atexit = False
        home.under_way.add(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._loader._told_of(self._current)}>"

    def __iter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """The batches that it gives: after a resume, those that are left."""
        return self._loader._length_of(self._current)  # type: ignore[no-any-return]

    def __next__(self) -> B_co:
        with self._one_at_a_time:
            pump = self._current.pump
            try:
                batch: B_co = self._current.next()
            except StopIteration:
                self._current.has_ended = self._current.has_ended or pump is not None
                self._end()
                if pump is not None and not self._home.persistent:
                    pump.close()
                if pump is not None and not self._current.position:
                    self._loader._count(0)
                raise
            self._loader._count(self._current.position)
        return batch


class Loading(Generic[B_co]):
    """What loaders have in common; a subclass says what else an epoch's batches are made of."""

    dataset: Any
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    drop_last: bool
    timeout: float
    prefetch_factor: int | None
    persistent_workers: bool | None
    multiprocessing_context: Any
    _shuffles: bool
    _seed: int  # of the order and of the samples' randomness
    _opens: Callable[[Any], Any]  # what makes of the contents of a batch what the user gets
    _stream: Any  # the dataset as the user knows it
    _in_one: bool  # is a batch one worker's work, and travels as one row?
    _batching: Batching | None = None  # how batches are made of a stream; None where the dataset has keys
    _begins_late = False  # is the sampler asked for an iterator with the first batch only?
    _has_given = False  # has there been a batch, or an epoch without any?

    def _begin(
        self,
        served: Any,
        num_workers: Any,
        worker_init: Any,
        seeding: str = "sample",
        backend: Any = None,
        **more: Unpack[Ahead],
    ) -> None:
        """To be called by constructors: ``served`` is what workers ask for rows."""
        found, run_ahead, most_workers = auto(num_workers), None, workers_of(num_workers)
        factor, context, timeout = self.prefetch_factor, self.multiprocessing_context, self.timeout
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
            raise OptionError(f"timeout={timeout!r:.60} must be a number of seconds, 0 for none.")
        if num_workers == 0 and timeout:
            raise OptionError("timeout needs workers: with num_workers=0 the loop itself fetches.")
        if num_workers == 0 and self.persistent_workers:
            raise OptionError("persistent_workers=True needs workers: num_workers is 0.")
        if num_workers == 0 and (factor is not None or context is not None):
            raise OptionError("prefetch_factor and multiprocessing_context need workers: num_workers is 0.")
        if factor is not None and not is_whole(factor, 1):
            raise OptionError(f"prefetch_factor={factor!r:.60} must be a whole number of at least 1, or None.")
        if seeding not in ("sample", "worker"):
            raise OptionError(f"seeding={seeding!r:.60} is unknown; use 'sample' or 'worker'.")
        if not (context is None or isinstance(context, str) or hasattr(context, "get_start_method")):
            raise OptionError(f"multiprocessing_context={context!r:.60} is neither a start method nor a context.")
        if context is not None and backend is not None:
            raise OptionError("multiprocessing_context says how processes start here: there are none with backend=.")
        n_prefetch: Any = max(2, most_workers) if found is None else "auto"
        if factor is not None:
            n_prefetch = min(max(2, most_workers), factor * most_workers)
            run_ahead = factor * most_workers - n_prefetch
        method = context if context is None or isinstance(context, str) else context.get_start_method()
        options = Options(
            dataset=served,
            is_settled=True,
            batch_size=1 if self._in_one else self.batch_size or 1,
            n_workers=num_workers,
            n_prefetch=n_prefetch,
            run_ahead=run_ahead,
            dataset_timeout=timeout or None,
            seed=self._seed,
            backend=Process(method) if backend is None else backend,
            worker_init=worker_init,
            seeds_samples=seeding == "sample",
            workers_name="num_workers",
            **more,
        )
        self._recipe, self._stream, is_stream = options, users(options.dataset), self._batching is not None
        name = type(self._stream).__name__
        if is_stream and options.on_error != "raise":
            raise OptionError(
                f"on_error={options.on_error!r:.60} leaves out what dataset[i] raises for, and {name} is read as a "
                f"stream, which may be at its end once it has raised; have its __iter__ catch the error."
            )
        if is_stream and options.receipts is not None:
            raise OptionError(
                "receipts note the keys of samples, and what is read as a stream has none; pass a dataset with [] and "
                "len(), or note what comes yourself (mpiter.receipts.Receipts)."
            )
        if not is_stream and self._goes_through_all():
            if self.drop_last:
                options.check_drop_last(len(self.dataset), self.batch_size or 1)
            if options.receipts is not None:
                options.receipts.terms = len(self.dataset), (self.batch_size or 1) * self.drop_last
        options.prepare()
        self._home, self._skipped = Home(self.persistent_workers is not False), Skipped()
        self._pass: Pass | None = None
        self._next = Place()  # where the next iter() begins

    # -- what an epoch is made of ----------------------------------------------------------------------------------

    def _is_one_workers(self, collates: bool) -> bool:
        """Does one worker make a batch?  Otherwise several may write their rows into the same columns."""
        reads_many = bool(getattr(self.dataset, "__getitems__", None)) and type(self.dataset) is not Table
        return collates or self.batch_size is None or reads_many or not hasattr(type(self.dataset), "__len__")

    def _goes_through_all(self) -> bool:
        """Is each of the dataset's samples in an epoch?  No, where the user has given a sampler."""
        return self._sampled() is None

    def _sampled(self) -> Any:
        """What is asked for keys, or for lists of them; None: slices are cut from an order."""
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def _cut(self) -> tuple[int | None, bool]:
        """How many keys make a batch, and whether a short one is left out; None where lists of keys are given."""
        return None if self.batch_sampler is not None else self.batch_size or 1, self.drop_last

    def _plans(self, place: Place) -> Coming:
        """The batches of an epoch; a sampler is asked for an iterator, not yet for keys."""
        if self._batching is not None:
            return Streaming(place, self._recipe.workers, self._told_by_stream)
        sampled, (size, drop_last) = self._sampled(), self._cut()
        if sampled is None:
            kind = InOne if self._in_one else Pace
            return kind(size or 1, False, place.epoch + 1, drop_last, self._recipe.share())
        walk = Walk(sampled, place.told, begins=not place.drawn)
        if not self._begins_late:
            walk.begin()
        return Drawn(walk, size, drop_last, self._in_one, place)

    def _seed_of_epoch(self) -> int:
        """What the samples' randomness is drawn from."""
        return self._seed

    def _generators(self) -> Generators:
        """The random generators that the sampler may draw from."""
        given = [one for one in (self.sampler, self.batch_sampler) if one is not None]
        given += [one.sampler for one in given if hasattr(one, "sampler")]
        return Generators(given, ("random", "numpy", "torch")) if given else Generators()

    def _agreed(self) -> dict[str, Any]:
        """What a state must agree with."""
        if self._batching is not None:
            return {"kind": "stream", "batch_size": self.batch_size, "drop_last": self.drop_last}
        if self._goes_through_all():
            found = {"kind": "dataset", "dataset_length": len(self.dataset), "drop_last": self.drop_last}
            return found if self._sampled() is not None else found | {"shuffle": self._shuffles}
        return {"kind": "sampler" if self._cut()[0] else "batch_sampler", "drop_last": self.drop_last}

    def _rest(self, position: int) -> int | None:
        """How many batches come from a position of an epoch on; None if that isn't known."""
        sampled, (size, drop_last) = self._sampled(), self._cut()
        try:
            length = len(self.dataset if sampled is None else sampled)
        except (TypeError, NotImplementedError):
            return None
        if self._batching is not None:
            return max(0, batches_of(length, size or 1, drop_last) - position)
        left = max(0, length - position)
        return batches_of(left, size or 1, drop_last, *[self._recipe.share()] * (sampled is None))

    def _length_of(self, current: Pass | None) -> int:
        """The batches that a pass gives: after a resume, those that were left; of None, the next pass."""
        rest = self._rest(self._next.position if current is None else current.begun)
        if rest is None:
            raise TypeError("it isn't known how many batches come: the sampler has no length.")
        return max(0, rest - (0 if current is None else current.left_out))

    def _count(self, handed_out: int) -> None:
        """So much has been handed out; 0 says that the epoch has ended without any batch."""
        if not handed_out and self._has_given:
            names = ("sampler", "batch_sampler", *["dataset"] * (self._batching is not None))
            warn_of_iterators({name: getattr(self, name, None) for name in names}, is_empty=True)
        elif not handed_out and self._batching is not None and not hasattr(type(self._stream), "__len__"):
            warn(
                f"{described(self._stream)} gave no batch in a whole epoch: its __iter__ gives nothing, or, with "
                f"drop_last, less than a batch."
            )
        self._has_given = True

    def __repr__(self) -> str:
        return f"<{self._told_of(getattr(self, '_pass', None))}>"

    def _told_of(self, current: Pass | None) -> str:
        """What is loaded, and how much of it has been handed out."""
        dataset, size = (getattr(self, name, None) for name in ("dataset", "batch_size"))
        batches = "" if size is None else f" in batches of {size}"
        count = 0 if current is None else current.batches
        far = f"epoch {current.epoch}, {count} batch{'es' * (count != 1)} handed out" if current else "no epoch yet"
        return f"{type(self).__name__} over {described(dataset)}{batches}: {far}"

    # -- epochs --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Epoch[B_co]:
        if self._home.closed:
            raise IteratorClosed("the loader is closed; make a new one.")
        place = self._next
        aside = self._aside(place)
        with aside():
            current = self._pass_from(place)
        current.aside = aside
        current.pump = self._pump()
        epoch: Epoch[B_co] = Epoch(self, current, self._home)
        current.go()
        self._pass, self._next = current, Place(place.epoch + 1)
        return epoch

    def _told_by_stream(self) -> dict[str, Any] | None:
        """How far a stream has got that is read here, and keeps what it notes of itself from epoch to epoch."""
        if self._batching is None or self._recipe.n_workers:
            return None
        told = savable(Walk(self._stream).state(), "stream's")
        return None if told is None else begun(told)

    def _pass_from(self, place: Place) -> Pass:
        generators = self._generators()
        begun_with = generators.save()
        try:
            plans = self._plans(place)  # before the seed, as torch: a sampler may draw when asked
            seed, length = self._seed_of_epoch(), len(self.dataset) if isinstance(plans, Pace) else 0
            order = Shuffled(length, self._seed, place.epoch) if length and self._shuffles else Sequential(length)
            return Pass(place, plans, seed, order, begun_with, self._recipe.most_ahead)
        except StateError:
            generators.restore(begun_with)
            raise

    def _aside(self, place: Place) -> Aside:
        """What has the sampler find its generators as they were, if anything else draws from them."""
        if place.generators is None:
            return contextlib.nullcontext
        mine = self._generators()
        now = mine.globals_now()
        mine.restore(place.generators, within_epoch=place.drawn > 0)
        saved = mine.globals_now()
        if saved == now:  # restored by the user: then they go on from here, as they did the first time
            return contextlib.nullcontext
        mine.put_back(now)
        return partial(mine.aside, saved)

    def _pump(self) -> Any:
        pump, self._home.resting = self._home.resting, None
        if pump is None and self._batching is not None:
            pump = ShardPumps(self._recipe, self._stream, self._batching, _late)
        elif pump is None:
            pump = pump_for(self._recipe, self._opens, _late, skipped=self._skipped)
        elif self.persistent_workers is not True:  # changes of the dataset are brought to the workers
            pump.refresh()
        self._home.going.add(pump)
        return pump

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out, as JSON-able values; its size doesn't depend on the dataset."""
        current, agreed = self._pass, self._agreed()
        if not (current is None or current.has_ended or self._next.is_elsewhere):
            place = current.place()
        elif (place := self._next).generators is None:
            told, stream = Walk(self._sampled()).state(), self._told_by_stream()
            place = place._replace(generators=self._generators().save(), told=told, stream=stream)
        if (length := agreed.get("dataset_length")) is not None:  # less than a batch may be left, which is left out
            left = length - place.position
            place = place._replace(
                position=length if left < self._step() * self.drop_last else min(length, place.position)
            )
        return save(place, self._seed, agreed)

    def load_state_dict(self, state: Any) -> None:
        """Have the next ``iter()`` go on from where ``state`` was saved, by whatever number of workers."""
        self._recipe.warn_of_disorder()
        self._next, self._seed = load(state, self._agreed())

    def _step(self) -> int:
        """How far a batch goes."""
        size = 1 if self._batching is not None else self._cut()[0] or 1
        return self._recipe.share().step(size)

    def skip(self, batches: int) -> None:
        """Leave out the next ``batches``, without loading them: of the epoch under way, or of the next one."""
        if not is_whole(batches, 0):
            raise OptionError(f"skip({batches!r:.40}): pass a whole number of batches, 0 or more.")
        current, beyond = self._pass, int(batches) * self._step()
        if current is None or current.pump is None or self._next.is_elsewhere:
            self._next = self._next._replace(position=self._next.position + beyond)
        else:
            current.left_out += int(batches)
            current.skip(beyond)

    @property
    def is_new_epoch(self) -> bool:
        """Did the last batch complete an epoch?  No, where it isn't known how many there are."""
        current = self._pass
        return current is not None and not self._next.is_elsewhere and self._rest(current.position) == 0

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
        pump = self._fetching
        return () if pump is None else pump.worker_pids

    def stats(self) -> Stats:
        """A snapshot of the counters: of the workers of the moment, but of all epochs for what was skipped."""
        pump = self._fetching
        return Stats(skipped=self._skipped.count, skips=self._skipped.first) if pump is None else pump.stats()

    @property
    def _fetching(self) -> Any:
        """What fetches at the moment, or rests between two epochs."""
        under_way = None if self._pass is None else self._pass.pump
        return under_way or self._home.resting


def _late(limit: float, waited: float, doings: str) -> Exception:
    return BatchTimeout(f"DataLoader timed out after {limit:g} seconds; {doings}.")
