"""A row group in memory: records of its rows, and Arrow's columns.

Where rows are read in random order, each value of a row would lie in another line of
memory in columns, and fetching these takes longer than all else.  So values of one size
lie side by side, in a record for each row.  Other columns are Arrow's; where rows are
read as they lie all are, which takes less time to write.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from . import arrow
from .arrow import Column, Values, Which

if TYPE_CHECKING:
    import pyarrow as pa

# What is written begins at multiples of so many bytes.
_ALIGNED = 64
# The bytes that tell how long the header is.
_LENGTH = 8
# Bytes of records that are made at once: they stay in a core's own cache.
_AT_ONCE = 1 << 18
Records = NDArray[Any]


class _Header(NamedTuple):
    """What tells where things lie in a row group's memory."""

    # The type of a record, and the number of records.
    kind: np.dtype[Any]
    rows: int
    # Arrow's columns are behind the records.
    has_others: bool
    # Those of them that are lists as bytes, and the types of the lists' numbers.
    lists: dict[str, np.dtype[Any]]


class Group:
    """The values of a row group."""

    def __init__(self, records: Records, columns: dict[str, Column]) -> None:
        self.records = records
        # NumPy looks at each field of a record, but not at those of plain bytes.
        self.plain = records.view(np.dtype((np.void, records.dtype.itemsize)))
        self.columns = columns
        # Groups of one form have the same columns in records.
        self.form = str(records.dtype)

    def take(self, name: str, rows: Which) -> Values:
        """Return a column's values in some rows."""
        if name in self.columns:
            return self.columns[name].take(rows)
        # A slice is a view.
        return np.array(self.records[name][rows])


def gathered(
    names: Sequence[str],
    groups: Sequence[Group],
    rows: Sequence[Which],
    back: Indices | None = None,
) -> dict[str, Values]:
    """Return columns with some rows of each group.

    The rows of all groups are in the order that ``back`` says; of a single group they
    are as they come.
    """
    first = groups[0]
    # Where a column has nulls in some groups only, these have other records.
    are_alike = all(group.form == first.form for group in groups)
    records: Records = first.records[:0]
    if are_alike and first.records.dtype.names:
        records = _taken(groups, rows, back).view(first.records.dtype)
    takes: arrow.Takes | None = None
    if back is not None:
        takes = arrow.Takes(rows, back)
    found: dict[str, Values] = {}
    for name in names:
        if are_alike and name not in first.columns:
            found[name] = records[name]
        elif takes is None:
            found[name] = first.take(name, rows[0])
        elif all(name in group.columns for group in groups):
            found[name] = takes.values([group.columns[name] for group in groups])
        else:
            parts = [
                group.take(name, its) for group, its in zip(groups, rows, strict=True)
            ]
            found[name] = arrow.joined(parts, takes.back)
    return found


def _taken(
    groups: Sequence[Group], rows: Sequence[Which], back: Indices | None
) -> Records:
    """Return some records of each group as plain bytes, in the order of ``back``."""
    sizes = [arrow.count(its) for its in rows]
    found = np.empty(sum(sizes), groups[0].plain.dtype)
    end = 0
    for group, its, size in zip(groups, rows, sizes, strict=True):
        begin = end
        end += size
        if isinstance(its, slice):
            found[begin:end] = group.plain[its]
        else:
            group.plain.take(its, out=found[begin:end], mode="clip")
    if back is None:
        return found
    return found.take(back)


def write(table: pa.Table, descriptor: int, in_order: bool) -> None:
    """Write a row group, whose columns are in one piece, into new memory.

    ``in_order`` says whether its rows will be read as they lie.
    """
    import pyarrow as pa

    arrays: dict[str, NDArray[Any]] = {}
    others: dict[str, pa.Array] = {}
    kinds: dict[str, np.dtype[Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.chunk(0)
        # Each process would have the values in memory of its own.
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        numbers: NDArray[Any] | None = None
        if not in_order:
            numbers = arrow.numbers_in(array)
        if numbers is not None:
            arrays[name] = numbers
            continue
        lists = arrow.lists_in(array)
        others[name] = array
        if lists is not None:
            others[name], kinds[name] = lists
    fields = [(name, values.dtype, values.shape[1:]) for name, values in arrays.items()]
    # NumPy reads fields that are aligned faster.
    kind = np.dtype(fields, align=True)
    header = pickle.dumps(_Header(kind, len(table), bool(others), kinds)[:])
    with open(descriptor, "wb", closefd=False) as file:
        file.write(len(header).to_bytes(_LENGTH, "little") + header)
        file.write(_padding(_LENGTH + len(header)))
        for some in _records(arrays, kind, len(table)):
            file.write(some.data)
        file.write(_padding(kind.itemsize * len(table)))
    if others:
        its = pa.table(others)
        with (
            pa.OSFile(f"/dev/fd/{descriptor}", "ab") as sink,
            pa.ipc.new_stream(sink, its.schema) as writer,
        ):
            writer.write_table(its)


def _records(
    arrays: dict[str, NDArray[Any]], kind: np.dtype[Any], rows: int
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of the records, some at a time."""
    if not arrays:
        return
    step = max(1, _AT_ONCE // kind.itemsize)
    some = np.zeros(min(step, rows), kind)
    fields = [(some[name], values) for name, values in arrays.items()]
    for start in range(0, rows, step):
        count = min(step, rows - start)
        for field, values in fields:
            field[:count] = values[start : start + count]
        yield some[:count].view(np.uint8)


def read(descriptor: int) -> Group:
    """Return the row group that was written into memory.

    That stays mapped as long as an array refers to it, and the descriptor isn't needed.
    """
    import pyarrow as pa

    with pa.memory_map(f"/dev/fd/{descriptor}") as file:
        memory = file.read_buffer()
    length = int.from_bytes(memory[:_LENGTH].to_pybytes(), "little")
    told = memory[_LENGTH : _LENGTH + length].to_pybytes()
    header = _Header(*pickle.loads(told))
    at = _aligned(_LENGTH + length)
    records: Records = np.ndarray(header.rows, header.kind, memory, at)
    at = _aligned(at + header.rows * header.kind.itemsize)
    columns: dict[str, Column] = {}
    if header.has_others:
        table = pa.ipc.open_stream(memory[at:]).read_all().combine_chunks()
        for name, column in zip(table.column_names, table.columns, strict=True):
            array = column.chunk(0)
            if name in header.lists:
                columns[name] = arrow.Lists(array, header.lists[name])
            else:
                columns[name] = arrow.column_of(array)
    return Group(records, columns)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _padding(at: int) -> bytes:
    """Return what is written from ``at`` on, so that the next thing is aligned."""
    return bytes(_aligned(at) - at)
