"""The three iterators with Chainer's names and arguments, and ``batches()``; the options that several share come first.

The iterators differ in who runs the fetches, and in nothing else: they have the same order, the same state and the same
batches.  ``batches()`` hands out each batch as its columns, in the containers of a sample, epoch after epoch with a
short (or dropped) last batch; a *pass* is what one ``for`` goes through.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack

from ..engine.options import Options
from ..engine.pilot import Auto
from ..order.cursor import Cursor, batches_of
from ..order.ranks import Sharding
from ..rules import Skip
from ..samples.batch import Batch, Settle, Stacker, collate, columns_of, settle_as
from ..samples.tree import Contents
from ..typevars import B, T
from .iterator import DatasetIterator, Sampling

_P = ParamSpec("_P")
_T = TypeVar("_T")
_DEFAULTS = {field.name: field.default for field in fields(Options)} | {"seeding": "sample", "backend": None}


class Common(TypedDict, total=False):
    """The options of all iterators and loaders."""

    on_error: Literal["raise", "skip"] | Skip
    trace: str | os.PathLike[str] | None
    shard: Sharding
    receipts: Any
    in_order: bool
    sample_timeout: float | None


class OfIterators(Common, total=False):
    """The options of all iterators."""

    seed: int | None
    serializer: Any
    copy: bool
    run_ahead: int | None
    worker_init: Any


class OfLoaders(Common, total=False):
    """The options of both loaders."""

    seeding: Literal["sample", "worker"]
    backend: Any


def defaults(more: type) -> dict[str, Any]:
    """What is taken for the options of ``more`` where they aren't given."""
    return {name: _DEFAULTS[name] for name in more.__annotations__}


# An argument's name in torch, in Chainer or at another of our doors, and ours
OF_ITERATORS = {
    "num_workers": "n_processes",
    "prefetch_factor": "n_prefetch",
    "worker_init_fn": "worker_init",
    "timeout": "dataset_timeout",
    "generator": "seed",
    "sampler": "order_sampler",
    "multiprocessing_context": "backend=mpiter.Process(…)",
    "pin_memory": "mpiter.torch.DataLoader, which has it",
    "persistent_workers": "none: workers stay from epoch to epoch",
    "repeat": "epochs=; epochs=None is without end",
    **dict.fromkeys(("collate_fn", "batch_sampler"), "mpiter.DataLoader, which has it"),
    **dict.fromkeys(("epochs", "drop_last", "ragged"), "mpiter.batches(), which has it"),
}
OF_LOADERS = {
    "n_processes": "num_workers",
    "n_threads": "num_workers",
    "n_prefetch": "prefetch_factor",
    "worker_init": "worker_init_fn",
    "dataset_timeout": "timeout",
    "order_sampler": "sampler",
    **dict.fromkeys(("epochs", "repeat"), "a `for` over the loader for each epoch"),
}
_OF_THREADS = {**OF_ITERATORS, **dict.fromkeys(("n_processes", "num_workers"), "n_threads")}
_OF_NONE = {**OF_ITERATORS, **dict.fromkeys(("n_processes", "num_workers"), "MultiprocessIterator, which has workers")}


def takes(more: type, elsewhere: Mapping[str, str]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A function whose ``**options`` are those of ``more``, and that names its own argument where another was given."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        own = inspect.signature(function)
        named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        for name, default in defaults(more).items():
            named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
        mine = [one.name for one in named]

        @functools.wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            for name in kwargs.keys() - set(mine):
                raise TypeError(f"there is no argument {name!r}{_hint(name, elsewhere, mine)}.")
            return function(*args, **kwargs)

        called.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
        return called

    return decorate


def _hint(name: str, elsewhere: Mapping[str, str], mine: list[str]) -> str:
    near = next(iter(get_close_matches(name, [*mine, *elsewhere], 1, 0.7)), name)
    meant = elsewhere.get(name) or (near if near in mine else elsewhere.get(near))
    return f"; use {meant}" if meant else ""


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

    @takes(OfIterators, OF_ITERATORS)
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
        **options: Unpack[OfIterators],
    ) -> None:
        self.n_prefetch = n_prefetch
        self.shared_mem = shared_mem
        self.shuffle = shuffle
        self.dataset_timeout = dataset_timeout
        self.maxtasksperchild = maxtasksperchild
        ahead: dict[str, Any] = {"n_workers": n_processes, "n_prefetch": n_prefetch, "dataset_timeout": dataset_timeout}
        made = Options(dataset, batch_size, max_samples=maxtasksperchild, backend=backend, **ahead, **options)
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

    @takes(OfIterators, _OF_THREADS)
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
        **options: Unpack[OfIterators],
    ) -> None:
        self.n_threads = n_threads
        self.shuffle = shuffle
        ahead: dict[str, Any] = {"n_workers": n_threads, "n_prefetch": n_prefetch, "dataset_timeout": dataset_timeout}
        made = Options(dataset, batch_size, backend="thread", workers_name="n_threads", **ahead, **options)
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


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
        made = Options(dataset, batch_size, n_workers=0, backend="serial", **options)
        super().__init__(made, _chainers(repeat, shuffle, order_sampler))


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
        self._began = self.epoch, self.current_position
        if self._sampling.pace(self.batch_size).end_at(self._cursor):
            self._sampling = replace(self._sampling, passes=self._sampling.passes + 1)
            super()._go(self._cursor)
        return self

    def _go(self, cursor: Cursor, seed: int | None = None) -> None:
        if self._sampling.epochs:  # the pass that ends with the place, if it has got there
            number = max(1, -(-(cursor.epoch + (cursor.position > 0)) // self._sampling.epochs))
            self._sampling = replace(self._sampling, passes=number)
        self._began = cursor.epoch, cursor.position
        super()._go(cursor, seed)

    @property
    def _epochs(self) -> None:
        """A state may be of any pass."""

    def __len__(self) -> int:
        """The number of batches in a pass; after a resume, of those that are left of it."""
        sampling, (epoch, position) = self._sampling, self._began
        if sampling.epochs is None:
            raise TypeError("endless batches have no length; pass epochs=.")
        share = self._pump.options.share()
        in_epoch = batches_of(len(self._cursor.order), self.batch_size, bool(sampling.drop_last), share)
        if sampling.pace(self.batch_size).end_at(self._cursor):
            return in_epoch * sampling.epochs  # the next one
        left = in_epoch * (sampling.passes * sampling.epochs - epoch)
        return left - -(-position // share.step(self.batch_size))


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


@takes(OfIterators, OF_ITERATORS)
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
    **options: Unpack[OfIterators],
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
    ahead: dict[str, Any] = {"n_workers": n_processes, "n_prefetch": n_prefetch, "dataset_timeout": dataset_timeout}
    work: dict[str, Any] = {"max_samples": maxtasksperchild, "backend": backend, "ragged": ragged}
    made = Options(dataset, batch_size, **ahead, **work, **options)
    return Batches(made, Sampling(False, epochs, 1, drop_last, shuffle, order_sampler))
