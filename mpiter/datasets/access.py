"""How the samples of a dataset are read: many at once where it offers that, else one by one.

``reader_of`` finds out once, in a worker, what a dataset offers: torch's ``__getitems__``, NumPy's indexing by arrays
(``np.memmap`` too), that of Chainer's ``TupleDataset`` and ``DictDataset`` where they hold arrays, and the ``slice`` of
its ``TabularDataset``.  What is read at once is asked for once more, sample by sample, if it raises or if the dataset
draws random numbers, which belong to a sample's own place.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..samples.rows import Rows
from .columns import Table

Reader = Callable[[Any], Any]  # array of indices -> a sequence of samples

_CALLABLE_WHEN_BOUND = (classmethod, functools.partialmethod)


class Wrapping:
    """A dataset that we make of the user's."""

    dataset: Any  # the user's


def users(dataset: Any) -> Any:
    """The dataset that the user knows of."""
    while isinstance(dataset, Wrapping):
        dataset = dataset.dataset
    return dataset


def offered(dataset: Any, name: str) -> Callable[..., Any] | None:
    """An optional method of the dataset protocol, its class's or its own; none if it merely answers to any name."""
    found = inspect.getattr_static(dataset, name, None)
    return getattr(dataset, name) if callable(found) or isinstance(found, _CALLABLE_WHEN_BOUND) else None


def about(dataset: Any) -> dict[str, str]:
    """What the dataset says of itself, if it has a method ``about`` that says it in words; for ``stats()``."""
    try:
        says = offered(users(dataset), "about") or dict
        return {str(name): str(words) for name, words in says().items()}
    except Exception:
        return {}  # it means something else there


def reader_of(dataset: Any) -> Reader | None:
    """What reads the samples of an array of indices, or None where they must be read one by one."""
    kind, chainer = type(dataset), sys.modules.get("chainer")
    if kind is Table:
        return lambda indices: dataset.__getitems__(indices)
    if kind in (np.ndarray, np.memmap):
        return lambda indices: np.asarray(dataset[indices])
    if callable(getattr(kind, "__getitems__", None)):
        return lambda indices: _in_sequence(dataset.__getitems__(indices.tolist()))
    if chainer is not None and kind in (chainer.datasets.TupleDataset, chainer.datasets.DictDataset):
        parts = dataset._datasets
        if all(type(part) is np.ndarray for part in (parts.values() if isinstance(parts, dict) else parts)):
            return lambda indices: Rows(dataset[indices], len(indices))  # a tuple or a dict of columns
    if chainer is not None and isinstance(dataset, chainer.dataset.TabularDataset):
        return lambda indices: _fetched(dataset, indices)
    return None


def _in_sequence(samples: Any) -> Any:
    """What a generator gives, too; a mapping may stand for anything, so its samples are read one by one."""
    if isinstance(samples, Mapping):
        return ()
    return samples if isinstance(samples, Sequence) else list(samples)


def _fetched(dataset: Any, indices: Any) -> Any:
    columns = dataset.slice[indices.tolist()].fetch()
    return columns if dataset.mode is None else Rows(columns, len(indices))
