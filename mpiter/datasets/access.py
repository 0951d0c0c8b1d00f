"""How the samples of a dataset are read: many at once where it offers that, else one by one.

Runs in workers.  ``reader_of`` finds out once what a dataset offers: torch's ``__getitems__``, numpy's indexing by
arrays (``np.memmap`` too), that of Chainer's ``TupleDataset`` and ``DictDataset`` where they hold arrays, and the
``slice`` of its ``TabularDataset``.  What is read at once is asked for once more, sample by sample, if it raises or if
the dataset draws random numbers, which belong to a sample's own place.
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


def of_class(dataset: Any, name: str) -> Callable[..., Any]:
    """The method that the dataset's class has, whatever the dataset has under that name itself."""
    found = inspect.getattr_static(type(dataset), name)
    bind = getattr(type(found), "__get__", None)
    return found if bind is None else bind(found, dataset, type(dataset))  # type: ignore[no-any-return]


def about(dataset: Any) -> dict[str, str]:
    """What the dataset says of itself, if it has a method ``about`` that says it in words; for ``stats()``."""
    says = offered(users(dataset), "about")
    if says is None:
        return {}
    try:
        said = says()
        return {str(name): str(words) for name, words in said.items()}
    except Exception:
        return {}  # it means something else there


def reader_of(dataset: Any) -> Reader | None:
    """What reads the samples of an array of indices, or None where they must be read one by one."""
    kind = type(dataset)
    if kind is Table:
        return lambda indices: dataset.__getitems__(indices)
    if kind in (np.ndarray, np.memmap):
        return lambda indices: np.asarray(dataset[indices])
    if callable(getattr(kind, "__getitems__", None)):
        return lambda indices: _in_sequence(dataset.__getitems__(indices.tolist()))
    return _chainers(dataset)


def _in_sequence(samples: Any) -> Any:
    """What a generator gives, too; of a mapping nobody knows what it stands for, so its samples are read one by one."""
    if isinstance(samples, Mapping):
        return ()
    return samples if isinstance(samples, Sequence) else list(samples)


def _chainers(dataset: Any) -> Reader | None:
    chainer = sys.modules.get("chainer")
    if chainer is None:
        return None
    if type(dataset) in (chainer.datasets.TupleDataset, chainer.datasets.DictDataset):
        parts = dataset._datasets
        if all(type(part) is np.ndarray for part in (parts.values() if isinstance(parts, dict) else parts)):
            return lambda indices: Rows(dataset[indices], len(indices))  # a tuple or a dict of columns
    if isinstance(dataset, chainer.dataset.TabularDataset):
        return lambda indices: _fetched(dataset, indices)
    return None


def _fetched(dataset: Any, indices: Any) -> Any:
    columns = dataset.slice[indices.tolist()].fetch()
    if dataset.mode is None:
        return columns
    return Rows(columns, len(indices))
