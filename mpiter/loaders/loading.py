"""Loaders: each ``iter()`` is an epoch of one dataset, and the pump with its workers is
kept between epochs.

A state holds the epoch's number, how much of it was handed out, and the states of the
sampler's random generators at its beginning.  To resume, the sampler is iterated over
again, and keys that were handed out are skipped, not loaded.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Self

from ..datasets.columns import Table, users
from ..datasets.gathering import gather_of
from ..engine import describing
from ..engine.alone import pump_for
from ..engine.options import Options, seconds, whole
from ..engine.tally import Skipped
from ..errors import (
    BatchTimeout,
    IteratorClosed,
    OptionError,
    SampleError,
    StateError,
    WorkerCrashed,
    warn,
)
from ..order.cursor import Cursor, Pace, batches_of
from ..order.order import Order, Sequential, Shuffled
from ..pool.backends import Process
from ..rules import LOADERS
from ..stats import Stats
from ..typevars import B_co
from ..worker import home
from .batched import Batched
from .drawing import Drawn, Generators, InOne, Place, load, samplers_in, save
from .shards import Streamed
from .streams import ShardPumps, Streaming, warn_of_state

# Makes a context for asking the sampler.
Aside = Callable[[], contextlib.AbstractContextManager[None]]
# Options that a loader has dealt with.
_KNOWN = {"seed", "persistent_workers", "pin_memory_device"}
Coming = Pace | Drawn | Streaming  # what plans an epoch's batches


def workers_of(num_workers: Any) -> int:
    """Return ``num_workers`` as an int."""
    whole("num_workers", num_workers)
    if num_workers < 0:
        raise OptionError(
            f"num_workers option should be non-negative, not {num_workers}; with "
            "num_workers=0 the loop itself fetches."
        )
    return int(num_workers)


class Pass:
    """One epoch in progress: its position, its plans, and the pump that fetches its
    batches.
    """

    # The context in which the sampler finds its own random generators.
    aside: Aside = contextlib.nullcontext
    # None: not begun, or the pump was given back.
    pump: Any = None
    has_ended = False
    # A batch was handed out, or an error was raised in place of one.
    _has_come = False

    def __init__(
        self,
        place: Place,
        plans: Coming,
        seed: int,
        order: Order,
        generators: dict[str, Any],
        most: int,
    ) -> None:
        self.epoch = place.epoch
        self.begun = place.position
        self.position = place.position
        self.plans = plans
        self.generators = generators
        self._keeps_seed = place.keeps_seed
        self._seed = seed
        self._order = order
        self._most = most
        # Draw as far ahead as when the state was saved.
        if isinstance(plans, Drawn):
            plans.go_to(place, generators)
            plans.draw(self.position, most - (place.drawn > 0))

    def go(self, pump: Any) -> None:
        """Begin the epoch, or go on with it, on ``pump``."""
        # The number of samples left out before this epoch.
        self.pump = pump
        self._skipped = pump.skipped
        pump.go(
            Cursor(self.position, self.epoch, False, self._order),
            self.plans,
            self._seed,
        )
        with contextlib.suppress(StopIteration):  # nothing is left to fetch
            pump.start()

    def place(self) -> Place:
        plans = self.plans
        if isinstance(plans, Pace):
            known = Place(self.epoch)
        else:
            known = plans.place(self.position)
        return known._replace(
            position=self.position,
            generators=self.generators,
            keeps_seed=self._keeps_seed,
        )

    @property
    def is_empty(self) -> bool:
        """True if it has had no batch so far, neither here nor before it was
        resumed.
        """
        return not (self._has_come or self.begun)

    def next(self) -> Any:
        pump = self.pump
        if pump is None:
            raise StopIteration
        self._go_on()
        try:
            batch = pump.next(passed=self._pass_by)
            self._has_come = True
            return batch
        except StopIteration:
            if self.is_empty and pump.skipped > self._skipped:
                self._has_come = True
                raise SampleError(
                    "on_error='skip' has left out a whole epoch: stats().skips has "
                    "the first."
                ) from None
            raise
        except Exception as error:
            self._has_come = True
            if isinstance(self.plans, Drawn):
                self.plans.forget_error(error)
            if isinstance(error, WorkerCrashed):
                _say_as_torch(error)
            raise
        finally:
            self._note()

    def _note(self) -> None:
        here = self.pump.cursor
        if here.epoch == self.epoch:
            self.position = here.position
        else:
            self.position = len(self._order)

    def _pass_by(self) -> None:
        """Go on after a batch whose samples were all left out."""
        self._note()
        self._go_on()

    def _go_on(self) -> None:
        """Draw further keys from the sampler, in the consumer's thread."""
        plans = self.plans
        if not isinstance(plans, Drawn):
            return
        # Not our own, which Ctrl-C may have left behind.
        here = self.pump.cursor.position
        # The usual case, and making a context takes a while.
        if self.aside is contextlib.nullcontext:
            plans.draw(here, self._most)
        else:
            with self.aside():
                plans.draw(here, self._most)
        self.pump.wake()


class Epoch(Generic[B_co]):
    """An iterator over the batches of one epoch: what ``iter(loader)`` returns."""

    def __init__(self, loader: Loading[B_co], current: Pass) -> None:
        self._loader = loader
        self._current = current
        self._one_at_a_time = threading.RLock()
        home.locks.add(self._one_at_a_time)

    def __iter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        """Say in one line what it iterates over and where it is."""
        what = f"{type(self).__name__} of {type(self._loader).__name__}"
        return describing.in_a_line(
            self, what, lambda: self._loader._facts(self._current)
        )

    def __len__(self) -> int:
        """Return the number of batches of this epoch; after a resume, of those that are
        left.
        """
        return self._loader._length_of(self._current)

    def __next__(self) -> B_co:
        with self._one_at_a_time:
            try:
                return self._current.next()  # type: ignore[no-any-return]
            except StopIteration:
                has_ended = self._current.has_ended
                self._current.has_ended = True
                self._loader._take_back(self._current)
                if not has_ended and self._current.is_empty:
                    self._loader._warn_of_nothing()
                raise

    def __del__(self) -> None:
        self._loader._take_back(self._current)


class Loading(Generic[B_co]):
    """The base class of both loaders; a subclass may override how an epoch's batches
    are made.
    """

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
    # Of the order and of the samples' randomness.
    _seed: int
    # The sampler that gives keys or lists of keys; None where slices are cut from an
    # order.
    _sampled: Any
    # Keys in a batch (None: the sampler gives lists), and whether a short one is
    # dropped.
    _cut: tuple[int | None, bool]
    # Every sample of the dataset is in an epoch; False if the user has given a sampler.
    _goes_through_all: bool
    # Makes what the user gets from a batch's contents.
    _opens: Callable[[Any], Any]
    # One worker makes a whole batch, which is sent as one row.
    _in_one: bool
    # The dataset has no keys and is only iterated over.
    _is_stream = False
    # iter() of the sampler is called with the first batch, not before.
    _begins_late = False
    # Only the first epoch draws a seed.
    _keeps_seed = False
    # Of a stream, if the user has asked for it.
    _told_length: int | None = None

    def _begin(
        self,
        served: Any,
        num_workers: Any,
        worker_init: Any,
        options: Mapping[str, Any],
    ) -> None:
        """Finish the construction: check ``options`` and prepare the backend; workers
        fetch rows from ``served``.
        """
        more = {name: value for name, value in options.items() if name not in _KNOWN}
        workers = workers_of(num_workers)
        factor = self.prefetch_factor
        context = self.multiprocessing_context
        timeout = self.timeout
        if num_workers == 0 and (
            timeout
            or self.persistent_workers
            or factor is not None
            or context is not None
        ):
            raise OptionError(
                "timeout, persistent_workers, prefetch_factor and "
                "multiprocessing_context need workers: with num_workers=0 the loop "
                "itself fetches."
            )
        seconds("timeout", timeout or None)
        whole("prefetch_factor", factor, least=1, optional=True)
        is_method = context is None or isinstance(context, str)
        if not is_method and not hasattr(context, "get_start_method"):
            raise OptionError(
                f"multiprocessing_context={context!r:.60} is neither a start method "
                "nor a context."
            )
        if context is not None and more.get("backend") is not None:
            raise OptionError(
                "multiprocessing_context says how processes start here: there are "
                "none with backend=."
            )
        n_prefetch = max(2, workers)
        if factor is not None:
            n_prefetch = min(n_prefetch, factor * workers)
            more.setdefault("run_ahead", factor * workers - n_prefetch)
        if more.get("backend") is None:
            more["backend"] = Process(
                context if is_method else context.get_start_method()
            )
        made = Options(
            dataset=served,
            is_settled=True,
            batch_size=1 if self._in_one else self.batch_size or 1,
            n_workers=workers,
            n_prefetch=n_prefetch,
            dataset_timeout=timeout or None,
            seed=self._seed,
            worker_init=worker_init,
            workers_name="num_workers",
            door=LOADERS,
            **more,
        )
        self._recipe, self._is_stream = made, isinstance(made.dataset, Streamed)
        name = type(users(made.dataset)).__name__
        if self._is_stream and (made.on_error != "raise" or made.receipts is not None):
            raise OptionError(
                f"on_error= and receipts= are about keys, and {name} is read as a "
                "stream, which has none and may be at its end once it has raised; "
                "have its __iter__ catch the error, or pass a dataset with [] and "
                "len()."
            )
        if self.drop_last:
            made.check_drop_last()
        if not self._is_stream and self._goes_through_all and made.receipts is not None:
            made.receipts.length = len(self.dataset)
            made.receipts.step = (self.batch_size or 1) * self.drop_last
        made.prepare()
        self._next = Place()  # where the next iter() begins
        self._settle_in()

    def _settle_in(self) -> None:
        """Begin without an epoch and without workers."""
        # All that were made and are still alive.
        self._pumps: weakref.WeakSet[Any] = weakref.WeakSet()
        # The pump that is kept for the next epoch.
        self._resting: Any = None
        self._is_closed, self._skipped = False, Skipped()
        self._pass: Pass | None = None
        # That the stream's own state isn't part of a loader's.
        self._has_warned = False

    def _is_one_workers(self, collates: bool) -> bool:
        """True if one worker makes a whole batch; otherwise several may write rows into
        the same columns.
        """
        # Columns have a method for many keys, too, as torch's subsets of them have.
        has_columns = type(self.dataset) is Table or gather_of(self.dataset) is not None
        reads_many = (
            bool(getattr(self.dataset, "__getitems__", None)) and not has_columns
        )
        return (
            collates
            or self.batch_size is None
            or reads_many
            or not hasattr(type(self.dataset), "__len__")
        )

    def _served(
        self, is_stream: bool, collate: Any, stacks: bool, skips: bool, *of_stream: Any
    ) -> Any:
        """Return the dataset that workers fetch rows from: the user's, or one whose
        rows are collated batches.
        """
        if is_stream:
            return Streamed(
                self.dataset, self.batch_size, self.drop_last, collate, *of_stream
            )
        alone = self.batch_size is None and self.batch_sampler is None
        if self._in_one:
            return Batched(self.dataset, collate, skips, stacks, alone)
        return self.dataset

    def _plans(self, place: Place) -> Coming:
        """Return the plans of an epoch from ``place`` on; calls the sampler's
        ``iter()``, but draws no keys yet.
        """
        if self._is_stream:
            if place.generators is None:
                before = self._left_by_epoch()
            else:
                before = None
            return Streaming(place, self._recipe.workers, self._told_length, before)
        if self._sampled is None:
            return (InOne if self._in_one else Pace)(
                self._cut[0] or 1, False, place.epoch + 1, self._cut[1]
            )
        drawn = Drawn(self._sampled, place, *self._cut, self._in_one)
        if not self._begins_late:
            drawn.begin()
        return drawn

    def _seed_of_epoch(self) -> int:
        return self._seed

    def _generators(self) -> Generators:
        found = samplers_in(self._sampled)
        if found:
            return Generators(found, ("random", "numpy", "torch"))
        return Generators()

    def _agreed(self) -> dict[str, Any]:
        """Return the options that must be the same when a state is saved and when it is
        loaded.
        """
        if self._is_stream:
            size = self.batch_size and int(self.batch_size)  # a NumPy number is no JSON
            return {
                "kind": "stream",
                "batch_size": size,
                "drop_last": bool(self.drop_last),
            }
        if not self._goes_through_all:
            return {
                "kind": "sampler" if self._cut[0] else "batch_sampler",
                "drop_last": bool(self.drop_last),
            }
        found = {
            "kind": "dataset",
            "dataset_length": len(self.dataset),
            "drop_last": bool(self.drop_last),
        }
        if self._sampled is not None:
            return found
        return found | {"shuffle": self._shuffles}

    def _rest(self, position: int) -> int | None:
        """Return the number of batches from ``position`` to the epoch's end; None if it
        isn't known.
        """
        size, drops = self._cut
        try:
            length = len(self.dataset if self._sampled is None else self._sampled)
        except (TypeError, NotImplementedError):
            return None
        if self._is_stream:
            return max(0, batches_of(length, size or 1, drops) - position)
        return batches_of(
            max(0, length - position), size or 1, drops, self._recipe.share()
        )

    def _warn_of_nothing(self) -> None:
        """Warn of an epoch that has come to its end without a batch."""
        is_datasets = self._is_stream or self._goes_through_all
        what, source = (
            ("dataset", users(self.dataset))
            if is_datasets
            else ("sampler", self._sampled)
        )
        why = f"the {what} gives nothing"
        if hasattr(type(source), "__next__"):
            kind = type(source).__name__
            why = (
                f"the {what} is an iterator ({kind}), which has come to its end; pass "
                "a list, or what begins anew"
            )
        elif self.drop_last:
            why += ", or fewer samples than a batch, which drop_last leaves out"
        warn(f"there was no batch in an epoch: {why}.")

    def _length_of(self, current: Pass | None) -> int:
        """Return how many batches ``current`` has (None: the next epoch); after a
        resume, how many are left.
        """
        rest = self._rest(self._next.position if current is None else current.begun)
        if rest is None:
            what = "dataset" if self._sampled is None else "sampler"
            raise TypeError(
                f"it isn't known how many batches come: the {what} has no length."
            )
        return rest

    def __repr__(self) -> str:
        """Say in one line what it is and where it is."""
        return describing.in_a_line(
            self, type(self).__name__, lambda: self._facts(self._under_way)
        )

    def _facts(self, current: Pass | None) -> describing.Facts:
        """Return the facts for ``repr()``, with the place in ``current``; None: in the
        next epoch.
        """
        here = self._next if current is None else current
        if self.batch_size is not None:
            batches = f"batches of {self.batch_size}"
        elif self.batch_sampler is not None:
            batches = f"batches by a {type(self.batch_sampler).__name__}"
        else:
            batches = "no batching"
        size = self._cut[0]
        if size is None or self._is_stream:
            step = 1
        else:
            step = self._recipe.share().step(size)
        batch = -(-here.position // step)
        total = self._rest(0)
        if total is not None:
            batch = min(batch, total)  # a short one may be left out
        facts = [describing.source(self.dataset, batches, self._recipe)]
        facts.append(describing.place(here.epoch, batch, total))
        return facts + ["closed"] * self._is_closed

    def __iter__(self) -> Epoch[B_co]:
        if self._is_closed:
            raise IteratorClosed("the loader is closed; make a new one.")
        place = self._next
        aside = self._aside(place)
        with aside():
            generators = self._generators()
            begun_with = generators.save()
            try:
                # Before the seed, as in torch: iter() of a sampler may draw.
                plans = self._plans(place)
                if place.keeps_seed:
                    seed = self._seed
                else:
                    seed = self._seed_of_epoch()
                if isinstance(plans, Pace):
                    length = len(self.dataset)
                else:
                    length = 0
                order: Order = Sequential(length)
                if length and self._shuffles:
                    order = Shuffled(length, self._seed, place.epoch)
                current = Pass(
                    place, plans, seed, order, begun_with, self._recipe.rules().most
                )
            except StateError:
                generators.restore(begun_with)
                raise
        current.aside = aside
        epoch: Epoch[B_co] = Epoch(self, current)
        current.go(self._pump())
        self._pass = current
        self._next = Place(place.epoch + 1, keeps_seed=self._keeps_seed)
        return epoch

    def _aside(self, place: Place) -> Aside:
        """Return a maker of contexts: in one, a resumed sampler finds the global
        generators as it left them.
        """
        if place.generators is None:
            return contextlib.nullcontext
        mine = self._generators()
        now = mine.globals_now()
        mine.restore(place.generators, within_epoch=place.drawn > 0)
        saved = mine.globals_now()
        # The user has restored the global generators, so the sampler draws from them.
        if saved == now:
            return contextlib.nullcontext
        mine.put_back(now)
        return partial(mine.aside, saved)

    def _pump(self) -> Any:
        pump = self._resting
        self._resting = None
        if pump is None and self._is_stream:
            pump = ShardPumps(
                self._recipe, _late, stays=self.persistent_workers is True
            )
        elif pump is None:
            pump = pump_for(self._recipe, self._opens, _late, skipped=self._skipped)
        elif self.persistent_workers is not True:
            # A changed dataset is sent to new workers.
            pump.refresh()
        self._pumps.add(pump)
        return pump

    def _take_back(self, current: Pass) -> None:
        """Keep the pump of an abandoned or finished epoch for the next one, or end it.
        The garbage collector calls this too, so busy workers aren't waited for: a pump
        without references ends by itself.
        """
        pump = current.pump
        current.pump = None
        # Two epochs at once have two pumps.  That of the newest epoch takes the place
        # of an older one, since its streams have noted what the next epoch goes on
        # from.
        is_wanted = self._resting is None or (
            pump is not None and current is self._pass
        )
        if self.persistent_workers is not False and not self._is_closed and is_wanted:
            self._resting = pump
        elif pump is not None and current.has_ended:
            pump.close()

    @property
    def _under_way(self) -> Pass | None:
        current = self._pass
        if current is None or current.has_ended or self._next.generators is not None:
            return None
        return current

    def _left_by_epoch(self) -> dict[str, Any] | None:
        """Return where the last epoch left the streams, if the next reads the same
        objects.
        """
        current = self._pass
        if current is None or not current.has_ended:
            return None
        plans = current.plans
        if isinstance(plans, Streaming):
            return plans.after()
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch handed out: JSON-able values, of a size
        independent of the dataset.
        """
        agreed = self._agreed()
        if self._is_stream and not self._has_warned:
            self._has_warned = True
            warn_of_state(users(self.dataset))
        if (current := self._under_way) is not None:
            place = current.place()
        elif (place := self._next).generators is None:
            generators = self._generators().save()
            stream = self._left_by_epoch()
            place = place._replace(generators=generators, stream=stream)
        # A short batch may be left, which isn't handed out.
        if (length := agreed.get("dataset_length")) is not None:
            step = self._recipe.share().step(self._cut[0] or 1)
            if length - place.position < step * self.drop_last:
                place = place._replace(position=length)
        return save(place, self._seed, agreed)

    def load_state_dict(self, state: Any) -> None:
        """Make the next ``iter()`` go on from where ``state`` was saved, with any
        number of workers.
        """
        self._recipe.warn_of_disorder()
        self._next, self._seed = load(state, self._agreed())

    @property
    def fetches_here(self) -> bool:
        """True if the loop itself fetches the samples, without workers."""
        return self._recipe.n_workers == 0

    @property
    def is_new_epoch(self) -> bool:
        """True if the last batch completed an epoch; False where the number of batches
        isn't known.
        """
        current = self._pass
        return (
            current is not None
            and self._next.generators is None
            and self._rest(current.position) == 0
        )

    has_passes = True  # each ``for`` loop is one

    @property
    def passes(self) -> int:
        """The number of passes before the present one; each is an epoch."""
        current = self._under_way
        return self._next.epoch if current is None else current.epoch

    def end_pass(self) -> bool:
        """Count the present pass as ended if all its batches were handed out, though no
        ``next()`` has asked for more.

        A loop over ``zip()`` ends with the first loader that has no more batches, and
        doesn't ask the others.  Return False if the pass goes on.
        """
        if self._pass is not None and self.is_new_epoch:
            self._pass.has_ended = True
        return self._under_way is None

    def close(self) -> None:
        """End the workers; batches already handed out stay valid."""
        self._is_closed = True
        for pump in list(self._pumps):
            pump.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the workers: a copy, also by pickle, is at the same place and
        starts its own.
        """
        own = {"_pumps", "_resting", "_is_closed", "_skipped", "_has_warned"}
        state = {
            name: value for name, value in self.__dict__.items() if name not in own
        }
        return state | {"_pass": None if self._pass is None else self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        place = state.pop("_pass")
        self.__dict__.update(state)
        self._settle_in()
        if place is not None:
            self.load_state_dict(place)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The process ids of the present workers."""
        pump = self._fetching
        return () if pump is None else pump.worker_pids

    def stats(self) -> Stats:
        """Return the counters: those of the present workers, but skipped samples of all
        epochs.
        """
        pump = self._fetching
        if pump is None:
            return Stats(skipped=self._skipped.count, skips=self._skipped.first)
        stats: Stats = pump.stats()
        return stats

    @property
    def _fetching(self) -> Any:
        """The pump that fetches, or is kept for the next epoch; None if there is
        none.
        """
        under_way = None if self._pass is None else self._pass.pump
        return under_way or self._resting


def _late(limit: float, waited: float, doings: str) -> Exception:
    return BatchTimeout(f"DataLoader timed out after {limit:g} seconds; {doings}.")


def _say_as_torch(error: WorkerCrashed) -> None:
    """Have the error's text begin with what torch's loader says of a worker that has
    ended: programs look for it.
    """
    if error.exitcode is None:
        return
    if error.exitcode < 0:
        how = (
            f"(pid {error.pid}) is killed by signal: "
            f"{signal.strsignal(-error.exitcode)}"
        )
    else:
        how = f"(pid(s) {error.pid}) exited unexpectedly"
    error.args = (f"DataLoader worker {how}; {error}",)
