"""A row group in memory: records of the values of one size, and Arrow's other columns.

Where rows are read in random order, each value of a row would lie in another line of
memory in columns, and fetching these takes longer than all else.  So values of one size
lie side by side, in a record for each row.  Where rows are read as they lie, all is in
Arrow's columns, which takes less time to write.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from .arrow import Column, Values, Which, column_of, joined, numbers_in

if TYPE_CHECKING:
    import pyarrow as pa

# What is written begins at multiples of so many bytes.
_ALIGNED = 64
# The bytes that tell how long the header is.
_LENGTH = 8
Records = NDArray[Any]


class Group:
    """The values of a row group."""

    def __init__(self, records: Records, columns: dict[str, Column]) -> None:
        self.records = records
        self.columns = columns

    def take(self, name: str, rows: Which) -> Values:
        """Return a column's values in some rows."""
        if name in self.columns:
            return self.columns[name].take(rows)
        # The values of a field don't lie in one piece.
        return np.ascontiguousarray(self.records[name][rows])

    def columns_at(self, names: Sequence[str], rows: Which) -> dict[str, Values]:
        """Return columns with some rows."""
        if isinstance(rows, slice) or not self.records.dtype.names:
            return {name: self.take(name, rows) for name in names}
        plain = _plain(self.records)
        whole = plain.take(rows, mode="clip").view(self.records.dtype)
        return {name: self._from(whole, name, rows) for name in names}

    def _from(self, records: Records, name: str, rows: Indices) -> Values:
        if name in self.columns:
            return self.columns[name].take(rows)
        return np.ascontiguousarray(records[name])


def _plain(records: Records) -> Records:
    """Return records as bytes: NumPy looks at each field of a record otherwise."""
    return records.view(np.dtype((np.void, records.dtype.itemsize)))


def gathered(
    names: Sequence[str],
    groups: Sequence[Group],
    rows: Sequence[Indices],
    back: Indices,
) -> dict[str, Values]:
    """Return columns with some rows of each group, in the order that ``back`` says."""
    kind = groups[0].records.dtype
    of_records: tuple[str, ...] = ()
    # Where a column has nulls in one group only, that has other records.
    if all(group.records.dtype == kind for group in groups):
        of_records = kind.names or ()
    found: dict[str, Values] = {}
    if of_records:
        whole = np.empty(len(back), np.dtype((np.void, kind.itemsize)))
        begin = 0
        for group, its in zip(groups, rows, strict=True):
            end = begin + len(its)
            _plain(group.records).take(its, out=whole[begin:end], mode="clip")
            begin = end
        records = whole.take(back).view(kind)
    for name in names:
        if name in of_records:
            found[name] = np.ascontiguousarray(records[name])
        else:
            values = [
                group.take(name, its) for group, its in zip(groups, rows, strict=True)
            ]
            found[name] = joined(values, back)
    return found


def write(table: pa.Table, descriptor: int, in_order: bool) -> None:
    """Write a row group, whose columns are in one piece, into new memory.

    ``in_order`` says whether its rows will be read as they lie.
    """
    import pyarrow as pa

    arrays: dict[str, NDArray[Any]] = {}
    others: list[str] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        values: NDArray[Any] | None = None
        if not in_order:
            values = numbers_in(column.chunk(0))
        if values is None:
            others.append(name)
        else:
            arrays[name] = values
    fields = [(name, values.dtype, values.shape[1:]) for name, values in arrays.items()]
    # NumPy reads fields that are aligned faster.
    kind = np.dtype(fields, align=True)
    header = pickle.dumps((kind, len(table), bool(others)))
    begin, end = _borders(len(header), kind, len(table))
    os.ftruncate(descriptor, end)
    os.pwrite(descriptor, len(header).to_bytes(_LENGTH, "little") + header, 0)
    if arrays:
        memory = mmap.mmap(descriptor, end)
        records: Records = np.ndarray(len(table), kind, memory, begin)
        for name, values in arrays.items():
            records[name] = values
    if others:
        its = table.select(others)
        with (
            pa.OSFile(f"/dev/fd/{descriptor}", "ab") as sink,
            pa.ipc.new_stream(sink, its.schema) as writer,
        ):
            writer.write_table(its)


def read(descriptor: int) -> Group:
    """Return the row group that was written into memory.

    That stays mapped as long as an array refers to it, and the descriptor isn't needed.
    """
    import pyarrow as pa

    with pa.memory_map(f"/dev/fd/{descriptor}") as file:
        memory = file.read_buffer()
    length = int.from_bytes(memory[:_LENGTH].to_pybytes(), "little")
    told = memory[_LENGTH : _LENGTH + length].to_pybytes()
    kind, rows, has_others = pickle.loads(told)
    begin, end = _borders(length, kind, rows)
    records: Records = np.ndarray(rows, kind, memory, begin)
    columns: dict[str, Column] = {}
    if has_others:
        table = pa.ipc.open_stream(memory[end:]).read_all().combine_chunks()
        for name, column in zip(table.column_names, table.columns, strict=True):
            columns[name] = column_of(column.chunk(0))
    return Group(records, columns)


def _borders(header: int, kind: np.dtype[Any], rows: int) -> tuple[int, int]:
    """Return where the records begin, and where what follows them does."""
    begin = _aligned(_LENGTH + header)
    return begin, _aligned(begin + rows * kind.itemsize)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED
