"""The base class of all iterators: Chainer's interface, over a pump.

The pump delivers batches from a position on.  Attributes and ``state_dict()`` describe
what has been handed out, never what is prefetched.  Attributes may be assigned to: an
order sampler takes effect with the next epoch, while another dataset, batch size or
``repeat`` needs new workers, which begin with the next batch.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, overload

import numpy as np

from ..datasets.columns import offered
from ..engine import describing
from ..engine.alone import pump_for
from ..engine.bringing import brings_order, order_of
from ..engine.options import Options, TakenFor, flag, function, whole
from ..errors import IteratorClosed, OptionError, StateError, warn
from ..order.brought import Brought
from ..order.cursor import Cursor, Pace, batches_of
from ..order.order import (
    EpochOrder,
    Given,
    Listed,
    Sampled,
    Sampler,
    SamplerOfTheMoment,
    Sequential,
    Shuffled,
)
from ..order.state import load, save, typed
from ..samples.batch import Batch
from ..samples.tree import Contents
from ..stats import Stats
from ..typevars import B, Data_co, T
from ..worker.seeding import seed_for

if TYPE_CHECKING:
    from ..typevars import Parts, Samples

_log = logging.getLogger("mpiter")
_CHECKSUM = "sampler_checksum"


@dataclass(frozen=True, slots=True)
class Sampling:
    """The options that determine the epochs and their order."""

    # Batches run on into the next epoch.
    wrap: bool = False
    epochs: int | None = 1
    drop_last: bool = False
    # None: unless there is an order sampler.
    shuffle: bool | None = None
    order_sampler: Sampler | None = None

    def __post_init__(self) -> None:
        whole("epochs", self.epochs, least=1, optional=True)
        flag("shuffle", self.shuffle)
        flag("drop_last", self.drop_last)
        function("order_sampler", self.order_sampler)
        if self.shuffle is not None and self.order_sampler is not None:
            raise OptionError(
                "shuffle and order_sampler exclude each other; leave shuffle at None "
                "to use the sampler."
            )

    def check(self, options: Options) -> None:
        """Refuse a dataset that can't be iterated over with these options."""
        brings = brings_order(options.dataset, order_sampler=self.order_sampler)
        try:
            length = len(options.dataset)
        except TypeError as error:
            has_length = offered(options.dataset, "__len__") is not None
            # An array without a dimension has the method, and yet no length.
            if has_length and not hasattr(options.dataset, "shape"):
                raise OptionError(
                    f"len(dataset) of {type(options.dataset).__name__} fails: {error}."
                ) from error
            raise OptionError(
                f"a dataset needs len(dataset), which {type(options.dataset).__name__} "
                "has not; pass a list, an array or an object with __len__ and "
                "__getitem__."
            ) from error
        if self.drop_last:
            options.check_drop_last()
        # How many samples an order sampler will return isn't known, and the dataset
        # hasn't yet made the order that it brings.
        if self.order_sampler is None and not brings:
            self.check_length(length, options, "dataset")

    def check_length(self, length: int, options: Options, what: str) -> None:
        """Refuse epochs of ``length`` samples that can't be repeated, or warn of none.

        ``what`` has this length.
        """
        if self.wrap and length == 0:
            raise OptionError(
                f"the {what} is empty, so it cannot be repeated; pass repeat=False or "
                "fill it."
            )
        batch_size = options.batch_size
        drops = bool(self.drop_last)
        if not batches_of(length, batch_size, drops, options.share()):
            why = f"the {what} is empty"
            if length:
                why = (
                    f"drop_last leaves out all {length} samples, since "
                    f"batch_size={batch_size}"
                )
            warn(f"there is no batch in an epoch: {why}.")

    @property
    def shuffles(self) -> bool:
        if self.order_sampler is not None:
            return False
        return self.shuffle is None or bool(self.shuffle)


class DatasetIterator(Generic[Data_co]):
    """An iterator over batches: a position in the epochs, and a pump.

    The pump delivers the batches from that position on.
    """

    class TimeoutWarning(RuntimeWarning):
        """No batch has come for longer than ``dataset_timeout`` seconds."""

    # It may be used again after close().
    _revives = False
    # What a list or a tuple of arrays is: columns, or the samples.
    _taken_for: TakenFor = "columns"
    # The number of passes over the epochs, with the present one.
    _passes = 1
    # A checksum of the first order that the order sampler returned, for ``shard=``.
    _sampler_checksum: int | None = None

    def __init__(self, options: Options, sampling: Sampling) -> None:
        sampling.check(options)
        self._sampling = sampling
        self._sampler = SamplerOfTheMoment(sampling.order_sampler)
        self._begin(options)
        order = self._first_order()
        if isinstance(order, Brought):
            sampling.check_length(len(order), options, "order")
        self._go(Cursor(0, 0, False, order))

    def _begin(self, options: Options) -> None:
        options.prepare()
        self._pump = pump_for(options, self._way_to_open(options), _late)
        if options.seed is None:
            self._pump.seed = seed_for(draws=self._sampling.shuffles)
        else:
            self._pump.seed = options.seed

    def _way_to_open(self, options: Options) -> Callable[[Contents], Any]:
        """Return the function that makes a batch of its contents."""
        return Batch

    def __iter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        """Say in one line what it is and where it is."""
        return describing.in_a_line(self, type(self).__name__, self._facts)

    def _facts(self) -> describing.Facts:
        options = self._pump.options
        here = self._cursor
        pace = self._pace
        batches = f"batches of {options.batch_size}"
        facts = [describing.source(options.dataset, batches, options)]
        share = options.share()
        length = len(here.order)
        # Where batches run on into the next epoch, none ends with this one, and only
        # samples can be counted.
        if pace.wrap:
            facts.append(f"epoch {here.epoch}, sample {here.position:,} of {length:,}")
        else:
            batch = -(-here.position // share.step(pace.batch_size))
            of = batches_of(length, pace.batch_size, pace.drop_last, share)
            facts.append(describing.place(here.epoch, batch, of))
        if self._pump.is_closed and not self._revives:
            facts.append("closed")
        return facts

    @overload
    def __next__(self: DatasetIterator[Parts]) -> Batch[Any]: ...
    @overload
    def __next__(self: DatasetIterator[Samples[T]]) -> Batch[T]: ...
    @overload
    def __next__(self) -> Batch[Any]: ...
    def __next__(self) -> Any:
        if self._revives:
            self._pump.is_closed = False
        try:
            return self._pump.next()
        except StopIteration:
            # As in Chainer, a call that finds the end is a step without samples.
            here = self._cursor
            self._pump.cursor = here._replace(previous_epoch_detail=here.epoch_detail)
            raise

    def next(self: Iterator[B]) -> B:
        """Return the next batch, as ``next(it)`` does; Chainer's programs call this."""
        return self.__next__()

    @property
    def _cursor(self) -> Cursor:
        return self._pump.cursor

    @property
    def _pace(self) -> Pace:
        """What cuts batches, in Python's own types.

        The user may have passed ``np.int64(32)``, or ``repeat=1``.
        """
        sampling = self._sampling
        wrap = bool(sampling.wrap)
        drop_last = bool(sampling.drop_last)
        epochs = None
        if sampling.epochs is not None:
            epochs = int(sampling.epochs) * self._passes
        return Pace(self.batch_size, wrap, epochs, drop_last)

    def _go(self, cursor: Cursor, seed: int | None = None) -> None:
        """Continue from ``cursor``, and drop the batches in flight."""
        self._pump.go(cursor, self._pace, seed)

    def _go_by(self, order: EpochOrder) -> None:
        """Continue in another order from the same position.

        If that order is shorter, continue from its last sample.
        """
        here = self._cursor
        last = max(len(order) - 1, 0)
        self._go(here._replace(order=order, position=min(here.position, last)))

    def _order_of(self, epoch: int, indices: Any = None) -> EpochOrder:
        """Return the order of an epoch.

        Its ``indices`` are needed where they don't follow from the seed.
        """
        brought = order_of(self.dataset, self.seed, self._sampling.shuffle)
        if brought is not None:
            return brought.later(epoch)
        if self._sampler.sampler is not None:
            # If this is the present order, those that the sampler was asked for ahead
            # come after it, as they would have.
            now = self._cursor.order
            if isinstance(now, Sampled):
                return now.instead(indices)
            return Sampled(indices, self._sampler)
        length = len(self.dataset)
        if not self._sampling.shuffles:
            return Sequential(length)
        if indices is None:
            return Shuffled(length, self.seed, epoch)
        return Given(indices, Shuffled(length, self.seed, epoch + 1))

    def _first_order(self) -> EpochOrder:
        sampler = self._sampler.sampler
        if sampler is None:
            return self._order_of(0)
        order = Sampled(sampler(np.arange(len(self.dataset)), 0), self._sampler)
        if self._pump.options.shard is not None:
            self._sampler_checksum = zlib.crc32(order.array().tobytes())
            _log.info(
                "order_sampler: the first order has the checksum %08x, which must be "
                "the same in all ranks",
                self._sampler_checksum,
            )
        return order

    def reset(self) -> None:
        """Start again from the first epoch."""
        self._refuse_if_closed("be reset")
        now = self._cursor.order
        order: EpochOrder
        # The sampler was asked ahead, and isn't asked again for what it has given.
        if isinstance(now, Sampled):
            order = now.over_again(len(self.dataset))
        else:
            order = self._first_order()
        self._go(Cursor(0, 0, False, order))

    @property
    def epoch(self) -> int:
        """The number of complete epochs."""
        return self._cursor.epoch

    @property
    def current_position(self) -> int:
        """The number of samples of the current epoch that were handed out."""
        return self._cursor.position

    @property
    def is_new_epoch(self) -> bool:
        """True if the last batch completed an epoch."""
        return self._cursor.is_new_epoch

    @property
    def epoch_detail(self) -> float:
        """The number of epochs as a float, with the part of this one that is over."""
        return self._cursor.epoch_detail

    @property
    def previous_epoch_detail(self) -> float | None:
        """``epoch_detail`` before the last batch; None before the first."""
        detail = self._cursor.previous_epoch_detail
        if detail < 0:
            return None
        return detail

    @property
    def step_tokens(self) -> int:
        """The number of tokens of all ranks in the step of the last batch.

        It is the same on each rank, without communication.  Missing if the dataset's
        order doesn't tell the tokens of its samples, as that of a ``Pack`` does.
        """
        return self._pump.known_tokens()

    @property
    def seed(self) -> int:
        """The seed of the order and of the samples' randomness."""
        return self._pump.seed

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The process ids of the present workers; one that is replaced has another."""
        return self._pump.worker_pids

    def stats(self) -> Stats:
        """Return a snapshot of the counters."""
        return self._pump.stats()

    def _change(self, sampling: Sampling | None = None, **options: object) -> None:
        """Use other options from the next batch on; they are checked anew."""
        changed = self._pump.options.changed(**options)
        if sampling is None:
            sampling = self._sampling
        # If the check refuses the change, everything stays as it was.
        sampling.check(changed)
        self._sampling = sampling
        self._pump.change(changed)
        self._go(self._cursor)

    @property
    def dataset(self) -> Any:
        """The dataset; assigning one of another length begins a new order.

        So does one that brings its order.
        """
        return self._pump.options.dataset

    @dataset.setter
    def dataset(self, dataset: object) -> None:
        length = len(self.dataset)
        self._change(dataset=dataset)
        # A sampler's order stays: it says which samples come, whatever the length.
        if self._sampler.sampler is not None:
            return
        was_brought = isinstance(self._cursor.order, Brought)
        if was_brought or brings_order(dataset) or len(self.dataset) != length:
            self._go_by(self._order_of(self.epoch))

    @property
    def batch_size(self) -> int:
        """The number of samples in a batch; another holds from the next batch on."""
        return self._pump.options.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        self._change(batch_size=batch_size)

    @property
    def fetches_here(self) -> bool:
        """True if ``next()`` fetches the samples itself, without workers."""
        return self._pump.options.fetches_here

    @property
    def passes(self) -> int:
        """The number of ``for`` loops through all ``epochs`` before the present one."""
        return self._passes - 1

    @property
    def repeat(self) -> bool:
        """True if the iterator continues with another epoch without end."""
        return bool(self._sampling.wrap)

    @repeat.setter
    def repeat(self, repeat: bool) -> None:
        epochs = None if repeat else 1
        self._change(replace(self._sampling, wrap=repeat, epochs=epochs))

    @property
    def order_sampler(self) -> Sampler | None:
        """Called for each epoch's order.

        A new one takes effect with the next epoch; None (in sequence) at once.
        """
        return self._sampling.order_sampler

    @order_sampler.setter
    def order_sampler(self, sampler: Sampler | None) -> None:
        # Without a sampler the order is sequential.  With one it is the sampler's.
        shuffle = False if sampler is None else None
        sampling = replace(self._sampling, shuffle=shuffle, order_sampler=sampler)
        sampling.check(self._pump.options)
        self._sampling = sampling
        self._sampler.sampler = sampler
        # The first order was another sampler's.
        self._sampler_checksum = None
        order = self._cursor.order
        if sampler is None:
            order = self._order_of(self.epoch)
        elif not isinstance(order, Sampled):
            # This epoch's order stays: it becomes the first of the sampler's chain.
            indices = order.array()
            if indices is None:
                indices = np.arange(len(order))
            order = Sampled(indices, self._sampler)
        self._go_by(order)

    def close(self) -> None:
        """End the workers; batches that were handed out stay valid."""
        self._pump.close()

    def finalize(self) -> None:
        """Close the iterator: Chainer's name for ``close``."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_closed(self, what: str) -> None:
        if self._pump.is_closed and not self._revives:
            raise IteratorClosed(f"a closed iterator cannot {what}; make a new one.")

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch handed out, as values for JSON."""
        state = save(self._cursor, self.seed, self._agreed())
        if self._sampler_checksum is not None:
            state[_CHECKSUM] = self._sampler_checksum
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from where ``state`` was saved, by whatever number of workers."""
        self._refuse_if_closed("load a state")
        self._pump.options.warn_of_disorder()
        cursor, seed = load(state, self._agreed(), self._cursor.order)
        if self._sampler_checksum is not None and _CHECKSUM in state:
            saved = typed(state, _CHECKSUM, int)
            if saved != self._sampler_checksum:
                raise StateError(
                    "the order_sampler gives another first order than in the process "
                    "that saved the state.  With shard=, it must return the same "
                    "array in every rank and at every start: have it depend on a "
                    "seed and its arguments alone."
                )
        self._go(cursor, seed)

    def _agreed(self) -> dict[str, Any]:
        """Return what a state must agree with.

        The batch size isn't in it, since a position counts samples.
        """
        pace = self._pace
        return {
            "dataset_length": len(self.dataset),
            "wrap": pace.wrap,
            "drop_last": pace.drop_last,
        }

    def __getstate__(self) -> dict[str, Any]:
        """Pickle or copy the iterator.

        The copy is at the same position and has its own workers.
        """
        here: Any = self._cursor
        kept: Any = None
        if isinstance(here.order, Listed):
            kept = here.order.array()
        elif isinstance(here.order, Brought):
            kept = here.order.saved(here.position)
        # Other orders follow from the seed, and are made anew.
        here = here._replace(order=kept)
        pump = replace(self._pump.options, seed=self.seed), here
        # ``_sampler`` has a lock, and is made anew of what ``_sampling`` says.
        return {**self.__dict__, "_sampler": None, "_pump": pump}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options, here = state["_pump"]
        self.__dict__.update(state)
        self._sampler = SamplerOfTheMoment(self._sampling.order_sampler)
        self._begin(options)
        self._pump.cursor = here
        order = self._order_of(here.epoch, here.order)
        if isinstance(order, Brought):
            order = order.back(here.order, here.position)
        self._go(here._replace(order=order))


def _late(limit: float, waited: float, doings: str) -> Warning:
    return DatasetIterator.TimeoutWarning(
        f"no batch for {waited:.0f} s (dataset_timeout={limit:g}); {doings}."
    )
