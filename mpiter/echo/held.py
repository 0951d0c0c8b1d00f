"""Samples that will come again, kept until their last repeat is out.

Runs in the consumer's thread.  Samples of one shape lie in columns of their own, which grow with their number and are
used again; what fits no column is kept as an object.  Guarantees that what was put in needs no slot of the transport
any more, and that every batch gathered is private to whoever gets it.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..samples.batch import samples_of
from ..samples.layout import Contents
from ..samples.leaves import Aside
from ..samples.tree import Column, Group, Node, asides_of, columns_of

_FEW = 64  # rows to begin with


class Held:
    """Samples by whatever key the caller has for them."""

    def __init__(self) -> None:
        self._shelves: list[_Shelf] = []
        self._places: dict[Hashable, tuple[_Shelf | None, Any]] = {}  # where it lies; or nowhere, and the sample

    def __contains__(self, key: Hashable) -> bool:
        return key in self._places

    def put(self, contents: Contents, keys: Mapping[int, Hashable]) -> None:
        """Take in the rows that have a key; those that have failed are left out."""
        aside = contents.asides if isinstance(contents.tree, Aside) else None
        if contents.objects is not None:
            aside = [(sample,) for sample in contents.objects]
        plain = []
        for row, key in keys.items():
            if row in contents.failed:
                continue
            if row in contents.odd or aside is not None:
                sample = contents.odd[row] if row in contents.odd else aside[row][0]  # type: ignore[index]
                self._places[key] = None, sample if contents.copied else copy.deepcopy(sample)
            else:
                plain.append(row)
        if plain:
            shelf = self._shelf_for(contents.tree)
            for row, place in zip(plain, shelf.put(contents, plain), strict=True):
                self._places[keys[row]] = shelf, place

    def _shelf_for(self, tree: Node) -> _Shelf:
        for shelf in self._shelves:
            if shelf.tree == tree:
                return shelf
        self._shelves.append(_Shelf(tree))
        return self._shelves[-1]

    def drop(self, key: Hashable) -> None:
        """It won't come again; nothing if it isn't there."""
        shelf, place = self._places.pop(key, (None, None))
        if shelf is not None:
            shelf.free.append(place)

    def gather(self, keys: Sequence[Hashable]) -> Contents:
        """A batch of copies."""
        found = [self._places[key] for key in keys]
        shelf = next((shelf for shelf, _ in found if shelf is not None), None)
        if shelf is None:
            return Contents(Aside(), len(keys), asides=[(copy.deepcopy(each),) for _, each in found], copied=True)
        contents = shelf.gather([place if mine is shelf else 0 for mine, place in found])
        for row, (mine, place) in enumerate(found):
            if mine is None:
                contents.odd[row] = copy.deepcopy(place)
            elif mine is not shelf:
                contents.odd[row] = samples_of(mine.gather([place]))[0]
        return contents


class _Shelf:
    """Samples of one shape."""

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self.free: list[int] = []
        self._rows = 0
        self._columns: list[Column] = []
        self._asides: list[Any] | None = [] if asides_of(tree) else None

    def put(self, contents: Contents, rows: list[int]) -> list[int]:
        """Take in some rows; where they lie now."""
        if len(self.free) < len(rows):
            self._grow(contents.columns, len(rows))
        places = [self.free.pop() for _ in rows]
        for mine, theirs in zip(self._columns, contents.columns, strict=True):
            mine[places] = theirs[rows]
        if self._asides is not None:
            assert contents.asides is not None
            for row, place in zip(rows, places, strict=True):
                values = contents.asides[row]
                self._asides[place] = values if contents.copied else copy.deepcopy(values)
        return places

    def _grow(self, like: list[Column], rows: int) -> None:
        more = max(rows, self._rows, _FEW)
        if not self._columns:
            self._columns = [np.empty((0, *column.shape[1:]), column.dtype) for column in like]
        new = (np.empty((self._rows + more, *column.shape[1:]), column.dtype) for column in self._columns)
        for at, (column, larger) in enumerate(zip(list(self._columns), new, strict=True)):
            larger[: self._rows] = column
            self._columns[at] = larger
        if self._asides is not None:
            self._asides += [None] * more
        self.free += range(self._rows + more - 1, self._rows - 1, -1)
        self._rows += more

    def gather(self, places: list[int]) -> Contents:
        asides = None if self._asides is None else [copy.deepcopy(self._asides[place]) for place in places]
        columns = [column[places] for column in self._columns]
        return Contents(self.tree, len(places), columns, asides, copied=True)


def part_of(contents: Contents, part: int, parts: int) -> Contents:
    """Of samples that are tuples of so many parts, one part."""
    tree = contents.tree
    if not (isinstance(tree, Group) and tree.kind == "tuple" and len(tree.parts) == parts):
        samples = samples_of(replace(contents, failed=frozenset()))
        each = (None if row in contents.failed else sample[part] for row, sample in enumerate(samples))
        values: list[Sequence[Any]] = [(one,) for one in each]
        return Contents(Aside(), contents.rows, asides=values, failed=contents.failed, copied=contents.copied)
    columns = [sum(1 for _ in columns_of(one)) for one in tree.parts]
    asides = [asides_of(one) for one in tree.parts]
    start, begin = sum(columns[:part]), sum(asides[:part])
    return replace(
        contents,
        tree=tree.parts[part],
        columns=contents.columns[start : start + columns[part]],
        asides=[each[begin : begin + asides[part]] for each in contents.asides or ()] if asides[part] else None,
        odd={row: sample[part] for row, sample in contents.odd.items()},
    )


def private(contents: Contents) -> Contents:
    """The same once more, with nothing in common."""
    return replace(
        contents,
        columns=[column.copy() for column in contents.columns],
        asides=copy.deepcopy(contents.asides),
        objects=copy.deepcopy(contents.objects),
        odd=copy.deepcopy(contents.odd),
        copied=True,
    )
