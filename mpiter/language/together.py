"""Rows that are made at once, of documents that are read at once.

A row takes longer by itself than its share of many takes.  What isn't as it must be is
left to ``rows.made``, which makes each row by itself and names the document that is
wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..datasets.columns import Reader
from ..samples.rows import Rows
from .rows import ADDED, NUMBERS, TOKENS, Array, Row, counting

# What a reader returns that can't make the samples at once.
_NOTHING: tuple[Any, ...] = ()
# If so many more calls fail than succeed, documents are read one by one from then on:
# what is joined in vain is read twice.  A single document that is wrong ends nothing.
_FAILURES = 3


class RowsReader:
    """Makes many padded rows at once, of the documents that ``read`` returns."""

    def __init__(self, read: Reader, capacity: int) -> None:
        self._read = read
        self._capacity = capacity
        self._failures = 0

    def __call__(self, rows: Sequence[Row]) -> Any:
        """Return the rows with these keys; nothing if a document isn't as it must."""
        if self._failures >= _FAILURES:
            return _NOTHING
        found = self._joined(rows)
        if found is None:
            self._failures += 1
            return _NOTHING
        self._failures = max(0, self._failures - 1)
        return found

    def _joined(self, rows: Sequence[Row]) -> Rows | None:
        numbers = [*itertools.chain.from_iterable(rows)]
        begins = numbers[1::NUMBERS]
        stops = numbers[2::NUMBERS]
        lengths = numbers[3::NUMBERS]
        documents = self._read(np.array(numbers[::NUMBERS], np.int64))
        fields = _fields_of(documents, len(lengths))
        are_whole = stops == lengths and not any(begins)
        layout = _Layout(rows, begins, stops, self._capacity)
        found = dict[str, Array]()
        for name, values in fields.items():
            columns = [*map(np.asarray, values)]
            if name in ADDED or not _are_alike(columns, lengths):
                return None
            if not are_whole:
                parts = zip(columns, begins, stops, strict=True)
                columns = [column[begin:stop] for column, begin, stop in parts]
            found[name] = layout.joined(columns)
        if not found:
            return None
        found["positions"] = layout.positions()
        found["segment_ids"] = layout.segments()
        return Rows(found, len(rows))


def _fields_of(documents: Any, count: int) -> dict[str, Sequence[Any]]:
    """Return the documents field by field; nothing if they differ in their fields."""
    if isinstance(documents, Rows) and isinstance(documents.columns, dict):
        return documents.columns
    if len(documents) != count:
        return {}
    first = documents[0]
    if type(first) is np.ndarray or not isinstance(first, Mapping):
        return {TOKENS: documents}
    for one in documents:
        if not isinstance(one, Mapping) or one.keys() != first.keys():
            return {}
    return {name: [one[name] for one in documents] for name in first}


def _are_alike(columns: Sequence[Array], lengths: list[int]) -> bool:
    """True if a field of all documents has one type, and is as long as was told."""
    first = columns[0]
    dtype = first.dtype
    ndim = first.ndim
    if not ndim or dtype.kind in "SU":
        return False
    for column in columns:
        # Most are views of one array, and have its very type.
        if column.dtype is not dtype and column.dtype != dtype:
            return False
        if column.ndim != ndim:
            return False
    if ndim > 1 and len({column.shape[1:] for column in columns}) > 1:
        return False
    return [*map(len, columns)] == lengths


class _Layout:
    """Where pieces lie in rows: one after the other, and padding behind the last.

    The padding of a row is one more piece, so that rows are written in one pass.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        begins: Sequence[int],
        stops: Sequence[int],
        capacity: int,
    ) -> None:
        self._capacity = capacity
        # Of each row: the number of its pieces, and of its tokens.
        self._rows = list[tuple[int, int]]()
        # Of each piece: its first token, its size and its number.  Padding has 0.
        firsts = list[int]()
        sizes = list[int]()
        numbers = list[int]()
        borders = zip(begins, stops, strict=True)
        end = 0
        for row in rows:
            first = end
            end += capacity
            pieces = len(row) // NUMBERS
            for begin, stop in itertools.islice(borders, pieces):
                firsts.append(first)
                sizes.append(stop - begin)
                first += stop - begin
            firsts.append(first)
            sizes.append(end - first)
            numbers += range(1, pieces + 1)
            numbers.append(0)
            self._rows.append((pieces, first + capacity - end))
        self._firsts = np.array(firsts, np.int32)
        self._sizes = np.array(sizes)
        self._numbers = np.array(numbers, np.int32)

    def joined(self, columns: Sequence[Array]) -> Array:
        """Return a field of all rows, from that of each piece."""
        shape = columns[0].shape[1:]
        padding = np.zeros((self._capacity, *shape), columns[0].dtype)
        parts = list[Array]()
        begin = 0
        for pieces, filled in self._rows:
            parts += columns[begin : begin + pieces]
            parts.append(padding[filled:])
            begin += pieces
        # Without a type NumPy would take the machine's byte order.
        return self._by_row(np.concatenate(parts, dtype=columns[0].dtype))

    def positions(self) -> Array:
        """Return the place of each token in its piece; 0 for padding."""
        firsts = np.repeat(self._firsts, self._sizes)
        rows = self._by_row(np.subtract(counting(len(firsts)), firsts, firsts))
        for row, (_, filled) in zip(rows, self._rows, strict=True):
            row[filled:] = 0
        return rows

    def segments(self) -> Array:
        """Return the number of each token's piece in its row."""
        return self._by_row(np.repeat(self._numbers, self._sizes))

    def _by_row(self, flat: Array) -> Array:
        return flat.reshape(len(self._rows), self._capacity, *flat.shape[1:])
