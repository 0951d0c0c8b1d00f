"""How a sample is built (its *tree*), and where columns lie in a batch's memory.

A tree consists of *groups* (tuple, list, dict, namedtuple) and, in these, *leaves*, the
single values.  A leaf that has the same kind, dtype and shape in all samples is a
*column*, one array for the whole batch; any other value is an *aside*, sent as an
object.  Guarantees that a value comes back with its type, dtype and byte order, or that
``scatter`` returns False.  Types are compared exactly: a subclass never counts as its
base.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ..errors import SharedMemoryFull
from ..machine import memory_total
from . import jax_arrays, tensors
from .envelope import aligned

PAGE = 4096
# A batch of more rows may not fit into memory.
MANY = 100_000

Column = np.ndarray[Any, Any]
# Levels of nesting.  What is deeper (a cycle, most likely) is sent as an object.
_DEEPEST = 32
# Parts of a list.  A longer one is data, not structure, and is sent as an object.
_WIDEST = 256
# Parts of a whole sample.  A shared part counts at each place, so this also bounds
# endless structures.
_MOST_PARTS = 1024
# Types of keys that are recreated from their value.
_PLAIN_KEYS = {str, int, bool, bytes, type(None)}
# A memory map is an ordinary array once it has been copied.
_ARRAYS = {np.ndarray, np.memmap}


def container(parts: Any, made: Callable[[Any], Any]) -> Any:
    """Return a tuple, named tuple or dict like ``parts``, of ``made`` of each part."""
    if isinstance(parts, dict):
        return {name: made(part) for name, part in parts.items()}
    kind = type(parts) if isinstance(parts, tuple) else tuple
    return tuple.__new__(kind, map(made, parts))


class Rows(Sequence[Any]):
    """Samples that lie in ``columns``, arrays or lists of one length.

    The columns are in a tuple, a named tuple or a dict.
    """

    __slots__ = ("_length", "columns")

    def __init__(self, columns: Any, length: int) -> None:
        self.columns = columns
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: Any) -> Any:
        return container(self.columns, lambda column: column[row])

    def __iter__(self) -> Iterator[Any]:
        if type(self.columns) is tuple and self.columns:
            return zip(*self.columns, strict=True)
        return map(self.__getitem__, range(self._length))


@dataclasses.dataclass(frozen=True, slots=True)
class Aside:
    """A leaf without a column: its values differ in size, or are of no known kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf with a column: each sample's value there has this dtype and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def write(
        self,
        column: Column,
        start: int,
        values: Any,
    ) -> bool:
        """Write ``values``, a list or an array, into the rows from ``start`` on.

        Return False if one doesn't fit.  Many rows are written at once, because with
        small samples most of the time goes into calling NumPy.
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

    def read(self, column: Column) -> Sequence[Any]:
        """Return the values of the rows, each as it was in its sample."""
        return list(column)

    def stack(self, column: Column) -> Any:
        """Return the whole column in the form that ``Batch.columns`` shows."""
        return column


class Array(Leaf):
    """A column of ndarrays of one dtype and shape."""

    __slots__ = ()

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
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

    def read(self, column: Column) -> Sequence[Any]:
        # A list of a column with one dimension would have scalars in place of arrays.
        if self.shape:
            return list(column)
        return [column[row, ...] for row in range(len(column))]


class Tensor(Array):
    """A column of dense torch tensors on the CPU."""

    __slots__ = ()

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
        arrays = [tensors.as_array(value) for value in values]
        return super()._write(rows, arrays)

    def read(self, column: Column) -> Sequence[Any]:
        if len(column):
            return list(tensors.from_array(column).unbind(0))
        return []

    def stack(self, column: Column) -> Any:
        return tensors.from_array(column)


class OfJax(Array):
    """A column of JAX's arrays, shown as an array of NumPy's.

    Each sample has an array of JAX's again.
    """

    __slots__ = ()

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        arrays = [jax_arrays.as_array(value) for value in values]
        return super()._write(rows, arrays)

    def read(self, column: Column) -> Sequence[Any]:
        return [jax_arrays.from_array(row) for row in super().read(column)]


class Scalar(Leaf):
    """A column of NumPy scalars."""

    __slots__ = ()

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        if set(map(type, values)) != {self.dtype.type}:
            return False
        # Dates have one type and several units, which are part of the dtype.
        if self.dtype.kind in "mM" and {one.dtype for one in values} != {self.dtype}:
            return False
        rows[...] = values
        return True


class Number(Leaf):
    """A column of Python numbers, which ``tolist`` gives back unchanged."""

    __slots__ = ()

    @property
    def kind(self) -> type:
        return _KINDS[self.dtype.kind]

    def write(
        self,
        column: Column,
        start: int,
        values: Any,
    ) -> bool:
        # An array has NumPy's scalars, which are no Python numbers.
        return type(values) is not np.ndarray and super().write(column, start, values)

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        if set(map(type, values)) != {self.kind}:
            return False
        try:
            rows[...] = values
        except OverflowError:
            # An int of more than 64 bits.
            return False
        return True

    def read(self, column: Column) -> Sequence[Any]:
        return column.tolist()  # type: ignore[no-any-return]


_KINDS: dict[str, type] = {
    "b": bool,
    "i": int,
    "f": float,
    "c": complex,
}
_NUMBERS = {
    bool: Number(np.dtype(bool)),
    float: Number(np.dtype(float)),
    complex: Number(np.dtype(complex)),
    int: Number(np.dtype(np.int64)),
}


def leaf_for(value: Any) -> Leaf | Aside:
    kind = type(value)
    if kind in _NUMBERS:
        # An int of more than 64 bits fits no column.
        if kind is int and not -(1 << 63) <= value < 1 << 63:
            return Aside()
        return _NUMBERS[kind]
    if kind in _ARRAYS and is_raw(value.dtype):
        return Array(value.dtype, value.shape)
    is_scalar = isinstance(value, np.generic) and kind is value.dtype.type
    if is_scalar and is_raw(value.dtype):
        # A string's length is part of its dtype, so a column would fit few of them.
        if value.dtype.kind in "SUV":
            return Aside()
        return Scalar(value.dtype)
    shared = tensors.as_array(value)
    if shared is not None:
        return Tensor(shared.dtype, shared.shape)
    shown = jax_arrays.as_array(value)
    if shown is not None and is_raw(shown.dtype):
        return OfJax(shown.dtype, shown.shape)
    return Aside()


def is_raw(dtype: np.dtype[Any]) -> bool:
    """Return True if bytes and ``dtype.str`` suffice to recreate an array."""
    return (
        dtype.kind in "biufcmMSUV"
        and dtype.names is None
        and not dtype.metadata
        and np.dtype(dtype.str) == dtype
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A container in a sample: its exact type, its keys, and its parts."""

    # One of tuple, list, dict and namedtuple.
    kind: str
    cls: type
    # The keys of a dict; of other containers none.
    names: tuple[Any, ...]
    parts: tuple[Node, ...] = ()
    # The types of a dict's keys, since to Python 1, True and 1.0 are the same key.
    key_types: tuple[type, ...] = ()

    def written(self, at: int) -> str:
        """Return the access to part ``at`` in Python: ``.x``, ``[0]`` or ``['x']``."""
        if self.kind == "namedtuple":
            return f".{self.cls._fields[at]}"  # type: ignore[attr-defined]
        key = self.names[at] if self.names else at
        return f"[{key!r:.40}]"

    def split(self, values: Any) -> list[Sequence[Any]] | None:
        """Return a list of values for each part.

        None if one of ``values`` is built differently.
        """
        if type(values) is Rows:
            columns = values.columns
            kind: type = type(columns)
            names: tuple[Any, ...] = ()
            if isinstance(columns, dict):
                names = tuple(columns)
            if kind is not self.cls or names != self.names:
                return None
            if len(columns) != len(self.parts):
                return None
            if names:
                return list(columns.values())
            return list(columns)
        if set(map(type, values)) != {self.cls}:
            return None
        if self.kind == "dict":
            for value in values:
                if tuple(value) != self.names:
                    return None
                if tuple(map(type, value)) != self.key_types:
                    return None
            return [list(map(itemgetter(name), values)) for name in self.names]
        try:
            parts: list[Sequence[Any]] = list(zip(*values, strict=True))
        except ValueError:
            # Some of the tuples or lists are longer than others.
            return None
        if len(parts) != len(self.parts):
            return None
        return parts

    def join(self, parts: Sequence[Sequence[Any]], rows: int) -> list[Any]:
        """Return ``rows`` containers, made of the lists of values for each part."""
        together: Any
        if parts:
            together = zip(*parts, strict=True)
        else:
            together = [()] * rows
        if self.kind == "tuple":
            return list(together)
        # A call of ``build`` for each dict would take a quarter longer.
        if self.kind == "dict":
            return [dict(zip(self.names, values, strict=True)) for values in together]
        return [self.build(values) for values in together]

    def build(self, values: Any) -> Any:
        if self.kind == "dict":
            return dict(zip(self.names, values, strict=True))
        if self.kind == "namedtuple":
            return tuple.__new__(self.cls, values)
        return self.cls(values)


Node = Group | Leaf | Aside


def describe(sample: object) -> Node:
    """Return the tree of a sample.

    A sample that is nested too deeply or has too many parts is an aside as a whole.
    """
    try:
        return _describe(sample, _DEEPEST, iter(range(_MOST_PARTS)))
    except RecursionError:
        return Aside()


def _describe(
    value: Any,
    depth: int,
    left: Iterator[int],
) -> Node:
    kind: Any = type(value)
    names: tuple[Any, ...] = ()
    key_types: tuple[type, ...] = ()
    parts: Any = value
    if kind in (tuple, list, dict):
        if kind is dict:
            names = tuple(value)
            key_types = tuple(map(type, value))
            parts = value.values()
        if len(value) > _WIDEST or not _PLAIN_KEYS.issuperset(key_types):
            return Aside()
        group = kind.__name__
    # A class derived from a named tuple may have attributes of its own, which would be
    # lost if it were made again of its parts.
    elif (
        hasattr(kind, "_fields")
        and kind.__base__ is tuple
        and kind.__dict__.get("__slots__") == ()
    ):
        group = "namedtuple"
        parts = tuple.__iter__(value)
    else:
        return leaf_for(value)
    nodes = []
    for part in parts:
        if not depth or next(left, None) is None:
            raise RecursionError
        nodes.append(_describe(part, depth - 1, left))
    return Group(group, kind, names, tuple(nodes), key_types)


def columns_of(node: Node) -> Iterator[Leaf]:
    """Yield the leaves that have a column, in the order of the traversal."""
    if isinstance(node, Group):
        for part in node.parts:
            yield from columns_of(part)
    elif isinstance(node, Leaf):
        yield node


def asides_of(node: Node) -> int:
    """Return the number of values of a sample that have no column."""
    if isinstance(node, Group):
        return sum(map(asides_of, node.parts))
    return int(isinstance(node, Aside))


def is_record(node: Node) -> bool:
    """Return True if samples are records.

    Records have no arrays, but strings or other values that have no column.
    """
    if not asides_of(node):
        return False
    return not any(leaf.shape for leaf in columns_of(node))


def scatter(
    node: Node,
    samples: Sequence[Any],
    columns: Iterator[Column],
    start: int,
    asides: list[Sequence[Any]],
) -> bool:
    """Write ``samples`` into the rows from ``start`` on.

    Append to ``asides`` the values of each leaf without a column.  Return False if a
    sample doesn't fit the tree; some columns of these rows may then have been written.
    """
    if isinstance(node, Group):
        parts = node.split(samples)
        if parts is None:
            return False
        pairs = zip(node.parts, parts, strict=True)
        return all(scatter(part, held, columns, start, asides) for part, held in pairs)
    if isinstance(node, Leaf):
        return node.write(next(columns), start, samples)
    asides.append(samples)
    return True


def gather(
    node: Node,
    columns: Iterator[Column],
    asides: Iterator[Sequence[Any]],
    rows: int,
) -> Sequence[Any]:
    """Return the samples made of ``columns`` and ``asides``.

    Their arrays are views of the columns.
    """
    if isinstance(node, Group):
        parts = [gather(part, columns, asides, rows) for part in node.parts]
        return node.join(parts, rows)
    if isinstance(node, Leaf):
        return node.read(next(columns))
    return next(asides)


def merge(known: Node, seen: Node) -> Node | None:
    """Return a tree that fits samples of both, with asides where they differ.

    None if their outermost containers differ.
    """
    if known == seen or isinstance(known, Aside):
        return known
    if not isinstance(known, Group) or not isinstance(seen, Group):
        return Aside()
    outermost = dataclasses.replace(known, parts=())
    if outermost != dataclasses.replace(seen, parts=()):
        return None
    if len(known.parts) != len(seen.parts):
        # Lists of several lengths are data, and sent as objects.
        if known.kind == "list":
            return Aside()
        return None
    merged = map(merge, known.parts, seen.parts)
    parts = tuple(part or Aside() for part in merged)
    return dataclasses.replace(known, parts=parts)


# The shape, dtype and offset of a column.
_Place = tuple[tuple[int, ...], np.dtype[Any], int]


@dataclasses.dataclass
class Layout:
    """The offsets of the columns for ``rows`` samples in one piece of memory."""

    tree: Node
    rows: int
    leaves: list[_Place] = dataclasses.field(init=False)
    # The number of values of a sample that fit no column.
    asides: int = dataclasses.field(init=False)
    size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        at = 0
        self.leaves = []
        for leaf in columns_of(self.tree):
            self.leaves.append((leaf.shape, leaf.dtype, at))
            # As Python's integers: a product of NumPy's would overflow unnoticed.
            values = self.rows * int(np.prod(leaf.shape, dtype=object))
            at = aligned(at + values * leaf.dtype.itemsize)
        self.asides = asides_of(self.tree)
        self.size = aligned(at, PAGE) or PAGE

    def columns(self, memory: Any, rows: int | None = None) -> list[Column]:
        """Return the columns as arrays on ``memory``, any writable buffer."""
        count = self.rows
        if rows is not None:
            count = rows
        return [
            np.ndarray((count, *shape), dtype, memory, at)
            for shape, dtype, at in self.leaves
        ]


def check_memory(tree: Node, rows: int) -> None:
    """Raise an error if ``rows`` samples need more memory than the machine has."""
    if rows <= MANY:
        return
    size = Layout(tree, rows).size
    if size > memory_total():
        raise SharedMemoryFull(
            f"a batch of {rows} samples like the first one takes {size / 1e9:.0f} GB, "
            "too much; lower batch_size."
        )


@dataclasses.dataclass(slots=True)
class Contents:
    """The samples of a batch, as columns or as objects.

    Those that have the same shapes and types are columns.
    """

    tree: Node
    rows: int
    columns: list[Column] = dataclasses.field(default_factory=list)
    # A tuple of values for each row.
    asides: list[Sequence[Any]] | None = None
    # All samples as they are, with nothing in columns.
    objects: list[Any] | None = None
    # Whole samples that didn't fit the columns, by row.
    odd: dict[int, Any] = dataclasses.field(default_factory=dict)
    # Rows without a sample.
    failed: frozenset[int] = frozenset()
    copied: bool = False
