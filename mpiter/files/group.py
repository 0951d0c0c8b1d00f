"""A row group in memory: records of its rows, and Arrow's columns.

Where rows are read in random order, each value of a row would lie in another line of
memory in columns, and fetching these takes longer than all else.  So a record for each
row has its values of one size side by side, and of each text and each list of numbers
the place in an *area*, where all of a column lie.  Other columns are Arrow's; where
rows are read as they lie all are, which takes less time to write.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from .arrow import Column, Values, Which, column_of, count, joined, numbers_in
from .pieces import Area, Gathering, pieces_in

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
    # For each column that has an area, its form and the area's bytes.
    areas: dict[str, tuple[str, int]]
    # There are Arrow's columns behind the areas.
    has_others: bool


class Group:
    """The values of a row group."""

    def __init__(
        self,
        records: Records,
        areas: dict[str, Area],
        columns: dict[str, Column],
    ) -> None:
        self.records = records
        # NumPy looks at each field of a record, but not at those of plain bytes.
        self.plain = records.view(np.dtype((np.void, records.dtype.itemsize)))
        self.areas = areas
        self.columns = columns
        # Groups of one form have the same columns in records, and the same areas.
        self.form = f"{records.dtype} {[*areas]}"


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
    if any(group.form != first.form for group in groups):
        # A column has nulls in some groups only.  Each group is taken by itself.
        assert back is not None
        each = [
            gathered(names, [group], [its])
            for group, its in zip(groups, rows, strict=True)
        ]
        return {name: joined([some[name] for some in each], back) for name in names}
    kind = first.records.dtype
    borders: list[tuple[int, int]] = []
    if kind.names:
        taken = _taken(groups, rows, borders)
        ordered = taken
        if back is not None:
            ordered = taken.take(back)
        by_group: Records = taken.view(kind)
        records: Records = ordered.view(kind)
    found: dict[str, Values] = {}
    for name in names:
        if name in first.areas:
            pieces = Gathering(first.areas[name].form)
            for group, (begin, end) in zip(groups, borders, strict=True):
                pieces.add(group.areas[name], by_group[name][begin:end])
            found[name] = pieces.values(records[name], back)
        elif name in first.columns:
            values = [
                group.columns[name].take(its)
                for group, its in zip(groups, rows, strict=True)
            ]
            found[name] = values[0] if back is None else joined(values, back)
        else:
            found[name] = records[name]
    return found


def _taken(
    groups: Sequence[Group], rows: Sequence[Which], borders: list[tuple[int, int]]
) -> Records:
    """Return some records of each group as plain bytes, one group after the other.

    Append to ``borders`` where those of each group begin and end.
    """
    end = 0
    for its in rows:
        begin = end
        end += count(its)
        borders.append((begin, end))
    found = np.empty(end, groups[0].plain.dtype)
    for group, its, (begin, end) in zip(groups, rows, borders, strict=True):
        if isinstance(its, slice):
            found[begin:end] = group.plain[its]
        else:
            group.plain.take(its, out=found[begin:end], mode="clip")
    return found


def write(table: pa.Table, descriptor: int, in_order: bool) -> None:
    """Write a row group, whose columns are in one piece, into new memory.

    ``in_order`` says whether its rows will be read as they lie.
    """
    import pyarrow as pa

    arrays: dict[str, NDArray[Any]] = {}
    areas: dict[str, NDArray[np.uint8]] = {}
    forms: dict[str, tuple[str, int]] = {}
    others: list[str] = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if in_order:
            others.append(name)
            continue
        array = column.chunk(0)
        numbers = numbers_in(array)
        pieces = None
        if numbers is None:
            pieces = pieces_in(array)
        if numbers is not None:
            arrays[name] = numbers
        elif pieces is not None:
            arrays[name] = pieces.places
            areas[name] = pieces.data
            forms[name] = pieces.form, len(pieces.data)
        else:
            others.append(name)
    fields = [(name, values.dtype, values.shape[1:]) for name, values in arrays.items()]
    # NumPy reads fields that are aligned faster.
    kind = np.dtype(fields, align=True)
    header = pickle.dumps(_Header(kind, len(table), forms, bool(others))[:])
    with open(descriptor, "wb", closefd=False) as file:
        file.write(len(header).to_bytes(_LENGTH, "little") + header)
        file.write(_padding(_LENGTH + len(header)))
        for some in _records(arrays, kind, len(table)):
            file.write(some.data)
        file.write(_padding(kind.itemsize * len(table)))
        for data in areas.values():
            file.write(data.data)
            file.write(_padding(len(data)))
    if others:
        its = table.select(others)
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
    areas: dict[str, Area] = {}
    for name, (form, size) in header.areas.items():
        areas[name] = Area(form, memoryview(memory)[at : at + size])
        at = _aligned(at + size)
    columns: dict[str, Column] = {}
    if header.has_others:
        table = pa.ipc.open_stream(memory[at:]).read_all().combine_chunks()
        for name, column in zip(table.column_names, table.columns, strict=True):
            columns[name] = column_of(column.chunk(0))
    return Group(records, areas, columns)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _padding(at: int) -> bytes:
    """Return what is written from ``at`` on, so that the next thing is aligned."""
    return bytes(_aligned(at) - at)
