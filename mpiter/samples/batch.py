"""What the user gets: a real list of samples that also knows its columns.

Made in the prefetch thread or the consumer, used by the user in whatever way he likes.  Guarantees that columns are
writable and the user's own, valid as long as anything refers to them; that samples fetched by workers are rows of these
columns, while without workers they are the very objects that the dataset returned, as in a loop of one's own, and the
columns a copy of them; that changing the *list* (not what its arrays hold) detaches the columns, which are from then on
collated from the list.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..typevars import T
from .layout import Contents
from .leaves import Array, Aside, Leaf
from .tree import Group, Node, describe, gather, is_mutable, merge, scatter, shows, stack
from .tree import columns_of as leaves_of
from .uneven import Settle, listed


def _asides_of(contents: Contents) -> Iterator[Any]:
    """The values that stand aside, place by place, for a traversal to take."""
    return iter(list(zip(*contents.asides, strict=True)) if contents.asides else ())


def samples_of(contents: Contents) -> list[Any]:
    """The batch as a list: rows of the columns, and the odd ones as they are."""
    if contents.objects is not None:
        if not contents.failed:
            return contents.objects
        return [one for row, one in enumerate(contents.objects) if row not in contents.failed]
    rows = gather(contents.tree, iter(contents.columns), _asides_of(contents), contents.rows)
    samples = rows if isinstance(rows, list) else list(rows)
    for row, sample in contents.odd.items():
        samples[row] = sample
    if contents.failed:
        samples = [sample for row, sample in enumerate(samples) if row not in contents.failed]
    return samples


def columns_of(contents: Contents, settle: Settle = listed, stacks: Stacker | None = None) -> Any:
    """The batch as one tree of columns."""
    return _columns_in(contents, settle) if _is_stacked(contents) else collate(samples_of(contents), settle, stacks)


def _columns_in(contents: Contents, settle: Settle) -> Any:
    return stack(contents.tree, iter(contents.columns), _asides_of(contents), contents.rows, settle)


def _is_stacked(contents: Contents) -> bool:
    """Do its samples lie in the columns, all of them and nothing else?"""
    return bool(contents.rows) and not (contents.odd or contents.failed or isinstance(contents.tree, Aside))


def columns_in_place(batch: Batch[Any]) -> Any | None:
    """The columns if the samples lie stacked already; None if they would have to be collated first."""
    contents = batch._contents
    is_so = contents is not None and _is_stacked(contents) and _still_shows(batch, contents)
    return batch.columns if is_so else None


def _still_shows(batch: Batch[Any], contents: Contents) -> bool:
    """Are the samples those of the columns?  Dicts, say, may have got other values since."""
    if len(batch) != contents.rows or not is_mutable(contents.tree):
        return len(batch) == contents.rows
    return shows(contents.tree, batch, iter(contents.columns), _asides_of(contents))


def collate(samples: Sequence[Any], settle: Settle = listed, stacks: Stacker | None = None) -> Any:
    """Stack samples into columns; ``settle`` says what becomes of what they disagree on."""
    if type(samples) is not list and isinstance(samples, Mapping):
        raise TypeError(f"a batch is made of a list of samples, not of a {type(samples).__name__}; pass a collate_fn.")
    if not len(samples):
        return []
    if (found := (stacks or stacked)(samples)) is not None:
        return _columns_in(found, settle)
    tree: Node = describe(samples[0])
    for sample in samples[1:]:
        merged = merge(tree, describe(sample))
        if merged is None:
            raise TypeError(
                f"the samples of this batch are built differently ({type(samples[0]).__name__} and "
                f"{type(sample).__name__}, or other lengths or keys), so it has no columns.  Build them "
                f"alike in the dataset, pass a collate_fn to a loader, or use the iterators, whose batches are lists."
            )
        tree = merged
    found = stacked(samples, tree)
    assert found is not None, "a tree merged from all samples fits them all"
    return _columns_in(found, settle)


def stacked(samples: Sequence[Any], tree: Node | None = None) -> Contents | None:
    """The samples in columns, by the ``tree`` of the first one unless told; None if another one doesn't fit it."""
    tree = describe(samples[0]) if tree is None else tree
    columns, asides = [np.empty((len(samples), *leaf.shape), leaf.dtype) for leaf in leaves_of(tree)], list[Any]()
    if not scatter(tree, samples, iter(columns), 0, asides):
        return None
    return Contents(tree, len(samples), columns, [*zip(*asides, strict=True)] if asides else None, copied=True)


class Stacker:
    """Stacks batch after batch: tries first whether the samples look like those before, which is cheaper to find out.

    Only where nothing of them stood aside: there they may be anything.
    """

    def __init__(self) -> None:
        self._tree: Node | None = None

    def __call__(self, samples: Sequence[Any]) -> Contents | None:
        if self._tree is not None and (found := stacked(samples, self._tree)) is not None:
            return found
        found = stacked(samples)
        self._tree = None if found is None or found.asides else found.tree
        return found

    def columns(self, samples: list[Any]) -> Any:
        """The columns of samples like those before, if each is an array or a tuple of such; else None."""
        tree, rows = self._tree, len(samples)
        if isinstance(tree, Array):
            column = np.empty((rows, *tree.shape), tree.dtype)
            return tree.stack(column) if tree.write(column, 0, samples) else None
        if (
            not isinstance(tree, Group)
            or tree.kind != "tuple"
            or not all(isinstance(part, Leaf) for part in tree.parts)
        ):
            return None
        found = []
        for leaf, values in zip(tree.parts, tree.split(samples) or (), strict=False):
            assert isinstance(leaf, Leaf)
            column = np.empty((rows, *leaf.shape), leaf.dtype)
            if not leaf.write(column, 0, values):
                return None
            found.append(leaf.stack(column))
        return tuple(found) if found else None


def differing(samples: Any) -> tuple[int, ...]:
    """The first two rows that differ in shape, type or structure, if any do."""
    if not isinstance(samples, list):
        return ()
    trees = [describe(sample) for sample in samples]
    return next(((0, row) for row, tree in enumerate(trees) if tree != trees[0]), ())


def _told(column: Any) -> str:
    """What a column is, in a few words."""
    if isinstance(column, np.ndarray):
        return html.escape(f"{column.dtype} {column.shape}")
    return html.escape(f"{type(column).__name__} of {len(column)}" if hasattr(column, "__len__") else repr(column))


def _detaching(name: str) -> Callable[..., Any]:
    """A list method that changes the list, and so parts it from its columns."""
    method = getattr(list, name)

    @functools.wraps(method)
    def changed(self: Batch[Any], *args: Any, **kwargs: Any) -> Any:
        self._contents = self._stacked = None
        return method(self, *args, **kwargs)

    return changed


_ROWS = Contents(Aside(), 0)  # of a batch that is its list and nothing else


class Batch(list[T]):
    """A list of samples with ``columns``: the same memory, stacked.

    >>> from mpiter import SerialIterator
    >>> batch = next(SerialIterator([(0, "a"), (1, "b")], 2, shuffle=False))
    >>> batch
    [(0, 'a'), (1, 'b')]
    >>> batch.columns
    (array([0, 1]), ['a', 'b'])
    """

    __slots__ = ("_contents", "_stacked")
    _contents: Contents | None

    def __init__(self, contents: Contents) -> None:
        super().__init__(samples_of(contents) if contents.failed or contents.objects is None else contents.objects)
        self._contents = contents
        self._stacked: Any = None

    @classmethod
    def of_rows(cls, samples: list[T]) -> Batch[T]:
        """The same of samples that have not travelled."""
        batch = cls.__new__(cls)
        list.__init__(batch, samples)
        batch._contents, batch._stacked = _ROWS, None
        return batch

    @property
    def columns(self) -> Any:
        """The samples stacked leaf by leaf, in the containers of a sample: ``x, y = batch.columns``."""
        if self._contents is None:
            return collate(self)
        if self._stacked is None:
            self._stacked = collate([*self]) if self._contents is _ROWS else columns_of(self._contents)
        return self._stacked

    def _repr_html_(self) -> str:
        """In a notebook: what its columns are, rather than all that is in them."""
        columns = self.columns
        told: Iterable[tuple[Any, Any]] = [("", columns)]
        if isinstance(columns, (dict, tuple)):
            told = columns.items() if isinstance(columns, dict) else enumerate(columns)
        rows = "".join(f"<tr><th>{html.escape(str(name))}</th><td>{_told(column)}</td></tr>" for name, column in told)
        return f"<table><caption>{len(self)} samples</caption>{rows}</table>"

    def __reduce__(self) -> Any:
        return list, (list(self),)

    def __copy__(self) -> list[T]:
        return list(self)


for _name in (
    *("__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "clear", "extend"),
    *("insert", "pop", "remove", "reverse", "sort"),
):
    setattr(Batch, _name, _detaching(_name))
