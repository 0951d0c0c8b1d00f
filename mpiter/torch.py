"""torch's ``DataLoader``, argument for argument, fed by mpiter's workers.

A door: imports torch.  torch's own class checks the arguments and makes the samplers; we fetch.  Guarantees torch's
order of draws from its generators (so that a seed gives the order that torch gives), torch's collating, and tensors on
the memory that the workers wrote.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import _utils

from . import starting
from .batch import samples_of
from .bundles import Bundled, Single
from .device import DevicePrefetcher, is_numeric, mapped
from .drawing import Drawn, Sliced
from .errors import OptionError
from .info import WorkerInfo
from .leaves import Complex, Leaf
from .loader import worker_options
from .loading import Loading
from .luck import Luck
from .order import Order, Sequential
from .shards import Cut, Streamed
from .transport import Contents
from .tree import Group, Node

__all__ = ["DataLoader", "DevicePrefetcher", "tensors"]

starting.preload(__name__)
_default_collate = _utils.collate.default_collate
_TORCHS_OWN = "torch."


class DataLoader(Loading, torch.utils.data.DataLoader):  # type: ignore[misc]
    """torch's ``DataLoader``: change the import.

    ``persistent_workers`` is None unless you say otherwise: workers stay from epoch to epoch, and a dataset that has
    changed is sent to them again at ``iter()``.  ``prefetch_factor=None`` lets batches run ahead as the workers need.
    Beyond torch's: ``state_dict()``, ``load_state_dict()``, ``skip()``, ``close()``, ``with``, ``stats()``.

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
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        if num_workers == 0 and timeout > 0:
            raise OptionError("timeout needs workers: with num_workers=0 the loop itself fetches.")
        torch.utils.data.DataLoader.__init__(
            self,
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self._seed = 0  # of the samples' randomness in this epoch
        self._pins = _can_pin() if pin_memory else False
        self._has_own_sampler = sampler is None and batch_sampler is None
        self._in_one = self._makes_batches_in_workers()
        self._refreshes = persistent_workers is not True
        options = worker_options(
            self._served() if self._in_one else dataset,
            rows=1 if self._in_one else batch_size,
            num_workers=num_workers,
            timeout=timeout,
            worker_init=_AtHome(worker_init_fn) if num_workers else None,
            context=self.multiprocessing_context,
            prefetch_factor=prefetch_factor,
            in_order=in_order,
            seed=0,
        )
        self._begin(options, persistent=persistent_workers is not False)

    def _makes_batches_in_workers(self) -> bool:
        is_stream = isinstance(self.dataset, torch.utils.data.IterableDataset)
        if is_stream or self.batch_size is None or self.collate_fn is not _default_collate:
            return True
        if type(self.dataset) in (tuple, dict):
            return True  # to torch these are samples by number or name, not the columns of a table
        return bool(getattr(self.dataset, "__getitems__", None)) or not hasattr(type(self.dataset), "__len__")

    def _served(self) -> Any:
        collate: Any = _collated if self.collate_fn is _default_collate else self.collate_fn
        if isinstance(self.dataset, torch.utils.data.IterableDataset):
            self._cut = Cut(self.batch_size, self.drop_last, collate, shards_itself=True)
            return Streamed(self.dataset, self._cut, 0, 1)
        return (Bundled if self._auto_collation else Single)(self.dataset, collate)

    def __iter__(self) -> Any:
        return Loading.__iter__(self)

    _get_iterator = __iter__  # which some frameworks call

    def _length(self) -> int | None:
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    def _plans(self) -> Sliced | Drawn:
        if not self._auto_collation:
            return Drawn(([key] for key in self.sampler), None)
        batches: Iterator[Any] = iter(self.batch_sampler)
        return Drawn(batches, None if self._in_one else self.batch_size)

    def _order(self, epoch: int) -> Order:
        return Sequential(0)

    def _opens(self, contents: Contents) -> Any:
        batch = samples_of(contents)[0] if self._in_one else _tensors_of(contents)
        return pinned(batch) if self._pins else batch

    def _seed_of_epoch(self) -> int:
        """Drawn when torch draws it, from what torch draws it from."""
        drawn = torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        self._seed = int(drawn.item())
        return self._seed

    def _count(self, batches: int) -> None:
        """torch's warning to those who were told another length."""
        told = self._IterableDataset_len_called
        if self._cut is not None and told is not None and batches > told:
            warnings.warn(
                f"Length of IterableDataset {self.dataset} was reported to be {told} (when accessing len(dataloader)), "
                f"but {batches} samples have been fetched.",
                stacklevel=3,
            )

    def _luck(self) -> Luck:
        samplers: list[Any] = [self._index_sampler, getattr(self._index_sampler, "sampler", None)]
        known = all(one is None or type(one).__module__.startswith(_TORCHS_OWN) for one in samplers)
        return Luck([self.generator, *samplers], ("torch",) if known else ("torch", "numpy", "random"))

    def _agreed(self) -> dict[str, Any]:
        kind = "stream" if self._cut is not None else "dataset" if self._has_own_sampler else "sampler"
        length = {"dataset_length": len(self.dataset)} if kind == "dataset" else {}
        sampler = type(self.sampler).__qualname__
        return (
            {"kind": kind} | length | {"batch_size": self.batch_size, "drop_last": self.drop_last, "sampler": sampler}
        )


class _AtHome:
    """Makes a worker what torch's workers are: it knows who it is."""

    def __init__(self, worker_init_fn: Callable[[int], Any] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, info: WorkerInfo) -> None:
        _utils.worker._worker_info = _utils.worker.WorkerInfo(
            id=info.id, num_workers=info.num_workers, seed=info.seed + info.id, dataset=info.dataset
        )
        if self._worker_init_fn is not None:
            self._worker_init_fn(info.id)


def _collated(samples: Any) -> Any:
    """torch's collating, without torch's shared memory: ours comes after it."""
    here, _utils.worker._worker_info = _utils.worker._worker_info, None
    try:
        return _default_collate(samples)
    finally:
        _utils.worker._worker_info = here


# -- page-locked copies ----------------------------------------------------------------------------------------------


def _can_pin() -> bool:
    if torch.accelerator.is_available() and torch.accelerator.current_accelerator().type != "mps":
        return True
    warnings.warn(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
        UserWarning,
        stacklevel=4,
    )
    return False


def pinned(batch: Any) -> Any:
    """``batch`` in page-locked memory: tensors, and whatever has a ``pin_memory`` of its own, as torch has it.

    These are copies, in memory that torch doesn't use again before the device has read it.  ``DevicePrefetcher`` needs
    none.
    """
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    return mapped(batch, lambda value: value.pin_memory() if hasattr(value, "pin_memory") else value)


def tensors(batch: Any) -> Any:
    """A batch of arrays, as ``mpiter.batches`` and ``mpiter.DataLoader`` give it, as tensors on the same memory.

    >>> import numpy as np
    >>> x, names = tensors((np.zeros(3), ["a", "b", "c"]))
    >>> x.dtype, names
    (torch.float64, ['a', 'b', 'c'])
    """
    return mapped(batch, lambda value: torch.from_numpy(value) if is_numeric(value) else value)


# -- tensors on the columns ------------------------------------------------------------------------------------------


class _NotPlain(Exception):
    """The columns don't say what torch would make of the samples."""


def _tensors_of(contents: Contents) -> Any:
    """What torch's ``default_collate`` would make of the samples: on the columns where it can, or by asking it."""
    if not (contents.odd or contents.failed or contents.asides) and _collates_as_ever():
        try:
            return _built(contents.tree, iter(contents.columns))
        except _NotPlain:
            pass
    return _default_collate(samples_of(contents))


def _collates_as_ever() -> bool:
    """Has nobody changed what torch's collating does with a type?"""
    ways = _utils.collate.default_collate_fn_map.values()
    return all(way.__module__ == _utils.collate.__name__ for way in ways)


def _built(node: Node, columns: Iterator[Any]) -> Any:
    if isinstance(node, Group):
        parts = [_built(part, columns) for part in node.parts]
        if node.kind == "dataclass" or not parts:
            raise _NotPlain
        return parts if node.kind == "tuple" else node.build(parts)
    if not isinstance(node, Leaf) or isinstance(node, Complex):  # which torch refuses
        raise _NotPlain
    column = next(columns)
    try:
        return torch.from_numpy(column)
    except TypeError:
        raise _NotPlain from None
