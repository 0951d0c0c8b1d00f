"""``DataLoader``: torch's arguments, NumPy in and out, torch not needed.

A door of the core: what an epoch is made of, from torch's arguments; the rest is in ``loading.py``.  Combinations that
make no sense are refused at construction.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

from ..datasets.columns import Table, as_dataset
from ..engine.options import Options, is_object
from ..engine.pilot import Auto, auto
from ..errors import OptionError
from ..order.order import Order, Sequential, Shuffled
from ..order.ranks import Sharding
from ..pool.backends import Process
from ..rules import Skip
from ..samples.batch import Stacker, collate, columns_of, samples_of
from ..samples.tensors import torch_with
from ..samples.uneven import settle_as
from ..spelling import OF_LOADERS, knows
from ..typevars import B_co
from ..worker.info import WorkerInfo
from ..worker.seeding import seed_for
from .batched import Batched, Single, unchanged
from .checks import check_batches, check_sharing, check_skipping, check_workers
from .drawing import Drawn, Since
from .epochs import known
from .generators import Generators
from .loading import Loading
from .shards import Batching, Streamed
from .walk import Walk, warn_of_iterators

_FIXED = {"batch_sampler", "batch_size", "collate_fn", "dataset", "drop_last", "num_workers", "sampler", "shuffle"}


class ById:
    """torch's ``worker_init_fn``, which wants to know the worker's number only."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self._function = function

    def __call__(self, info: WorkerInfo) -> None:
        self._function(info.id)


class DataLoader(Loading[B_co]):
    """Batches of NumPy arrays from a dataset, epoch after epoch: torch's ``DataLoader`` for everybody.

    Args:
        dataset: anything with ``[]`` and, unless there is a sampler, ``len``; a tuple or dict of arrays; an iterable.
        batch_size: samples in a batch; None for no batches: each sample, or whatever a sampler's element gives, alone.
        shuffle: another order in each epoch.
        sampler: an iterable of keys for ``dataset[key]``.
        batch_sampler: an iterable of lists of keys, one for each batch.
        num_workers: worker processes; 0 fetches in the loop itself, "auto" has as many as are of use at the moment
            (``Auto(least, most)`` within bounds).
        collate_fn: makes a batch from a list of samples, in a worker; None stacks arrays and numbers.
        pin_memory: has no meaning for NumPy; must be False.
        drop_last: leave out the last batch if it is short.
        timeout: seconds that a batch may take; 0 for ever.
        worker_init_fn: called in each worker with its number.
        multiprocessing_context: how processes start: "fork", "forkserver", "spawn" or a context; None is forkserver.
        generator: a NumPy ``Generator`` or ``RandomState`` that the seed is drawn from.
        prefetch_factor: batches on their way for each worker, at the most; None as many as the workers need.
        persistent_workers: None: workers stay, and a changed dataset is sent to them at the next ``iter()``.  True: it
            isn't.  False: workers end with the epoch.  What an iterable dataset notes of itself while a worker reads it
            is gone with the epoch in any case; with ``num_workers=0`` your own object is read, and keeps it.
        in_order: False hands batches out as they finish, without exact resume.
        seed: of the order and of the samples' randomness; None draws one from ``generator`` or NumPy's global one.
        seeding: whom the global generators are seeded for: each "sample", by its place in the epoch, or each "worker",
            once, as torch does, before ``worker_init_fn``, whose own seeds are then left alone.
        ragged: where samples of a batch differ in shape, or one of them has None, say: "raise", "list", or "pad" with
            zeros, at the end.
        trace: a file, "run.json" say, that will tell who did what when, for ui.perfetto.dev or chrome://tracing.
        on_error: "raise" what ``dataset[i]`` raises, in place of the batch, or "skip" the sample; ``Skip(most=100)``.
        shard: this process's part, where several train together: "auto", ``(rank, size)`` or ``mpiter.Shard``.
        backend: who fetches, as ``batches()`` has it: "ray" or "mpi", say.  None: worker processes here.
        receipts: a folder where what is handed out is noted, for `mpiter audit`; or a ``Receipts``.
        sample_timeout: seconds that one sample may take (or a batch that one worker makes); then the workers are
            replaced and it is tried once more.  None: for ever.

    >>> import numpy as np
    >>> loader = DataLoader([(np.full(2, i), i) for i in range(4)], batch_size=2)
    >>> for x, y in loader:
    ...     print(x.shape, y)
    (2, 2) [0 1]
    (2, 2) [2 3]
    """

    @knows(OF_LOADERS, {})
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] | Auto = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        in_order: bool = True,
        seed: int | None = None,
        seeding: Literal["sample", "worker"] = "sample",
        ragged: Literal["raise", "list", "pad"] = "raise",
        trace: str | os.PathLike[str] | None = None,
        on_error: Literal["raise", "skip"] | Skip = "raise",
        shard: Sharding = None,
        backend: Any = None,
        receipts: Any = None,
        sample_timeout: float | None = 600.0,
    ) -> None:
        if pin_memory:
            raise OptionError("pin_memory is torch's: use mpiter.torch.DataLoader.")
        check_workers(num_workers, timeout, persistent_workers, worker_init_fn)
        check_batches(batch_size, shuffle, sampler, batch_sampler, drop_last, collate_fn)
        for name, given in (("dataset", dataset), ("sampler", sampler), ("batch_sampler", batch_sampler)):
            is_object(name, given)
        is_stream = not hasattr(type(dataset), "__getitem__") or is_torchs_stream(dataset)
        if is_stream and not hasattr(type(dataset), "__iter__"):
            raise OptionError(f"a dataset has [] or can be iterated over, which {type(dataset).__name__} can't.")
        if not (is_stream or sampler is not None or batch_sampler is not None or hasattr(type(dataset), "__len__")):
            raise OptionError(f"{type(dataset).__name__} has no len(), so there must be a sampler.")
        if is_stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise OptionError(
                "an iterable dataset has no keys: shuffle, sampler and batch_sampler make no sense with it."
            )
        if shard is not None:
            check_sharing(dataset, is_stream, sampler, batch_sampler, generator)
            seed = seed or 0
        check_skipping(dataset, is_stream, on_error)
        warn_of_iterators({"dataset": dataset, "sampler": sampler, "batch_sampler": batch_sampler})
        self.dataset = as_dataset(dataset)
        self.batch_size = None if batch_sampler is not None else batch_size
        self.shuffle, self.drop_last = bool(shuffle), bool(drop_last)
        self.sampler, self.batch_sampler, self.collate_fn = sampler, batch_sampler, collate_fn
        self.num_workers, self.timeout, self.generator = num_workers, timeout, generator
        self.ragged = ragged
        self._settle, self._stacks = settle_as(ragged), Stacker()
        self._stack = functools.partial(collate, settle=self._settle)
        self._seed = seed_from(generator, draws=self.shuffle) if seed is None else int(seed)
        self._skips = on_error != "raise"
        self._in_one = self._makes_batches_in_workers()
        if is_stream:
            collate_batch = self._stack if batch_size else unchanged
            self._batching = Batching(batch_size, self.drop_last, collate_fn or collate_batch, shards_itself=None)
        options = worker_options(
            Streamed(dataset, self._batching, 0, 1)
            if self._batching
            else self._served()
            if self._in_one
            else self.dataset,
            rows=1 if self._in_one or is_stream else self.batch_size,
            num_workers=num_workers,
            timeout=timeout,
            worker_init=ById(worker_init_fn) if worker_init_fn is not None and num_workers else None,
            context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            in_order=in_order,
            seed=self._seed,
            seeding=seeding,
            trace=trace,
            on_error=on_error,
            shard=shard,
            backend=backend,
            receipts=receipts,
            sample_timeout=sample_timeout,
        )
        has_length = sampler is None and batch_sampler is None and not is_stream
        self._begin(options, persistent_workers, samples=len(self.dataset) if has_length else None)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_home" in self.__dict__:
            raise OptionError(f"{name} is fixed once the loader is made; make a new one.")
        super().__setattr__(name, value)

    def _makes_batches_in_workers(self) -> bool:
        """Is a batch one worker's work?  Otherwise several may write their rows into the same columns."""
        if self.batch_sampler is not None or self.batch_size is None or self.collate_fn is not None:
            return True
        reads_whole_batches = callable(getattr(self.dataset, "__getitems__", None)) and type(self.dataset) is not Table
        return reads_whole_batches or not hasattr(type(self.dataset), "__len__")

    def _served(self) -> Any:
        if self.batch_sampler is None and self.batch_size is None:
            return Single(self.dataset, self.collate_fn or unchanged, self._skips)
        return Batched(self.dataset, self.collate_fn or self._stack, self._skips, stacks=self.collate_fn is None)

    def __len__(self) -> int:
        """Batches in an epoch; after a resume, those that are left of it."""
        return max(0, known(self._length()) - self._left_out())

    def _length(self) -> int | None:
        given = self.batch_sampler if self.batch_sampler is not None else self.sampler
        try:
            length = len(self.dataset if given is None else given)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None
        return self._batches_of(length)

    def _sampled(self) -> Any:
        return self.batch_sampler if self.batch_sampler is not None else self.sampler

    def _plans(self, since: Since) -> Drawn:
        walk = Walk(self._sampled(), since.told, begins=not since.batches)
        if self.batch_sampler is not None:
            return Drawn(walk.begin(), None, walk, since)
        batches = walk.begin().in_batches(self.batch_size or 1, self.drop_last)
        return Drawn(batches, None if self._in_one else self.batch_size, walk, since)

    def _order(self, epoch: int) -> Order:
        if self.sampler is not None or self.batch_sampler is not None:
            return Sequential(0)
        length = len(self.dataset)
        return Shuffled(length, self._seed, epoch) if self.shuffle else Sequential(length)

    def _opens(self, contents: Any) -> Any:
        return samples_of(contents)[0] if self._in_one else columns_of(contents, self._settle, self._stacks)

    def _seed_of_epoch(self) -> int:
        return self._seed

    def _generators(self) -> Generators:
        given = [one for one in (self.sampler, self.batch_sampler) if one is not None]
        given += [one.sampler for one in given if hasattr(one, "sampler")]
        return Generators(given, ("random", "numpy", "torch")) if given else Generators()

    def _agreed(self) -> dict[str, Any]:
        given = self.sampler is not None or self.batch_sampler is not None or self._batching is not None
        length = {} if given else {"dataset_length": len(self.dataset), "shuffle": self.shuffle}
        kinds = {"stream": self._batching, "batch_sampler": self.batch_sampler, "sampler": self.sampler}
        kind = next((name for name, one in kinds.items() if one is not None), "dataset")
        return {"kind": kind} | length | {"batch_size": self.batch_size, "drop_last": self.drop_last}


def workers_of(num_workers: int | str | Auto) -> int:
    """How many there may be."""
    found = auto(num_workers)
    return int(num_workers) if found is None else found.bound  # type: ignore[arg-type]


def worker_options(
    dataset: Any,
    rows: int | None,
    num_workers: int | str | Auto,
    timeout: float,
    worker_init: Any,
    context: Any,
    prefetch_factor: int | None,
    in_order: bool,
    seed: int | None,
    seeding: str,
    trace: str | os.PathLike[str] | None = None,
    on_error: Any = "raise",
    shard: Any = None,
    backend: Any = None,
    receipts: Any = None,
    sample_timeout: float | None = 600.0,
) -> Options:
    """The engine's options for a loader's, which knows what its dataset is."""
    if seeding not in ("sample", "worker"):
        raise OptionError(f"seeding={seeding!r:.60} is unknown; use 'sample' or 'worker'.")
    if num_workers == 0 and (prefetch_factor is not None or context is not None):
        raise OptionError("prefetch_factor and multiprocessing_context need workers: num_workers is 0.")
    whole = isinstance(prefetch_factor, int) and not isinstance(prefetch_factor, bool)
    if prefetch_factor is not None and not (whole and prefetch_factor >= 1):
        raise OptionError(f"prefetch_factor={prefetch_factor!r:.60} must be a whole number of at least 1, or None.")
    found, run_ahead = auto(num_workers), None
    most_workers = workers_of(num_workers)
    n_prefetch: Any = max(2, most_workers) if found is None else "auto"
    if prefetch_factor is not None:
        most = prefetch_factor * most_workers
        n_prefetch = min(max(2, most_workers), most)
        run_ahead = most - n_prefetch
    if not (context is None or isinstance(context, str) or hasattr(context, "get_start_method")):
        raise OptionError(f"multiprocessing_context={context!r:.60} is neither a start method nor a context.")
    if context is not None and backend is not None:
        raise OptionError("multiprocessing_context says how processes start here: there are none with backend=.")
    method = context if context is None or isinstance(context, str) else context.get_start_method()
    return Options(
        dataset=dataset,
        is_settled=True,
        batch_size=rows or 1,
        n_workers=num_workers,
        n_prefetch=n_prefetch,
        run_ahead=run_ahead,
        dataset_timeout=timeout or None,
        sample_timeout=sample_timeout,
        seed=seed,
        backend=Process(method) if backend is None else backend,
        worker_init=worker_init,
        in_order=in_order,
        seeds_samples=seeding == "sample",
        trace=trace,
        on_error=on_error,
        shard=shard,
        receipts=receipts,
        workers_name="num_workers",
    )


def is_torchs_stream(dataset: Any) -> bool:
    """torch's IterableDataset has a ``[]`` that it inherits and doesn't mean."""
    torch = torch_with("utils")
    return torch is not None and isinstance(dataset, torch.utils.data.IterableDataset)


def seed_from(generator: Any, draws: bool) -> int:
    """A seed that the user's generator governs."""
    if generator is None:
        return seed_for(draws)
    draw = getattr(generator, "integers", None) or getattr(generator, "randint", None)
    if draw is None:
        raise OptionError(f"generator={generator!r:.60} is no NumPy Generator or RandomState; pass one, or seed=.")
    return int(draw(0, 1 << 63, dtype=np.int64))
