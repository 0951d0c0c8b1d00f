"""Values of Arrow's columns as NumPy has them, and what a sample has of each type.

Numbers, dates and times are NumPy's, lists of numbers are arrays, structs are dicts,
and all else is what pyarrow makes of it in Python: text is a str, binary is bytes.  A
null is None, but NaN among floats and NaT among dates and times; a list of whole
numbers with a null in it is a list.  What a value becomes doesn't depend on others of
its row group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from ..samples.jagged import Jagged
from ..samples.rows import Rows

if TYPE_CHECKING:
    import pyarrow as pa

# The values of some rows: an array, a list, lists of numbers as ``Jagged``, or ``Rows``
# of a struct's fields.
Values = NDArray[Any] | list[Any] | Jagged | Rows
# Rows of a group: those that follow each other, or any.
Which = slice | Indices


class Column(Protocol):
    """A column of a group."""

    def take(self, rows: Which) -> Values:
        """Return the values of some rows, in new memory."""


class _Numbers:
    """Values of one size."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    def take(self, rows: Which) -> Values:
        if isinstance(rows, slice):
            return self._values[rows].copy()
        return self._values[rows]


class Lists:
    """Lists of numbers, each an array.

    They are bytes to Arrow, which takes these in a third of the time of lists.
    """

    def __init__(self, array: pa.Array, kind: np.dtype[Any]) -> None:
        self.array = array
        self.kind = kind

    def take(self, rows: Which) -> Values:
        return arrays_in(_some(self.array, rows), self.kind)


class _ListsWithNulls:
    """Lists of whole numbers or truth values; one with a null among them is a list.

    ``holes`` says which of the numbers are null.
    """

    def __init__(
        self, lists: Lists, holes: NDArray[Any], offsets: NDArray[Any]
    ) -> None:
        self._lists = lists
        self._holes = holes
        self._offsets = offsets

    def take(self, rows: Which) -> Values:
        found: list[Any] = [*self._lists.take(rows)]
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        begins = self._offsets[rows].tolist()
        ends = self._offsets[rows + 1].tolist()
        for at, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            holes = np.flatnonzero(self._holes[begin:end]).tolist()
            if holes and found[at] is not None:
                found[at] = found[at].tolist()
                for hole in holes:
                    found[at][hole] = None
        return found


class _Shaped:
    """Tensors of one shape, some of which are null."""

    def __init__(self, lists: Column, shape: Sequence[int]) -> None:
        self._lists = lists
        self._shape = shape

    def take(self, rows: Which) -> Values:
        found: list[Any] = [*self._lists.take(rows)]
        for at, value in enumerate(found):
            if isinstance(value, np.ndarray):
                found[at] = value.reshape(self._shape)
        return found


class _Struct:
    """The fields of structs, some of which may be null."""

    def __init__(self, fields: dict[str, Column], absent: NDArray[Any] | None) -> None:
        self._fields = fields
        self._absent = absent

    def take(self, rows: Which) -> Values:
        columns = {name: field.take(rows) for name, field in self._fields.items()}
        found = Rows(columns, count(rows))
        if self._absent is None:
            return found
        return _without([*found], self._absent, rows)


class _Objects:
    """Values as pyarrow makes them in Python."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def take(self, rows: Which) -> Values:
        found: list[Any] = _some(self.array, rows).to_pylist()
        return found


class _Singly:
    """Values of which Arrow can't take several: those that hold views of texts."""

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def take(self, rows: Which) -> Values:
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        return [self._array[at].as_py() for at in rows.tolist()]


class _WithNulls:
    """Whole numbers or truth values, some of which are missing."""

    def __init__(self, values: NDArray[Any], absent: NDArray[Any]) -> None:
        self._values = values
        self._absent = absent

    def take(self, rows: Which) -> Values:
        return _without([*self._values[rows]], self._absent, rows)


def _without(found: list[Any], absent: NDArray[Any] | None, rows: Which) -> list[Any]:
    """Return the values of some rows with None for those that are absent."""
    if absent is not None:
        for at in np.flatnonzero(absent[rows]).tolist():
            found[at] = None
    return found


def _some(array: pa.Array, rows: Which) -> pa.Array:
    if isinstance(rows, slice):
        return array[rows]
    return array.take(rows)


def arrays_in(array: pa.Array, kind: np.dtype[Any]) -> Values:
    """Return lists of numbers, which are bytes to Arrow, in new memory."""
    _, borders, content = array.buffers()
    every = np.frombuffer(borders, np.int64)
    offsets = every[array.offset : array.offset + len(array) + 1]
    first = int(offsets[0])
    if content is None:
        content = b""
    values = np.frombuffer(content, np.uint8)[first : int(offsets[-1])]
    found = Jagged(values.copy().view(kind), (offsets - first) // kind.itemsize)
    absent = nulls_in(array)
    if absent is None:
        return found
    return [
        None if is_absent else one
        for is_absent, one in zip(absent.tolist(), found, strict=True)
    ]


def count(rows: Which) -> int:
    """Return the number of rows."""
    if isinstance(rows, slice):
        return int(rows.stop - rows.start)
    return len(rows)


def numbers_in(array: pa.Array) -> NDArray[Any] | None:
    """Return a column whose values have one size as an array; None for any other.

    Nulls are NaN or NaT.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    has_nulls = array.null_count > 0
    found: NDArray[Any]
    if isinstance(array, pa.FixedShapeTensorArray) and not has_nulls:
        found = array.to_numpy_ndarray()
        return found
    if isinstance(array, pa.ExtensionArray):
        return numbers_in(array.storage)
    if types.is_dictionary(kind) and _is_number(kind.value_type):
        return numbers_in(array.dictionary_decode())
    if _is_number(kind):
        if has_nulls and not _has_nan(kind):
            return None
        found = array.to_numpy(zero_copy_only=False)
        return found
    if types.is_fixed_size_list(kind) and _has_arrays(array) and not has_nulls:
        found = array.flatten().to_numpy(zero_copy_only=False)
        return found.reshape(len(array), kind.list_size)
    return None


def column_of(array: pa.Array) -> Column:
    """Return a column of other values, which is in one piece."""
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    numbers = numbers_in(array)
    if numbers is not None:
        return _Numbers(numbers)
    if isinstance(array, pa.FixedShapeTensorArray):
        return _Shaped(column_of(array.storage), kind.shape)
    if isinstance(array, pa.ExtensionArray):
        return column_of(array.storage)
    if types.is_dictionary(kind):
        return column_of(array.dictionary_decode())
    absent = nulls_in(array)
    if _is_number(kind):
        assert absent is not None
        return _WithNulls(_filled(array), absent)
    if _is_list(kind) and _is_number(kind.value_type):
        holes = None
        if not _has_arrays(array):
            holes = nulls_in(array.values)
        lists = Lists(*as_bytes(array))
        if holes is None:
            return lists
        return _ListsWithNulls(lists, holes, _offsets_in(array))
    if types.is_struct(kind):
        names = [field.name for field in kind]
        fields: dict[str, Column] = {}
        for name, part in zip(names, array.flatten(), strict=True):
            fields[name] = column_of(part)
        return _Struct(fields, absent)
    if "_view" in str(kind):
        return _Singly(array)
    return _Objects(array)


def nulls_in(array: pa.Array) -> NDArray[Any] | None:
    """Return which values are null; None if none is."""
    if not array.null_count:
        return None
    found: NDArray[Any] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def _filled(array: pa.Array) -> NDArray[Any]:
    """Return numbers, with anything where whole numbers or truth values are null."""
    from pyarrow import types

    if array.null_count and not _has_nan(array.type):
        array = array.fill_null(False if types.is_boolean(array.type) else 0)
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def lists_in(array: pa.Array) -> tuple[pa.Array, np.dtype[Any]] | None:
    """Return lists that are arrays as bytes, and the type of their numbers.

    None for other values.
    """
    import pyarrow as pa

    if isinstance(array, pa.ExtensionArray) or not _is_list(array.type):
        return None
    if not _has_arrays(array):
        return None
    return as_bytes(array)


def as_bytes(array: Any) -> tuple[pa.Array, np.dtype[Any]]:
    """Return lists of numbers as bytes, and the type of the numbers."""
    import pyarrow as pa

    values = np.ascontiguousarray(_filled(array.values))
    valid = None
    absent = nulls_in(array)
    if absent is not None:
        valid = pa.array(~absent).buffers()[1]
    offsets = _offsets_in(array) * values.itemsize
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(values.view(np.uint8))]
    lists = pa.Array.from_buffers(pa.large_binary(), len(array), buffers)
    return lists, values.dtype


def _offsets_in(array: Any) -> NDArray[np.int64]:
    """Return where each list begins among the values, and where the last one ends."""
    from pyarrow import types

    found: NDArray[np.int64]
    if types.is_fixed_size_list(array.type):
        found = np.arange(array.offset, array.offset + len(array) + 1)
        found *= array.type.list_size
        return found
    found = array.offsets.to_numpy().astype(np.int64)
    return found


def _is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _has_nan(kind: pa.DataType) -> bool:
    """True for numbers among which a null is NaN or NaT."""
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_temporal(kind))


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    tests = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_timestamp,
        types.is_date,
        types.is_duration,
    )
    return any(test(kind) for test in tests)


def _has_arrays(lists: Any) -> bool:
    """True for lists of numbers that are arrays, unless they are null."""
    kind = lists.type.value_type
    if not _is_number(kind):
        return False
    return _has_nan(kind) or not lists.values.null_count


class Takes:
    """Rows of several groups, and the order in which they are wanted."""

    def __init__(self, rows: Sequence[Which], back: Indices) -> None:
        self.rows = rows
        self.back = back
        # As Arrow has them, once that is asked for.
        self._arrow: tuple[list[Any], pa.Array] | None = None

    def values(self, columns: Sequence[Column]) -> Values:
        """Return the values of a column, which is given for each group."""
        first = columns[0]
        arrays: list[pa.Array] = []
        for column in columns:
            if isinstance(column, (_Objects, Lists)) and type(column) is type(first):
                arrays.append(column.array)
        if len(arrays) < len(columns):
            both = zip(columns, self.rows, strict=True)
            return joined([column.take(its) for column, its in both], self.back)
        array = self._taken(arrays)
        if isinstance(first, Lists):
            return arrays_in(array, first.kind)
        values: list[Any] = array.to_pylist()
        return values

    def _taken(self, arrays: Sequence[pa.Array]) -> pa.Array:
        import pyarrow as pa

        if self._arrow is None:
            rows = list[Any]()
            for its in self.rows:
                rows.append(its if isinstance(its, slice) else pa.array(its))
            self._arrow = rows, pa.array(self.back)
        rows, back = self._arrow
        some = [_some(array, its) for array, its in zip(arrays, rows, strict=True)]
        return pa.concat_arrays(some).take(back)


def joined(parts: Sequence[Values], back: Indices) -> Values:
    """Return the values of several groups as one, in the order that ``back`` says."""
    if all(isinstance(part, Rows) for part in parts):
        columns = {}
        for name in parts[0].columns:  # type: ignore[union-attr]
            inner = [part.columns[name] for part in parts]  # type: ignore[union-attr]
            columns[name] = joined(inner, back)
        return Rows(columns, len(back))
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)[back]
    found: list[Any] = []
    for part in parts:
        found.extend(part)
    return [found[at] for at in back.tolist()]
