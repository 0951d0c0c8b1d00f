"""The kinds of leaves: what mpiter knows of a single value in a sample, a class each.

A kind says how a value is recognised, described, written (also by the line that
the generated loop has for it), read, stacked, copied, compared, and put into JSON.
``KINDS`` has them in the order in which they are tried.  Pure.  Guarantees that a value
comes back with its type, dtype and byte order, or that ``write`` returns False.
Types are compared exactly: a subclass never counts as its base.  Other libraries are
never imported to recognise a value.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from . import jax_arrays, tensors
from .beside import Beside, bytes_of, text_of
from .jagged import Jagged

if TYPE_CHECKING:
    import jax
    import torch

Column = np.ndarray[Any, Any]
# The errors for a number that is too large: NumPy's, and a memoryview's.
_TOO_LARGE = "(OverflowError, ValueError)"
# The largest int that every JSON reader keeps exactly.
_LARGEST = 2**53
# A memory map is an ordinary array once it has been copied.
_ARRAYS = {np.ndarray, np.memmap}
_OF_ML_DTYPES = re.compile(r"bfloat16|u?int[124]|float[468]_\w+")


class Code(Protocol):
    """The lines of the loop that fetches samples and writes them, as they are made."""

    lines: list[str]
    # Lines that run once for a sheet, before the loop begins.
    opening: list[str]

    def name(self, value: object) -> str:
        """Return a name by which the lines can refer to an object."""
        ...

    def column(self) -> str:
        """Return the name of the next column."""
        ...

    def unless(self, fits: str) -> None:
        """Add lines that send the sample as an object if ``fits`` isn't true."""
        ...

    def unless_raises(self, errors: str, line: str) -> None:
        """Add a line; if it raises one of ``errors``, the sample is sent as object."""
        ...


def is_raw(dtype: np.dtype[Any]) -> bool:
    """Return True if bytes and ``dtype.str`` suffice to recreate an array."""
    return (
        dtype.kind in "biufcmMSUV"
        and dtype.names is None
        and not dtype.metadata
        and np.dtype(dtype.str) == dtype
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of leaf.

    An object of it describes the column that a value fits: the value of each sample has
    this dtype and this shape there.  Kinds without columns make no objects.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    # The types of the values, if there are few.
    types: ClassVar[tuple[type, ...]] = ()
    # No dataset can overwrite a value of ``types``.
    is_constant: ClassVar[bool] = True
    # Its values differ in their first dimension.
    is_ragged: ClassVar[bool] = False
    # The key of a value in JSON, if it is no value of JSON's own.
    tag: ClassVar[str] = ""
    # The bytes that each value counts, if it is the same number for all.
    bytes_each: ClassVar[int | None] = None

    @classmethod
    def takes(cls, kind: type) -> bool:
        """Return True if values of this type are of this kind."""
        return kind in cls.types

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Describe a value; None if it fits no column."""
        return None

    def lines(self, code: Code, value: str) -> None:
        """Add the lines that check and write the value of the variable ``value``."""
        raise NotImplementedError

    def write(
        self,
        column: Column,
        start: int,
        values: Any,
    ) -> bool:
        """Write ``values``, a list or an array, into the rows from ``start`` on.

        Return False if one doesn't fit.  This is for rows that come together; samples
        that are fetched one by one are written by ``lines``.
        """
        rows = column[start : start + len(values)]
        if type(values) is not np.ndarray:
            return self._write(rows, values)
        if values.dtype != self.dtype:
            return False
        if values.shape[1:] != self.shape:
            return False
        rows[...] = values
        return True

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        raise NotImplementedError

    def in_place(self, values: object) -> Column | None:
        """Return the values of several rows as a column on the memory that they have.

        None if they have none in one piece.
        """
        return None

    def read(self, column: Column) -> Sequence[Any]:
        """Return the values of the rows, each as it was in its sample."""
        return list(column)

    def stack(self, column: Column) -> Any:
        """Return the whole column in the form that ``Batch.columns`` shows."""
        return column

    def tensor(self, column: Column) -> torch.Tensor:
        """Return the column as a tensor; raise a TypeError where torch makes none."""
        return tensors.from_array(column)

    # -- where it lies in memory -------------------------------------------------------

    def size(self, rows: int) -> int:
        """Return the bytes of the column of so many rows."""
        # As Python's integers: a product of NumPy's would overflow unnoticed.
        return rows * prod(self.shape) * self.dtype.itemsize

    def column(
        self,
        memory: Any,
        at: int,
        rows: int,
        count: int,
    ) -> Column:
        """Return the column's first ``count`` rows.

        Its ``rows`` rows lie in a buffer from the byte ``at`` on.
        """
        return np.ndarray((count, *self.shape), self.dtype, memory, at)

    def sent(self, column: Column) -> list[Column]:
        """Return the arrays to send where no memory is shared."""
        return [column]

    def fill(
        self,
        column: Column,
        row: int,
        rows: int,
        sent: Iterator[Any],
    ) -> None:
        """Write the bytes of sent arrays into ``rows`` rows, from ``row`` on."""
        mine = column[row : row + rows]
        mine.reshape(-1).view("u1")[:] = memoryview(next(sent))

    # -- single values -----------------------------------------------------------------

    @classmethod
    def nbytes(cls, value: Any) -> int:
        """Return how many bytes a value counts in a batch, whether in a column or not.

        Texts count as nothing.
        """
        return cls.bytes_each or 0

    @classmethod
    def copied(cls, value: Any) -> Any:
        """Return a copy of a value that a dataset may overwrite."""
        return value

    @classmethod
    def memory(cls, value: Any) -> tuple[Column | np.generic | None, bool]:
        """Return an array on the value's memory, to look whether it is overwritten.

        None if that can't happen.  Also return True if the array stays on this memory.
        """
        return None, True

    @classmethod
    def are_same(cls, one: Any, other: Any) -> bool | None:
        """Return True if two values of one type are equal to the last bit.

        None if that can't be told by their memory.
        """
        return None

    @classmethod
    def encoded(cls, value: Any, beside: Beside) -> object:
        """Return the value as JSON, or NotImplemented."""
        return NotImplemented

    @classmethod
    def decoded(cls, told: object, beside: Beside) -> Any:
        """Return the value that ``encoded`` has turned into ``{tag: told}``."""
        raise NotImplementedError


class Number(Kind):
    """A column of Python's numbers of one type."""

    __slots__ = ()

    @classmethod
    def of(cls, value: Any) -> Self | None:
        return cls(np.dtype(cls.types[0]))

    def lines(self, code: Code, value: str) -> None:
        code.unless(f"type({value}) is {code.name(self.types[0])}")
        # An int beyond int64 fits no column.
        code.unless_raises(_TOO_LARGE, f"{code.column()}[row] = {value}")

    def write(
        self,
        column: Column,
        start: int,
        values: Any,
    ) -> bool:
        # An array has NumPy's scalars, which are no Python numbers.
        return type(values) is not np.ndarray and super().write(column, start, values)

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        if set(map(type, values)) != set(self.types):
            return False
        try:
            rows[...] = values
        except OverflowError:
            # An int beyond int64.
            return False
        return True

    def read(self, column: Column) -> Sequence[Any]:
        return column.tolist()  # type: ignore[no-any-return]


class Bool(Number):
    """A column of Python's bool."""

    __slots__ = ()
    types = (bool,)
    bytes_each = 1

    @classmethod
    def encoded(cls, value: bool, beside: Beside) -> object:
        return value


class Int(Number):
    """A column of Python's int, as int64."""

    __slots__ = ()
    types = (int,)
    tag = "~int"
    # One of more than 64 bits counts no more.
    bytes_each = 8

    @classmethod
    def of(cls, value: int) -> Self | None:
        if not -(1 << 63) <= value < 1 << 63:
            return None
        return cls(np.dtype(np.int64))

    @classmethod
    def encoded(cls, value: int, beside: Beside) -> object:
        if -_LARGEST <= value <= _LARGEST:
            return value
        return {cls.tag: hex(value)}

    @classmethod
    def decoded(cls, told: object, beside: Beside) -> int:
        return int(_text(told, cls), 16)


class Float(Number):
    """A column of Python's float."""

    __slots__ = ()
    types = (float,)
    bytes_each = 8
    tag = "~float"

    @classmethod
    def encoded(cls, value: float, beside: Beside) -> object:
        if isfinite(value):
            return value
        return {cls.tag: repr(value)}

    @classmethod
    def decoded(cls, told: object, beside: Beside) -> float:
        return float(_text(told, cls))


class Complex(Number):
    """A column of Python's complex."""

    __slots__ = ()
    types = (complex,)
    bytes_each = 16

    def tensor(self, column: Column) -> torch.Tensor:
        raise TypeError("torch's collating refuses Python's complex numbers")


class Text(Kind):
    """Strings, and None: they have no column, and are values of JSON's own."""

    __slots__ = ()
    types = (str, type(None))
    bytes_each = 0

    @classmethod
    def encoded(cls, value: str | None, beside: Beside) -> object:
        return value


class Bytes(Kind):
    """Bytes, which have no column."""

    __slots__ = ()
    types = (bytes,)
    bytes_each = 0
    tag = "~bytes"

    @classmethod
    def encoded(cls, value: bytes, beside: Beside) -> object:
        return {cls.tag: text_of(value)}

    @classmethod
    def decoded(cls, told: object, beside: Beside) -> bytes:
        return bytes_of(_text(told, cls))


def _text(told: object, kind: type[Kind]) -> str:
    # Checked, since an array in place of a text would become far more objects than it
    # has bytes.
    if type(told) is not str:
        raise TypeError(f"{kind.tag} of {told!r:.60}")
    return told


class Array(Kind):
    """A column of ndarrays of one dtype and shape.

    Kinds whose values can be shown as such arrays derive from it.
    """

    __slots__ = ()
    is_constant = False
    tag = "~array"

    @classmethod
    def takes(cls, kind: type) -> bool:
        return issubclass(kind, np.ndarray)

    @classmethod
    def of(cls, value: Column) -> Self | None:
        array = cls.array(value)
        if array is None or not is_raw(array.dtype):
            return None
        return cls(array.dtype, array.shape)

    @classmethod
    def array(cls, value: Any) -> Column | None:
        """Return the value as an array, if possible on its memory; None for others."""
        if type(value) in _ARRAYS:
            array: Column = value
            return array
        return None

    @classmethod
    def value(cls, array: Column) -> Column:
        """Return the value that ``array`` shows, if possible on its memory."""
        return array

    def lines(self, code: Code, value: str) -> None:
        array = self.shown(code, value)
        is_dtype = condition(code, array, self.dtype)
        code.unless(f"{is_dtype} and {array}.shape == {self.shape}")
        column = f"{code.column()}[row]"
        if self.shape:
            column += "[...]"
        code.lines.append(f"{column} = {array}")

    @classmethod
    def shown(cls, code: Code, value: str) -> str:
        """Add the lines after which a variable is surely an array, and return it."""
        kind = f"type({value})"
        array = code.name(np.ndarray)
        mapped = code.name(np.memmap)
        code.unless(f"{kind} is {array} or {kind} is {mapped}")
        return value

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        if isinstance(values, Jagged):
            return self._write_even(rows, values)
        if not set(map(type, values)) <= _ARRAYS:
            return False
        if (
            len(values) > 1
            and self.shape
            and self.dtype.isnative
            and self.dtype.kind in "biufc"
        ):
            # One concatenate compares dtypes and shapes at a third of the cost of
            # asking each array.  It joins arrays of other lengths, too, which would
            # shift the rows, so their lengths are compared first.
            try:
                if set(map(len, values)) != {self.shape[0]}:
                    return False
                joined = rows.reshape(len(rows) * self.shape[0], *self.shape[1:])
                np.concatenate(values, out=joined, casting="no")
            except (TypeError, ValueError):
                return False
            return True
        for row, value in enumerate(values):
            if value.shape != self.shape or value.dtype != self.dtype:
                return False
            rows[row] = value
        return True

    def _write_even(self, rows: Column, values: Jagged) -> bool:
        """Write lists that may have one length, without a look at each."""
        if not self.shape or (values.lengths != self.shape[0]).any():
            return False
        array = values.values[int(values.offsets[0]) : int(values.offsets[-1])]
        if type(array) not in _ARRAYS or array.dtype != self.dtype:
            return False
        if array.shape[1:] != self.shape[1:]:
            return False
        rows[...] = array.reshape(rows.shape)
        return True

    def in_place(self, values: object) -> Column | None:
        if type(values) is np.ndarray:
            return values
        return None

    def read(self, column: Column) -> Sequence[Any]:
        # A list of a column with one dimension would have scalars in place of arrays.
        if self.shape:
            return list(column)
        return [column[row, ...] for row in range(len(column))]

    @classmethod
    def nbytes(cls, value: Any) -> int:
        return int(value.nbytes)

    @classmethod
    def copied(cls, value: Column) -> Column:
        return value.copy("K")

    @classmethod
    def memory(cls, value: Column) -> tuple[Column | np.generic | None, bool]:
        return np.asarray(value), True

    @classmethod
    def are_same(cls, one: Column, other: Column) -> bool | None:
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        # The bytes of other kinds aren't all of their value: a masked array has a mask,
        # and objects lie elsewhere.
        if cls.array(one) is None or one.dtype.hasobject:
            return None
        return bool(one.tobytes() == other.tobytes())

    @classmethod
    def encoded(cls, value: Column, beside: Beside) -> object:
        # In the state of a model a memory map is an array.
        if type(value) is np.memmap and beside.is_of_model:
            value = np.asarray(value)
        if type(value) is not np.ndarray or not _is_memory(value.dtype):
            return NotImplemented
        return {Array.tag: [_name_of(value), list(value.shape), beside.keep(value)]}

    @classmethod
    def decoded(cls, told: Any, beside: Beside) -> Column:
        name, shape, kept = told
        array = _array(name, shape or [], beside.memory(kept))
        # A scalar has no shape.
        if shape is None:
            return array[()]
        return array


def condition(code: Code, array: str, dtype: np.dtype[Any]) -> str:
    """Return the condition that the array in a variable has this dtype."""
    name = code.name(dtype)
    return f"({array}.dtype is {name} or {array}.dtype == {name})"


class Tensor(Array):
    """A column of dense torch tensors on the CPU."""

    __slots__ = ()
    tag = "~tensor"

    @classmethod
    def takes(cls, kind: type) -> bool:
        names = ((base.__module__, base.__name__) for base in kind.__mro__)
        return ("torch", "Tensor") in names

    @classmethod
    def array(cls, value: object) -> Column | None:
        return tensors.as_array(value)

    @classmethod
    def value(cls, array: Column) -> torch.Tensor:
        return tensors.from_array(array)

    @classmethod
    def shown(cls, code: Code, value: str) -> str:
        return _called(code, tensors.as_array, value)

    def write(
        self,
        column: Column,
        start: int,
        values: Any,
    ) -> bool:
        # A single array or tensor has the values as its rows.
        if not isinstance(values, (list, tuple)):
            values = tensors.as_array(values)
        return super().write(column, start, values)

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        return super()._write(rows, [*map(tensors.as_array, values)])

    def in_place(self, values: object) -> Column | None:
        return tensors.as_array(values)

    def read(self, column: Column) -> Sequence[Any]:
        if len(column):
            return list(tensors.from_array(column).unbind(0))
        return []

    def stack(self, column: Column) -> Any:
        return tensors.from_array(column)

    @classmethod
    def nbytes(cls, value: torch.Tensor) -> int:
        return tensors.nbytes_of(value)

    @classmethod
    def copied(cls, value: torch.Tensor) -> torch.Tensor:
        if tensors.as_bytes(value) is not None:
            return value.clone()
        return value

    @classmethod
    def memory(cls, value: torch.Tensor) -> tuple[Column | np.generic | None, bool]:
        array = tensors.as_array(value)
        if array is not None:
            return array, True
        raw = tensors.as_bytes(value)
        if raw is None:
            return None, True
        # It is a tensor of a dtype that NumPy lacks.  These may be the bytes of a copy,
        # so they must be asked for again.
        return raw[0], False

    @classmethod
    def are_same(cls, one: torch.Tensor, other: torch.Tensor) -> bool | None:
        # Only a dense tensor without a gradient shows its bytes.
        mine = tensors.as_bytes(one.detach().to_dense())
        theirs = tensors.as_bytes(other.detach().to_dense())
        if mine is None or theirs is None:
            return None
        return mine[1:] == theirs[1:] and mine[0].tobytes() == theirs[0].tobytes()

    @classmethod
    def encoded(cls, value: torch.Tensor, beside: Beside) -> object:
        if beside.is_of_model:
            value = tensors.brought_home(value)
        raw = tensors.as_bytes(value)
        if raw is None:
            return NotImplemented
        memory, dtype, shape = raw
        return {cls.tag: [dtype, list(shape), beside.keep(memory)]}

    @classmethod
    def decoded(cls, told: Any, beside: Beside) -> torch.Tensor:
        dtype, shape, kept = told
        raw = np.frombuffer(beside.memory(kept), np.uint8)
        return tensors.from_bytes(raw, dtype, shape)


class OfJax(Array):
    """A column of JAX's arrays, shown as an array of NumPy's.

    Each sample has an array of JAX's again.  Nothing overwrites such an array.
    """

    __slots__ = ()

    @classmethod
    def takes(cls, kind: type) -> bool:
        return jax_arrays.is_array_type(kind)

    @classmethod
    def array(cls, value: object) -> Column | None:
        return jax_arrays.as_array(value)

    @classmethod
    def value(cls, array: Column) -> jax.Array:
        return jax_arrays.from_array(array)

    @classmethod
    def shown(cls, code: Code, value: str) -> str:
        return _called(code, jax_arrays.as_array, value)

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        return super()._write(rows, [*map(jax_arrays.as_array, values)])

    def read(self, column: Column) -> Sequence[Any]:
        return [*map(self.value, super().read(column))]

    def in_place(self, values: object) -> Column | None:
        return None

    def tensor(self, column: Column) -> torch.Tensor:
        raise TypeError("torch's collating refuses JAX's arrays")

    @classmethod
    def copied(cls, value: jax.Array) -> jax.Array:
        return value

    @classmethod
    def memory(cls, value: jax.Array) -> tuple[Column | np.generic | None, bool]:
        return None, True

    @classmethod
    def are_same(cls, one: jax.Array, other: jax.Array) -> bool | None:
        return None

    @classmethod
    def encoded(cls, value: jax.Array, beside: Beside) -> object:
        if beside.is_of_model:
            return super().encoded(np.asarray(value), beside)
        return NotImplemented


def _called(code: Code, shows: Callable[[Any], Column | None], value: str) -> str:
    """Add the lines that show a value as an array, and return the array's name."""
    array = f"a_{value}"
    code.lines.append(f"{array} = {code.name(shows)}({value})")
    code.unless(f"{array} is not None")
    return array


class Scalar(Kind):
    """A column of NumPy scalars."""

    __slots__ = ()
    tag = Array.tag
    # A record of a structured array, which is a view of it, isn't among them.
    types = tuple({np.dtype(code).type for code in "?bBhHiIlLqQefdgFDGSUMm"})

    @classmethod
    def takes(cls, kind: type) -> bool:
        return issubclass(kind, np.generic)

    @classmethod
    def of(cls, value: np.generic) -> Self | None:
        if type(value) is not value.dtype.type or not is_raw(value.dtype):
            return None
        # A string's length is part of its dtype, so a column would fit few of them.
        if value.dtype.kind in "SUV":
            return None
        return cls(value.dtype)

    def lines(self, code: Code, value: str) -> None:
        fits = f"type({value}) is {code.name(self.dtype.type)}"
        # The type of a date doesn't tell its unit.
        if self.dtype.kind not in "biufc":
            fits += f" and {value}.dtype == {code.name(self.dtype)}"
        code.unless(fits)
        code.lines.append(f"{code.column()}[row] = {value}")

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        if set(map(type, values)) != {self.dtype.type}:
            return False
        # Dates have one type and several units, which are part of the dtype.
        if self.dtype.kind in "mM" and {one.dtype for one in values} != {self.dtype}:
            return False
        rows[...] = values
        return True

    def in_place(self, values: object) -> Column | None:
        if type(values) is np.ndarray:
            return values
        return None

    @classmethod
    def nbytes(cls, value: np.generic) -> int:
        # They have no column, as Python's texts have none.
        if value.dtype.kind in "SU":
            return 0
        return value.nbytes

    @classmethod
    def copied(cls, value: np.generic) -> np.generic:
        if type(value) is np.void:
            return value.copy("K")
        return value

    @classmethod
    def memory(cls, value: np.generic) -> tuple[Column | np.generic | None, bool]:
        if type(value) is np.void:
            return value, True
        return None, True

    @classmethod
    def encoded(cls, value: np.generic, beside: Beside) -> object:
        if type(value) is not value.dtype.type or not _is_memory(value.dtype):
            return NotImplemented
        return {cls.tag: [_name_of(value), None, beside.keep(np.asarray(value))]}


# -- the dtypes of arrays in JSON ------------------------------------------------------


def _is_memory(dtype: np.dtype[Any]) -> bool:
    # The dtypes of ml_dtypes, which JAX uses, are registered with NumPy: ``isbuiltin``
    # is 2 for such.
    return is_raw(dtype) or (dtype.isbuiltin == 2 and not dtype.hasobject)


def _name_of(value: Column | np.generic) -> str:
    if is_raw(value.dtype):
        return str(value.dtype.str)
    return str(value.dtype.name)


def _array(
    name: object,
    shape: list[int],
    memory: bytearray | Column,
) -> Column:
    if type(name) is not str:
        raise TypeError(f"{name!r:.60} is no dtype's name")
    # NumPy knows the names of these dtypes once the library has been imported.
    if _OF_ML_DTYPES.fullmatch(name):
        importlib.import_module("ml_dtypes")
    dtype = np.dtype(name)
    if not _is_memory(dtype):
        raise TypeError(f"an array of {dtype}")
    if not dtype.itemsize:
        # np.zeros() would give each element a byte, more memory than the state has.
        return np.ndarray(shape, dtype, bytearray())
    return np.frombuffer(memory, dtype).reshape(shape)


# -- the table -------------------------------------------------------------------------

# All kinds, in the order in which they are tried.
KINDS: tuple[type[Kind], ...] = (
    Bool,
    Int,
    Float,
    Complex,
    Text,
    Bytes,
    Array,
    Scalar,
    Tensor,
    OfJax,
)
# The types of values that no dataset can overwrite.
CONSTANT = frozenset(one for kind in KINDS if kind.is_constant for one in kind.types)
# Kinds by the key that their values have in JSON.
BY_TAG = {kind.tag: kind for kind in reversed(KINDS) if kind.tag}


def _kind_of(kind: type) -> type[Kind] | None:
    """Return the kind of leaf of values of this type; None if it is of no kind."""
    for one in KINDS:
        if one.takes(kind):
            return one
    return None


# Types are looked up for each batch, and there are few.
kind_of: Callable[[type], type[Kind] | None] = functools.lru_cache(256)(_kind_of)


def leaf_for(value: object) -> Kind | None:
    """Describe the column that a value fits; None if it fits none."""
    kind = kind_of(type(value))
    if kind is None:
        return None
    return kind.of(value)
