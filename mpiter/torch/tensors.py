"""Tensors of a batch's columns: what torch's collating would make of the samples, without a copy where possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import _utils

from ..samples.batch import Stacker, samples_of
from ..samples.tensors import from_array
from ..samples.tree import Contents, Group, Leaf, Node, Number

default_collate = _utils.collate.default_collate


class _NotPlain(Exception):
    """Raised if the columns don't show what torch would make of the samples, so that torch must be asked."""


def tensors_of(contents: Contents, stacks: Stacker) -> Any:
    """Return what torch's ``default_collate`` would make: of the columns if possible, else by calling it."""
    ways = _utils.collate.default_collate_fn_map.values()
    are_torchs = all(way.__module__ == _utils.collate.__name__ for way in ways)  # no program has registered another
    if are_torchs and not (contents.odd or contents.failed or contents.asides):
        objects = contents.objects
        # for samples of arrays ``stacks`` is faster than torch, for samples of tensors slower
        columns = contents if objects is None or _holds_tensors(objects[0]) else stacks(objects)
        try:
            if columns is not None:
                return _built(columns.tree, iter(columns.columns))
        except _NotPlain:
            pass
    return default_collate(samples_of(contents))


def _holds_tensors(sample: Any) -> bool:
    parts = sample.values() if type(sample) is dict else sample if type(sample) in (tuple, list) else (sample,)
    return any(isinstance(part, torch.Tensor) for part in parts)


def _built(node: Node, columns: Iterator[Any]) -> Any:
    if isinstance(node, Group):
        parts = [_built(part, columns) for part in node.parts]
        if not parts:
            raise _NotPlain
        return parts if node.kind == "tuple" else node.build(parts)
    if not isinstance(node, Leaf) or (isinstance(node, Number) and node.kind is complex):  # torch refuses complex
        raise _NotPlain
    column = next(columns)
    try:
        return from_array(column)
    except TypeError:
        raise _NotPlain from None
