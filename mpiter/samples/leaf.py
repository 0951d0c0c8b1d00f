"""Kinds of leaves that a program adds: ``Leaf`` and ``add_leaf``.

Such a value is taken apart into parts that mpiter knows, which have columns of their
own, and is put together again.  Runs wherever samples are looked at.  Workers get what
was added with their settings (``sent`` and ``receive``).  Guarantees that a ``Leaf``
which raises, or returns something wrong, is named in the error by its type.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple

from ..errors import LeafError, OptionError
from ..typevars import T


class Leaf(ABC, Generic[T]):
    """A kind of value that batches are to hold in columns: derive from it.

    ``kind`` is the exact type of the values.  Make the kind known by ``add_leaf``,
    before the first batch.

    >>> from fractions import Fraction
    >>> import mpiter
    >>> class FractionLeaf(mpiter.Leaf[Fraction]):
    ...     kind = Fraction
    ...
    ...     def split(self, value):
    ...         return value.numerator, value.denominator
    ...
    ...     def join(self, numerator, denominator):
    ...         return Fraction(numerator, denominator)
    >>> mpiter.add_leaf(FractionLeaf())
    >>> halves = [Fraction(1, 2), Fraction(3, 2)]
    >>> next(mpiter.batches(halves, 2, n_processes=0, shuffle=False))
    (array([1, 3]), array([2, 2]))
    """

    kind: ClassVar[type]

    @abstractmethod
    def split(self, value: T) -> tuple[Any, ...]:
        """Return the parts of a value, always as many.

        A part is a number, an array, a tensor, a string, or a container of these.  It
        holds no value of type ``kind``.
        """

    @abstractmethod
    def join(self, *parts: Any) -> T:
        """Return the value that has these parts."""

    def stack(self, *columns: Any) -> Any:
        """Return what ``columns`` of a batch shows: unless overridden, a tuple.

        There is a column for each part: an array, a tensor or a list.
        """
        return columns


class Added(NamedTuple):
    """A leaf that was added, and its number among all.

    By the number trees tell it from one that was added before it for the same type.
    """

    leaf: Leaf[Any]
    number: int

    @property
    def name(self) -> str:
        return type(self.leaf).__qualname__

    @property
    def kind(self) -> str:
        """The name of the type of the values."""
        return self.leaf.kind.__qualname__

    @property
    def is_ours(self) -> bool:
        """True for a leaf of mpiter's own."""
        return self.number == _OURS

    def split(self, value: Any, count: int | None = None) -> tuple[Any, ...]:
        """Return the parts of a value.

        Raise a LeafError if they aren't ``count``, the number of another value's parts.
        Sending this value whole would hide the mistake: one of both has too few parts
        to be put together again, and it may be the other one.
        """
        try:
            parts = self.leaf.split(value)
        except Exception as error:
            raise self._failed("split", value, error) from error
        if type(parts) is not tuple or not parts:
            raise self._wrong("split", parts, "a tuple of one part at least")
        if count is not None and len(parts) != count:
            raise self.varies(count, len(parts), f" (called with {value!r:.100})")
        return parts

    def check_outside(self, within: Collection[type]) -> None:
        """Raise a LeafError for a value that was found among the parts of another.

        ``within`` are the types of the values that are being taken apart.  Taking apart
        one that holds values of its own type might never end.
        """
        if self.leaf.kind in within:
            raise LeafError(
                f"{self.name}.split has returned parts that hold a {self.kind} again; "
                "return numbers, arrays, tensors, strings, or containers of these."
            )

    def varies(self, one: int, other: int, which: str = "") -> LeafError:
        """Return the error for a leaf that returns several numbers of parts."""
        return LeafError(
            f"{self.name}.split has returned {_parts(other)}{which}, and "
            f"{_parts(one)} for another {self.kind}; it must return as many for each."
        )

    def join(self, parts: Iterable[Any]) -> Any:
        held = tuple(parts)
        try:
            value = self.leaf.join(*held)
        except Exception as error:
            raise self._failed("join", held, error) from error
        if type(value) is not self.leaf.kind:
            raise self._wrong("join", value, f"a {self.kind}")
        return value

    def stack(self, columns: Iterable[Any]) -> Any:
        held = tuple(columns)
        try:
            return self.leaf.stack(*held)
        except Exception as error:
            raise self._failed("stack", held, error) from error

    def _failed(self, method: str, given: object, error: Exception) -> LeafError:
        return LeafError(
            f"{self.name}.{method} has raised "
            f"{type(error).__name__}: {error!s:.200} (called with {given!r:.100})"
        )

    def _wrong(self, method: str, found: object, wanted: str) -> LeafError:
        return LeafError(
            f"{self.name}.{method} has returned {found!r:.60}; it must return {wanted}."
        )


def _parts(count: int) -> str:
    if count == 1:
        return "1 part"
    return f"{count} parts"


# Leaves that were added, by the type of their values.
added: dict[type, Added] = {}
_numbers = itertools.count(1)
# The number of our own leaves, which every process has.
_OURS = 0


def add_leaf(leaf: Leaf[Any]) -> None:
    """Have batches hold values of type ``leaf.kind`` in columns.

    Call it before the first batch: workers get the leaves that are known when they
    start.  Another leaf for the same type replaces the one before.

    >>> from datetime import timedelta
    >>> from mpiter import Leaf, add_leaf
    >>> class Duration(Leaf[timedelta]):
    ...     kind = timedelta
    ...
    ...     def split(self, value):
    ...         return (value.total_seconds(),)
    ...
    ...     def join(self, seconds):
    ...         return timedelta(seconds=seconds)
    >>> add_leaf(Duration())
    """
    if not isinstance(leaf, Leaf):
        raise OptionError(
            f"add_leaf({leaf!r:.60}) needs an object of a class that is derived from "
            "mpiter.Leaf."
        )
    name = type(leaf).__qualname__
    kind = getattr(leaf, "kind", None)
    if not isinstance(kind, type):
        raise OptionError(f"{name}.kind must be the type of its values, not {kind!r}.")
    if kind.__module__.partition(".")[0] in _KNOWN:
        raise OptionError(
            f"{name}.kind is {kind.__qualname__}, whose values mpiter knows by itself; "
            "wrap them in a class of yours."
        )
    added[kind] = Added(leaf, next(_numbers))


# Types of these libraries are numbers, arrays, texts and containers.
_KNOWN = ("builtins", "numpy", "torch", "jaxlib", "mpiter")


def add_own(leaf: Leaf[Any]) -> None:
    """Add a leaf of mpiter's own."""
    added[leaf.kind] = Added(leaf, _OURS)


def sent(dumps: Callable[[Any], bytes]) -> list[bytes]:
    """Return the leaves of the program, pickled for workers."""
    found = []
    for one in added.values():
        if one.number == _OURS:
            continue
        try:
            found.append(dumps(one))
        except Exception as error:
            raise LeafError(f"{one.name} cannot be sent to workers: {error}") from error
    return found


def receive(leaves: Sequence[Added]) -> None:
    """Add, in a worker, the leaves that were sent."""
    for one in leaves:
        added[one.leaf.kind] = one


def name_of(one: Added) -> str:
    """Return the name of the type of a leaf's values, for states."""
    kind = one.leaf.kind
    return f"{kind.__module__}.{kind.__qualname__}"


def named(name: object) -> Added:
    """Return the leaf whose values have a type of this name."""
    for one in added.values():
        if name_of(one) == name:
            return one
    raise LookupError(f"no leaf for {name!r:.60} was added, see mpiter.add_leaf")
