"""``batches()``, and the three iterators with Chainer's names.

They differ only in what runs the fetches.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Self, Unpack

from ..engine.arguments import Rare, takes
from ..engine.options import Options, options_for
from ..errors import OptionError
from ..order.cursor import Cursor, batches_of
from ..order.order import Sampler
from ..order.ranks import Sharding
from ..pool.backends import Backend
from ..rules import ITERATORS, OnError
from ..samples.batch import Settle, Stacker, collate, columns_of, settle_as
from ..samples.tree import Contents
from ..typevars import Data, Data_co, Ragged, Ragged_co, Stacks
from .iterator import DatasetIterator, Sampling


def _chainers(
    repeat: bool,
    shuffle: bool | None,
    order_sampler: Sampler | None,
) -> Sampling:
    return Sampling(
        wrap=repeat,
        epochs=None if repeat else 1,
        shuffle=shuffle,
        order_sampler=order_sampler,
    )


def _need_workers(name: str, number: int | None) -> None:
    if number == 0:
        raise OptionError(
            f"{name}=0 leaves no worker; use SerialIterator, which needs none."
        )


@takes(Rare)
class MultiprocessIterator(DatasetIterator[Data_co]):
    """Batches fetched ahead by worker processes.

    The arguments are Chainer's, in Chainer's order, and those of ``batches()``.
    ``repeat=True`` continues with the next epoch, without end; False stops after one,
    with a short last batch. ``shared_mem`` is ignored, since slots are sized by what
    the samples need.  ``batches()`` explains all others but the rare ones.

    Args:
        options: the rare options, which ``mpiter.engine.arguments.Rare`` describes.

    >>> it = MultiprocessIterator(
    ...     [10, 20, 30], 2, repeat=False, shuffle=False, n_processes=2
    ... )
    >>> with it:
    ...     print(list(it))
    [[10, 20], [30]]
    """

    def __init__(
        self,
        dataset: Data_co,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | None = None,
        n_prefetch: int = 1,
        shared_mem: int | None = None,
        order_sampler: Sampler | None = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
        *,
        worker_init: Callable[[Any], Any] | None = None,
        backend: str | Backend = "process",
        seed: int | None = None,
        on_error: OnError = "raise",
        shard: Sharding = None,
        **options: Unpack[Rare],
    ) -> None:
        _need_workers("n_processes", n_processes)
        self.n_prefetch = n_prefetch
        self.shared_mem = shared_mem
        self.shuffle = shuffle
        self.dataset_timeout = dataset_timeout
        self.maxtasksperchild = maxtasksperchild
        made = options_for(
            dataset,
            batch_size,
            n_workers=n_processes,
            n_prefetch=n_prefetch,
            dataset_timeout=dataset_timeout,
            max_samples=maxtasksperchild,
            worker_init=worker_init,
            backend=backend,
            seed=seed,
            on_error=on_error,
            shard=shard,
            taken_for=self._taken_for,
            door=ITERATORS,
            **options,
        )
        self.n_processes = made.workers
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


@takes(Rare)
class MultithreadIterator(DatasetIterator[Data_co]):
    """Batches fetched ahead by threads: for datasets that wait or release the GIL.

    The arguments are those of ``MultiprocessIterator``, with ``n_threads`` for
    ``n_processes``.  A dataset that uses a sample's memory again, even for a later
    batch, must return copies.

    Args:
        options: the rare options, which ``mpiter.engine.arguments.Rare`` describes.

    >>> it = MultithreadIterator(
    ...     [10, 20, 30], 2, repeat=False, shuffle=False, n_threads=2
    ... )
    >>> with it:
    ...     print(list(it))
    [[10, 20], [30]]
    """

    _revives = True

    def __init__(
        self,
        dataset: Data_co,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_threads: int = 1,
        order_sampler: Sampler | None = None,
        *,
        n_prefetch: int = 1,
        dataset_timeout: float | None = 30.0,
        worker_init: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        on_error: OnError = "raise",
        shard: Sharding = None,
        **options: Unpack[Rare],
    ) -> None:
        _need_workers("n_threads", n_threads)
        self.n_threads = n_threads
        self.shuffle = shuffle
        made = options_for(
            dataset,
            batch_size,
            n_workers=n_threads,
            n_prefetch=n_prefetch,
            dataset_timeout=dataset_timeout,
            worker_init=worker_init,
            backend="thread",
            seed=seed,
            on_error=on_error,
            shard=shard,
            taken_for=self._taken_for,
            workers_name="n_threads",
            **options,
        )
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


@takes(Rare)
class SerialIterator(DatasetIterator[Data_co]):
    """Batches fetched without workers: each sample is fetched in ``next()``.

    The arguments are those of ``MultiprocessIterator``, except those about workers.

    Args:
        options: the rare options, which ``mpiter.engine.arguments.Rare`` describes.

    >>> it = SerialIterator([10, 20, 30], 2, repeat=False, shuffle=False)
    >>> print(list(it))
    [[10, 20], [30]]
    """

    _revives = True

    def __init__(
        self,
        dataset: Data_co,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        order_sampler: Sampler | None = None,
        *,
        worker_init: Callable[[Any], Any] | None = None,
        seed: int | None = None,
        on_error: OnError = "raise",
        shard: Sharding = None,
        **options: Unpack[Rare],
    ) -> None:
        self.shuffle = shuffle
        made = options_for(
            dataset,
            batch_size,
            n_workers=0,
            worker_init=worker_init,
            seed=seed,
            on_error=on_error,
            shard=shard,
            taken_for=self._taken_for,
            **options,
        )
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


class Batches(Stacks[Data_co, Ragged_co], DatasetIterator[Data_co]):
    """An iterator of stacked batches; ``batches()`` makes it."""

    # The next ``for`` finds the end of the pass that was loaded, not the next pass.
    _stays = False

    if not TYPE_CHECKING:
        # Takes fewer types than there are, too: before 3.13 Python knows no defaults.
        __class_getitem__ = classmethod(GenericAlias)

    @property
    def ragged(self) -> str:
        """The ``ragged`` option: what is done with samples that differ in shape."""
        return self._pump.options.ragged

    def _way_to_open(self, options: Options) -> Callable[[Contents], Any]:
        return Columns(settle_as(options.ragged))

    def __iter__(self) -> Self:
        """Continue this pass over the epochs; at its end, begin the next."""
        self._began = self._cursor
        stays = self._stays
        self._stays = False
        if self._pace.end_at(self._cursor) and not stays:
            self._passes += 1
            super()._go(self._cursor)
        return self

    @property
    def has_passes(self) -> bool:
        """True if a ``for`` loop comes to an end."""
        return self._sampling.epochs is not None

    def stay_at_end(self) -> None:
        """Have the next ``for`` find no batches, if the state is of the end of a pass.

        This is for a program that goes on with what follows the pass's loop.
        """
        self._stays = True

    def _go(self, cursor: Cursor, seed: int | None = None) -> None:
        # A cursor between two passes is at the end of the earlier one, until the next
        # ``for`` begins another.
        if epochs_of_a_pass := self._sampling.epochs:
            epochs = cursor.epoch + (cursor.position > 0)
            self._passes = max(1, -(-epochs // epochs_of_a_pass))
        self._began = cursor
        super()._go(cursor, seed)

    def __getstate__(self) -> dict[str, Any]:
        # A copy goes on from its cursor, which is where it begins.
        return {**super().__getstate__(), "_began": None}

    def __len__(self) -> int:
        """The number of batches in a pass; after a resume, of those that are left."""
        sampling = self._sampling
        began = self._began
        if sampling.epochs is None:
            raise TypeError("endless batches have no length; pass epochs=.")
        share = self._pump.options.share()
        drop_last = bool(sampling.drop_last)
        left = self._passes * sampling.epochs - began.epoch
        # This pass is over, and the next ``for`` begins another.
        if self._pace.end_at(self._cursor):
            began = self._cursor
            left = sampling.epochs
        batches = 0
        for length, epochs in began.order.lengths(left):
            batches += epochs * batches_of(length, self.batch_size, drop_last, share)
        return batches - -(-began.position // share.step(self.batch_size))


class Columns:
    """Turns a batch's contents into columns."""

    def __init__(self, settle: Settle) -> None:
        self._settle = settle
        self._stacks = Stacker()

    def __call__(self, contents: Contents) -> Any:
        return columns_of(contents, self._settle, self._stacks)

    def of_columns(self, columns: object) -> object:
        """Return columns that this process has gathered itself."""
        return columns

    def of_rows(self, samples: list[Any]) -> Any:
        """Return the columns of samples that this process has fetched itself."""
        found = self._stacks.columns(samples)
        if found is None:
            return collate(samples, self._settle, self._stacks)
        return found


@takes(Rare)
def batches(
    dataset: Data,
    batch_size: int,
    *,
    n_processes: int | None = None,
    shuffle: bool | None = None,
    seed: int | None = None,
    epochs: int | None = 1,
    drop_last: bool = False,
    n_prefetch: int = 2,
    order_sampler: Sampler | None = None,
    dataset_timeout: float | None = 30.0,
    maxtasksperchild: int | None = None,
    worker_init: Callable[[Any], Any] | None = None,
    backend: str | Backend = "process",
    # Checkers don't see that the default is the type variable's own.
    ragged: Ragged = "raise",  # type: ignore[assignment]
    on_error: OnError = "raise",
    shard: Sharding = None,
    **options: Unpack[Rare],
) -> Batches[Data, Ragged]:
    """Iterate over ``dataset`` in stacked batches.

    Each ``for`` loop over the result goes through ``epochs`` epochs, and the next
    ``for`` through the following ones. After a ``for`` that was left early, the next
    one continues where it stopped.  ``reset()`` starts again from the first epoch.

    Args:
        dataset: anything with ``len`` and ``[]``: a list, an array, a tuple or dict of
            arrays, an object of yours.
        batch_size: samples in a batch.
        n_processes: worker processes.  None: one for each core that this process may
            use; 0: ``next()`` itself fetches.
        shuffle: shuffle each epoch anew; None means True unless there is an
            ``order_sampler``.
        seed: seed of the order and of the samples' randomness.  None draws one from
            NumPy's global generator, once.
        epochs: the number of epochs that one ``for`` goes through; None for no end.
        drop_last: leave out the last batch of an epoch if it is short.
        n_prefetch: finished batches that may wait for the consumer.
        order_sampler: called as ``order_sampler(order, position)`` before each epoch;
            returns the next order.
        dataset_timeout: seconds without a batch after which a ``TimeoutWarning`` is
            given; None for no limit.
        maxtasksperchild: samples that a worker fetches before it is replaced by a fresh
            one.
        worker_init: called once in each worker with its ``WorkerInfo``.
        backend: what runs the workers: "process", "thread", "ray", "mpi", or an object
            such as ``mpiter.Process("spawn")``.
        ragged: what is done with samples that differ in shape, or are None in places:
            "raise" an error, "list" them, "pad" them with zeros at the end, or lay them
            end to end in one "jagged" array (``mpiter.samples.jagged.Jagged``).
        on_error: "raise" raises the dataset's error in place of the batch, "skip"
            leaves the sample out; ``Skip(most=100)`` leaves out at most 100 samples.
        shard: this process's part, where several train together: "auto", ``(rank,
            size)`` or ``mpiter.Shard``.
        options: the rare options, which ``mpiter.engine.arguments.Rare`` describes.

    >>> import numpy as np
    >>> dataset = [(np.full(2, i), i) for i in range(4)]
    >>> for x, y in batches(dataset, 2, n_processes=0, shuffle=False):
    ...     print(x.shape, y)
    (2, 2) [0 1]
    (2, 2) [2 3]
    """
    made = options_for(
        dataset,
        batch_size,
        n_workers=n_processes,
        n_prefetch=n_prefetch,
        dataset_timeout=dataset_timeout,
        max_samples=maxtasksperchild,
        worker_init=worker_init,
        backend=backend,
        ragged=ragged,
        seed=seed,
        on_error=on_error,
        shard=shard,
        **options,
    )
    sampling = Sampling(
        epochs=epochs,
        drop_last=drop_last,
        shuffle=shuffle,
        order_sampler=order_sampler,
    )
    return Batches(made, sampling)
