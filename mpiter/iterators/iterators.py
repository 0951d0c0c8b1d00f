"""The three iterators with Chainer's names and arguments: they differ in who runs the fetches, and in nothing else.

They can be exchanged for each other: they have the same order, the same state and the same batches.
"""

from __future__ import annotations

from typing import Any, Literal, Unpack

from ..engine.options import Options
from ..engine.pilot import Auto
from ..samples.batch import Batch
from ..spelling import OF_ITERATORS
from ..typevars import T
from .iterator import DatasetIterator, Sampling
from .options import OfIterators, OfWorkers, takes

_OF_THREADS = {**OF_ITERATORS, **dict.fromkeys(("n_processes", "num_workers"), "n_threads")}
_OF_NONE = {**OF_ITERATORS, **dict.fromkeys(("n_processes", "num_workers"), "MultiprocessIterator, which has workers")}


def _chainers(repeat: bool, shuffle: bool | None, order_sampler: Any) -> Sampling:
    """How epochs follow each other in Chainer."""
    return Sampling(repeat, None if repeat else 1, shuffle=shuffle, order_sampler=order_sampler)


class MultiprocessIterator(DatasetIterator[Batch[T]]):
    """Batches fetched by worker processes, ahead of time: Chainer's arguments, in Chainer's order, and some more.

    Args:
        dataset: anything with ``len`` and ``[]``.
        batch_size: samples in a batch.
        repeat: go on into the next epoch for ever; False stops after one, with a short last batch.
        shuffle: visit each epoch in an order of its own; None means True unless there is an ``order_sampler``.
        n_processes: worker processes; None means all cores this process may use, 0 none (as ``backend="serial"``);
            "auto" as many as are of use at the moment, ``Auto(least, most)`` within bounds.
        n_prefetch: finished batches that wait for the consumer; "auto" or ``Auto(most=…)``: as helps.
        shared_mem: accepted for Chainer's sake; slots are sized by what the samples need.
        order_sampler: called as ``order_sampler(order, position)`` before each epoch, returns the next order.
        dataset_timeout: seconds without a batch after which a ``TimeoutWarning`` is given; None for never.
        maxtasksperchild: samples that a worker fetches before it is replaced by a fresh one.
        seed: of the order and of the samples' randomness; None draws one from NumPy's global generator, once (without
            shuffling the generator is only looked at).
        backend: "process", "thread", "serial", "ray", "mpi", or an object: ``mpiter.Process("spawn")``, say.
        serializer: "slots" (shared memory), "packed", or a transport object.
        copy: hand out private copies rather than views of shared slots.
        on_error: "raise" what the dataset raises, in place of the batch, or "skip" the sample; ``Skip(most=100)``.
        run_ahead: batches on their way beyond ``n_prefetch``; None as the workers need, 0 strictly none.
        worker_init: called once in each worker with its ``WorkerInfo``.
        in_order: deliver batches in the order of the plan; False: as they finish, without exact resume.
        sample_timeout: seconds that one sample may take (and a worker's start, which has a minute at least); then the
            workers are replaced and the sample is tried once more.  None: for ever.
        trace: a file, "run.json" say, that will tell who did what when, for ui.perfetto.dev or chrome://tracing.
        shard: this process's part, where several train together: "auto", ``(rank, size)`` or ``mpiter.Shard``.
        receipts: a folder where what is handed out is noted, for `mpiter audit`; or a ``Receipts``.

    >>> with MultiprocessIterator([10, 20, 30], 2, repeat=False, shuffle=False, n_processes=0) as it:
    ...     print(list(it))
    [[10, 20], [30]]
    """

    @takes(OfWorkers, OF_ITERATORS)
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | Literal["auto"] | Auto | None = None,
        n_prefetch: int | Literal["auto"] | Auto = 1,
        shared_mem: int | None = None,
        order_sampler: Any = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
        *,
        backend: Any = "process",
        **options: Unpack[OfWorkers],
    ) -> None:
        self.n_prefetch = n_prefetch
        self.shared_mem = shared_mem
        self.shuffle = shuffle
        self.dataset_timeout = dataset_timeout
        self.maxtasksperchild = maxtasksperchild
        made = Options(
            dataset=dataset,
            batch_size=batch_size,
            n_workers=n_processes,
            n_prefetch=n_prefetch,
            dataset_timeout=dataset_timeout,
            max_samples=maxtasksperchild,
            backend=backend,
            **options,
        )
        self.n_processes = made.workers
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


class MultithreadIterator(DatasetIterator[Batch[T]]):
    """``MultiprocessIterator`` with threads: for datasets that wait or release the GIL.

    >>> it = MultithreadIterator([10, 20, 30], 2, repeat=False, shuffle=False, n_threads=2)
    >>> [list(batch) for batch in it]
    [[10, 20], [30]]
    >>> it.close()
    """

    _revives = True

    @takes(OfWorkers, _OF_THREADS)
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_threads: int | Literal["auto"] | Auto = 1,
        order_sampler: Any = None,
        *,
        n_prefetch: int | Literal["auto"] | Auto = 1,
        dataset_timeout: float | None = 30.0,
        **options: Unpack[OfWorkers],
    ) -> None:
        self.n_threads = n_threads
        self.shuffle = shuffle
        super().__init__(
            Options(
                dataset=dataset,
                batch_size=batch_size,
                n_workers=n_threads,
                n_prefetch=n_prefetch,
                dataset_timeout=dataset_timeout,
                backend="thread",
                workers_name="n_threads",
                **options,
            ),
            _chainers(repeat, shuffle, order_sampler),
        )


class SerialIterator(DatasetIterator[Batch[T]]):
    """``MultiprocessIterator`` without workers: everything happens in ``next()``.

    >>> [list(batch) for batch in SerialIterator([10, 20, 30], 2, repeat=False, shuffle=False)]
    [[10, 20], [30]]
    """

    _revives = True

    @takes(OfIterators, _OF_NONE)
    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        order_sampler: Any = None,
        **options: Unpack[OfIterators],
    ) -> None:
        self.shuffle = shuffle
        super().__init__(
            Options(dataset=dataset, batch_size=batch_size, n_workers=0, backend="serial", **options),
            _chainers(repeat, shuffle, order_sampler),
        )
