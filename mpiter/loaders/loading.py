"""Loaders: each ``iter()`` is an epoch of one dataset.

The pump with its workers is kept between epochs.  A state holds the epoch's number, how
much of it was handed out, and the states of the sampler's random generators at its
beginning.  To resume, the sampler is iterated over again, and keys that were handed out
are skipped, not loaded.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    NoReturn,
    Protocol,
    Self,
    SupportsIndex,
)

from ..datasets.columns import Table, brings_reader, users
from ..datasets.gathering import gather_of
from ..engine import describing
from ..engine.alone import pump_for
from ..engine.bringing import order_of
from ..engine.options import Options, options_for, seconds, whole
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
from ..order.brought import Brought
from ..order.cursor import Cursor, Pace, batches_of
from ..order.order import EpochOrder, Sequential, Shuffled
from ..order.state import number_of
from ..pool.backends import Process
from ..rules import LOADERS
from ..stats import Stats
from ..typevars import B_co
from ..worker import home
from ..worker.here import WorkerInfo
from .batched import Batched
from .drawing import Drawn, Generators, InOne, Start, load, samplers_in, save
from .shards import Streamed
from .streams import ShardPumps, Streaming, warn_of_state

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

# Makes a context for asking the sampler.
Aside = Callable[[], contextlib.AbstractContextManager[None]]
# The options that a loader itself has dealt with.
_KNOWN = {"seed", "persistent_workers", "pin_memory_device"}
Coming = Pace | Drawn | Streaming  # what plans an epoch's batches


class AnyPump(Protocol):
    """What a loader asks of a pump: one of ``pump_for``'s, or a stream's."""

    cursor: Cursor

    @property
    def skipped(self) -> int: ...
    @property
    def worker_pids(self) -> tuple[int, ...]: ...
    def go(self, cursor: Cursor, plans: Any, seed: int) -> None: ...
    def start(self) -> None: ...
    def next(self, passed: Callable[[], object] = ...) -> Any: ...
    def wake(self) -> None: ...
    def refresh(self) -> None: ...
    def stats(self) -> Stats: ...
    def known_tokens(self) -> int: ...
    def close(self) -> None: ...


def workers_of(num_workers: int) -> int:
    """Return ``num_workers`` as an int."""
    whole("num_workers", num_workers)
    if num_workers < 0:
        raise OptionError(
            f"num_workers option should be non-negative, not {num_workers}; with "
            "num_workers=0 the loop itself fetches."
        )
    return int(num_workers)


class Cutting(NamedTuple):
    """What cuts the keys of an epoch into batches."""

    # The sampler that gives keys or lists of keys; None where slices are cut from an
    # order.
    sampler: Any
    # The number of keys in a batch; None where the sampler gives lists.
    size: int | None
    # A short last batch is left out.
    drops: bool
    # Every sample of the dataset is in an epoch.  It isn't so where the user has given
    # a sampler.
    covers: bool
    # The sampler's iter() is called with the first batch, not before.
    begins_late: bool = False


def is_one_workers(dataset: object, batch_size: int | None, collates: bool) -> bool:
    """Return True if one worker makes a whole batch.

    Otherwise several workers may write rows into the same columns.
    """
    # Columns have a method for many keys, too, as torch's subsets of them have.  Their
    # rows are written into the batch directly, so they don't count here.
    kind = type(dataset)
    has_columns = kind is Table or brings_reader(kind)
    has_columns = has_columns or gather_of(dataset) is not None
    has_many = bool(getattr(dataset, "__getitems__", None))
    return (
        collates
        or batch_size is None
        or (has_many and not has_columns)
        or not hasattr(type(dataset), "__len__")
    )


def served_from(
    dataset: Any,
    batch_size: int | None,
    drop_last: bool,
    collate: Callable[[Any], Any],
    *,
    is_stream: bool,
    in_one: bool,
    alone: bool,
    stacks: bool,
    skips: bool,
    shards_itself: bool | None = None,
) -> Any:
    """Return the dataset that workers fetch rows from.

    It is the user's, or one whose rows are collated batches.  See ``Streamed`` and
    ``Batched`` for the arguments.
    """
    if is_stream:
        return Streamed(dataset, batch_size, drop_last, collate, shards_itself)
    if alone and not hasattr(type(dataset), "__getitem__"):
        kind = type(dataset).__name__
        raise OptionError(
            f"batch_size=None reads dataset[key], sample by sample, and {kind} has "
            "only __getitems__: pass a batch_size, or have it offer [] too."
        )
    if in_one:
        return Batched(dataset, batch_size, collate, skips, stacks, alone)
    return dataset


def loaders_options(
    served: Any,
    num_workers: int,
    batch_size: int | None,
    drop_last: bool,
    seed: int,
    *,
    timeout: float,
    prefetch_factor: int | None,
    persistent_workers: bool | None,
    multiprocessing_context: BaseContext | str | None,
    worker_init: Callable[[WorkerInfo], Any] | None,
    given: Mapping[str, Any],
) -> Options:
    """Check a loader's arguments and return the options of its workers.

    These fetch rows from ``served``, of which ``batch_size`` make a batch.  What the
    user has ``given`` beside the arguments here goes to the options as well.
    """
    more = {name: value for name, value in given.items() if name not in _KNOWN}
    workers = workers_of(num_workers)
    needs_workers = (
        timeout
        or persistent_workers
        or prefetch_factor is not None
        or multiprocessing_context is not None
    )
    if num_workers == 0 and needs_workers:
        raise OptionError(
            "timeout, persistent_workers, prefetch_factor and multiprocessing_context "
            "need workers: with num_workers=0 the loop itself fetches."
        )
    seconds("timeout", timeout or None)
    whole("prefetch_factor", prefetch_factor, least=1, optional=True)
    method = _start_method(multiprocessing_context)
    if multiprocessing_context is not None and more.get("backend") is not None:
        raise OptionError(
            "multiprocessing_context says how processes start here: there are none "
            "with backend=."
        )
    n_prefetch = max(2, workers)
    if prefetch_factor is not None:
        most = prefetch_factor * workers
        n_prefetch = min(n_prefetch, most)
        # An explicit None means the same as leaving it out.
        if more.get("run_ahead") is None:
            more["run_ahead"] = most - n_prefetch
    if more.get("backend") is None:
        more["backend"] = Process(method)
    made = options_for(
        served,
        is_stream=isinstance(served, Streamed),
        taken_for="dataset",
        batch_size=batch_size or 1,
        n_workers=workers,
        n_prefetch=n_prefetch,
        dataset_timeout=timeout or None,
        seed=seed,
        worker_init=worker_init,
        workers_name="num_workers",
        door=LOADERS,
        **more,
    )
    if made.is_stream and made.on_error != "raise":
        name = type(users(made.dataset)).__name__
        raise OptionError(
            f"on_error= is about keys, and {name} is read as a stream, which has none "
            "and may be at its end once it has raised; have its __iter__ catch the "
            "error, or pass a dataset with [] and len()."
        )
    if drop_last:
        made.check_drop_last()
    return made


def _start_method(context: BaseContext | str | None) -> str | None:
    """Return the name of the way in which processes start; None for the usual one."""
    if context is None or isinstance(context, str):
        return context
    if not hasattr(context, "get_start_method"):
        raise OptionError(
            f"multiprocessing_context={context!r:.60} is neither a start method nor a "
            "context."
        )
    return context.get_start_method()


class Pass:
    """One epoch in progress: its position, its plans, and the pump that fetches it."""

    # The context in which the sampler finds its own random generators.
    aside: Aside = contextlib.nullcontext
    # None if the epoch hasn't begun, or has given its pump back.
    pump: AnyPump | None = None
    has_ended = False
    # A batch was handed out, or an error was raised in place of one.
    _has_come = False

    def __init__(
        self,
        place: Start,
        plans: Coming,
        seed: int,
        order: EpochOrder,
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
        self.order = order
        self._most = most
        # A resumed sampler has to draw as far ahead as it had when the state was saved:
        # if it shares a generator with others, each draws what it drew then.  A place
        # within an epoch is saved after a batch, with one batch less ahead.
        if isinstance(plans, Drawn):
            plans.go_to(place, generators)
            plans.draw(self.position, most - (place.drawn > 0))

    def go(self, pump: AnyPump) -> None:
        """Begin the epoch, or go on with it, on ``pump``."""
        self.pump = pump
        # The pump counts the samples left out in all epochs, so ``next`` compares with
        # the number before this one.
        self._skipped = pump.skipped
        here = Cursor(self.position, self.epoch, False, self.order)
        pump.go(here, self.plans, self._seed)
        # Nothing may be left to fetch.  Then ``iter()`` succeeds all the same, and
        # ``next()`` raises StopIteration.
        with contextlib.suppress(StopIteration):
            pump.start()

    def place(self) -> Start:
        plans = self.plans
        if isinstance(plans, Pace):
            known = Start(self.epoch)
        else:
            known = plans.place(self.position)
        return known._replace(
            position=self.position,
            generators=self.generators,
            keeps_seed=self._keeps_seed,
        )

    @property
    def is_empty(self) -> bool:
        """True if it has had no batch, neither here nor before it was resumed."""
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
            # The pump has gone on behind an error in place of a batch, but not after
            # Ctrl-C.  Its cursor is right in each case.
            self._note()

    def _note(self) -> None:
        here = self.pump.cursor  # type: ignore[union-attr]
        if here.epoch == self.epoch:
            self.position = here.position
        else:
            # The pump is at the beginning of the next epoch, so all of this one was
            # handed out.
            self.position = len(self.order)

    def _pass_by(self) -> None:
        """Go on after a batch whose samples were all left out."""
        self._note()
        self._go_on()

    def _go_on(self) -> None:
        """Draw further keys from the sampler, in the consumer's thread."""
        plans = self.plans
        if not isinstance(plans, Drawn):
            return
        # The pump's own position counts.  That of this epoch is noted after each batch,
        # and a Ctrl-C just before that has left it behind.
        here = self.pump.cursor.position  # type: ignore[union-attr]
        # Usually there is no context, and making an empty one takes a while.
        if self.aside is contextlib.nullcontext:
            plans.draw(here, self._most)
        else:
            with self.aside():
                plans.draw(here, self._most)
        self.pump.wake()  # type: ignore[union-attr]


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
        loader = self._loader
        what = f"{type(self).__name__} of {type(loader).__name__}"
        return describing.in_a_line(self, what, lambda: loader._facts(self._current))

    def __len__(self) -> int:
        """Return the number of batches of this epoch.

        After a resume, only those that are left count.
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

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # A copy would take the workers away from this one when it is dropped.
        raise TypeError(
            "an epoch under way can't be copied or pickled; copy the loader, or keep "
            "its state_dict()."
        )

    def __del__(self) -> None:
        self._loader._take_back(self._current)


class Loading(Generic[B_co]):
    """The base class of both loaders.

    A subclass may override how an epoch's batches are made.
    """

    # What the user has passed, which a subclass sets before this class's ``__init__``.
    dataset: Any
    batch_size: int | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    drop_last: bool
    timeout: float
    prefetch_factor: int | None
    persistent_workers: bool | None
    multiprocessing_context: BaseContext | str | None

    def __init__(
        self,
        recipe: Options,
        opens: Callable[[Any], Any],
        in_one: bool,
        seed: int,
        shuffle: object,
    ) -> None:
        self._recipe = recipe
        # Makes what the user gets from a batch's contents.
        self._opens = opens
        # One worker makes a whole batch, which is sent as one row.
        self._in_one = in_one
        # The dataset has no keys and is only iterated over.
        self._is_stream = isinstance(recipe.dataset, Streamed)
        # The seed of the order and of the samples' randomness.
        self._seed = seed
        # The user's argument, which an order that the dataset brings is told as well.
        self._shuffle = shuffle
        self._brought = self._order_brought()
        # Where the next iter() begins.
        self._next = Start()
        self._settle_in()
        recipe.prepare()

    def _cutting(self) -> Cutting:
        """Return what cuts an epoch's keys into batches."""
        raise NotImplementedError

    def _keeps_seed(self) -> bool:
        """Return True if only the first epoch draws a seed."""
        return False

    def _told_length(self) -> int | None:
        """Return the length that a stream has told the user who asked for it."""
        return None

    def _order_brought(self) -> Brought | None:
        """Return the order that the dataset brings, at its first epoch.

        None if it brings none, or if something else says what comes when.
        """
        if self._is_stream or self._cutting().sampler is not None:
            return None
        return order_of(self.dataset, self._seed, self._shuffle)

    def _settle_in(self) -> None:
        """Begin without an epoch and without workers."""
        # All pumps that were made and are still alive.
        self._pumps: weakref.WeakSet[AnyPump] = weakref.WeakSet()
        # The pump that is kept for the next epoch.
        self._resting: AnyPump | None = None
        self._is_closed = False
        self._skipped = Skipped()
        self._pass: Pass | None = None
        # The user was warned that a stream's own state isn't part of a loader's.
        self._has_warned = False

    def _plans(self, place: Start) -> Coming:
        """Return the plans of an epoch from ``place`` on.

        Calls the sampler's ``iter()``, but draws no keys yet.
        """
        if self._is_stream:
            before = None
            if place.generators is None:
                before = self._left_by_epoch()
            told = self._told_length()
            return Streaming(place, self._recipe.workers, told, before)
        cut = self._cutting()
        if cut.sampler is None:
            kind: type[Pace] = Pace
            if self._in_one:
                kind = InOne
            return kind(cut.size or 1, False, place.epoch + 1, cut.drops)
        length = len(self.dataset) if cut.covers else None
        ranks = self._recipe.share().size
        drawn = Drawn(
            cut.sampler, place, cut.size, cut.drops, self._in_one, length, ranks
        )
        if not cut.begins_late:
            drawn.begin()
        return drawn

    def _seed_of_epoch(self) -> int:
        return self._seed

    def _generators(self) -> Generators:
        found = samplers_in(self._cutting().sampler)
        if found:
            return Generators(found, ("random", "numpy", "torch"))
        return Generators()

    def _agreed(self) -> dict[str, Any]:
        """Return the options that a state and the loader of it must have in common."""
        drops = bool(self.drop_last)
        if self._is_stream:
            size = self.batch_size and int(self.batch_size)  # a NumPy number is no JSON
            return {"kind": "stream", "batch_size": size, "drop_last": drops}
        cut = self._cutting()
        if not cut.covers:
            kind = "sampler" if cut.size else "batch_sampler"
            return {"kind": kind, "drop_last": drops}
        if self._brought is not None:
            return {"kind": "dataset", "order": self._brought.name, "drop_last": drops}
        found: dict[str, Any] = {
            "kind": "dataset",
            "dataset_length": len(self.dataset),
            "drop_last": drops,
        }
        if cut.sampler is None:
            found["shuffle"] = bool(self._shuffle)
        return found

    def _order_of(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch whose batches no sampler determines."""
        # Those of earlier epochs than that of a loaded state aren't needed any more.
        if self._brought is not None:
            return self._brought.later(max(0, epoch - self._brought.epoch))
        length = len(self.dataset)
        if length and self._shuffle:
            return Shuffled(length, self._seed, epoch)
        return Sequential(length)

    def _order_in(self, current: Pass | None) -> EpochOrder:
        """Return the order of ``current``, or of the next epoch."""
        if current is not None:
            return current.order
        return self._order_of(self._next.epoch)

    def _rest(self, position: int, current: Pass | None = None) -> int | None:
        """Return the number of batches from ``position`` to the epoch's end.

        That of ``current``, or of the next one.  None if it isn't known, because the
        dataset or the sampler has no length.
        """
        cut = self._cutting()
        size = cut.size or 1
        if self._brought is not None:
            length = len(self._order_in(current))
        else:
            try:
                source = cut.sampler
                if source is None:
                    source = self.dataset
                length = len(source)
            except (TypeError, NotImplementedError):
                return None
        if self._is_stream:
            return max(0, batches_of(length, size, cut.drops) - position)
        left = max(0, length - position)
        return batches_of(left, size, cut.drops, self._recipe.share())

    def _warn_of_nothing(self) -> None:
        """Warn of an epoch that has come to its end without a batch."""
        cut = self._cutting()
        if self._is_stream or cut.covers:
            what = "dataset"
            if self._brought is not None:
                what = "dataset's order"
            source = users(self.dataset)
        else:
            what = "sampler"
            source = cut.sampler
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
        """Return how many batches ``current`` has; None stands for the next epoch.

        After a resume, only those that are left count.
        """
        begun = self._next.position
        if current is not None:
            begun = current.begun
        rest = self._rest(begun, current)
        if rest is None:
            what = "dataset" if self._cutting().sampler is None else "sampler"
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
        """Return the facts for ``repr()``, with the place in ``current``.

        None stands for the next epoch.
        """
        here = self._next if current is None else current
        if self.batch_size is not None:
            batches = f"batches of {self.batch_size}"
        elif self.batch_sampler is not None:
            batches = f"batches by a {type(self.batch_sampler).__name__}"
        else:
            batches = "no batching"
        size = self._cutting().size
        if size is None or self._is_stream:
            step = 1
        else:
            step = self._recipe.share().step(size)
        batch = -(-here.position // step)
        total = self._rest(0, current)
        if total is not None:
            batch = min(batch, total)  # a short one may be left out
        facts = [
            describing.source(self.dataset, batches, self._recipe),
            describing.place(here.epoch, batch, total),
        ]
        if self._is_closed:
            facts.append("closed")
        return facts

    def __iter__(self) -> Epoch[B_co]:
        if self._is_closed:
            raise IteratorClosed("the loader is closed; make a new one.")
        place = self._next
        aside = self._aside(place)
        with aside():
            generators = self._generators()
            begun_with = generators.save()
            try:
                # As in torch, the plans come before the seed is drawn: the sampler's
                # iter(), which they call, may draw from the same generator.
                plans = self._plans(place)
                if place.keeps_seed:
                    seed = self._seed
                else:
                    seed = self._seed_of_epoch()
                order: EpochOrder = Sequential(0)
                if isinstance(plans, Pace):
                    order = self._order_of(place.epoch)
                most = self._recipe.rules().most
                current = Pass(place, plans, seed, order, begun_with, most)
            except StateError:
                # The state doesn't fit the sampler.  What the attempt has drawn is
                # given back, so that the next one finds the generators as they were.
                generators.restore(begun_with)
                raise
        current.aside = aside
        epoch: Epoch[B_co] = Epoch(self, current)
        current.go(self._pump())
        self._pass = current
        self._next = Start(place.epoch + 1, keeps_seed=self._keeps_seed())
        return epoch

    def _aside(self, place: Start) -> Aside:
        """Return a maker of contexts for asking a sampler.

        In such a context, a resumed sampler finds the global generators as it left
        them.
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

    def _pump(self) -> AnyPump:
        pump = self._resting
        self._resting = None
        stays = self.persistent_workers is True
        if pump is None and self._is_stream:
            pump = ShardPumps(self._recipe, _late, stays=stays)
        elif pump is None:
            pump = pump_for(self._recipe, self._opens, _late, skipped=self._skipped)
        elif not stays:
            # The workers of a pump that rested have the dataset as it was.  If it has
            # changed since, they end, and new ones get it.
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
        """Return where the last epoch left the streams.

        None if the next epoch doesn't read the same objects.
        """
        current = self._pass
        if current is None or not current.has_ended:
            return None
        plans = current.plans
        if isinstance(plans, Streaming):
            return plans.after()
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch handed out, as JSON-able values.

        Their size doesn't depend on the dataset's.
        """
        agreed = self._agreed()
        if self._is_stream and not self._has_warned:
            self._has_warned = True
            warn_of_state(users(self.dataset))
        current = self._under_way
        place = self._next
        if current is not None:
            place = current.place()
        elif place.generators is None:
            generators = self._generators().save()
            stream = self._left_by_epoch()
            place = place._replace(generators=generators, stream=stream)
        # A last batch that is too short is never handed out.  The place is then the
        # epoch's end, so that no other batch size finds a whole batch there.
        length = agreed.get("dataset_length")
        order: EpochOrder | None = None
        if self._brought is not None:
            order = self._order_in(current)
            length = len(order)
        if length is not None:
            size = self._cutting().size or 1
            step = self._recipe.share().step(size)
            if length - place.position < step * self.drop_last:
                place = place._replace(position=length)
        state = save(place, self._seed, agreed)
        if isinstance(order, Brought):
            state |= order.saved(place.position)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next ``iter()`` go on from where ``state`` was saved.

        The number of workers may be another one.
        """
        self._recipe.warn_of_disorder()
        place, seed = load(state, self._agreed())
        if self._brought is not None:
            order = self._brought.resumed(state, seed, place.epoch, place.position)
            number_of(state, "position", high=len(order))
            self._brought = order
        self._next = place
        self._seed = seed

    @property
    def fetches_here(self) -> bool:
        """True if the loop itself fetches the samples, without workers."""
        return self._recipe.fetches_here

    @property
    def is_new_epoch(self) -> bool:
        """True if the last batch completed an epoch.

        False where the number of batches isn't known.
        """
        current = self._pass
        return (
            current is not None
            and self._next.generators is None
            and self._rest(current.position, current) == 0
        )

    @property
    def step_tokens(self) -> int:
        """The number of tokens of all ranks in the step of the last batch.

        It is the same on each rank, without communication.  Missing if the dataset's
        order doesn't tell the tokens of its samples, as that of a ``Pack`` does.
        """
        pump = self._fetching
        if pump is None:
            raise AttributeError("step_tokens isn't known: no batch has come yet.")
        return pump.known_tokens()

    has_passes = True  # each ``for`` loop is one

    @property
    def passes(self) -> int:
        """The number of passes before the present one; each is an epoch."""
        current = self._under_way
        return self._next.epoch if current is None else current.epoch

    def end_pass(self) -> bool:
        """Count the present pass as ended if all its batches were handed out.

        No ``next()`` need have asked for more: a loop over ``zip()`` ends with the
        first loader that has no more batches, and doesn't ask the others.  Return False
        if the pass goes on.
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
        """Leave out the workers.

        A copy, also by pickle, is at the same place and starts its own.
        """
        own = {
            "_brought",
            "_has_warned",
            "_is_closed",
            "_pumps",
            "_resting",
            "_skipped",
        }
        state = {
            name: value for name, value in self.__dict__.items() if name not in own
        }
        state["_pass"] = None
        # An order that the dataset brings is made anew, and goes on by a state.
        if self._pass is not None or self._brought is not None:
            state["_pass"] = self.state_dict()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        place = state.pop("_pass")
        # Whether the dataset brings an order may depend on the rest.
        self.__dict__.update(state, _brought=None)
        self._brought = self._order_brought()
        self._settle_in()
        if place is not None:
            self.load_state_dict(place)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The process ids of the present workers."""
        pump = self._fetching
        if pump is None:
            return ()
        return pump.worker_pids

    def stats(self) -> Stats:
        """Return the counters of the present workers; skipped samples of all epochs."""
        pump = self._fetching
        if pump is None:
            return Stats(skipped=self._skipped.count, skips=self._skipped.first)
        return pump.stats()

    @property
    def _fetching(self) -> AnyPump | None:
        """The pump that fetches, or is kept for the next epoch, if there is one."""
        under_way = None if self._pass is None else self._pass.pump
        return under_way or self._resting


def _late(limit: float, waited: float, doings: str) -> Exception:
    return BatchTimeout(f"DataLoader timed out after {limit:g} seconds; {doings}.")


def _say_as_torch(error: WorkerCrashed) -> None:
    """Begin an error's text with what torch's loader says of a worker that has ended.

    Programs look for these words.
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
