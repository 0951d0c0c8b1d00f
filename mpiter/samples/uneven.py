"""What becomes of values that fit no column, where a batch is stacked: a list, one padded array, or an error.

Pure.  Strings and other objects are a list in any case.  Values are *uneven* where some would make a column and others
would make another one, or none: arrays of several shapes, a ``None`` among numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def listed(place: Place, values: Sequence[Any]) -> Any:
    """A list, whatever they are."""
    return list(values)


def _refused(place: Place, values: Sequence[Any]) -> Any:
    leaves = _leaves(values)
    if (two := _two_kinds(leaves)) is None:
        return _stacked(leaves[0], values)
    first, other = two
    where = "".join(group.written(at) for group, at in place)
    raise UnevenSamples(
        f"the samples of this batch are uneven{f' at {where}' if where else ''}: {_told(values[first])} in its row "
        f"{first}, {_told(values[other])} in row {other}.  Pass ragged='list' or 'pad', a collate_fn to a loader, or "
        f"give them one shape in the dataset."
    )


def _padded(place: Place, values: Sequence[Any]) -> Any:
    leaves = _leaves(values)
    if _two_kinds(leaves) is None:
        return _stacked(leaves[0], values)
    if not all(isinstance(leaf, Array) and len(leaf.shape) == len(leaves[0].shape) for leaf in leaves):
        return _refused(place, values)
    arrays: list[Any] = [value if isinstance(value, np.ndarray) else tensors.as_array(value) for value in values]
    longest = np.max([array.shape for array in arrays], axis=0)
    padded = np.zeros((len(arrays), *longest), np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return tensors.from_array(padded) if isinstance(leaves[0], Tensor) else padded


_WAYS: dict[str, Settle] = {"raise": _refused, "list": listed, "pad": _padded}


def _leaves(values: Sequence[Any]) -> list[Any]:
    return [leaf_for(value) for value in values]


def _two_kinds(leaves: list[Any]) -> tuple[int, int] | None:
    """The first two rows that disagree, if any would make a column."""
    if not any(isinstance(leaf, Leaf) for leaf in leaves):
        return None
    return next(((0, row) for row, leaf in enumerate(leaves) if leaf != leaves[0]), None)


def _stacked(leaf: Any, values: Sequence[Any]) -> Any:
    """Equal ones as the column that they would have been, had none been different in other batches."""
    if not isinstance(leaf, Leaf):
        return list(values)
    column = np.empty((len(values), *leaf.shape), leaf.dtype)
    return leaf.stack(column) if leaf.write(column, 0, list(values)) else list(values)


def _told(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {tuple(shape)} of {value.dtype}" if shape is not None else f"{value!r:.40}"
