"""Rows of columns gathered in one copy, for batches that are fetched without workers.

Columns of numbers need no look at their samples: reading them runs no code of the
user's, draws no random numbers, and gives rows of one dtype and shape in new memory.
Pure; guarantees the columns that stacking the samples would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..samples import tensors
from ..samples.kinds import is_raw
from ..samples.rows import container
from .columns import Table

Keys = range | NDArray[np.int64]
# Gathers the rows with such keys into columns.  It returns None if the samples must be
# looked at.
Gather = Callable[[Keys], Any]
Column = NDArray[Any]


def gather_of(dataset: Any) -> Gather | None:
    """Return a function that gathers rows of the columns of ``dataset``.

    None if it has no columns of numbers.
    """
    if tensors.is_torchs(dataset, "TensorDataset"):
        return partial(_of_tensor_dataset, dataset)
    if tensors.is_torchs(dataset, "Subset"):
        inner = gather_of(dataset.dataset)
        if inner is None:
            return None
        return partial(_of_subset, dataset, inner)
    if type(dataset) is not Table:
        return None
    columns = dataset.columns
    if isinstance(columns, dict):
        parts = [*columns.values()]
    else:
        parts = [*columns]
    if not all(map(_has_numbers, parts)):
        return None
    if type(columns) is tuple and all(map(_is_block, parts)):
        blocks = [*map(np.asarray, parts)]
        return partial(_of_blocks, blocks)
    return partial(_of_columns, columns)


def numbers_of(keys: list[Any]) -> NDArray[np.int64] | None:
    """Return a sampler's keys as an array.

    None if they aren't all numbers of rows: (1, 2) is a place within one.
    """
    numbers = np.array(keys)
    if numbers.ndim == 1 and numbers.dtype.kind in "iu":
        return numbers
    return None


def _has_numbers(part: object) -> bool:
    """Return True for an array or tensor whose rows, stacked, have its own dtype."""
    array = _array_of(part)
    if array is None or array.ndim == 0:
        return False
    if array.dtype.kind not in "biufcmM" or not array.dtype.isnative:
        return False
    return is_raw(array.dtype)


def _is_block(part: object) -> bool:
    """Return True for an array that ``take`` reads where it lies.

    It would copy any other as a whole, for each batch.
    """
    if not isinstance(part, np.ndarray):
        return False
    return part.flags.c_contiguous and part.flags.aligned


def _array_of(part: object) -> Column | None:
    """Return an array, or a tensor as an array, with the memory of ``part``.

    None for anything else.
    """
    if type(part) is np.ndarray or type(part) is np.memmap:
        return np.asarray(part)
    return tensors.as_array(part)


def _of_blocks(blocks: Sequence[Column], keys: Keys) -> tuple[Column, ...]:
    """Gather rows of arrays that lie in one piece.

    This is the usual case, where each call counts.
    """
    if type(keys) is range:
        rows = slice(keys.start, keys.stop)
        return tuple([block[rows].copy() for block in blocks])
    return tuple([block.take(keys, 0) for block in blocks])


def _of_columns(columns: object, keys: Keys) -> Any:
    return container(columns, lambda part: _rows_of(part, keys))


def _of_tensor_dataset(dataset: Any, keys: Keys) -> tuple[Any, ...] | None:
    """Gather rows of the tensors that ``dataset`` has now.

    None if one is no plain tensor on the CPU.
    """
    found = []
    for tensor in dataset.tensors:
        array = tensors.as_array(tensor)
        if array is None:
            return None
        found.append(tensors.from_array(_rows_of(array, keys)))
    return tuple(found)


def _of_subset(
    subset: Any,
    inner: Gather,
    keys: Keys,
) -> object:
    """Gather rows of the dataset in ``subset`` by the indices that it has now."""
    indices = subset.indices
    rows = keys if type(keys) is range else keys.tolist()
    numbers = numbers_of([indices[key] for key in rows])
    if numbers is None:
        return None
    return inner(numbers)


def _rows_of(part: object, keys: Keys) -> Any:
    """Return the rows of a column in new memory.

    They are the kind of array or tensor that the column is.
    """
    if not isinstance(part, np.ndarray):
        array = tensors.as_array(part)
        # The tensor may have a gradient by now, for example.
        if array is None:
            raise TypeError(
                f"the rows of a {type(part).__name__} can't be gathered as those of an "
                "array"
            )
        return tensors.from_array(_rows_of(array, keys))
    block = np.asarray(part)
    if type(keys) is range and keys.stop <= len(block):
        return block[keys.start : keys.stop].copy()
    if _is_block(block):
        return block.take(keys, 0)
    return np.ascontiguousarray(block[keys])
