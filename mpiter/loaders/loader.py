"""``DataLoader``: torch's arguments, batches of NumPy arrays, torch not needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

import numpy as np

from ..datasets.columns import as_dataset
from ..datasets.mistaken import refuse_mistaken, refuse_no_sampler
from ..engine.arguments import OfLoaders, takes
from ..engine.bringing import brings_order
from ..engine.options import flag, function, whole
from ..errors import OptionError
from ..iterators.iterators import Columns
from ..order.ranks import Sharding
from ..rules import OnError
from ..samples.batch import collate, samples_of, settle_as
from ..samples.tensors import torch_with
from ..samples.tree import Contents
from ..typevars import Data_co, Made_co, Ragged_co, Size_co
from ..worker.here import WorkerInfo
from ..worker.seeding import seed_for
from .batched import unchanged
from .loading import (
    Cutting,
    Epoch,
    Loading,
    is_one_workers,
    loaders_options,
    served_from,
)

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from ..typevars import B, ByDataset, Data, Ragged, Stacks

    class StackedEpoch(Stacks[Data, Ragged], Epoch[Any]):
        """An epoch whose batches the dataset's type tells."""


# Workers are given what follows from these arguments, and nobody would tell them of a
# change.
_FIXED = {
    "batch_sampler",
    "batch_size",
    "collate_fn",
    "dataset",
    "drop_last",
    "multiprocessing_context",
    "num_workers",
    "prefetch_factor",
    "ragged",
    "sampler",
    "shuffle",
    "timeout",
}


def by_id(function: Callable[[int], Any], info: WorkerInfo) -> None:
    """Call ``function``, a ``worker_init_fn`` as torch's, with the worker's number."""
    function(info.id)


class OnlyOne:
    """Hands out the only row of a batch's contents: a batch made by one worker."""

    def __call__(self, contents: Contents) -> Any:
        return samples_of(contents)[0]

    def of_rows(self, rows: Sequence[Any]) -> Any:
        """Return the only row that this process has fetched."""
        return rows[0]


@takes(OfLoaders)
class DataLoader(Loading[Made_co], Generic[Made_co, Data_co, Ragged_co, Size_co]):
    """Gives batches of NumPy arrays from a dataset, an epoch for each ``iter()``.

    It has the arguments of torch's ``DataLoader``.

    Args:
        dataset: anything with ``[]`` or ``__getitems__`` and, unless there is a
            sampler, ``len``; a tuple or dict of arrays; an iterable.
        batch_size: samples in a batch; None for no batching: each ``dataset[key]``
            comes by itself.
        shuffle: a new random order in each epoch.
        sampler: an iterable of keys for ``dataset[key]``.
        batch_sampler: an iterable of lists of keys, one for each batch.
        num_workers: worker processes; 0 fetches in the caller's own thread.
        collate_fn: makes a batch from a list of samples, in a worker; None stacks
            arrays and numbers.
        drop_last: leave out the last batch if it is short.
        timeout: seconds that a batch may take; 0 for no limit.
        worker_init_fn: called in each worker with its number.
        multiprocessing_context: how processes start: "fork", "forkserver", "spawn" or a
            context; None is forkserver.
        generator: a NumPy ``Generator`` or ``RandomState`` that the seed is drawn from.
        prefetch_factor: the most batches in flight for each worker; None for as many as
            the workers need.
        ragged: what to do with samples that differ in shape, or have None in places:
            "raise", make a "list", "pad" with zeros at the end, or lay them end to end
            in one "jagged" array (``mpiter.samples.jagged.Jagged``).
        seed: seed of the order and of the samples' randomness.  None draws one from
            ``generator``, or from NumPy's global generator, once.
        on_error: "raise" raises the dataset's error in place of the batch, "skip"
            leaves the sample out; ``Skip(most=100)`` leaves out at most 100 samples.
        shard: this process's part, where several train together: "auto", ``(rank,
            size)`` or ``mpiter.Shard``.
        options: the rare options, which ``mpiter.engine.arguments.OfLoaders``
            describes.

    Attributes that an iterable dataset sets while a worker reads a copy of it are lost
    after the epoch, unless you pass ``persistent_workers=True``; with ``num_workers=0``
    your own object is read, and keeps them.

    >>> import numpy as np
    >>> loader = DataLoader([(np.full(2, i), i) for i in range(4)], batch_size=2)
    >>> for x, y in loader:
    ...     print(x.shape, y)
    (2, 2) [0 1]
    (2, 2) [2 3]
    """

    def __init__(
        self,
        dataset: Data_co,
        # Where it is left out, its type variable takes a default of its own, which is
        # not the type of this number; so it is with ``ragged``.
        batch_size: Size_co = 1,  # type: ignore[assignment]
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Made_co] | None = None,
        *,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: np.random.Generator | np.random.RandomState | None = None,
        prefetch_factor: int | None = None,
        ragged: Ragged_co = "raise",  # type: ignore[assignment]
        seed: int | None = None,
        on_error: OnError = "raise",
        shard: Sharding = None,
        **options: Unpack[OfLoaders],
    ) -> None:
        is_drawn = sampler is not None or batch_sampler is not None
        refuse_mistaken(dataset, batch_size, by_key=is_drawn)
        refuse_no_sampler(sampler=sampler, batch_sampler=batch_sampler)
        function("collate_fn", collate_fn)
        function("worker_init_fn", worker_init_fn)
        if sampler is not None and shuffle:
            raise OptionError(
                "sampler and shuffle=True exclude each other; shuffle in the sampler."
            )
        if batch_sampler is not None and (
            batch_size != 1 or shuffle or sampler is not None or drop_last
        ):
            raise OptionError(
                "batch_sampler excludes batch_size, shuffle, sampler and drop_last; "
                "it says all of it."
            )
        if batch_size is None and drop_last:
            raise OptionError(
                "batch_size=None makes no batches, so there is none for drop_last to "
                "leave out."
            )
        flag("shuffle", shuffle)
        flag("drop_last", drop_last)
        whole("batch_size", batch_size, least=1, optional=True)
        whole("seed", seed, optional=True)
        kind = type(dataset)
        # torch's loader, too, needs only one of these methods.
        has_keys = hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")
        is_stream = not has_keys or is_torchs_stream(dataset)
        if is_stream and (shuffle or is_drawn):
            raise OptionError(
                "an iterable dataset has no keys: shuffle, sampler and batch_sampler "
                "make no sense."
            )
        if shard is not None:
            check_sharing(dataset, is_stream, sampler, batch_sampler, generator)
            seed = seed or 0
        brings = not is_stream and brings_order(
            dataset, sampler=sampler, batch_sampler=batch_sampler
        )
        self.dataset = as_dataset(dataset)
        self.batch_size = None if batch_sampler is not None else batch_size
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn
        self.num_workers = num_workers
        self.timeout = timeout
        self.generator = generator
        self.ragged = ragged
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = options.get("persistent_workers")
        if seed is None:
            seed = seed_from(generator, draws=self.shuffle or brings)
        settle = settle_as(ragged)
        alone = batch_sampler is None and batch_size is None
        collates: Callable[[Any], Any]
        if collate_fn is not None:
            collates = collate_fn
        elif alone:
            collates = unchanged
        else:
            collates = functools.partial(collate, settle=settle)
        in_one = is_stream or is_one_workers(
            self.dataset, self.batch_size, collates=collate_fn is not None
        )
        opens = OnlyOne() if in_one else Columns(settle)
        served = served_from(
            self.dataset,
            self.batch_size,
            self.drop_last,
            collates,
            is_stream=is_stream,
            in_one=in_one,
            alone=alone,
            stacks=not alone and collate_fn is None,
            skips=on_error != "raise",
        )
        worker_init: Callable[[WorkerInfo], Any] | None = None
        if worker_init_fn is not None and num_workers:
            worker_init = functools.partial(by_id, worker_init_fn)
        recipe = loaders_options(
            served,
            num_workers,
            1 if in_one else self.batch_size,
            self.drop_last,
            int(seed),
            timeout=timeout,
            prefetch_factor=prefetch_factor,
            persistent_workers=self.persistent_workers,
            multiprocessing_context=multiprocessing_context,
            worker_init=worker_init,
            given={"on_error": on_error, "shard": shard, **options},
        )
        Loading.__init__(self, recipe, opens, in_one, int(seed), shuffle)

    def _cutting(self) -> Cutting:
        if self.batch_sampler is not None:
            return Cutting(self.batch_sampler, None, self.drop_last, False)
        size = int(self.batch_size or 1)
        return Cutting(self.sampler, size, self.drop_last, self.sampler is None)

    if TYPE_CHECKING:

        @overload
        def __iter__(
            self: DataLoader[ByDataset, Data, Ragged, int],
        ) -> StackedEpoch[Data, Ragged]: ...
        @overload
        def __iter__(self: DataLoader[ByDataset, Any, Any, Any]) -> Epoch[Any]: ...
        @overload
        def __iter__(self: DataLoader[B, Any, Any, Any]) -> Epoch[B]: ...
        def __iter__(self) -> Any: ...
    else:
        # A subscript may name fewer types than there are variables, since these have
        # defaults.  Only type checkers know that: ``Generic`` itself would refuse it.
        __class_getitem__ = classmethod(GenericAlias)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _FIXED and "_next" in self.__dict__:
            raise OptionError(
                f"{name} is fixed once the loader is made; make a new one."
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        """Return the number of batches in an epoch.

        After a resume, only those that are left count.
        """
        return self._length_of(self._under_way)


def check_sharing(dataset: Any, is_stream: bool, *given: object) -> None:
    """Raise an OptionError for arguments that contradict ``shard=``.

    ``given`` are samplers and a generator, each None if there is none.
    """
    if is_stream:
        kind = type(dataset).__name__
        raise OptionError(
            f"shard needs a dataset with [] and len(); have {kind} yield this rank's "
            "part."
        )
    if any(draws is not None for draws in given):
        raise OptionError(
            "shard goes without sampler, batch_sampler and generator, since each "
            "rank's would draw by itself; shuffle=True and seed= make one order for "
            "all ranks, or the dataset brings one, by mpiter_order()."
        )


def is_torchs_stream(dataset: object) -> bool:
    """True for torch's IterableDataset, whose inherited ``[]`` has no meaning."""
    torch = torch_with("utils")
    return torch is not None and isinstance(dataset, torch.utils.data.IterableDataset)


def seed_from(generator: object, draws: bool) -> int:
    """Return a seed that the user's ``generator`` determines.

    If that is None, NumPy's global generator does.
    """
    if generator is None:
        return seed_for(draws)
    draw = getattr(generator, "integers", None) or getattr(generator, "randint", None)
    if draw is None:
        raise OptionError(
            f"generator={generator!r:.60} is no NumPy Generator or RandomState; pass "
            "one, or seed=."
        )
    return int(draw(0, 1 << 63, dtype=np.int64))
