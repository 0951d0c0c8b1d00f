"""torch's ``DataLoader``, argument for argument, with mpiter's workers.

torch's own class checks the arguments and makes the samplers.  Guarantees that torch's
generators are drawn from in the same order as by torch (so that a seed gives torch's
order of samples), and that batches are what torch would collate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any, Unpack

import torch
import torch.utils.data
from torch.utils.data import _utils

from ..datasets.columns import as_dataset
from ..datasets.mistaken import refuse_mistaken, refuse_no_sampler
from ..engine.arguments import OfLoaders, defaults, takes
from ..engine.options import flag, function
from ..errors import OptionError, warn
from ..loaders.drawing import Generators, samplers_in
from ..loaders.loader import check_sharing, is_torchs_stream
from ..loaders.loading import Loading, workers_of
from ..order.ranks import Sharding
from ..pool import starting
from ..rules import OnError
from ..samples.batch import Stacker, samples_of
from ..samples.tree import Contents

# Torch's name for the type of a dataset's samples.
from ..typevars import B_co as T_co
from ..worker.here import WorkerInfo
from .tensors import (
    collated,
    collated_anywhere,
    default_collate,
    tensors_of,
    tensors_of_columns,
)

starting.preloaded += ["torch", __package__]
# What torch's loader lets programs change between epochs, though workers have got it.
_FIXED = frozenset(
    {
        "collate_fn",
        "num_workers",
        "worker_init_fn",
        "timeout",
        "pin_memory",
        "prefetch_factor",
    }
)
# Kept, since some programs put our class in its place in torch's module.
_TorchsLoader = torch.utils.data.DataLoader


class OfTorch(OfLoaders, total=False):
    """The rare options of ``mpiter.torch.DataLoader``.

    Attributes:
        seed: with ``shard=``, the seed of the order that all ranks share, 0 unless
            given.  Without it the order follows from ``generator``, or from torch's
            global one, as torch's own does.
        on_error: "raise" raises the dataset's error in place of the batch, "skip"
            leaves the sample out; ``mpiter.Skip(most=100)`` leaves out at most 100
            samples.
        shard: this process's part, where several train together: "auto", ``(rank,
            size)`` or ``mpiter.Shard``.
        pin_memory_device: torch's own argument, which is passed on to it.
    """

    seed: int | None
    on_error: OnError
    shard: Sharding
    pin_memory_device: str


@takes(OfTorch)
class DataLoader(Loading[Any], torch.utils.data.DataLoader[T_co]):  # type: ignore[misc]
    """A ``DataLoader`` with torch's arguments and batches.  To replace torch's loader,
    change only the import.

    ``persistent_workers=None``, the default, keeps the workers between epochs and
    replaces them at ``iter()`` if the dataset has changed.  Workers read a fresh copy
    of an ``IterableDataset`` in each epoch, unless they persist by
    ``persistent_workers=True``; with ``num_workers=0`` your own object is read.
    ``prefetch_factor=None`` prefetches as many batches as the workers need. In addition
    to torch's methods: ``state_dict()``, ``load_state_dict()``, ``close()``, ``with``,
    ``stats()``.

    Args:
        options: beside torch's arguments; ``mpiter.torch.loader.OfTorch`` describes
            these.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.arange(4.0), torch.arange(4))
    >>> for x, y in DataLoader(data, batch_size=2):
    ...     print(x, y)
    tensor([0., 1.]) tensor([0, 1])
    tensor([2., 3.]) tensor([2, 3])
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        **options: Unpack[OfTorch],
    ) -> None:
        seed = options.get("seed")
        persistent_workers = options.get("persistent_workers")
        is_drawn = sampler is not None or batch_sampler is not None
        refuse_mistaken(dataset, batch_size, by_key=is_drawn)
        if not (
            hasattr(type(dataset), "__getitem__")
            or hasattr(dataset, "__getitems__")
            or is_torchs_stream(dataset)
        ):
            raise OptionError(
                f"{type(dataset).__name__} can only be iterated over: derive from "
                "torch.utils.data.IterableDataset, which torch reads so, or pass a "
                "list of it; mpiter.DataLoader takes it as it is."
            )
        # Torch takes their elements as samples.
        if not isinstance(dataset, (list, tuple)):
            dataset = as_dataset(dataset, by_key=is_drawn)
        self._seed, self._shuffles, self._is_shared = (
            seed or 0,
            bool(shuffle),
            options.get("shard") is not None,
        )
        if self._is_shared:
            check_sharing(
                dataset, is_torchs_stream(dataset), sampler, batch_sampler, generator
            )
        elif seed is not None:
            raise OptionError(
                f"seed={seed!r:.60} goes with shard=, for the order that all ranks "
                "share.  Without it the order is torch's: pass "
                f"generator=torch.Generator().manual_seed({seed!r:.60}), or call "
                "torch.manual_seed() before each run."
            )
        batches = dataset, batch_size, shuffle, sampler, batch_sampler
        work = (
            workers_of(num_workers),
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
        )
        more: dict[str, Any] = {
            "prefetch_factor": prefetch_factor,
            "persistent_workers": bool(persistent_workers),
        }
        more |= {
            "pin_memory_device": options.get("pin_memory_device", ""),
            "in_order": options.get("in_order", True),
        }
        _TorchsLoader.__init__(
            self, *batches, *work, multiprocessing_context, generator, **more
        )
        # What torch itself refuses it says in its own words, which programs look for.
        refuse_no_sampler(sampler=sampler, batch_sampler=batch_sampler)
        function("collate_fn", collate_fn)
        function("worker_init_fn", worker_init_fn)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise OptionError(
                f"generator={generator!r:.60} is none of torch's: pass "
                "torch.Generator().manual_seed(…)."
            )
        flag("shuffle", shuffle)
        flag("drop_last", drop_last)
        self._own_samplers: tuple[Any, ...] = ()
        if not is_drawn:
            self._own_samplers = (self.sampler, self.batch_sampler)
        # Attributes as they were passed: frameworks read them to make another loader,
        # of this class or of torch's.
        self.__dict__.update(
            {"prefetch_factor": prefetch_factor} | defaults(OfTorch) | options
        )
        collates = (
            self.collate_fn is not default_collate
            or isinstance(dataset, Mapping)
            or is_torchs_stream(dataset)
        )
        self._in_one = self._is_one_workers(collates)
        self._opens = _Tensors(self._in_one, pin_memory and _can_pin())
        stacks = self.collate_fn is default_collate
        skips = self.__dict__["on_error"] != "raise"
        collate = collated_anywhere if stacks else self.collate_fn
        served = self._served(is_torchs_stream(dataset), collate, stacks, skips, True)
        self._begin(
            served,
            num_workers,
            partial(_at_home, worker_init_fn) if num_workers else None,
            options,
        )

    _get_iterator = Loading.__iter__  # some frameworks call this name

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and "_next" in self.__dict__ and value != getattr(self, name):
            raise OptionError(
                f"{name} is fixed once the loader is made, since workers get it: make "
                "a new loader."
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        # Of a whole epoch, after a resume too: Lightning takes it for the number of an
        # epoch's last batch.
        whole_epoch: int | None = None
        if self._is_shared:
            whole_epoch = self._rest(0)
        if whole_epoch is None:
            whole_epoch = int(_TorchsLoader.__len__(self))
        return whole_epoch

    # Some subclasses put other samplers in the place of ours, so these are looked at
    # whenever an epoch begins.

    @property
    def _goes_through_all(self) -> bool:  # type: ignore[override]
        own = self._own_samplers
        now = (self.sampler, self.batch_sampler)
        return bool(own) and all(map(is_, own, now))

    @property
    def _begins_late(self) -> bool:  # type: ignore[override]
        return type(self.batch_sampler) is torch.utils.data.BatchSampler

    @property
    def _sampled(self) -> Any:
        """The sampler to iterate over, whose state is saved: the one within torch's
        own ``BatchSampler``, if used.
        """
        # Batches are cut from the order that all ranks have.
        if self._is_shared:
            return None
        # Frameworks replace the former.
        return self.batch_sampler.sampler if self._begins_late else self._index_sampler

    @property
    def _cut(self) -> tuple[int | None, bool]:  # type: ignore[override]
        makes_batches: Any = self.batch_sampler
        if self._begins_late:
            return makes_batches.batch_size, makes_batches.drop_last
        return None if self._auto_collation else 1, False

    @property
    def _told_length(self) -> int | None:  # type: ignore[override]
        told: int | None = self._IterableDataset_len_called  # kept by torch's len()
        return told

    def _rest(self, position: int) -> int | None:
        """Return the number of batches from ``position`` on; None for a stream,
        whose length torch computes itself.
        """
        if self._is_stream:
            return None
        return super()._rest(position)

    @property
    def _keeps_seed(self) -> bool:  # type: ignore[override]
        """True if later epochs draw no seed: torch draws one when it starts workers."""
        return bool(self.persistent_workers and self.num_workers)

    def _seed_of_epoch(self) -> int:
        """Return a seed drawn when and from what torch draws it; with ``shard=``,
        the one that all ranks share.
        """
        if self._is_shared:
            return self._seed
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        self._seed = int(drawn.item())
        return self._seed

    def _generators(self) -> Generators:
        if self._is_shared:
            return Generators()
        samplers = samplers_in(self._index_sampler)
        known = all(type(one).__module__.startswith("torch.") for one in samplers)
        return Generators(
            [self.generator, *samplers],
            ("torch",) if known else ("torch", "numpy", "random"),
        )

    def _agreed(self) -> dict[str, Any]:
        return super()._agreed() | {
            "sampler_type": "shard"
            if self._is_shared
            else type(self.sampler).__qualname__
        }


class _Tensors:
    """Makes tensors of a batch's contents, pinned if ``pins``; ``in_one``: a worker
    has collated it, as one object.
    """

    def __init__(self, in_one: bool, pins: bool) -> None:
        self._in_one, self._pins, self._stacks = in_one, pins, Stacker()

    def __call__(self, contents: Contents) -> Any:
        if self._in_one:
            batch = samples_of(contents)[0]
        else:
            batch = tensors_of(contents, self._stacks)
        if self._pins:
            return _utils.pin_memory.pin_memory(batch)
        return batch

    def of_rows(self, samples: Sequence[Any]) -> Any:
        """Make a batch of ``samples`` that were fetched in this process."""
        if self._in_one:
            batch = samples[0]
        else:
            batch = collated(samples, self._stacks)
        if self._pins:
            return _utils.pin_memory.pin_memory(batch)
        return batch

    def of_columns(self, columns: Any) -> Any:
        """Make a batch of columns that were gathered in this process; None if their
        rows must be collated.
        """
        batch = tensors_of_columns(columns)
        if self._pins:
            return _utils.pin_memory.pin_memory(batch)
        return batch


def _at_home(worker_init_fn: Callable[[int], Any] | None, info: WorkerInfo) -> None:
    """Set ``torch.utils.data.get_worker_info()`` in a worker process, then call
    ``worker_init_fn``.
    """
    # Torch keeps one worker's info for a process.
    if info.backend not in ("thread", "serial"):
        _utils.worker._worker_info = _utils.worker.WorkerInfo(
            id=info.id,
            num_workers=info.num_workers,
            seed=info.seed + info.id,
            dataset=info.dataset,
        )
    if worker_init_fn is not None:
        worker_init_fn(info.id)


def _can_pin() -> bool:
    if (
        torch.accelerator.is_available()
        and torch.accelerator.current_accelerator().type != "mps"
    ):
        return True
    text = (
        "'pin_memory' argument is set as true but no accelerator is found, then "
        "device pinned memory won't be used."
    )
    warn(text, UserWarning)
    return False
