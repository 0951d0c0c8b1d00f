"""Columns as a dataset: ``(X, y)``, a dict of arrays, a data frame.

Pure.  ``as_dataset`` finds out what the user has given: columns of one length, each row of which is a sample, or
samples.  Guarantees that what could be either is refused with the spelling of both, and that rows come in the container
in which the columns lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..samples.rows import Rows, container

_FEW = 4  # arrays in a list, which may be columns: hardly anybody has so few samples


class Table:
    """A dataset of columns of one length, in a tuple, a named tuple or a dict."""

    def __init__(self, columns: Any) -> None:
        lengths = {name: _length(column) for name, column in _named(columns)}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise OptionError(f"columns must be of one length, not of {told}.  {_SPELLINGS}")
        self.columns = columns
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return container(self.columns, lambda column: column[index])

    def __getitems__(self, indices: Any) -> Rows:
        """The rows of an array of indices, column by column."""
        indices = np.array(indices)  # torch takes none that can't be written to
        return Rows(container(self.columns, lambda column: _part(column, indices)), len(indices))


_SPELLINGS = (
    "A tuple (X, y), a named tuple or a dict are columns, each row of which is a sample; a list, or anything with [] "
    "and len(), is samples (mpiter.Packed(items) whatever they are)."
)


def told(dataset: Any) -> str:
    """What a dataset is, and how long, in a few words."""
    if isinstance(dataset, Table):
        return f"{len(dataset)} rows of columns"
    try:
        return f"{type(dataset).__name__} of {len(dataset)}"
    except Exception:  # a stream, or one that doesn't know
        return type(dataset).__name__


def as_dataset(data: Any) -> Any:
    """``data``, or the table that it is."""
    if isinstance(data, (str, bytes, bytearray)):
        raise OptionError(
            f"{data!r:.40} is {type(data).__name__}: its samples would be single letters; pass a dataset."
        )
    data = _taken_from_frame(data)
    if not any(isinstance(data, kind) and type(data).__getitem__ is kind.__getitem__ for kind in (list, tuple, dict)):
        return data  # a class of the user's among them, which knows what its samples are
    if isinstance(data, list):
        _refuse_columns_in_a_list(data)
    elif isinstance(data, dict) and data:
        return _table_of_dict(data)
    elif isinstance(data, tuple) and data:
        if any(map(_is_array, data)) and all(_is_array(part) or isinstance(part, list) for part in data):
            return Table(_container_of_columns(data))
        _refuse_lists_in_a_tuple(data)
    return data


def _table_of_dict(data: dict[Any, Any]) -> Any:
    if all(isinstance(name, int) for name in data):  # samples by number
        return data
    for name, part in data.items():
        if not (_is_array(part) or isinstance(part, list)):
            raise OptionError(
                f"a dict of columns holds arrays or lists, and {name!r:.40} is {type(part).__name__}.  {_SPELLINGS}"
            )
    return Table(_container_of_columns(data))


def _refuse_columns_in_a_list(data: list[Any]) -> None:
    if all(map(_is_array, data)) and (length := _length_of_columns(data)):
        kinds = ", ".join(f"{type(part).__name__} {tuple(part.shape)}" for part in data)
        raise OptionError(
            f"[{kinds}] may be {len(data)} samples or the columns of {length}.  Pass a tuple, (X, y), for columns, or "
            f"mpiter.Packed(list) for samples."
        )


def _refuse_lists_in_a_tuple(data: tuple[Any, ...]) -> None:
    if all(isinstance(part, list) for part in data) and (length := _length_of_columns(data)):
        raise OptionError(
            f"a tuple of {len(data)} lists may be {len(data)} samples or the columns of {length}.  Pass arrays, or a "
            f"dict of lists, for columns, or list(…) of the tuple for samples."
        )


def _length_of_columns(data: Sequence[Any]) -> int:
    """How many samples these would be as columns; 0 where nobody would mean that: many or short ones, or unequal."""
    lengths = {*map(_length, data)} if 2 <= len(data) <= _FEW else {0}
    return max(lengths) if len(lengths) == 1 and max(lengths) > len(data) else 0


def _container_of_columns(data: Any) -> Any:
    return container(data, _as_column)


def _is_array(part: Any) -> bool:
    """Arrays, tensors, parts of files, series: what has rows and says how many."""
    shape: Any = getattr(part, "shape", None)
    if isinstance(shape, tuple):  # torch's is one, too
        return bool(shape) and hasattr(type(part), "__getitem__")
    return _package(part) == "pyarrow" and hasattr(part, "to_numpy")


def _as_column(part: Any) -> Any:
    """Something that ``[]`` takes a row number, and an array of them if possible."""
    if _package(part) in ("pandas", "polars", "pyarrow"):  # whose [] takes labels, or gives objects
        return np.asarray(part.to_numpy())
    return InFile(part) if type(part).__module__.partition(".")[0] == "h5py" else part


class InFile:
    """A part of an HDF5 file, which each worker opens for itself."""

    def __init__(self, part: Any) -> None:
        self._part, self._place, self._process = part, (part.file.filename, part.name), os.getpid()
        self._opens, self.shape = type(part.file), part.shape

    def __getitem__(self, indices: Any) -> Any:
        if self._part is None or self._process != os.getpid():
            file, name = self._place
            self._part, self._process = self._opens(file, "r")[name], os.getpid()
        if not isinstance(indices, np.ndarray):
            return self._part[indices]
        rising, places = np.unique(indices, return_inverse=True)  # HDF5 wants each once, in rising order
        return self._part[rising][places]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_part": None}


def _taken_from_frame(data: Any) -> Any:
    """A data frame's columns, or one column by itself as an array."""
    package = _package(data)
    if package in ("pandas", "polars") and hasattr(data, "columns"):
        return {name: data[name] for name in data.columns}
    if package == "pyarrow" and hasattr(data, "column_names"):
        return {name: data.column(name) for name in data.column_names}
    return _as_column(data) if package and hasattr(data, "to_numpy") else data


def _package(value: Any) -> str:
    package = type(value).__module__.partition(".")[0]
    return package if package in ("pandas", "polars", "pyarrow") else ""


def _part(column: Any, indices: Any) -> Any:
    """The rows of these numbers."""
    if isinstance(column, list):
        return [column[index] for index in indices.tolist()]
    part = column[indices]
    return np.asarray(part) if type(part) is np.memmap else part


def _length(column: Any) -> int:
    return int(column.shape[0]) if _is_array(column) and hasattr(column, "shape") else len(column)


def _named(columns: Any) -> Iterator[tuple[Any, Any]]:
    return iter(columns.items()) if isinstance(columns, dict) else enumerate(columns)
