"""Tensors of a batch's columns, without a copy where possible.

They are what torch's collating would make of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils

from ..samples.batch import Stacker, samples_of
from ..samples.tensors import from_array
from ..samples.tree import Aside, Contents, Group, Leaf, Node, Number, OfJax

default_collate = _utils.collate.default_collate
# The functions that are torch's own among those for the types of values.
_TORCHS_WAYS = {
    kind: way
    for kind, way in _utils.collate.default_collate_fn_map.items()
    if way.__module__ == _utils.collate.__name__
}
# The types of numbers, and those of an array of them.  NumPy's types are those that a
# row of a usual column of labels has.
_NUMBERS: dict[type, type[np.generic]] = {
    bool: np.bool_,
    int: np.int64,
    float: np.float64,
    np.bool_: np.bool_,
    np.int32: np.int32,
    np.int64: np.int64,
    np.float32: np.float32,
    np.float64: np.float64,
}


class _NotPlain(Exception):
    """Columns or samples don't show what torch would make, so torch must be asked."""


def collated(samples: Sequence[Any], stacks: Stacker) -> Any:
    """Return what torch's ``default_collate`` would make of the samples.

    This process has fetched them itself.
    """
    if _all_ways_are_torchs():
        try:
            return _stacked(samples)
        except _NotPlain:
            pass
    contents = Contents(Aside(), len(samples), objects=list(samples))
    return tensors_of(contents, stacks)


def collated_anywhere(samples: Any) -> Any:
    """Collate as torch does, but not in torch's shared memory.

    torch uses that in workers.  mpiter copies the batch into memory of its own, so it
    would be copied twice.
    """
    here = _utils.worker._worker_info
    _utils.worker._worker_info = None
    try:
        if type(samples) is list and _all_ways_are_torchs():
            try:
                return _stacked(samples)
            except _NotPlain:
                pass
        return default_collate(samples)
    finally:
        _utils.worker._worker_info = here


def tensors_of(contents: Contents, stacks: Stacker) -> Any:
    """Return what torch's ``default_collate`` would make of the samples.

    It is made of their columns if possible, otherwise by calling torch.
    """
    is_plain = not (contents.odd or contents.failed or contents.asides)
    if is_plain and _all_ways_are_torchs():
        objects = contents.objects
        # For samples of arrays ``stacks`` is faster than torch, for samples of tensors
        # it is slower.
        columns: Contents | None = contents
        if objects is not None and not _holds_tensors(objects[0]):
            columns = stacks(objects)
        try:
            if columns is not None:
                return _built(columns.tree, iter(columns.columns))
        except _NotPlain:
            pass
    return default_collate(samples_of(contents))


def tensors_of_columns(columns: Any) -> Any:
    """Return what torch's ``default_collate`` would make of the rows of ``columns``.

    None if torch must be asked.
    """
    if not _all_ways_are_torchs():
        return None
    if isinstance(columns, dict):
        named = {}
        for name, column in columns.items():
            named[name] = torch.as_tensor(column)
        return named
    found = [torch.as_tensor(column) for column in columns]
    if type(columns) is tuple:
        return found
    return tuple.__new__(type(columns), found)


def _all_ways_are_torchs() -> bool:
    """True if no program has registered its own way to collate a type."""
    return bool(_utils.collate.default_collate_fn_map == _TORCHS_WAYS)


def _stacked(samples: Sequence[Any]) -> Any:
    """Stack samples of tensors, numbers and texts as torch does.

    torch asks for each value's type, which takes a while and isn't done here.  As in
    torch the first sample's type decides; what another one may be is left to ``zip``
    and to ``torch.stack``.
    """
    first = samples[0]
    kind = type(first)
    if kind is torch.Tensor and first.layout is torch.strided and not first.is_nested:
        return torch.stack(samples)
    if kind in _NUMBERS and set(map(type, samples)) == {kind}:
        try:
            return torch.from_numpy(np.array(samples, _NUMBERS[kind]))
        except OverflowError:
            raise _NotPlain from None
    if kind is str or kind is bytes:
        return samples
    if kind is dict:
        names = [*first]
        if any(list(sample) != names for sample in samples):
            raise _NotPlain
        columns = [[sample[name] for sample in samples] for name in names]
        stacked = _stacked_parts(first, columns)
        return dict(zip(names, stacked, strict=True))
    if kind is not tuple and kind is not list:
        raise _NotPlain
    try:
        parts = [*zip(*samples, strict=True)]
    except (TypeError, ValueError):
        raise _NotPlain from None
    return _stacked_parts(first, parts)


def _stacked_parts(sample: Any, parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Stack the parts of samples such as ``sample``.

    Beside tensors, what isn't plain is collated by torch itself.
    """
    found = []
    for part in parts:
        try:
            found.append(_stacked(part))
        except _NotPlain:
            # Raising would have torch collate the whole batch.  Tensors that are
            # stacked already, pictures say, are not stacked again for the labels
            # beside them.
            if not _holds_tensors(sample):
                raise
            found.append(default_collate(part))
    return found


def _holds_tensors(sample: Any) -> bool:
    parts: Iterable[Any] = (sample,)
    if type(sample) is dict:
        parts = sample.values()
    elif type(sample) in (tuple, list):
        parts = sample
    return any(isinstance(part, torch.Tensor) for part in parts)


def _built(node: Node, columns: Iterator[Any]) -> Any:
    if isinstance(node, Group):
        parts = [_built(part, columns) for part in node.parts]
        if not parts:
            raise _NotPlain
        if node.kind == "tuple":
            return parts
        return node.build(parts)
    if not isinstance(node, Leaf) or isinstance(node, OfJax):
        raise _NotPlain
    # torch refuses Python's complex numbers, and says so in its own words.
    if isinstance(node, Number) and node.kind is complex:
        raise _NotPlain
    column = next(columns)
    try:
        return from_array(column)
    except TypeError:
        raise _NotPlain from None
