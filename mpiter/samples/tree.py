"""How a sample is built (its *tree*), which of its values can be columns, and where
columns lie in a batch's memory.

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
# Rows: a batch of more may not fit into memory.
MANY = 100_000

Column = np.ndarray[Any, Any]
# Levels of nesting; what is deeper (a cycle, most likely) is sent as an object.
_DEEPEST = 32
# Parts; a longer list is data, not structure, and is sent as an object.
_WIDEST = 256
# In all; a shared part counts at each place, so this also bounds endless structures.
_MOST_PARTS = 1024
# Types of keys that are recreated from their value.
_PLAIN_KEYS = {str, int, bool, bytes, type(None)}
# Once copied, a memory map is an ordinary array.
_ARRAYS = {np.ndarray, np.memmap}


def container(parts: Any, made: Callable[[Any], Any]) -> Any:
    """Return a tuple, named tuple or dict like ``parts``, with ``made`` applied to each
    part.
    """
    if isinstance(parts, dict):
        return {name: made(part) for name, part in parts.items()}
    return tuple.__new__(
        type(parts) if isinstance(parts, tuple) else tuple, map(made, parts)
    )


class Rows(Sequence[Any]):
    """Samples that lie in ``columns``: arrays or lists of one length, in a tuple, a
    named tuple or a dict.
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
    """A leaf without a column, because its values differ in size or are of no known
    kind.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf with a column: each sample's value there has this dtype and shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    def write(self, column: Column, start: int, values: Any) -> bool:
        """Write ``values``, a list or an array, into the rows from ``start`` on; return
        False if one doesn't fit.

        Many rows are written at once, because with small samples most of the time goes
        into calling NumPy.
        """
        rows = column[start : start + len(values)]
        if type(values) is not np.ndarray:
            return self._write(rows, values)
        if values.dtype != self.dtype or values.shape[1:] != self.shape:
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
            # By one concatenate, which compares dtypes and shapes at a third of the
            # cost of asking.
            try:
                if set(map(len, values)) != {self.shape[0]}:
                    return False
                np.concatenate(
                    values,
                    out=rows.reshape(len(rows) * self.shape[0], *self.shape[1:]),
                    casting="no",
                )
            except (TypeError, ValueError):
                return False
            return True
        for row, value in enumerate(values):
            if value.shape != self.shape or value.dtype != self.dtype:
                return False
            rows[row] = value
        return True

    def read(self, column: Column) -> Sequence[Any]:
        if self.shape:
            return list(column)
        return [column[row, ...] for row in range(len(column))]


class Tensor(Array):
    """A column of dense torch tensors on the CPU."""

    __slots__ = ()

    def write(self, column: Column, start: int, values: Any) -> bool:
        # An array or a tensor, whose rows are the values.
        is_one = not isinstance(values, (list, tuple))
        return super().write(
            column, start, tensors.as_array(values) if is_one else values
        )

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        return super()._write(rows, [tensors.as_array(value) for value in values])

    def read(self, column: Column) -> Sequence[Any]:
        if len(column):
            return list(tensors.from_array(column).unbind(0))
        return []

    def stack(self, column: Column) -> Any:
        return tensors.from_array(column)


class OfJax(Array):
    """A column of JAX's arrays: shown as an array of NumPy's, while each sample has its
    own again.
    """

    __slots__ = ()

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        return super()._write(rows, [jax_arrays.as_array(value) for value in values])

    def read(self, column: Column) -> Sequence[Any]:
        return [jax_arrays.from_array(row) for row in super().read(column)]


class Scalar(Leaf):
    """A column of NumPy scalars."""

    __slots__ = ()

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        if set(map(type, values)) != {self.dtype.type}:
            return False
        if self.dtype.kind in "mM" and {value.dtype for value in values} != {
            self.dtype
        }:
            return False  # dates have units
        rows[...] = values
        return True


class Number(Leaf):
    """A column of Python numbers, which ``tolist`` gives back unchanged."""

    __slots__ = ()

    @property
    def kind(self) -> type:
        return _KINDS[self.dtype.kind]

    def write(self, column: Column, start: int, values: Any) -> bool:
        return type(values) is not np.ndarray and super().write(column, start, values)

    def _write(self, rows: Column, values: Sequence[Any]) -> bool:
        if set(map(type, values)) != {self.kind}:
            return False
        try:
            rows[...] = values
        except OverflowError:  # an int beyond 64 bits
            return False
        return True

    def read(self, column: Column) -> Sequence[Any]:
        return column.tolist()  # type: ignore[no-any-return]


_KINDS: dict[str, type] = {"b": bool, "i": int, "f": float, "c": complex}
_NUMBERS = {kind: Number(np.dtype(kind)) for kind in (bool, float, complex)} | {
    int: Number(np.dtype(np.int64))
}


def leaf_for(value: Any) -> Leaf | Aside:
    kind = type(value)
    if kind in _NUMBERS:
        if kind is int and not -(1 << 63) <= value < 1 << 63:
            return Aside()
        return _NUMBERS[kind]
    if kind in _ARRAYS and is_raw(value.dtype):
        return Array(value.dtype, value.shape)
    if (
        isinstance(value, np.generic)
        and kind is value.dtype.type
        and is_raw(value.dtype)
    ):
        if value.dtype.kind in "SUV":
            return Aside()
        return Scalar(value.dtype)
    if (shared := tensors.as_array(value)) is not None:
        return Tensor(shared.dtype, shared.shape)
    if (shown := jax_arrays.as_array(value)) is not None and is_raw(shown.dtype):
        return OfJax(shown.dtype, shown.shape)
    return Aside()


def is_raw(dtype: np.dtype[Any]) -> bool:
    """True if an array of this dtype can be recreated from its bytes and the dtype's
    name, ``dtype.str``.
    """
    return (
        dtype.kind in "biufcmMSUV"
        and dtype.names is None
        and not dtype.metadata
        and np.dtype(dtype.str) == dtype
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A container in a sample: its exact type, its keys if it is a dict, and its
    parts.
    """

    # Tuple, list, dict or namedtuple.
    kind: str
    cls: type
    names: tuple[Any, ...]
    parts: tuple[Node, ...] = ()
    # Of a dict: to Python 1, True and 1.0 are the same key.
    key_types: tuple[type, ...] = ()

    def written(self, at: int) -> str:
        """Return the access to part ``at`` in Python's syntax: ``.x``, ``[0]`` or
        ``['x']``.
        """
        if self.kind == "namedtuple":
            return f".{self.cls._fields[at]}"  # type: ignore[attr-defined]
        return f"[{self.names[at] if self.names else at!r:.40}]"

    def split(self, values: Any) -> list[Sequence[Any]] | None:
        """Return a list of values for each part, or None if one of ``values`` is built
        differently.
        """
        if type(values) is Rows:
            columns = values.columns
            if isinstance(columns, dict):
                names = tuple(columns)
            else:
                names = ()
            if (type(columns), names, len(columns)) != (
                self.cls,
                self.names,
                len(self.parts),
            ):
                return None
            return list(columns.values() if names else columns)
        if set(map(type, values)) != {self.cls}:
            return None
        if self.kind == "dict":
            if any(
                tuple(value) != self.names or tuple(map(type, value)) != self.key_types
                for value in values
            ):
                return None
            return [list(map(itemgetter(name), values)) for name in self.names]
        try:
            parts: list[Sequence[Any]] = list(zip(*values, strict=True))
        except ValueError:  # some are longer
            return None
        return parts if len(parts) == len(self.parts) else None

    def join(self, parts: Sequence[Sequence[Any]], rows: int) -> list[Any]:
        """Return ``rows`` containers, made of the lists of values for each part."""
        together: Any
        if parts:
            together = zip(*parts, strict=True)
        else:
            together = [()] * rows
        if self.kind == "tuple":
            return list(together)
        # A call for each would take a quarter longer.
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


def describe(sample: Any) -> Node:
    """Return the tree of a sample; one that is nested too deeply or has too many parts
    is an aside as a whole.
    """
    try:
        return _describe(sample, _DEEPEST, iter(range(_MOST_PARTS)))
    except RecursionError:
        return Aside()


def _describe(value: Any, depth: int, left: Iterator[int]) -> Node:
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
    """True if samples are records: without arrays, but with strings or other values
    that have no column.
    """
    return asides_of(node) > 0 and not any(leaf.shape for leaf in columns_of(node))


def scatter(
    node: Node,
    samples: Sequence[Any],
    columns: Iterator[Column],
    start: int,
    asides: list[Sequence[Any]],
) -> bool:
    """Write ``samples`` into the rows from ``start`` on; append to ``asides`` the
    values of each leaf without a column.

    Return False if a sample doesn't fit the tree; some columns of these rows may then
    have been written.
    """
    if isinstance(node, Group):
        parts = node.split(samples)
        return parts is not None and all(
            scatter(part, values, columns, start, asides)
            for part, values in zip(node.parts, parts, strict=True)
        )
    if isinstance(node, Leaf):
        return node.write(next(columns), start, samples)
    asides.append(samples)
    return True


def gather(
    node: Node, columns: Iterator[Column], asides: Iterator[Sequence[Any]], rows: int
) -> Sequence[Any]:
    """Return the samples made of ``columns`` and ``asides``; their arrays are views of
    the columns.
    """
    if isinstance(node, Group):
        return node.join(
            [gather(part, columns, asides, rows) for part in node.parts], rows
        )
    if isinstance(node, Leaf):
        return node.read(next(columns))
    return next(asides)


def merge(known: Node, seen: Node) -> Node | None:
    """Return a tree that fits samples of both, with asides where they differ; None if
    their outermost containers do.
    """
    if known == seen or isinstance(known, Aside):
        return known
    if not isinstance(known, Group) or not isinstance(seen, Group):
        return Aside()
    if dataclasses.replace(known, parts=()) != dataclasses.replace(seen, parts=()):
        return None
    if len(known.parts) != len(seen.parts):
        if known.kind == "list":
            return Aside()
        return None
    parts = map(merge, known.parts, seen.parts)
    return dataclasses.replace(known, parts=tuple(part or Aside() for part in parts))


@dataclasses.dataclass
class Layout:
    """The offsets, in one piece of memory, of the columns for ``rows`` samples like
    ``tree``.
    """

    tree: Node
    rows: int
    # Shape, dtype, offset
    leaves: list[tuple[tuple[int, ...], np.dtype[Any], int]] = dataclasses.field(
        init=False
    )
    # Values of a sample that fit no column.
    asides: int = dataclasses.field(init=False)
    size: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        at = 0
        self.leaves = []
        for leaf in columns_of(self.tree):
            self.leaves.append((leaf.shape, leaf.dtype, at))
            at = aligned(
                at
                + self.rows
                * leaf.dtype.itemsize
                * int(np.prod(leaf.shape, dtype=object))
            )
        self.asides, self.size = asides_of(self.tree), aligned(at, PAGE) or PAGE

    def columns(self, memory: Any, rows: int | None = None) -> list[Column]:
        """Return the columns as arrays on ``memory``, any writable buffer."""
        count = self.rows if rows is None else rows
        return [
            np.ndarray((count, *shape), dtype, memory, at)
            for shape, dtype, at in self.leaves
        ]


def check_memory(tree: Node, rows: int) -> None:
    """Raise an error if ``rows`` samples like ``tree`` need more memory than the
    machine has.
    """
    if rows > MANY and (size := Layout(tree, rows).size) > memory_total():
        raise SharedMemoryFull(
            f"a batch of {rows} samples like the first one takes {size / 1e9:.0f} GB, "
            "too much; lower batch_size."
        )


@dataclasses.dataclass(slots=True)
class Contents:
    """The samples of a batch: as columns where they have the same shapes and types,
    else as objects.
    """

    tree: Node
    rows: int
    columns: list[Column] = dataclasses.field(default_factory=list)
    asides: list[Sequence[Any]] | None = None  # a tuple of values for each row
    # All samples as they are, with nothing in columns.
    objects: list[Any] | None = None
    # Whole samples, by row.
    odd: dict[int, Any] = dataclasses.field(default_factory=dict)
    failed: frozenset[int] = frozenset()
    copied: bool = False
