"""An iterator's attributes, in Chainer's words: where it stands, and what may be changed while it is in use.

What trainers, triggers and progress bars read describes what has been handed out, never what is prefetched.  What may
be changed is assigned to: the order sampler governs from the next epoch on and disturbs nobody; another dataset, batch
size or way of repeating means other workers, which begin with the next batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.alone import Alone
from ..engine.pump import Pump
from ..errors import OptionError
from ..order.cursor import Cursor
from ..order.order import Order, Sampled, SamplerOfTheMoment, Sequential
from .sampling import Sampling


class Adjustable:
    """Those that can be read, then those that can be set."""

    _pump: Pump | Alone
    _sampling: Sampling
    _sampler: SamplerOfTheMoment

    @property
    def _cursor(self) -> Cursor:
        return self._pump.cursor

    @property
    def epoch(self) -> int:
        """Epochs that are complete."""
        return self._cursor.epoch

    @property
    def current_position(self) -> int:
        """Samples of the epoch under way that were handed out."""
        return self._cursor.position

    @property
    def is_new_epoch(self) -> bool:
        """Did the last batch complete an epoch?"""
        return self._cursor.is_new_epoch

    @property
    def epoch_detail(self) -> float:
        """Epochs, with the part of the one under way."""
        return self._cursor.epoch_detail

    @property
    def previous_epoch_detail(self) -> float | None:
        """What that was before the last batch; None before the first."""
        detail = self._cursor.previous_epoch_detail
        return None if detail < 0 else detail

    def _go(self, cursor: Cursor, seed: int | None = None) -> None:
        raise NotImplementedError

    def _order_of(self, epoch: int, indices: Any = None) -> Order:
        raise NotImplementedError

    def _change(self, sampling: Sampling | None = None, **options: Any) -> None:
        """Other options from the next batch on, checked anew."""
        changed = replace(self._pump.options, **options)
        (sampling or self._sampling).check(changed)
        self._sampling = sampling or self._sampling
        self._pump.change(changed)
        self._go(self._cursor)

    @property
    def dataset(self) -> Any:
        """Where the samples come from.  One of another length has an order of its own from here on."""
        return self._pump.options.dataset

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        length = len(self.dataset)
        self._change(dataset=dataset)
        here = self._cursor
        if len(self.dataset) != length and self._sampler.sampler is None:
            order = self._order_of(here.epoch)
            self._go(here._replace(order=order, position=min(here.position, max(len(order) - 1, 0))))

    @property
    def batch_size(self) -> int:
        """Samples in a batch, from the next one on."""
        return self._pump.options.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        self._change(batch_size=batch_size)

    @property
    def repeat(self) -> bool:
        """Does it go on for ever?"""
        return bool(self._sampling.wrap)

    @repeat.setter
    def repeat(self, repeat: bool) -> None:
        self._change(replace(self._sampling, wrap=repeat, epochs=None if repeat else 1))

    @property
    def order_sampler(self) -> Any:
        """Asked for the order of each epoch; a new one governs from the next epoch on.  None: in sequence, at once."""
        return self._sampler.sampler

    @order_sampler.setter
    def order_sampler(self, sampler: Any) -> None:
        if sampler is not None and not callable(sampler):
            raise OptionError(f"order_sampler={sampler!r:.60} cannot be called; set a function.")
        replace(self._sampling, shuffle=None, order_sampler=sampler).check(self._pump.options)
        self._sampler.sampler = sampler
        here = self._cursor
        order: Order = here.order
        if sampler is None:
            self._sampling = replace(self._sampling, order_sampler=None, shuffle=False)
            order = Sequential(len(self.dataset))
        elif not isinstance(order, Sampled):
            order = Sampled(np.arange(len(order)) if order.array() is None else order.array(), self._sampler)
        self._go(here._replace(order=order, position=min(here.position, max(len(order) - 1, 0))))
