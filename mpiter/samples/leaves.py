"""The kinds of value that a column can hold: how each is recognised, written and read back.

Pure; runs on both sides.  Guarantees that what ``write`` accepts ``read`` gives back with value, type, dtype and byte
order; whatever is not plainly of a known kind stands aside and travels as an object.  ``write`` takes the values of
many rows at once, since numpy's cost per call is what small samples pay.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from . import tensors

Column = np.ndarray[Any, Any]
_dtype_of = attrgetter("dtype")


@dataclass(frozen=True, slots=True)
class Aside:
    """A value of no fixed size or of no known kind."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column: one value a row, all of this dtype and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def write(self, column: Column, start: int, values: Any) -> bool:
        """Put ``values`` into the rows from ``start`` on, unless one of them is of another kind."""
        raise NotImplementedError

    def _write_stacked(self, column: Column, start: int, values: Column) -> bool:
        """The same of values that are rows of an array."""
        if values.dtype != self.dtype or values.shape[1:] != self.shape:
            return False
        column[start : start + len(values)] = values
        return True

    def read(self, column: Column) -> Sequence[Any]:
        """One value a row, as they went in."""
        raise NotImplementedError

    def shows(self, column: Column, values: Sequence[Any]) -> bool:
        """Are ``values`` still what ``read`` gave?"""
        mine = self.read(column)
        return [*map(type, values)] == [*map(type, mine)] and list(values) == list(mine)

    def stack(self, column: Column) -> Any:
        """The whole column, as the user sees it."""
        return column


_ARRAYS = {np.ndarray, np.memmap}  # a part of a mapped file is, once copied, an array like any other


class Array(Leaf):
    """ndarrays of one dtype and shape."""

    __slots__ = ()

    def write(self, column: Column, start: int, values: Any) -> bool:
        if type(values) is np.ndarray:
            return self._write_stacked(column, start, values)
        if not set(map(type, values)) <= _ARRAYS:
            return False
        if len(values) > 1 and self.shape and self.dtype.isnative and self.dtype.kind in "biufc":
            return self._write_at_once(column[start : start + len(values)], values)
        for row, value in enumerate(values, start):
            if value.shape != self.shape or value.dtype != self.dtype:
                return False
            column[row] = value
        return True

    def _write_at_once(self, rows: Column, values: Sequence[Any]) -> bool:
        """Let concatenate compare dtypes and all dimensions but the first, at a third of what asking costs."""
        flat = rows.reshape(len(values) * self.shape[0], *self.shape[1:])
        try:
            if set(map(len, values)) != {self.shape[0]}:
                return False
            np.concatenate(values, out=flat, casting="no")
        except (TypeError, ValueError):
            return False
        return True

    def shows(self, column: Column, values: Sequence[Any]) -> bool:
        """The same memory: what the arrays hold may have changed, the column shows it too."""
        return len(values) == len(column) and all(map(_is_the_same_array, values, column))

    def read(self, column: Column) -> Sequence[Any]:
        return list(column) if self.shape else [column[row, ...] for row in range(len(column))]


def _is_the_same_array(value: Any, row: Any) -> bool:
    if type(value) is not np.ndarray:
        return False
    mine, yours = value.__array_interface__, np.asarray(row).__array_interface__
    return all(mine[key] == yours[key] for key in ("data", "shape", "strides", "typestr"))


class Tensor(Array):
    """Dense torch tensors on the CPU."""

    __slots__ = ()

    def write(self, column: Column, start: int, values: Any) -> bool:
        if isinstance(values, (list, tuple)):
            return super().write(column, start, [tensors.as_array(value) for value in values])
        return super().write(column, start, tensors.as_array(values))  # rows of one tensor

    def shows(self, column: Column, values: Sequence[Any]) -> bool:
        arrays = [tensors.as_array(value) for value in values]
        return super().shows(column, arrays)

    def read(self, column: Column) -> Sequence[Any]:
        return tensors.rows(column)

    def stack(self, column: Column) -> Any:
        return tensors.from_array(column)


class Scalar(Leaf):
    """numpy scalars of one dtype."""

    __slots__ = ()

    def write(self, column: Column, start: int, values: Any) -> bool:
        if type(values) is np.ndarray:
            return not self.shape and self._write_stacked(column, start, values)
        if set(map(type, values)) != {self.dtype.type}:
            return False
        if self.dtype.kind not in "biufc" and set(map(_dtype_of, values)) != {self.dtype}:
            return False  # dates have units, strings have lengths
        if self.dtype.kind == "V":
            for row, value in enumerate(values, start):
                column[row] = value
        else:
            column[start : start + len(values)] = values
        return True

    def read(self, column: Column) -> Sequence[Any]:
        return list(column)


class Number(Leaf):
    """Python's own numbers; ``tolist`` gives back exactly these."""

    __slots__ = ()
    kind: ClassVar[type]

    def write(self, column: Column, start: int, values: Any) -> bool:
        if set(map(type, values)) != {self.kind}:
            return False
        try:
            column[start : start + len(values)] = values
        except OverflowError:  # an int beyond 64 bits
            return False
        return True

    def read(self, column: Column) -> Sequence[Any]:
        return column.tolist()  # type: ignore[no-any-return]


class Bool(Number):
    """bool, which is an int to isinstance but not to us."""

    __slots__ = ()
    kind = bool


class Int(Number):
    """int within 64 bits; larger ones travel as objects."""

    __slots__ = ()
    kind = int


class Float(Number):
    """float"""

    __slots__ = ()
    kind = float


class Complex(Number):
    """complex"""

    __slots__ = ()
    kind = complex


_NUMBERS: dict[type, Leaf] = {
    bool: Bool(np.dtype(bool)),
    int: Int(np.dtype(np.int64)),
    float: Float(np.dtype(np.float64)),
    complex: Complex(np.dtype(np.complex128)),
}


def leaf_for(value: Any) -> Leaf | Aside:
    """What a column of such values would be."""
    kind = type(value)
    if kind in _NUMBERS:
        if kind is int and not -(1 << 63) <= value < 1 << 63:
            return Aside()
        return _NUMBERS[kind]
    if kind in _ARRAYS and is_raw(value.dtype):
        return Array(value.dtype, value.shape)
    if isinstance(value, np.generic) and kind is value.dtype.type and is_raw(value.dtype):
        return Aside() if value.dtype.kind in "SU" else Scalar(value.dtype)
    if (shared := tensors.as_array(value)) is not None:
        return Tensor(shared.dtype, shared.shape)
    return Aside()


def is_raw(dtype: np.dtype[Any]) -> bool:
    """Are an array's bytes and its dtype's name all there is to it?"""
    if dtype.isbuiltin == 1 and dtype.isnative and dtype.kind in "biufc":
        return not dtype.metadata
    if dtype.hasobject or dtype.kind not in "biufcmMSUV" or dtype.metadata:
        return False
    try:
        if dtype.names is not None:
            with warnings.catch_warnings():  # older NumPys take the units of dates for metadata
                warnings.simplefilter("ignore", UserWarning)
                described = np.lib.format.dtype_to_descr(dtype)
            # np.void, not np.record or the user's, which the equality of dtypes overlooks
            return dtype.type is np.void and bool(np.lib.format.descr_to_dtype(described) == dtype)
        return bool(np.dtype(dtype.str) == dtype)
    except (TypeError, ValueError):  # overlapping fields, titles and the like
        return False
