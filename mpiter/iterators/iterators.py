"""The three iterators with Chainer's names, which differ only in what runs the fetches; and ``batches()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, Unpack

from ..engine.arguments import Rare, takes
from ..engine.options import Options
from ..errors import OptionError
from ..order.cursor import Cursor, batches_of
from ..rules import ITERATORS
from ..samples.batch import Batch, Settle, Stacker, collate, columns_of, settle_as
from ..samples.tree import Contents
from ..typevars import B, T
from .iterator import DatasetIterator, Sampling


def _chainers(repeat: bool, shuffle: bool | None, order_sampler: Any) -> Sampling:
    return Sampling(repeat, None if repeat else 1, shuffle=shuffle, order_sampler=order_sampler)


def _need_workers(name: str, number: Any) -> None:
    if number == 0:
        raise OptionError(f"{name}=0 leaves no worker; use SerialIterator, which needs none.")


class MultiprocessIterator(DatasetIterator[Batch[T]]):
    """Batches fetched ahead by worker processes: Chainer's arguments in Chainer's order, and those of ``batches()``.

    ``repeat=True`` continues with the next epoch, without end; False stops after one, with a short last batch.
    ``shared_mem`` is ignored, since slots are sized by what the samples need.  ``batches()`` explains all others.

    >>> with MultiprocessIterator([10, 20, 30], 2, repeat=False, shuffle=False, n_processes=2) as it:
    ...     print(list(it))
    [[10, 20], [30]]
    """

    @takes(Rare)
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | None = None,
        n_prefetch: int = 1,
        shared_mem: int | None = None,
        order_sampler: Any = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
        *,
        worker_init: Any = None,
        backend: Any = "process",
        **options: Unpack[Rare],
    ) -> None:
        _need_workers("n_processes", n_processes)
        self.n_prefetch = n_prefetch
        self.shared_mem = shared_mem
        self.shuffle = shuffle
        self.dataset_timeout = dataset_timeout
        self.maxtasksperchild = maxtasksperchild
        ahead: dict[str, Any] = {"n_workers": n_processes, "n_prefetch": n_prefetch, "dataset_timeout": dataset_timeout}
        work: dict[str, Any] = {"max_samples": maxtasksperchild, "worker_init": worker_init, "backend": backend}
        made = Options(dataset, batch_size, door=ITERATORS, **ahead, **work, **options)
        self.n_processes = made.workers
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


class MultithreadIterator(DatasetIterator[Batch[T]]):
    """Batches fetched ahead by threads: for datasets that wait or release the GIL.

    The arguments are those of ``MultiprocessIterator``, with ``n_threads`` for ``n_processes``.  A dataset that uses a
    sample's memory again, even for a later batch, must return copies.

    >>> it = MultithreadIterator([10, 20, 30], 2, repeat=False, shuffle=False, n_threads=2)
    >>> [list(batch) for batch in it]
    [[10, 20], [30]]
    >>> it.close()
    """

    _revives = True

    @takes(Rare)
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_threads: int = 1,
        order_sampler: Any = None,
        *,
        n_prefetch: int = 1,
        dataset_timeout: float | None = 30.0,
        worker_init: Any = None,
        **options: Unpack[Rare],
    ) -> None:
        _need_workers("n_threads", n_threads)
        self.n_threads = n_threads
        self.shuffle = shuffle
        ahead: dict[str, Any] = {"n_workers": n_threads, "n_prefetch": n_prefetch, "dataset_timeout": dataset_timeout}
        work: dict[str, Any] = {"worker_init": worker_init, "backend": "thread", "workers_name": "n_threads"}
        made = Options(dataset, batch_size, **ahead, **work, **options)
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


class SerialIterator(DatasetIterator[Batch[T]]):
    """Batches fetched without workers: each sample is fetched in ``next()``.

    The arguments are those of ``MultiprocessIterator``, except those about workers.

    >>> [list(batch) for batch in SerialIterator([10, 20, 30], 2, repeat=False, shuffle=False)]
    [[10, 20], [30]]
    """

    _revives = True

    @takes(Rare)
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        order_sampler: Any = None,
        *,
        worker_init: Any = None,
        **options: Unpack[Rare],
    ) -> None:
        self.shuffle = shuffle
        made = Options(dataset, batch_size, n_workers=0, worker_init=worker_init, **options)
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


class Batches(DatasetIterator[B]):
    """An iterator of stacked batches; ``batches()`` makes it."""

    @property
    def ragged(self) -> str:
        """The ``ragged`` option: what is done with samples that differ in shape."""
        return self._pump.options.ragged

    def _way_to_open(self, options: Options) -> Callable[[Contents], Any]:
        return Columns(settle_as(options.ragged))

    def __iter__(self) -> Self:
        """Continue this pass over the epochs, or begin the next pass if this one is at its end."""
        self._began = self.epoch, self.current_position
        if self._pace.end_at(self._cursor):
            self._passes += 1
            super()._go(self._cursor)
        return self

    def _go(self, cursor: Cursor, seed: int | None = None) -> None:
        if self._sampling.epochs:  # the pass that ends with the place, if it has got there
            self._passes = max(1, -(-(cursor.epoch + (cursor.position > 0)) // self._sampling.epochs))
        self._began = cursor.epoch, cursor.position
        super()._go(cursor, seed)

    def __len__(self) -> int:
        """The number of batches in a pass; after a resume, of those that are left of it."""
        sampling, (epoch, position) = self._sampling, self._began
        if sampling.epochs is None:
            raise TypeError("endless batches have no length; pass epochs=.")
        share = self._pump.options.share()
        in_epoch = batches_of(len(self._cursor.order), self.batch_size, bool(sampling.drop_last), share)
        if self._pace.end_at(self._cursor):
            return in_epoch * sampling.epochs  # the next one
        left = in_epoch * (self._passes * sampling.epochs - epoch)
        return left - -(-position // share.step(self.batch_size))


class Columns:
    """Turns a batch's contents into columns."""

    def __init__(self, settle: Settle) -> None:
        self._settle, self._stacks = settle, Stacker()

    def __call__(self, contents: Contents) -> Any:
        return columns_of(contents, self._settle, self._stacks)

    def of_rows(self, samples: list[Any]) -> Any:
        """Return the columns of samples that this process has fetched itself."""
        found = self._stacks.columns(samples)
        return collate(samples, self._settle, self._stacks) if found is None else found


@takes(Rare)
def batches(
    dataset: Any,
    batch_size: int,
    *,
    n_processes: int | None = None,
    shuffle: bool | None = None,
    epochs: int | None = 1,
    drop_last: bool = False,
    n_prefetch: int = 2,
    order_sampler: Any = None,
    dataset_timeout: float | None = 30.0,
    maxtasksperchild: int | None = None,
    worker_init: Any = None,
    backend: Any = "process",
    ragged: Literal["raise", "list", "pad"] = "raise",
    **options: Unpack[Rare],
) -> Batches[Any]:
    """Iterate over ``dataset`` in stacked batches.

    Each ``for`` loop over the result goes through ``epochs`` epochs, and the next ``for`` through the following ones.
    After a ``for`` that was left early, the next one continues where it stopped.  ``reset()`` starts again from the
    first epoch.

    Args:
        dataset: anything with ``len`` and ``[]``: a list, an array, a tuple or dict of arrays, an object of yours.
        batch_size: samples in a batch.
        n_processes: worker processes.  None: one for each core that this process may use; 0: ``next()`` itself fetches.
        shuffle: shuffle each epoch anew; None means True unless there is an ``order_sampler``.
        epochs: the number of epochs that one ``for`` goes through; None for no end.
        drop_last: leave out the last batch of an epoch if it is short.
        n_prefetch: finished batches that may wait for the consumer.
        order_sampler: called as ``order_sampler(order, position)`` before each epoch; returns the next order.
        dataset_timeout: seconds without a batch after which a ``TimeoutWarning`` is given; None for no limit.
        maxtasksperchild: samples that a worker fetches before it is replaced by a fresh one.
        worker_init: called once in each worker with its ``WorkerInfo``.
        backend: what runs the workers: "process", "thread", "ray", "mpi", or an object such as
            ``mpiter.Process("spawn")``.
        ragged: what is done with samples that differ in shape, or are None in places: "raise" an error, "list" them,
            or "pad" them with zeros at the end.
        options: the rare options, which ``mpiter.engine.arguments.Rare`` describes.

    >>> import numpy as np
    >>> dataset = [(np.full(2, i), i) for i in range(4)]
    >>> for x, y in batches(dataset, 2, n_processes=0, shuffle=False):
    ...     print(x.shape, y)
    (2, 2) [0 1]
    (2, 2) [2 3]
    """
    ahead: dict[str, Any] = {"n_workers": n_processes, "n_prefetch": n_prefetch, "dataset_timeout": dataset_timeout}
    work: dict[str, Any] = {"max_samples": maxtasksperchild, "worker_init": worker_init, "backend": backend}
    made = Options(dataset, batch_size, ragged=ragged, **ahead, **work, **options)
    return Batches(made, Sampling(False, epochs, drop_last, shuffle, order_sampler))
