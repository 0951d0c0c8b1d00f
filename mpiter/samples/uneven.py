"""What becomes of values that fit no column, where a batch is stacked: a list, one padded array, or an error.

Pure.  Strings and other objects are a list in any case.  Values are *uneven* where some would make a column and others
would make another one, or none: arrays of several shapes, lists of several lengths, a ``None`` among numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ..errors import OptionError, UnevenSamples
from . import tensors
from .leaves import Array, Leaf, Tensor, leaf_for

Place = tuple[tuple[Any, int], ...]  # the groups that lead there, and the number of the part in each
Settle = Callable[[Place, Sequence[Any]], Any]  # of the values in one place of all samples


def settle_as(ragged: str) -> Settle:
    """The way that an option says."""
    if not (isinstance(ragged, str) and ragged in _WAYS):
        raise OptionError(f"ragged={ragged!r:.60} is unknown; use 'raise', 'list' or 'pad'.")
    return _WAYS[ragged]


def are_values(lists: Sequence[Any]) -> bool:
    """Are the samples' lists values (of numbers, or of one type), rather than structure with a column for each part?"""
    kinds = set(map(type, chain.from_iterable(lists)))
    return kinds <= _NUMBERS or (len(kinds) == 1 and not any(hasattr(kind, "shape") for kind in kinds))


def listed(place: Place, values: Sequence[Any]) -> Any:
    """A list, whatever they are."""
    return list(values)


def _kept(place: Place, values: Sequence[Any]) -> Any:
    return list(values)


def _refused(place: Place, values: Sequence[Any]) -> Any:
    leaves = _leaves(values)
    if (two := _two_kinds(leaves)) is None:
        return _stacked(leaves[0], values)
    first, other = two
    ways = "'list' or 'pad'" if _are_arrays(_leaves(_as_arrays(values))) else "'list'"
    where = "".join(group.written(at) for group, at in place)
    error = UnevenSamples(
        f"the samples of this batch are uneven{f' at {where}' if where else ''}: {_told(values[first])} in its row "
        f"{first}, {_told(values[other])} in row {other}.  Pass ragged={ways}, a collate_fn to a "
        f"loader, or give them one shape and type in the dataset."
    )
    error.rows = two
    raise error


def _padded(place: Place, values: Sequence[Any]) -> Any:
    values = _as_arrays(values)
    leaves = _leaves(values)
    if _two_kinds(leaves) is None:
        return _stacked(leaves[0], values)
    if set(map(type, values)) == {list} and are_values(values):
        return list(values)
    if not _are_arrays(leaves):
        return _refused(place, values)
    arrays: list[Any] = [value if isinstance(value, np.ndarray) else tensors.as_array(value) for value in values]
    longest = np.max([array.shape for array in arrays], axis=0)
    padded = np.zeros((len(arrays), *longest), np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return tensors.from_array(padded) if isinstance(leaves[0], Tensor) else padded


_WAYS: dict[str, Settle] = {"raise": _refused, "list": _kept, "pad": _padded}
KEEPING = {_kept, _padded}  # for which lists are values where they can be
_NUMBERS = {bool, int, float}


def _as_arrays(values: Sequence[Any]) -> Sequence[Any]:
    """Lists of numbers as arrays of one dtype; anything else as it is."""
    if not all(type(value) is list and _NUMBERS.issuperset(map(type, value)) for value in values):
        return values
    dtype = np.array([*chain.from_iterable(values)]).dtype
    return values if dtype.hasobject else [np.array(value, dtype) for value in values]


def _are_arrays(leaves: list[Any]) -> bool:
    """Of as many dimensions each?"""
    return all(isinstance(leaf, Array) and len(leaf.shape) == len(leaves[0].shape) for leaf in leaves)


def _leaves(values: Sequence[Any]) -> list[Any]:
    return [len(value) if type(value) is list else leaf_for(value) for value in values]


def _two_kinds(leaves: list[Any]) -> tuple[int, int] | None:
    """The first two rows that disagree, if any would make a column."""
    if not any(isinstance(leaf, (Leaf, int)) for leaf in leaves):
        return None
    return next(((0, row) for row, leaf in enumerate(leaves) if leaf != leaves[0]), None)


def _stacked(leaf: Any, values: Sequence[Any]) -> Any:
    """Equal ones as the column that they would have been, had none been different in other batches."""
    if not isinstance(leaf, Leaf):
        return list(values)
    column = np.empty((len(values), *leaf.shape), leaf.dtype)
    return leaf.stack(column) if leaf.write(column, 0, list(values)) else list(values)


def _told(value: Any) -> str:
    if type(value) is list:
        return f"list of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {tuple(shape)} of {value.dtype}" if shape is not None else f"{value!r:.40}"
