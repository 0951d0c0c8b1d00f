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
from ..samples.texts import Texts
from .arrays import (
    filled,
    has_arrays,
    has_nan,
    is_list,
    is_number,
    nulls_in,
    offsets_in,
)
from .uneven import BytesColumn, Which, lists_as_bytes, some

if TYPE_CHECKING:
    import pyarrow as pa

# The values of some rows: an array, a list, lists of numbers as ``Jagged``, texts as
# ``Texts``, or ``Rows`` of a struct's fields.
Values = NDArray[Any] | list[Any] | Jagged | Texts | Rows


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


class _ListsWithNulls:
    """Lists of whole numbers or truth values; one with a null among them is a list.

    ``holes`` says which of the numbers are null.
    """

    def __init__(
        self, lists: BytesColumn, holes: NDArray[Any], offsets: NDArray[Any]
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
        found: list[Any] = some(self.array, rows).to_pylist()
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
    if is_number(kind):
        if has_nulls and not has_nan(kind):
            return None
        found = array.to_numpy(zero_copy_only=False)
        return found
    if types.is_fixed_size_list(kind) and has_arrays(array) and not has_nulls:
        found = array.flatten().to_numpy(zero_copy_only=False)
        return found.reshape(len(array), kind.list_size)
    return None


def column_of(array: pa.Array) -> Column:
    """Return a column of other values, which is in one piece."""
    import pyarrow as pa
    from pyarrow import types

    # Those of structs and extensions; a whole column was decoded before.
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    numbers = numbers_in(array)
    if numbers is not None:
        return _Numbers(numbers)
    if isinstance(array, pa.FixedShapeTensorArray):
        return _Shaped(column_of(array.storage), kind.shape)
    if isinstance(array, pa.ExtensionArray):
        return column_of(array.storage)
    absent = nulls_in(array)
    if is_number(kind):
        assert absent is not None
        return _WithNulls(filled(array), absent)
    if is_list(kind) and is_number(kind.value_type):
        holes = None
        if not has_arrays(array):
            holes = nulls_in(array.values)
        lists = BytesColumn(*lists_as_bytes(array))
        if holes is None:
            return lists
        return _ListsWithNulls(lists, holes, offsets_in(array))
    if types.is_struct(kind):
        names = [field.name for field in kind]
        fields: dict[str, Column] = {}
        for name, part in zip(names, array.flatten(), strict=True):
            fields[name] = column_of(part)
        return _Struct(fields, absent)
    if "_view" in str(kind):
        return _Singly(array)
    return _Objects(array)


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
        # NumPy would add an array to the list.
        found.extend(part)
    return [found[at] for at in back.tolist()]
