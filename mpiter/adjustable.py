"""What of an iterator may be changed while it is in use, as Chainer's may: each is an assignment.

The order sampler governs from the next epoch on and disturbs nobody.  Another dataset, batch size or way of repeating
means other workers, which begin with the next batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .cursor import Cursor
from .errors import OptionError
from .options import Options
from .order import Order, Sampled, SamplerOfTheMoment, Sequential
from .progress import Progress


class Adjustable(Progress):
    """The attributes that can be set."""

    _options: Options
    _sampling: SamplerOfTheMoment

    def _place(self, cursor: Cursor) -> None:
        raise NotImplementedError

    def _go_on_with(self, options: Options, cursor: Cursor) -> None:
        raise NotImplementedError

    def _order_of(self, epoch: int, indices: Any = None) -> Order:
        raise NotImplementedError

    @property
    def dataset(self) -> Any:
        """Where the samples come from.  One of another length has an order of its own from here on."""
        return self._options.dataset

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        here, length = self._cursor, len(self._options.dataset)
        self._go_on_with(self._changed(dataset=dataset), here)
        if len(dataset) != length and self._sampling.sampler is None:
            order = self._order_of(here.epoch)
            self._place(here._replace(order=order, position=min(here.position, max(len(order) - 1, 0))))

    @property
    def batch_size(self) -> int:
        """Samples in a batch, from the next one on."""
        return self._options.pace.batch_size

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        self._go_on_with(self._changed(pace=replace(self._options.pace, batch_size=batch_size)), self._cursor)

    @property
    def repeat(self) -> bool:
        """Does it go on for ever?"""
        return self._options.pace.wrap

    @repeat.setter
    def repeat(self, repeat: bool) -> None:
        pace = replace(self._options.pace, wrap=repeat, epochs=None if repeat else 1)
        self._go_on_with(self._changed(pace=pace), self._cursor)

    @property
    def order_sampler(self) -> Any:
        """Asked for the order of each epoch; a new one governs from the next epoch on.  None: in sequence, at once."""
        return self._sampling.sampler

    @order_sampler.setter
    def order_sampler(self, sampler: Any) -> None:
        if sampler is not None and not callable(sampler):
            raise OptionError(f"order_sampler={sampler!r:.60} cannot be called; set a function.")
        self._sampling.sampler = sampler
        order: Order = self._cursor.order
        if sampler is None:
            self._options = replace(self._options, order_sampler=None, shuffle=False)
            order = Sequential(len(self.dataset))
        elif not isinstance(order, Sampled):
            order = Sampled(np.arange(len(order)) if order.array() is None else order.array(), self._sampling)
        position = min(self._cursor.position, max(len(order) - 1, 0))
        self._place(self._cursor._replace(order=order, position=position))

    def _changed(self, **changes: Any) -> Options:
        """The options with some changed, checked anew."""
        return replace(self._options, **changes)
