"""torch's ``DataLoader``, argument for argument, with mpiter's workers.

torch's own class checks the arguments and makes the samplers.  Guarantees that torch's
generators are drawn from in the same order as by torch (so that a seed gives torch's
order of samples), and that batches are what torch would collate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, Unpack

import torch
import torch.utils.data
from torch.utils.data import _utils

from ..datasets.columns import as_dataset
from ..datasets.mistaken import refuse_mistaken, refuse_no_sampler
from ..engine.arguments import OfLoaders, defaults, takes
from ..engine.bringing import brings_order
from ..engine.options import flag, function
from ..errors import OptionError, warn
from ..language.flat import flat
from ..loaders.drawing import Generators, samplers_in
from ..loaders.loader import check_sharing, is_torchs_stream
from ..loaders.loading import (
    Cutting,
    Loading,
    Pass,
    is_one_workers,
    loaders_options,
    served_from,
    workers_of,
)
from ..order.ranks import Sharding
from ..pool import starting
from ..rules import OnError
from ..samples.batch import Settle, Stacker, columns_of, samples_of, settle_as
from ..samples.batch import collate as collate_as
from ..samples.tree import Contents

# T_co is torch's name for the type of a dataset's samples.
from ..typevars import B_co as T_co
from ..worker.here import WorkerInfo
from .tensors import (
    default_collate,
    default_collate_in_memory,
    flat_tensors,
    settled,
    tensors_of,
    tensors_of_columns,
    tensors_of_samples,
)

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

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
# torch's own class is kept here, since some programs put ours in its place in torch's
# module.
_TorchsLoader = torch.utils.data.DataLoader


class OfTorch(OfLoaders, total=False):
    """The rare options of ``mpiter.torch.DataLoader``.

    Attributes:
        seed: with ``shard=``, the seed of the order that all ranks share, 0 unless
            given; with a dataset that brings its order, the seed of that.  Otherwise
            the order follows from ``generator``, or from torch's global one, as torch's
            own does.
        on_error: "raise" raises the dataset's error in place of the batch, "skip"
            leaves the sample out; ``mpiter.Skip(most=100)`` leaves out at most 100
            samples.
        ragged: what becomes of samples that differ in shape: "raise" torch's error,
            make a "list", "pad" with zeros at the end, or lay them end to end in a
            nested tensor of "jagged" layout.
        shard: this process's part, where several train together: "auto", ``(rank,
            size)`` or ``mpiter.Shard``.
        pin_memory_device: torch's own argument, which is passed on to it.
    """

    seed: int | None
    on_error: OnError
    ragged: str
    shard: Sharding
    pin_memory_device: str


@takes(OfTorch)
class DataLoader(Loading[Any], torch.utils.data.DataLoader[T_co]):  # type: ignore[misc]
    """A ``DataLoader`` with torch's arguments and batches.

    To replace torch's loader, change only the import.

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
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
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
        # As in torch, a list's or a tuple's elements are samples, never columns.
        if not isinstance(dataset, (list, tuple)):
            dataset = as_dataset(dataset, by_key=is_drawn)
        is_stream = is_torchs_stream(dataset)
        is_shared = options.get("shard") is not None
        brings = not is_stream and brings_order(
            dataset, sampler=sampler, batch_sampler=batch_sampler
        )
        # Batches are cut from one order, not from what torch's samplers give.
        self._has_order = is_shared or brings
        if is_shared:
            check_sharing(dataset, is_stream, sampler, batch_sampler, generator)
        elif brings and seed is None:
            seed = _drawn_seed(generator)
        elif seed is not None and not brings:
            raise OptionError(
                f"seed={seed!r:.60} goes with shard=, for the order that all ranks "
                "share, or with a dataset's own order.  Without these it is torch's: "
                "pass "
                f"generator=torch.Generator().manual_seed({seed!r:.60}), or call "
                "torch.manual_seed() before each run."
            )
        _TorchsLoader.__init__(
            self,
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            workers_of(num_workers),
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=bool(persistent_workers),
            pin_memory_device=options.get("pin_memory_device", ""),
            in_order=options.get("in_order", True),
        )
        # These checks come after torch's own.  What torch itself refuses it says in its
        # own words, which programs look for.
        refuse_no_sampler(sampler=sampler, batch_sampler=batch_sampler)
        function("collate_fn", collate_fn)
        function("worker_init_fn", worker_init_fn)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise OptionError(
                f"generator={generator!r:.60} isn't a generator of torch's: pass "
                "torch.Generator().manual_seed(…)."
            )
        flag("shuffle", shuffle)
        flag("drop_last", drop_last)
        self._own_samplers: tuple[Any, ...] = ()
        if not is_drawn:
            self._own_samplers = self._present_samplers()
        # The attributes are as the arguments were passed, since frameworks read them to
        # make another loader, of this class or of torch's.
        passed = {"prefetch_factor": prefetch_factor}
        self.__dict__.update(passed | defaults(OfTorch) | options)
        stacks = self.collate_fn is default_collate
        collates = not stacks or isinstance(dataset, Mapping) or is_stream
        in_one = is_one_workers(dataset, self.batch_size, collates)
        pins = pin_memory and _can_pin()
        settle = settle_as(self.ragged)
        # With "raise" a batch is what torch itself makes.
        collate: Callable[[Any], Any]
        opens: _Tensors
        if stacks and self.ragged != "raise":
            collate = partial(collate_as, settle=settle)
            opens = _Settled(in_one, pins, settle)
        else:
            collate = self.collate_fn
            if stacks:
                collate = default_collate_in_memory
            elif collate is flat:
                collate = flat_tensors
            opens = _Tensors(in_one, pins)
        served = served_from(
            dataset,
            self.batch_size,
            drop_last,
            collate,
            is_stream=is_stream,
            in_one=in_one,
            alone=self.batch_size is None and self.batch_sampler is None,
            stacks=stacks,
            skips=self.__dict__["on_error"] != "raise",
            shards_itself=True,
        )
        worker_init = None
        if num_workers:
            worker_init = partial(_at_home, worker_init_fn)
        recipe = loaders_options(
            served,
            num_workers,
            1 if in_one else self.batch_size,
            bool(self.drop_last),
            seed or 0,
            timeout=timeout,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            worker_init=worker_init,
            given=options,
        )
        Loading.__init__(self, recipe, opens, in_one, seed or 0, shuffle)

    _get_iterator = Loading.__iter__  # some frameworks call this name

    def __setattr__(self, name: str, value: object) -> None:
        is_made = "_next" in self.__dict__
        if is_made and name in _FIXED and value != getattr(self, name):
            raise OptionError(
                f"{name} is fixed once the loader is made, since workers get it: make "
                "a new loader."
            )
        super().__setattr__(name, value)

    def __len__(self) -> int:
        # The length is that of a whole epoch, after a resume too, since Lightning takes
        # it for the number of an epoch's last batch.
        whole_epoch: int | None = None
        if self._has_order:
            whole_epoch = self._rest(0, self._under_way)
        if whole_epoch is None:
            whole_epoch = int(_TorchsLoader.__len__(self))
        return whole_epoch

    def _cutting(self) -> Cutting:
        """Return what cuts an epoch's keys into batches.

        If torch's own ``BatchSampler`` makes the batches, the sampler is the one within
        that.
        """
        # Some subclasses put other samplers in the place of ours, and frameworks
        # replace the sampler within, so these are looked up each time.
        own = self._own_samplers
        now = self._present_samplers()
        covers = bool(own) and all(map(is_, own, now))
        is_torchs = type(self.batch_sampler) is torch.utils.data.BatchSampler
        sampler: Any = self._index_sampler
        size: int | None = 1
        drops = False
        if is_torchs:
            torchs: torch.utils.data.BatchSampler = self.batch_sampler
            sampler = torchs.sampler
            size = torchs.batch_size
            drops = torchs.drop_last
        elif self._auto_collation:
            size = None
        if self._has_order:
            sampler = None
        return Cutting(sampler, size, drops, covers, begins_late=is_torchs)

    def _present_samplers(self) -> tuple[Any, ...]:
        """Return the samplers, with that which the batch sampler draws from."""
        within = getattr(self.batch_sampler, "sampler", None)
        return self.sampler, self.batch_sampler, within

    def _told_length(self) -> int | None:
        told: int | None = self._IterableDataset_len_called  # kept by torch's len()
        return told

    def _rest(self, position: int, current: Pass | None = None) -> int | None:
        """Return the number of batches from ``position`` on.

        None for a stream, whose length torch computes itself.
        """
        if self._is_stream:
            return None
        return super()._rest(position, current)

    def _keeps_seed(self) -> bool:
        """Return True if later epochs draw no seed.

        torch draws one when it starts workers, and these stay.
        """
        return bool(self.persistent_workers and self.num_workers)

    def _seed_of_epoch(self) -> int:
        """Return a seed, drawn when torch draws it and from the same generator.

        It is the order's where there is one, such as all ranks share.
        """
        if not self._has_order:
            self._seed = _drawn_seed(self.generator)
        return self._seed

    def _generators(self) -> Generators:
        if self._has_order:
            return Generators()
        samplers = samplers_in(self._index_sampler)
        holders = [self.generator, *samplers]
        # Of torch's own samplers it is known that they draw from torch's generators.
        if all(type(one).__module__.startswith("torch.") for one in samplers):
            return Generators(holders, ("torch",))
        return Generators(holders, ("torch", "numpy", "random"))

    def _agreed(self) -> dict[str, Any]:
        agreed = super()._agreed()
        if self._brought is not None:
            return agreed
        if self._has_order:
            agreed["sampler_type"] = "shard"
        else:
            agreed["sampler_type"] = type(self.sampler).__qualname__
        return agreed


def _drawn_seed(generator: torch.Generator | None) -> int:
    drawn = torch.empty((), dtype=torch.int64).random_(generator=generator)
    return int(drawn.item())


class _Tensors:
    """Makes tensors of a batch's contents.

    ``in_one``: a worker has collated the batch already, as one object.  ``pins``: the
    tensors are put into pinned memory.
    """

    def __init__(self, in_one: bool, pins: bool) -> None:
        self._in_one = in_one
        self._pins = pins
        self._stacks = Stacker()

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
            batch = tensors_of_samples(samples, self._stacks)
        if self._pins:
            return _utils.pin_memory.pin_memory(batch)
        return batch

    def of_columns(self, columns: Any) -> Any:
        """Make a batch of columns that were gathered in this process.

        None if their rows must be collated.
        """
        batch = tensors_of_columns(columns)
        if self._pins:
            return _utils.pin_memory.pin_memory(batch)
        return batch


class _Settled(_Tensors):
    """Makes tensors of a batch's contents, with ``settle`` where samples differ."""

    def __init__(self, in_one: bool, pins: bool, settle: Settle) -> None:
        super().__init__(in_one, pins)
        self._settle = settle

    def __call__(self, contents: Contents) -> Any:
        if self._in_one:
            columns = samples_of(contents)[0]
        else:
            columns = columns_of(contents, self._settle, self._stacks)
        return settled(columns, self._pins)

    def of_rows(self, samples: Sequence[Any]) -> Any:
        if self._in_one:
            columns = samples[0]
        else:
            columns = collate_as(samples, self._settle, self._stacks)
        return settled(columns, self._pins)


def _at_home(worker_init_fn: Callable[[int], Any] | None, info: WorkerInfo) -> None:
    """Call ``worker_init_fn`` in a worker, where torch's ``get_worker_info()`` works.

    That is in worker processes only.
    """
    # torch keeps one worker's info for the whole process, so threads have none of it:
    # each would see another one's.
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
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator().type
        # For Apple's accelerator torch pins nothing.
        if kind != "mps":
            return True
    text = (
        "'pin_memory' argument is set as true but no accelerator is found, then "
        "device pinned memory won't be used."
    )
    warn(text, UserWarning)
    return False
