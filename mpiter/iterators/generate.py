"""``batches()``: the shortest way from a dataset to stacked arrays.

The same engine as the iterators; each batch is handed out as its columns, in the containers of a sample, epoch after
epoch with a short (or dropped) last batch.
"""

from __future__ import annotations

from typing import Any

from ..engine.options import Options
from ..order.cursor import batches_of
from ..samples.batch import columns_of
from .iterator import DatasetIterator
from .sampling import Sampling


class Batches(DatasetIterator):
    """An iterator of stacked batches; ``batches()`` makes it."""

    _opens = staticmethod(columns_of)

    def __len__(self) -> int:
        """The number of batches in all epochs."""
        pace, length = self._sampling.pace(self.batch_size), len(self._cursor.order)
        if pace.epochs is None:
            raise TypeError("endless batches have no length; pass epochs=.")
        return batches_of(length, pace.batch_size, pace.drop_last) * pace.epochs


def batches(
    dataset: Any,
    batch_size: int,
    *,
    n_processes: int | None = None,
    shuffle: bool | None = None,
    seed: int | None = None,
    epochs: int | None = 1,
    drop_last: bool = False,
    n_prefetch: int = 2,
    order_sampler: Any = None,
    dataset_timeout: float | None = 30.0,
    maxtasksperchild: int | None = None,
    backend: Any = "process",
    serializer: Any = "slots",
    copy: bool = False,
    on_error: str = "raise",
    run_ahead: int | None = None,
    worker_init: Any = None,
    in_order: bool = True,
    sample_timeout: float | None = 600.0,
) -> Batches:
    """Iterate over ``dataset`` in stacked batches.

    Each of the ``epochs`` (None: endless) is shuffled unless told otherwise and ends with a short batch, which
    ``drop_last`` leaves out.  The stream is an iterator: to go through it again, ``reset()`` it.  The other
    arguments are those of ``MultiprocessIterator``.

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
            seed=seed,
            dataset_timeout=dataset_timeout,
            max_samples=maxtasksperchild,
            backend=backend,
            serializer=serializer,
            copy=copy,
            on_error=on_error,
            run_ahead=run_ahead,
            worker_init=worker_init,
            in_order=in_order,
            sample_timeout=sample_timeout,
        ),
        Sampling(epochs=epochs, drop_last=drop_last, shuffle=shuffle, order_sampler=order_sampler),
    )
