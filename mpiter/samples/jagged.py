"""``Jagged``: rows of several lengths in one array, as ``ragged="jagged"`` hands out.

The rows lie one after the other in ``values``; ``offsets`` says where each begins.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from .leaf import Leaf, add_own

# Lengths that a repr shows.
_SHOWN = 8


def common_dtype(rows: Iterable[Any]) -> np.dtype[Any] | None:
    """Return the dtype that all rows have; None if they differ, or have none.

    NumPy's functions that join arrays would change the byte order of some.
    """
    dtypes = {getattr(row, "dtype", None) for row in rows}
    return dtypes.pop() if len(dtypes) == 1 else None


@dataclasses.dataclass(frozen=True, eq=False, repr=False, slots=True)
class Jagged(Sequence[Any]):
    """Rows that differ in their first dimension, in one array.

    Args:
        values: the rows' elements, one row after the other: an array, or a tensor.
        offsets: whole numbers, one more than there are rows.  Row ``i`` is
            ``values[offsets[i]:offsets[i + 1]]``.

    ``jagged[i]`` is a view of row ``i``, and ``jagged[a:b]`` are some rows on the same
    memory.

    >>> rows = Jagged.of([np.arange(2), np.arange(0), np.arange(3)])
    >>> rows
    Jagged(3 rows of int64, lengths 2, 0, 3)
    >>> rows.values, rows.offsets, rows[2]
    (array([0, 1, 0, 1, 2]), array([0, 2, 2, 5]), array([0, 1, 2]))
    """

    values: Any
    offsets: Any

    @classmethod
    def of(cls, rows: Any) -> Jagged:
        """Return the rows of a list or an array as a ``Jagged``.

        So a batch whose rows happen to have one length, and which is an array, can be
        treated like the others.
        """
        if isinstance(rows, Jagged):
            return rows
        if not len(rows):
            raise ValueError("there are no rows, so nothing says what they are like")
        lengths = [len(row) for row in rows]
        offsets = np.array([*accumulate(lengths, initial=0)], np.int64)
        return cls(np.concatenate(rows, dtype=common_dtype(rows)), offsets)

    @property
    def lengths(self) -> Any:
        """The length of each row."""
        return self.offsets[1:] - self.offsets[:-1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            first, stop, step = row.indices(len(self))
            if step != 1:
                raise IndexError("the rows of a slice lie one after the other: step 1")
            return Jagged(self.values, self.offsets[first : max(first, stop) + 1])
        row = operator.index(row)
        rows = len(self)
        if not -rows <= row < rows:
            raise IndexError(f"there is no row {row} among {rows}")
        at = row % rows
        return self.values[int(self.offsets[at]) : int(self.offsets[at + 1])]

    def __iter__(self) -> Iterator[Any]:
        values = self.values
        for begin, end in pairwise(self.offsets.tolist()):
            yield values[begin:end]

    def __repr__(self) -> str:
        lengths = self.lengths.tolist()
        told = ", ".join(map(str, lengths[:_SHOWN]))
        if len(lengths) > _SHOWN:
            told += ", …"
        shape = "×".join(map(str, self.values.shape[1:]))
        kind = f"{self.values.dtype}"
        if shape:
            kind = f"{shape} {kind}"
        return f"Jagged({len(self)} rows of {kind}, lengths {told})"


class _OfJagged(Leaf[Jagged]):
    """Takes rows of several lengths apart: a worker that collates sends such."""

    kind = Jagged

    def split(self, value: Jagged) -> tuple[Any, ...]:
        return value.values, value.offsets

    def join(self, *parts: object) -> Jagged:
        return Jagged(*parts)


add_own(_OfJagged())
