"""``batches()``: the shortest way from a dataset to stacked arrays.

The same engine as the iterators; each batch is handed out as its columns, in the containers of a sample, epoch after
epoch with a short (or dropped) last batch.  A *pass* is what one ``for`` goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, Self, Unpack

from ..engine.options import Options
from ..engine.pilot import Auto
from ..order.cursor import Cursor, batches_of
from ..order.state import Surroundings
from ..samples.batch import Stacker, collate, columns_of
from ..samples.layout import Contents
from ..samples.uneven import Settle, settle_as
from ..spelling import OF_ITERATORS
from ..typevars import B
from .iterator import DatasetIterator, Sampling
from .options import OfWorkers, takes


class Batches(DatasetIterator[B]):
    """An iterator of stacked batches; ``batches()`` makes it."""

    @property
    def ragged(self) -> str:
        """What is made of samples that differ in shape."""
        return self._pump.options.ragged

    def _way_to_open(self, options: Options) -> Callable[[Contents], Any]:
        return Columns(settle_as(options.ragged))

    def __iter__(self) -> Self:
        """What is left of this pass; the next one, if that is nothing."""
        self._began = self._cursor
        if self._sampling.pace(self.batch_size).end_at(self._cursor):
            self._sampling = replace(self._sampling, passes=self._sampling.passes + 1)
            super()._go(self._cursor)
        return self

    def _go(self, cursor: Cursor, seed: int | None = None) -> None:
        if self._sampling.epochs:  # the pass that ends with the place, if it has got there
            number = max(1, -(-(cursor.epoch + (cursor.position > 0)) // self._sampling.epochs))
            self._sampling = replace(self._sampling, passes=number)
        self._began = cursor
        super()._go(cursor, seed)

    def _surroundings(self) -> Surroundings:
        around = super()._surroundings()
        return replace(around, pace=replace(around.pace, epochs=None))  # a state may be of any pass

    def __len__(self) -> int:
        """The number of batches in a pass; after a resume, of those that are left of it."""
        sampling, began = self._sampling, self._began
        if sampling.epochs is None:
            raise TypeError("endless batches have no length; pass epochs=.")
        share = self._pump.options.share()
        in_epoch = batches_of(len(self._cursor.order), self.batch_size, bool(sampling.drop_last), share)
        if sampling.pace(self.batch_size).end_at(self._cursor):
            return in_epoch * sampling.epochs  # the next one
        left = in_epoch * (sampling.passes * sampling.epochs - began.epoch)
        return left - -(-began.position // share.step(self.batch_size))


class Columns:
    """What makes columns of a batch's contents."""

    def __init__(self, settle: Settle) -> None:
        self._settle, self._stacks = settle, Stacker()

    def __call__(self, contents: Contents) -> Any:
        return columns_of(contents, self._settle, self._stacks)

    def of_rows(self, samples: list[Any]) -> Any:
        """The same of samples that have not travelled."""
        found = self._stacks.columns(samples)
        return collate(samples, self._settle, self._stacks) if found is None else found


@takes(OfWorkers, OF_ITERATORS)
def batches(
    dataset: Any,
    batch_size: int,
    *,
    n_processes: int | Literal["auto"] | Auto | None = None,
    shuffle: bool | None = None,
    epochs: int | None = 1,
    drop_last: bool = False,
    n_prefetch: int | Literal["auto"] | Auto = 2,
    order_sampler: Any = None,
    dataset_timeout: float | None = 30.0,
    maxtasksperchild: int | None = None,
    backend: Any = "process",
    ragged: Literal["raise", "list", "pad"] = "raise",
    **options: Unpack[OfWorkers],
) -> Batches[Any]:
    """Iterate over ``dataset`` in stacked batches.

    Each ``for`` is a pass of so many ``epochs`` (None: endless), and the next ``for`` goes on with the next ones; one
    that was broken off goes on where it stopped.  Each epoch is shuffled unless told otherwise and ends with a short
    batch, which ``drop_last`` leaves out.  ``reset()`` begins with the first one again; a state holds the epoch
    too.  Where samples of a batch differ in shape (lists of numbers in length), or one of them has None, say,
    ``ragged`` is "raise", "list" or "pad" (with zeros, at the end).  The other arguments are those of
    ``MultiprocessIterator``.

    >>> import numpy as np
    >>> dataset = [(np.full(2, i), i) for i in range(4)]
    >>> for x, y in batches(dataset, 2, n_processes=0, shuffle=False):
    ...     print(x.shape, y)
    (2, 2) [0 1]
    (2, 2) [2 3]
    """
    return Batches(
        Options(
            dataset=dataset,
            batch_size=batch_size,
            n_workers=n_processes,
            n_prefetch=n_prefetch,
            dataset_timeout=dataset_timeout,
            max_samples=maxtasksperchild,
            backend=backend,
            ragged=ragged,
            **options,
        ),
        Sampling(epochs=epochs, drop_last=drop_last, shuffle=shuffle, order_sampler=order_sampler),
    )
