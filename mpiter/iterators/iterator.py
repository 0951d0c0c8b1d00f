"""What all iterators are: Chainer's contract, over a pump.

Runs in the consumer's thread.  Guarantees that constructing starts no worker (the fork server at most), and that
attributes and ``state_dict()`` describe what has been handed out, never what is prefetched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Self

import numpy as np

from ..datasets.columns import described
from ..engine.options import Options
from ..engine.pump import pump_for
from ..errors import IteratorClosed
from ..order.cursor import Cursor
from ..order.order import Given, Listed, Order, Sampled, SamplerOfTheMoment, Sequential, Shuffled
from ..order.state import Surroundings, load, save
from ..samples.batch import Batch
from ..samples.layout import Contents
from ..stats import Stats
from ..typevars import B
from ..worker.seeding import seed_for
from .adjustable import Adjustable
from .sampling import Sampling


class DatasetIterator(Adjustable, Generic[B]):
    """What all iterators are: a place in the epochs, and a pump that brings the batches from there on."""

    class TimeoutWarning(RuntimeWarning):
        """A batch has been longer in coming than ``dataset_timeout``."""

    _revives = False  # may be used again after close()

    def __init__(self, options: Options, sampling: Sampling) -> None:
        subclass_attributes = frozenset(self.__dict__)
        sampling.check(options)
        options.prepare()
        self._sampling = sampling
        self._sampler = SamplerOfTheMoment(sampling.order_sampler)
        self._pump = pump_for(options, self._way_to_open(options), _late)
        self._pump.seed = seed_for(draws=sampling.shuffles) if options.seed is None else options.seed
        self._go(Cursor(0, 0, False, self._first_order()))
        self._own = frozenset(self.__dict__) - subclass_attributes | {"_own"}  # what a copy makes anew

    def _way_to_open(self, options: Options) -> Callable[[Contents], Any]:
        """What makes of a batch's contents what is handed out."""
        return Batch

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        if self._revives:
            self._pump.is_closed = False
        try:
            batch: B = self._pump.next()
        except StopIteration:
            here = self._cursor
            self._pump.cursor = here._replace(previous_epoch_detail=here.epoch_detail)
            raise
        return batch

    def next(self) -> B:
        """``next(it)``, as Chainer's programs write it."""
        return self.__next__()

    def __repr__(self) -> str:
        if "_pump" not in self.__dict__:  # not made yet
            return object.__repr__(self)
        here = f"epoch {self.epoch}, {self.current_position} samples of it handed out"
        return f"<{type(self).__name__} over {described(self.dataset)} in batches of {self.batch_size}: {here}>"

    # -- places --------------------------------------------------------------------------------------------------

    def _go(self, cursor: Cursor, seed: int | None = None) -> None:
        """Go on from ``cursor``; whatever is on its way is dropped."""
        self._pump.go(cursor, self._sampling.pace(self.batch_size), seed)

    def _order_of(self, epoch: int, indices: Any = None) -> Order:
        """The order of an epoch; ``indices`` where they don't follow from the seed."""
        if self._sampler.sampler is not None:
            now = self._cursor.order
            return now.instead(indices) if isinstance(now, Sampled) else Sampled(indices, self._sampler)
        length = len(self.dataset)
        if not self._sampling.shuffles:
            return Sequential(length)
        if indices is None:
            return Shuffled(length, self.seed, epoch)
        return Given(indices, Shuffled(length, self.seed, epoch + 1))

    def _first_order(self) -> Order:
        sampler, length = self._sampler.sampler, len(self.dataset)
        if sampler is None:
            return self._order_of(0)
        return Sampled(sampler(np.arange(length), 0), self._sampler)

    def reset(self) -> None:
        """Start over, from the first epoch."""
        self._refuse_if_closed("be reset")
        now = self._cursor.order
        order = now.over_again(len(self.dataset)) if isinstance(now, Sampled) else self._first_order()
        self._go(Cursor(0, 0, False, order))

    # -- ending --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the workers and give everything back; batches already handed out stay valid."""
        self._pump.close()

    def finalize(self) -> None:
        """Chainer's name for ``close``."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_if_closed(self, what: str) -> None:
        if self._pump.is_closed and not self._revives:
            raise IteratorClosed(f"a closed iterator cannot {what}; make a new one.")

    # -- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out, as JSON-able values."""
        return save(self._cursor, self.seed, self._surroundings())

    def load_state_dict(self, state: Any) -> None:
        """Go on from where ``state`` was saved, whatever number of workers it was saved with."""
        self._refuse_if_closed("load a state")
        self._pump.options.warn_of_disorder()
        self._go(*load(state, self._surroundings()))

    def _surroundings(self) -> Surroundings:
        pace, is_shared = self._sampling.pace(self.batch_size), self._pump.options.shard is not None
        return Surroundings(pace, len(self.dataset), self._cursor.order, is_shared)

    def __copy__(self) -> Self:
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    def __getstate__(self) -> dict[str, Any]:
        sampler, here = self._sampler.sampler, self._cursor
        shuffle = self._sampling.shuffle if sampler is None else None
        return {
            "options": replace(self._pump.options, seed=self.seed),
            "sampling": replace(self._sampling, order_sampler=sampler, shuffle=shuffle),
            "extra": {name: value for name, value in self.__dict__.items() if name not in self._own},
            "place": here._replace(order=None),  # type: ignore[arg-type]
            "indices": here.order.array() if isinstance(here.order, Listed) else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        sampling = state["sampling"]
        DatasetIterator.__init__(self, state["options"], replace(sampling, order_sampler=None))
        self._sampling, self._sampler.sampler = sampling, sampling.order_sampler
        self.__dict__.update(state["extra"])
        here = state["place"]
        self._go(here._replace(order=self._order_of(here.epoch, state["indices"])))

    # -- what Chainer's trainers read ----------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        """What the order and the samples' randomness are drawn from."""
        return self._pump.seed

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes of the moment; others after they have been replaced."""
        return self._pump.worker_pids

    def stats(self) -> Stats:
        """A snapshot of the counters."""
        return self._pump.stats()


def _late(limit: float, waited: float, doings: str) -> Warning:
    return DatasetIterator.TimeoutWarning(f"no batch for {waited:.0f} s (dataset_timeout={limit:g}); {doings}.")
