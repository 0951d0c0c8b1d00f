"""Samples as a whole: columns in, and one sample a row for whoever asks.

Pure; runs in workers.  ``Rows`` is a sequence of samples that lie in columns (arrays or lists of one length, in a tuple
or a dict), so that a pen copies them column by column.  ``Table`` is a dataset of such columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError


class Rows(Sequence[Any]):
    """Samples that lie in ``columns``."""

    __slots__ = ("_length", "columns")

    def __init__(self, columns: Any, length: int) -> None:
        self.columns, self._length = columns, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: Any) -> Any:
        if isinstance(self.columns, dict):
            return {name: column[row] for name, column in self.columns.items()}
        return tuple([column[row] for column in self.columns])

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(self._length))


class Table:
    """A dataset of columns: a tuple or a dict of arrays of one length."""

    def __init__(self, columns: Any) -> None:
        lengths = {name: len(column) for name, column in _named(columns)}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise OptionError(f"columns must be of one length, not of {told}.")
        self.columns = columns
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return Rows(self.columns, self._length)[index]

    def __getitems__(self, indices: Any) -> Rows:
        """The rows of an array of indices, column by column."""
        if isinstance(self.columns, dict):
            return Rows({name: _part(column, indices) for name, column in self.columns.items()}, len(indices))
        return Rows(tuple([_part(column, indices) for column in self.columns]), len(indices))


def _part(column: Any, indices: Any) -> Any:
    part = column[indices]
    return np.asarray(part) if type(part) is np.memmap else part


def _named(columns: Any) -> Any:
    return columns.items() if isinstance(columns, dict) else enumerate(columns)


def as_dataset(data: Any) -> Any:
    """``data``, or the table that it is: a tuple or a dict of ndarrays."""
    if type(data) in (tuple, dict) and data:
        columns = data.values() if isinstance(data, dict) else data
        if all(isinstance(column, np.ndarray) and column.ndim for column in columns):
            return Table(data)
    return data
