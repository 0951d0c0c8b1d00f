"""How many bytes a batch has, whoever fetched it: those of its arrays and its numbers.

Pure.  Guarantees that samples which lie in columns count as much as the same samples
in a list.  Assumes nothing of the batch, which a collate function of the user's may
have made: what isn't known here counts as nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .batch import Batch, stacked_in
from .kinds import kind_of
from .leaf import added

# Levels of nesting.  What is deeper counts as nothing.
_DEEPEST = 100


def nbytes_of(batch: object) -> int:
    """Return the bytes of the arrays, tensors and numbers in a batch.

    They may lie in tuples, lists and mappings, and in values of added leaves.  What is
    there twice counts twice; texts and other objects count as nothing.
    """
    return _Counting().of_one(batch)


class _Counting:
    """Counts one batch, and knows which containers are around the present value."""

    def __init__(self) -> None:
        # Their ids: a container that holds itself would otherwise have no end.
        self._around: set[int] = set()

    def of_one(self, value: Any) -> int:
        kind = type(value)
        leaf = kind_of(kind)
        if leaf is not None:
            return leaf.nbytes(value)
        if kind in added:
            return self._inside(value, added[kind].split(value))
        if kind is Batch:
            # Fetched by workers, thousands of samples lie in a few columns.
            found = stacked_in(value)
            if found is not None:
                of_columns = sum(column.nbytes for column in found.columns)
                return of_columns + self._inside(value, found.asides or ())
        if isinstance(value, Mapping):
            return self._inside(value, [*value.values()])
        if isinstance(value, (list, tuple)):
            return self._inside(value, value)
        return 0

    def _inside(self, container: object, values: Collection[Any]) -> int:
        """Return the bytes of ``values``, which are what ``container`` holds."""
        kinds = set(map(type, values))
        if len(kinds) == 1:
            leaf = kind_of(kinds.pop())
            # The numbers of a long list needn't be looked at one by one.
            if leaf is not None and leaf.bytes_each is not None:
                return leaf.bytes_each * len(values)
        around = self._around
        if id(container) in around or len(around) == _DEEPEST:
            return 0
        around.add(id(container))
        total = sum(map(self.of_one, values))
        around.discard(id(container))
        return total
