"""A row group in memory: records of its rows, and Arrow's columns.

Where rows are read in random order, each value of a row would lie in another line of
memory in columns, and fetching these takes longer than all else.  So values of one size
lie side by side, in a record for each row, together with views of its texts and lists
(``uneven.py``).  Other columns are Arrow's; where rows are read as they lie all are,
which takes less time to write.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from . import arrow, uneven
from .arrow import Column, Values
from .uneven import Which

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
    # The columns that records have; NumPy's names of the fields are their numbers.
    fields: list[str]
    # The fields that are views: what they refer to, and the size of that.
    views: dict[str, tuple[uneven.Meaning, int]]
    # Arrow's columns, which lie behind all else: those of bytes, and what these are.
    others: dict[str, uneven.Meaning | None]


class Viewed(NamedTuple):
    """What the views of a field refer to."""

    kind: uneven.Meaning
    data: pa.Buffer


class _Field(NamedTuple):
    """A column that is written into records: numbers, or views of something."""

    values: NDArray[Any]
    viewed: Viewed | None = None


class Group:
    """The values of a row group."""

    def __init__(
        self,
        records: Records,
        fields: Sequence[str],
        viewed: dict[str, Viewed],
        columns: dict[str, Column],
    ) -> None:
        self.records = records
        # NumPy looks at each field of a record, but not at those of plain bytes.
        self.plain = records.view(np.dtype((np.void, records.dtype.itemsize)))
        # The field of each column.
        self.fields = {name: str(at) for at, name in enumerate(fields)}
        self.viewed = viewed
        self.columns = columns
        # Groups of one form have the same columns in records.
        kinds = [(name, its.kind) for name, its in viewed.items()]
        self.form = str(records.dtype), repr(fields), repr(kinds)

    def take(self, name: str, rows: Which) -> Values:
        """Return a column's values in some rows."""
        if name in self.columns:
            return self.columns[name].take(rows)
        # A slice is a view.
        values = np.array(self.records[self.fields[name]][rows])
        if name in self.viewed:
            kind, data = self.viewed[name]
            numbers = np.zeros(len(values), np.int32)
            return uneven.viewed(values, numbers, [data], kind)
        return values


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
    in_records: dict[str, Values] = {}
    if are_alike and first.fields:
        in_records = _from_records(groups, rows, back)
    found: dict[str, Values] = {}
    for name in names:
        if name in in_records:
            found[name] = in_records[name]
            continue
        parts = [group.take(name, its) for group, its in zip(groups, rows, strict=True)]
        found[name] = parts[0] if back is None else arrow.joined(parts, back)
    return found


def _from_records(
    groups: Sequence[Group], rows: Sequence[Which], back: Indices | None
) -> dict[str, Values]:
    """Return the columns that records have; those of all groups have one form."""
    first = groups[0]
    sizes = [arrow.count(its) for its in rows]
    plain = np.empty(sum(sizes), first.plain.dtype)
    end = 0
    for group, its, size in zip(groups, rows, sizes, strict=True):
        begin = end
        end += size
        if isinstance(its, slice):
            plain[begin:end] = group.plain[its]
        else:
            group.plain.take(its, out=plain[begin:end], mode="clip")
    if back is not None:
        plain = plain.take(back)
    records: Records = plain.view(first.records.dtype)
    found: dict[str, Values] = {}
    for name, field in first.fields.items():
        found[name] = records[field]
    if not first.viewed:
        return found
    # The group of each row.
    numbers = np.zeros(len(records), np.int32)
    if len(groups) > 1:
        numbers = np.repeat(np.arange(len(groups), dtype=np.int32), sizes)
    if back is not None:
        numbers = numbers[back]
    for name, (kind, _) in first.viewed.items():
        data = [group.viewed[name].data for group in groups]
        views = records[first.fields[name]]
        found[name] = uneven.viewed(views, numbers, data, kind)
    return found


def write(table: pa.Table, descriptor: int, in_order: bool) -> None:
    """Write a row group, whose columns are in one piece, into new memory.

    ``in_order`` says whether its rows will be read as they lie.
    """
    import pyarrow as pa

    fields: dict[str, _Field] = {}
    others: dict[str, tuple[pa.Array, uneven.Meaning | None]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        array = column.chunk(0)
        # Each process would have the values in memory of its own.
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        numbers: NDArray[Any] | None = None
        if not in_order:
            numbers = arrow.numbers_in(array)
        if numbers is not None:
            fields[name] = _Field(numbers)
            continue
        as_bytes = uneven.as_bytes(array)
        if as_bytes is None:
            others[name] = array, None
        elif in_order or as_bytes[0].null_count:
            others[name] = as_bytes
        else:
            its, kind = as_bytes
            views, data = uneven.views_of(its)
            fields[name] = _Field(views, Viewed(kind, data))
    record = _record(fields.values())
    viewed: dict[str, Viewed] = {}
    for name, field in fields.items():
        if field.viewed is not None:
            viewed[name] = field.viewed
    sizes = {name: (its.kind, its.data.size) for name, its in viewed.items()}
    kinds = {name: kind for name, (_, kind) in others.items()}
    header = pickle.dumps(_Header(record, len(table), [*fields], sizes, kinds)[:])
    with open(descriptor, "wb", closefd=False) as file:
        file.write(len(header).to_bytes(_LENGTH, "little") + header)
        file.write(_padding(_LENGTH + len(header)))
        for some in _records([field.values for field in fields.values()], record):
            file.write(some.data)
        file.write(_padding(record.itemsize * len(table)))
        for _, data in viewed.values():
            file.write(data)
            file.write(_padding(data.size))
    if others:
        rest = pa.table({name: array for name, (array, _) in others.items()})
        with (
            pa.OSFile(f"/dev/fd/{descriptor}", "ab") as sink,
            pa.ipc.new_stream(sink, rest.schema) as writer,
        ):
            writer.write_table(rest)


def _record(fields: Iterable[_Field]) -> np.dtype[Any]:
    """Return the type of a record, whose fields have their numbers as names."""
    found = list[tuple[Any, ...]]()
    for at, field in enumerate(fields):
        found.append((str(at), field.values.dtype, field.values.shape[1:]))
    # NumPy reads fields that are aligned faster.
    return np.dtype(found, align=True)


def _records(
    columns: Sequence[NDArray[Any]], kind: np.dtype[Any]
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of the records, some at a time."""
    if not columns:
        return
    rows = len(columns[0])
    step = max(1, _AT_ONCE // kind.itemsize)
    some = np.zeros(min(step, rows), kind)
    fields = [some[name] for name in kind.names or ()]
    for start in range(0, rows, step):
        count = min(step, rows - start)
        for field, values in zip(fields, columns, strict=True):
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
    viewed: dict[str, Viewed] = {}
    for name, (kind, size) in header.views.items():
        viewed[name] = Viewed(kind, memory[at : at + size])
        at = _aligned(at + size)
    columns: dict[str, Column] = {}
    if header.others:
        table = pa.ipc.open_stream(memory[at:]).read_all().combine_chunks()
        for name, its in header.others.items():
            array = table[name].chunk(0)
            if its is None:
                columns[name] = arrow.column_of(array)
            else:
                columns[name] = uneven.BytesColumn(array, its)
    return Group(records, header.fields, viewed, columns)


def _aligned(at: int) -> int:
    return -(-at // _ALIGNED) * _ALIGNED


def _padding(at: int) -> bytes:
    """Return what is written from ``at`` on, so that the next thing is aligned."""
    return bytes(_aligned(at) - at)
