"""How a sample is built (its *tree*), and where columns lie in a batch's memory.

A tree consists of *groups* (tuple, list, dict, namedtuple) and, in these, *leaves*, the
single values.  A leaf that has the same kind (``kinds``), dtype and shape in all
samples is a *column*, one array for the whole batch; any other value is an *aside*,
sent as an object.  Guarantees that a value comes back with its type, dtype and byte
order, or that ``scatter`` returns False.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from ..errors import SharedMemoryFull
from ..machine import memory_total
from .envelope import aligned
from .jagged import Jagged
from .kinds import Column, Kind, leaf_for
from .leaf import Added, added
from .ragged import Uneven, widened
from .rows import Rows
from .texts import TEXTS, TextColumn, Texts

PAGE = 4096
# A batch of more rows may not fit into memory.
MANY = 100_000

# Levels of nesting.  What is deeper (a cycle, most likely) is sent as an object.
_DEEPEST = 32
# Parts of a list.  A longer one is data, not structure, and is sent as an object.
_WIDEST = 256
# Parts of a whole sample.  A shared part counts at each place, so this also bounds
# endless structures.
_MOST_PARTS = 1024
# Types of keys that are recreated from their value.
_PLAIN_KEYS = {str, int, bool, bytes, type(None)}


@dataclasses.dataclass(frozen=True, slots=True)
class Aside:
    """A leaf without a column: its values differ in size, or are of no known kind."""

    # The type of the value that shows it, if a column of texts might take it.
    text: type | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A container in a sample: its exact type, its keys, and its parts."""

    # One of tuple, list, dict, namedtuple and leaf.
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

    def join(
        self,
        parts: Sequence[Sequence[Any]],
        rows: int,
        absent: Collection[int] = (),
    ) -> list[Any]:
        """Return ``rows`` containers, made of the lists of values for each part.

        What is returned for the rows in ``absent`` doesn't matter.
        """
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


@dataclasses.dataclass(frozen=True, slots=True)
class Made(Group):
    """A value of a kind that the program has added, with its parts.

    To the user it is a leaf, to mpiter a container.
    """

    # Two for one type differ by their number.
    added: Added | None = dataclasses.field(default=None, compare=False)
    number: int = 0

    @property
    def leaf(self) -> Added:
        assert self.added is not None
        return self.added

    def split(self, values: Any) -> list[Sequence[Any]] | None:
        if set(map(type, values)) != {self.cls}:
            return None
        count = itertools.repeat(len(self.parts))
        return list(zip(*map(self.leaf.split, values, count), strict=True))

    def join(
        self,
        parts: Sequence[Sequence[Any]],
        rows: int,
        absent: Collection[int] = (),
    ) -> list[Any]:
        together = zip(*parts, strict=True)
        if not absent:
            return [*map(self.leaf.join, together)]
        # Nothing was written there: the program's code must not see what is.
        found: list[Any] = []
        for row, values in enumerate(together):
            value = None
            if row not in absent:
                value = self.leaf.join(values)
            found.append(value)
        return found

    def build(self, values: Any) -> Any:
        return self.leaf.stack(values)


Node = Group | Kind | Aside


def describe(sample: object) -> Node:
    """Return the tree of a sample.

    A sample that is nested too deeply or has too many parts is an aside as a whole.
    """
    try:
        return _describe(sample, _DEEPEST, iter(range(_MOST_PARTS)), frozenset())
    except RecursionError:
        return Aside()


def _describe(
    value: Any,
    depth: int,
    left: Iterator[int],
    within: frozenset[type],
) -> Node:
    """Return the tree of a value that lies among the parts of others.

    ``within`` are the types of those among the others that have leaves.
    """
    kind: Any = type(value)
    names: tuple[Any, ...] = ()
    key_types: tuple[type, ...] = ()
    parts: Any = value
    one: Added | None = None
    if kind in (tuple, list, dict):
        if kind is dict:
            names = tuple(value)
            key_types = tuple(map(type, value))
            parts = value.values()
        if len(value) > _WIDEST or not _PLAIN_KEYS.issuperset(key_types):
            return Aside()
        group = kind.__name__
    elif (one := added.get(kind)) is not None:
        group = "leaf"
        one.check_outside(within)
        within |= {kind}
        parts = one.split(value)
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
        leaf = leaf_for(value)
        if leaf is None and kind in TEXTS:
            return Aside(kind)
        return leaf or Aside()
    nodes = []
    for part in parts:
        if not depth or next(left, None) is None:
            raise RecursionError
        nodes.append(_describe(part, depth - 1, left, within))
    if one is not None:
        return Made(group, kind, (), tuple(nodes), (), one, one.number)
    return Group(group, kind, names, tuple(nodes), key_types)


def tree_of(samples: Sequence[Any]) -> tuple[Node | None, int]:
    """Return the tree that fits all samples, and how many of them were looked at.

    None if the last one that was looked at isn't built like those before.
    """
    if type(samples) is Rows:
        return _tree_of_columns(samples), len(samples)
    tree: Node = describe(samples[0])
    for row, sample in enumerate(samples[1:], 2):
        # Everything fits that.
        if isinstance(tree, Aside):
            break
        merged = merge(tree, describe(sample))
        if merged is None:
            return None, row
        tree = merged
    return tree, len(samples)


def _tree_of_columns(samples: Rows) -> Node:
    """Return the tree of samples that lie in columns, by a look at each column."""
    columns = samples.columns
    parts: Any = columns
    if isinstance(columns, dict):
        parts = columns.values()
    nodes: list[Node] = []
    for part in parts:
        if isinstance(part, np.ndarray):
            # All its rows are alike.
            nodes.append(describe(part[0]))
        elif isinstance(part, Texts):
            nodes.append(Aside(part.kind))
        elif isinstance(part, Jagged):
            lengths = part.lengths
            is_even = bool((lengths == lengths[0]).all())
            nodes.append(describe(part[0]) if is_even else Aside())
        else:
            node, _ = tree_of(part)
            nodes.append(node or Aside())
    whole = describe(samples[0])
    if not isinstance(whole, Group):
        return whole
    return dataclasses.replace(whole, parts=tuple(nodes))


def columns_of(node: Node) -> Iterator[Kind]:
    """Yield the leaves that have a column, in the order of the traversal."""
    if isinstance(node, Group):
        for part in node.parts:
            yield from columns_of(part)
    elif isinstance(node, Kind):
        yield node


def asides_of(node: Node) -> int:
    """Return the number of values of a sample that have no column."""
    if isinstance(node, Group):
        return sum(map(asides_of, node.parts))
    return int(isinstance(node, Aside))


def texts_of(node: Node) -> int:
    """Return the number of columns of texts."""
    return sum(isinstance(leaf, TextColumn) for leaf in columns_of(node))


def is_record(node: Node) -> bool:
    """Return True if samples are records.

    Records have no arrays, but strings or other values that have no column.
    """
    if not asides_of(node):
        return False
    return not any(leaf.shape or leaf.is_ragged for leaf in columns_of(node))


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
    if isinstance(node, Kind):
        return node.write(next(columns), start, samples)
    if isinstance(samples, Texts):
        samples = samples.tolist()
    asides.append(samples)
    return True


def gather(
    node: Node,
    columns: Iterator[Column],
    asides: Iterator[Sequence[Any]],
    rows: int,
    absent: Collection[int] = (),
) -> Sequence[Any]:
    """Return the samples made of ``columns`` and ``asides``.

    Their arrays are views of the columns.  ``absent`` are rows that weren't written.
    """
    if isinstance(node, Group):
        parts = [gather(part, columns, asides, rows, absent) for part in node.parts]
        return node.join(parts, rows, absent)
    if isinstance(node, Kind):
        return node.read(next(columns))
    return next(asides)


def merge(
    known: Node,
    seen: Node,
    ragged: bool = False,
) -> Node | None:
    """Return a tree that fits samples of both, with asides where they differ.

    With ``ragged``, arrays that differ in their first dimension have a ragged column.
    None if their outermost containers differ.  Raise a LeafError if a leaf of the
    program's has returned several numbers of parts.
    """
    if known == seen or isinstance(known, Aside):
        return known
    if isinstance(known, TextColumn) and isinstance(seen, Aside):
        return known if seen.text in known.taken else Aside()
    if isinstance(known, Kind) and isinstance(seen, Kind):
        wider = widened(known, seen) if ragged else None
        return wider or Aside()
    if not isinstance(known, Group) or not isinstance(seen, Group):
        return Aside()
    outermost = dataclasses.replace(known, parts=())
    if outermost != dataclasses.replace(seen, parts=()):
        return None
    if len(known.parts) != len(seen.parts):
        if isinstance(known, Made):
            raise known.leaf.varies(len(known.parts), len(seen.parts))
        # Lists of several lengths are data, and sent as objects.
        if known.kind == "list":
            return Aside()
        return None
    parts: list[Node] = []
    for one, other in zip(known.parts, seen.parts, strict=True):
        parts.append(merge(one, other, ragged) or Aside())
    return dataclasses.replace(known, parts=tuple(parts))


def with_room_for(
    node: Node,
    samples: Sequence[Any],
    rows: int,
) -> Node:
    """Return the tree whose ragged columns have more room than before.

    They have enough for batches of ``rows`` samples like ``samples``, which fit it.
    """
    if isinstance(node, Uneven):
        return node.with_room_for(samples, rows)
    if not isinstance(node, Group):
        return node
    held = node.split(samples)
    if held is None:
        return node
    parts: list[Node] = []
    for part, values in zip(node.parts, held, strict=True):
        parts.append(with_room_for(part, values, rows))
    return dataclasses.replace(node, parts=tuple(parts))


def with_texts(node: Node, asides: Iterator[Sequence[Any]], rows: int) -> Node:
    """Return the tree with columns for those values that are texts or bytes.

    ``asides`` has the values of each leaf that has no column, in samples that came
    together; batches have ``rows`` rows.
    """
    if isinstance(node, Group):
        parts = tuple([with_texts(part, asides, rows) for part in node.parts])
        return dataclasses.replace(node, parts=parts)
    if isinstance(node, Aside):
        return TextColumn.fitting(next(asides), rows) or node
    return node


@dataclasses.dataclass
class Layout:
    """The offsets of the columns for ``rows`` samples in one piece of memory."""

    tree: Node
    rows: int
    # Each leaf that has a column, and where this begins.
    leaves: list[tuple[Kind, int]] = dataclasses.field(init=False)
    # The number of values of a sample that fit no column.
    asides: int = dataclasses.field(init=False)
    size: int = dataclasses.field(init=False)
    # A column's values differ in their first dimension.
    is_ragged: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        at = 0
        self.leaves = []
        for leaf in columns_of(self.tree):
            self.leaves.append((leaf, at))
            at = aligned(at + leaf.size(self.rows))
        self.asides = asides_of(self.tree)
        self.size = aligned(at, PAGE) or PAGE
        self.is_ragged = any(leaf.is_ragged for leaf, _ in self.leaves)

    def columns(self, memory: Any, rows: int | None = None) -> list[Column]:
        """Return the columns as arrays on ``memory``, any writable buffer."""
        count = self.rows
        if rows is not None:
            count = rows
        return [leaf.column(memory, at, self.rows, count) for leaf, at in self.leaves]


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
    asides: Sequence[Any] | None = None
    # All samples as they are, with nothing in columns.
    objects: list[Any] | None = None
    # Whole samples that didn't fit the columns, by row.
    odd: dict[int, Any] = dataclasses.field(default_factory=dict)
    # Rows without a sample.
    failed: frozenset[int] = frozenset()
    copied: bool = False
