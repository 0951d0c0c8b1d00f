"""The shape of a sample, and the one traversal that every other module uses.

Pure; runs in workers (``scatter``) and in the consumer process (``describe``, ``merge``, ``gather``).  A sample is a
tree: groups (tuple, list, dict, namedtuple, dataclass) over leaves.  A leaf is a *column* where every sample has the
same kind, dtype and shape, so that a batch of it is one array; any other value stands *aside* and travels as an
object.  Guarantees that a value comes back as it went in, or that ``scatter`` says no and the caller sends the whole
row as an object.  Types are compared exactly: a subclass is never taken for its base.  The kinds of leaf are in
``leaves.py``; a new one is one class there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np

from .leaves import Aside, Leaf, leaf_for
from .rows import Rows
from .uneven import KEEPING, Place, Settle, are_values, listed

Column = np.ndarray[Any, Any]
_DEEPEST = 32  # nesting beyond this (a cycle, most likely) travels as an object
_WIDEST = 256  # a longer list is data, not structure: it travels as an object
_MOST_PARTS = 1024  # in all; parts that are shared count at each place, so this also ends what unfolds without end
_MADE_AT_RUN_TIME = 1 << 9  # a flag of classes
_PLAIN_KEYS = {str, int, bool, bytes, type(None)}  # whose type and value are all there is to them


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A container: its exact type, what names its parts, and the parts."""

    kind: str  # tuple, list, dict, namedtuple or dataclass
    cls: type
    names: tuple[Any, ...]
    parts: tuple[Node, ...]
    key_types: tuple[type, ...] = ()  # of a dict: 1, True and 1.0 are the same key to Python

    def written(self, at: int) -> str:
        """How one writes what leads to a part."""
        if self.kind in ("dataclass", "namedtuple"):
            return f".{(self.names or self.cls._fields)[at]}"  # type: ignore[attr-defined]
        return f"[{(self.names or range(len(self.parts)))[at]!r:.40}]"

    def parts_of(self, value: Any) -> Any:
        """What one container holds."""
        if self.kind == "dict":
            return value.values()
        if self.kind == "dataclass":
            return [getattr(value, name) for name in self.names]
        return tuple.__iter__(value) if isinstance(value, tuple) else value

    def split(self, values: Any) -> list[Sequence[Any]] | None:
        """The values of each part, or None if one of ``values`` is built differently."""
        if type(values) is Rows:
            return self._columns(values.columns)
        if set(map(type, values)) != {self.cls}:
            return None
        if self.kind == "dict":
            if any(tuple(value) != self.names or tuple(map(type, value)) != self.key_types for value in values):
                return None
            return [list(map(itemgetter(name), values)) for name in self.names]
        if self.kind == "dataclass":
            if not all(map(is_plain, values)):
                return None
            return [list(map(attrgetter(name), values)) for name in self.names]
        try:
            parts: list[Sequence[Any]] = list(zip(*values, strict=True))
        except ValueError:  # some are longer
            return None
        return parts if len(parts) == len(self.parts) else None

    def _columns(self, columns: Any) -> list[Sequence[Any]] | None:
        """The same of samples that lie in columns already."""
        names = tuple(columns) if isinstance(columns, dict) else ()
        if (type(columns), names, len(columns)) != (self.cls, self.names, len(self.parts)):
            return None
        return list(columns.values() if names else columns)

    def join(self, parts: Sequence[Sequence[Any]], rows: int) -> list[Any]:
        """The opposite: one container a row."""
        together: Any = zip(*parts, strict=True) if parts else [()] * rows
        if self.kind == "tuple":
            return list(together)
        if self.kind == "dict":
            return [dict(zip(self.names, values, strict=True)) for values in together]
        return [self.build(values) for values in together]

    def build(self, values: Any) -> Any:
        """One container around ``values``."""
        if self.kind == "dict":
            return dict(zip(self.names, values, strict=True))
        if self.kind == "dataclass":
            made: Any = object.__new__(self.cls)
            for name, value in zip(self.names, values, strict=True):
                object.__setattr__(made, name, value)
            return made
        return tuple.__new__(self.cls, values) if self.kind == "namedtuple" else self.cls(values)


Node = Group | Leaf | Aside


class _Unplannable(Exception):
    """The sample is nested too deeply (a cycle, most likely) or has too many parts for columns."""


def describe(sample: Any) -> Node:
    """Plan a tree from one sample."""
    try:
        return _describe(sample, _DEEPEST, iter(range(_MOST_PARTS)))
    except _Unplannable:
        return Aside()


def _describe(value: Any, depth: int, left: Iterator[int]) -> Node:
    group = _group_of(value)
    if group is None:
        return leaf_for(value)
    if not depth:
        raise _Unplannable
    for _ in group.parts:
        if next(left, None) is None:
            raise _Unplannable
    parts = tuple([_describe(part, depth - 1, left) for part in group.parts_of(value)])
    return Group(group.kind, group.cls, group.names, parts, group.key_types)


def _group_of(value: Any) -> Group | None:
    kind = type(value)
    if kind in (tuple, list, dict):
        if len(value) > _WIDEST:
            return None
        keys = tuple(value) if kind is dict else ()
        key_types = tuple(map(type, keys))
        if not _PLAIN_KEYS.issuperset(key_types):
            return None
        return Group(kind.__name__, kind, keys, (Aside(),) * len(value), key_types)
    if isinstance(value, tuple) and _is_namedtuple(kind):
        return Group("namedtuple", kind, (), (Aside(),) * len(value))
    if dataclasses.is_dataclass(value) and is_plain(value):
        names = _field_names(kind)  # type: ignore[arg-type]
        return Group("dataclass", kind, names, (Aside(),) * len(names))
    return None


def _is_static(cls: Any) -> bool:
    """Is it part of a C program as it was compiled, and not made at run time?"""
    return not cls.__flags__ & _MADE_AT_RUN_TIME


def _is_namedtuple(cls: type) -> bool:
    return hasattr(cls, "_fields") and cls.__base__ is tuple and cls.__dict__.get("__slots__") == ()


@functools.lru_cache(maxsize=256)
def _field_names(cls: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]


@functools.lru_cache(maxsize=256)
def _holds_more(cls: type) -> bool:
    """Has an instance contents (of a list, say) or slots that are no fields?"""
    builtin = next(filter(_is_static, cls.__mro__))
    declared = [base.__dict__.get("__slots__", ()) for base in cls.__mro__]
    slots = {name for names in declared for name in ([names] if isinstance(names, str) else names)}
    return builtin is not object or not slots <= {*_field_names(cls), "__weakref__", "__dict__"}


@functools.lru_cache(maxsize=256)
def _says_how_to_copy(cls: Hashable) -> bool:
    """Does the class bring its own way of being pickled?"""
    own = [name for name in ("__getnewargs__", "__getnewargs_ex__") if hasattr(cls, name)]
    own += [name for name in ("__reduce__", "__reduce_ex__") if getattr(cls, name) is not getattr(object, name)]
    states = (getattr(cls, name, None) for name in ("__getstate__", "__setstate__"))
    plain_states = (None, getattr(object, "__getstate__", None))
    return bool(own) or any(s not in plain_states and s.__module__ != "dataclasses" for s in states)


def is_plain(value: Any) -> bool:
    """Does the dataclass instance consist of its fields and nothing else?"""
    if _says_how_to_copy(type(value)) or _holds_more(type(value)):  # type: ignore[arg-type]
        return False
    names = _field_names(type(value))  # type: ignore[arg-type]
    held = getattr(value, "__dict__", None)
    return all(hasattr(value, name) for name in names) if held is None else tuple(held) == names


def columns_of(node: Node) -> Iterator[Leaf]:
    """The leaves that are columns, in the order of the traversal."""
    if isinstance(node, Group):
        for part in node.parts:
            yield from columns_of(part)
    elif isinstance(node, Leaf):
        yield node


def asides_of(node: Node) -> int:
    """How many values of a sample stand aside."""
    if isinstance(node, Group):
        return sum(map(asides_of, node.parts))
    return int(isinstance(node, Aside))


def is_record(node: Node) -> bool:
    """Strings, numbers and the like, as they come from a store: something stands aside, and there is no array."""
    return asides_of(node) > 0 and not any(leaf.shape for leaf in columns_of(node))


def scatter(
    node: Node, samples: Sequence[Any], columns: Iterator[Column], start: int, asides: list[Sequence[Any]]
) -> bool:
    """Write ``samples`` into the rows from ``start`` on; append the values that stand aside, a list for each place.

    False if a sample does not fit the tree; some columns may then have been written, but nothing beyond these rows.
    """
    if isinstance(node, Group):
        parts = node.split(samples)
        return parts is not None and all(
            scatter(part, values, columns, start, asides) for part, values in zip(node.parts, parts, strict=True)
        )
    if isinstance(node, Leaf):
        return node.write(next(columns), start, samples)
    asides.append(samples)
    return True


def is_mutable(node: Node) -> bool:
    """Can the user change a sample's containers in place?"""
    return isinstance(node, Group) and (node.kind not in ("tuple", "namedtuple") or any(map(is_mutable, node.parts)))


def shows(node: Node, samples: Sequence[Any], columns: Iterator[Column], asides: Iterator[Any]) -> bool:
    """Are ``samples`` still what ``gather`` made of these columns?"""
    if isinstance(node, Group):
        parts = node.split(samples)
        return parts is not None and all(
            shows(part, values, columns, asides) for part, values in zip(node.parts, parts, strict=True)
        )
    if isinstance(node, Leaf):
        return node.shows(next(columns), samples)
    return all(map(is_, next(asides), samples))


def gather(node: Node, columns: Iterator[Column], asides: Iterator[Sequence[Any]], rows: int) -> Sequence[Any]:
    """The samples again: one a row, arrays as views of the columns."""
    if isinstance(node, Group):
        return node.join([gather(part, columns, asides, rows) for part in node.parts], rows)
    return node.read(next(columns)) if isinstance(node, Leaf) else next(asides)


def stack(
    node: Node,
    columns: Iterator[Column],
    asides: Iterator[Sequence[Any]],
    rows: int,
    settle: Settle = listed,
    place: Place = (),
) -> Any:
    """The batch as one tree of columns; ``settle`` says what becomes of values that stand aside."""
    if isinstance(node, Group):
        if node.kind == "list" and settle in KEEPING:
            mine, others = (
                list(islice(columns, sum(1 for _ in columns_of(node)))),
                list(islice(asides, asides_of(node))),
            )
            lists = gather(node, iter(mine), iter(others), rows)
            if are_values(lists):
                return settle(place, lists)
            columns, asides = iter(mine), iter(others)
        parts = enumerate(node.parts)
        return node.build([stack(part, columns, asides, rows, settle, (*place, (node, at))) for at, part in parts])
    return node.stack(next(columns)) if isinstance(node, Leaf) else settle(place, next(asides))


def merge(known: Node, seen: Node) -> Node | None:
    """A tree that both fit, what they disagree on standing aside; None where they are built differently.

    Lists may be of any length.
    """
    if known == seen or isinstance(known, Aside):
        return known
    if isinstance(known, Group) and isinstance(seen, Group):
        mine, theirs = dataclasses.replace(known, parts=()), dataclasses.replace(seen, parts=())
        if mine != theirs:
            return None
        if len(known.parts) != len(seen.parts):
            return Aside() if known.kind == "list" else None
        parts = map(merge, known.parts, seen.parts)
        return dataclasses.replace(known, parts=tuple(part or Aside() for part in parts))
    return Aside()
