"""Tensors on a batch's columns: what torch's collating would make of the samples, without a copy where that can be.

A door: imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import _utils

from ..device import is_numeric, mapped
from ..samples.batch import Stacker, samples_of
from ..samples.tensors import from_array
from ..samples.tree import Contents, Group, Leaf, Node, Number

default_collate = _utils.collate.default_collate


def tensors(batch: Any) -> Any:
    """A batch of arrays, as ``mpiter.batches`` and ``mpiter.DataLoader`` give it, as tensors on the same memory.

    Read-only arrays, which ``backend="ray"`` gives without ``copy=True``, are copied.

    >>> import numpy as np
    >>> x, names = tensors((np.zeros(3), ["a", "b", "c"]))
    >>> x.dtype, names
    (torch.float64, ['a', 'b', 'c'])
    """
    return mapped(batch, lambda value: from_array(value) if is_numeric(value) else value)


class _NotPlain(Exception):
    """The columns don't show what torch would make of the samples."""


def tensors_of(contents: Contents, stacks: Stacker) -> Any:
    """The tensors that torch's ``default_collate`` would make: on the columns where possible, else by asking it."""
    if not (contents.odd or contents.failed or contents.asides) and _collates_as_ever():
        objects = contents.objects
        # columns are made of arrays faster than torch makes them, and of tensors more slowly
        columns = contents if objects is None or _holds_tensors(objects[0]) else stacks(objects)
        try:
            if columns is not None:
                return _built(columns.tree, iter(columns.columns))
        except _NotPlain:
            pass
    return default_collate(samples_of(contents))


def _holds_tensors(sample: Any) -> bool:
    """Is the sample a tensor, or a tuple, list or dict with one in it?"""
    parts = sample.values() if type(sample) is dict else sample if type(sample) in (tuple, list) else (sample,)
    return any(isinstance(part, torch.Tensor) for part in parts)


def _collates_as_ever() -> bool:
    """Is torch's collating of each type still torch's own?"""
    ways = _utils.collate.default_collate_fn_map.values()
    return all(way.__module__ == _utils.collate.__name__ for way in ways)


def _built(node: Node, columns: Iterator[Any]) -> Any:
    if isinstance(node, Group):
        parts = [_built(part, columns) for part in node.parts]
        if node.kind == "dataclass" or not parts:
            raise _NotPlain
        return parts if node.kind == "tuple" else node.build(parts)
    if not isinstance(node, Leaf) or (isinstance(node, Number) and node.kind is complex):  # which torch refuses
        raise _NotPlain
    column = next(columns)
    try:
        return from_array(column)
    except TypeError:
        raise _NotPlain from None
