"""Tensors of a batch's columns, without a copy where possible.

They are what torch's collating would make of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import _utils

from ..errors import add_note
from ..language.flat import flat
from ..samples.batch import Stacker, collate, columns_of, samples_of, settle_as
from ..samples.jagged import Jagged
from ..samples.kinds import Kind
from ..samples.tensors import from_array
from ..samples.tree import Aside, Contents, Group, Made, Node, describe
from ..samples.tree import columns_of as leaves_of

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


def tensors_of_samples(samples: Sequence[Any], stacks: Stacker) -> Any:
    """Return what torch's ``default_collate`` would make of the samples.

    It is what ``tensors_of`` makes where this process has fetched them itself, so that
    they aren't columns yet.
    """
    if _all_ways_are_torchs():
        try:
            return _stacked(samples)
        except _NotPlain:
            pass
    contents = Contents(Aside(), len(samples), objects=list(samples))
    return tensors_of(contents, stacks)


def default_collate_in_memory(samples: Any) -> Any:
    """Do what ``default_collate`` does, but never in torch's shared memory.

    It is the ``collate_fn`` where one worker makes a whole batch.  torch uses its
    shared memory in workers.  mpiter copies the batch into memory of its own, so it
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
        return _by_torch(samples)
    finally:
        _utils.worker._worker_info = here


def flat_tensors(rows: Sequence[Any]) -> Any:
    """Return what ``mpiter.language.flat`` makes of jagged rows, as tensors."""
    return settled(flat(rows), pins=False)


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
                return _built(columns.tree, iter(columns.columns), columns.rows)
        except _NotPlain:
            pass
    return _by_torch(samples_of(contents))


def _by_torch(samples: Any) -> Any:
    """Return what torch makes of the samples, or mpiter, of kinds of the program's."""
    try:
        return default_collate(samples)
    except RuntimeError as error:
        are_dicts = isinstance(samples, list) and isinstance(samples[0], dict)
        if are_dicts and "cu_seqlens" in samples[0]:
            note = "a Pack's jagged rows take collate_fn=mpiter.language.flat."
            add_note(error, f"mpiter: {note}")
        raise
    except TypeError:
        is_list = isinstance(samples, (list, tuple))
        if not is_list or not _holds_added(describe(samples[0])):
            raise
        # torch doesn't know values of these kinds.
        return settled(collate(samples, settle_as("raise")), pins=False)


def tensors_of_columns(columns: Any) -> Any:
    """Return what torch's ``default_collate`` would make of the rows of ``columns``.

    None if the program has its own way to collate a type.
    """
    if not _all_ways_are_torchs():
        return None
    if isinstance(columns, dict):
        named = {}
        for name, column in columns.items():
            named[name] = torch.as_tensor(column)
        return named
    found = [torch.as_tensor(column) for column in columns]
    # torch makes a list of a tuple, and keeps a named tuple.
    if type(columns) is tuple:
        return found
    return tuple.__new__(type(columns), found)


def settled(columns: object, pins: bool) -> Any:
    """Return columns that ``ragged=`` has settled as tensors, built as torch does it.

    Rows of several lengths in one array become a nested tensor on the same memory.
    With ``pins`` tensors are put into pinned memory.
    """
    if type(columns) is dict:
        return {name: settled(part, pins) for name, part in columns.items()}
    if isinstance(columns, tuple) and hasattr(columns, "_fields"):
        return tuple.__new__(type(columns), [settled(part, pins) for part in columns])
    if isinstance(columns, (list, tuple)):
        return [settled(part, pins) for part in columns]
    if isinstance(columns, Jagged):
        return nested(settled(columns.values, pins), settled(columns.offsets, pins))
    if isinstance(columns, np.ndarray):
        columns = from_array(columns)
    if pins and isinstance(columns, torch.Tensor):
        return columns.pin_memory()
    return columns


def nested(
    values: torch.Tensor,
    offsets: torch.Tensor,
    host_offsets: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return a nested tensor of jagged layout on the memory of ``values``.

    ``host_offsets`` are the same offsets where looking at them doesn't wait for a GPU.
    """
    lengths = offsets.diff() if host_offsets is None else host_offsets.diff()
    return torch.nested.nested_tensor_from_jagged(
        values,
        offsets,
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    )


def parts_of_rows(value: object) -> tuple[Any, torch.Tensor] | None:
    """Return the values and the offsets of rows that lie in one array or tensor.

    None for anything else, also for a nested tensor with gaps between its rows.
    """
    if isinstance(value, Jagged):
        return value.values, torch.as_tensor(value.offsets)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.jagged:
        return None
    if value.lengths() is not None:
        return None
    return value.values(), value.offsets()


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


def _stacked_parts(sample: object, parts: Sequence[Sequence[Any]]) -> list[Any]:
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
            found.append(_by_torch(part))
    return found


def _holds_added(node: Node) -> bool:
    """Return True if a sample has values of a kind that the program has added."""
    if isinstance(node, Made):
        return True
    return isinstance(node, Group) and any(map(_holds_added, node.parts))


def _holds_tensors(sample: Any) -> bool:
    parts: Iterable[Any] = (sample,)
    if type(sample) is dict:
        parts = sample.values()
    elif type(sample) in (tuple, list):
        parts = sample
    return any(isinstance(part, torch.Tensor) for part in parts)


def _built(node: Node, columns: Iterator[Any], rows: int) -> Any:
    if isinstance(node, Made):
        # What the program's leaf makes of columns is the same for all loaders.
        mine = [next(columns) for _ in leaves_of(node)]
        found = columns_of(Contents(node, rows, mine), settle_as("raise"))
        return settled(found, pins=False)
    if isinstance(node, Group):
        parts = [_built(part, columns, rows) for part in node.parts]
        if not parts:
            raise _NotPlain
        if node.kind == "tuple":
            return parts
        return node.build(parts)
    if not isinstance(node, Kind):
        raise _NotPlain
    try:
        return node.tensor(next(columns))
    except TypeError:
        # torch refuses such values, and says so in its own words.
        raise _NotPlain from None
