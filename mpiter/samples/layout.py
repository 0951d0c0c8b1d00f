"""Where everything of one batch lies in a stretch of memory, and the pen that writes rows into it.

Pure arithmetic and numpy views; runs on both sides.  A batch's room holds, in this order: one state byte a row, one
length a row, the columns, and a margin a row for what the row carries beside its columns.  Rows that are written
together are sealed together where there is room for it, in one envelope across their margins, whose length stands with
the first of them.  Guarantees that nothing is written beyond the share of the rows being written, data before state,
and that both sides compute the same offsets.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from .envelope import Sealer, aligned, open_envelope, seal
from .reuse import Data, Waiting
from .tree import Column, Node, asides_of, columns_of, scatter

PAGE = 4096
_MOST_AT_ONCE = 128  # rows written at once: numpy's cost per call is then negligible
_BYTES_AT_ONCE = 1 << 22  # …unless they are so large that they would have left the cache
_MOST_TOGETHER = 1 << 22  # bytes that go along in one piece: whoever keeps one of its arrays keeps all of it


class RowState(IntEnum):
    """What has become of a row; the row being fetched right now is named by its worker on the board."""

    TODO = 0  # nobody has finished it
    DONE = 1  # its columns are written, and what stands aside lies in the margin or travelled with the ticket
    ODD = 2  # it doesn't fit the columns: the whole sample lies in the margin or travelled with the ticket
    FAILED = 3  # the dataset raised; the ticket says what


@dataclass(frozen=True)
class Layout:
    """Offsets within a room of ``rows`` samples shaped like ``tree``, with ``margin`` bytes a row to spare."""

    tree: Node
    rows: int
    margin: int = 0
    leaves: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...] = field(init=False)  # shape, dtype, offset
    asides: int = field(init=False)
    lengths_at: int = field(init=False)
    margin_at: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        lengths_at = aligned(self.rows)
        at, leaves = aligned(lengths_at + 4 * self.rows), []
        for leaf in columns_of(self.tree):
            leaves.append((leaf.shape, leaf.dtype, at))
            at = aligned(at + self.rows * leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=object)))
        found = {
            "leaves": tuple(leaves),
            "asides": asides_of(self.tree),
            "lengths_at": lengths_at,
            "margin_at": at,
            "size": aligned(at + self.rows * self.margin, PAGE),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def row_bytes(self) -> int:
        return self.size // max(self.rows, 1)

    @functools.cached_property
    def stride(self) -> int:
        """Rows that are best written at once."""
        return max(1, min(_MOST_AT_ONCE, _BYTES_AT_ONCE // self.row_bytes))

    def columns(self, room: Any, rows: int | None = None) -> list[Column]:
        """The columns as arrays on ``room``, any writable buffer."""
        count = self.rows if rows is None else rows
        return [np.ndarray((count, *shape), dtype, room, at) for shape, dtype, at in self.leaves]


@dataclass(slots=True)
class Contents:
    """A batch as it arrived: columns where the samples agree, objects where they don't."""

    tree: Node
    rows: int
    columns: list[Column] = field(default_factory=list)
    asides: list[Sequence[Any]] | None = None  # a tuple of values for each row
    objects: list[Any] | None = None  # all samples as they are, with nothing in columns: they have not travelled
    odd: dict[int, Any] = field(default_factory=dict)  # whole samples, by row
    apart: list[int] = field(default_factory=list)  # bytes of what found no room in its row, and came by itself
    failed: frozenset[int] = frozenset()
    copied: bool = False


class Pen:
    """Writes samples into the rows of one room; what finds no room there goes along, rows by themselves or together."""

    def __init__(
        self,
        layout: Layout,
        room: memoryview,
        sealer: Sealer = seal,
        together: bool = False,
        data: Data | None = None,
    ) -> None:
        self.layout = layout
        self._seal, self._together = sealer, together
        self._data = data  # None: nobody looks at what waits
        self.columns = layout.columns(room)
        self.states = room[: layout.rows]
        self.lengths = room[layout.lengths_at : layout.lengths_at + 4 * layout.rows].cast("i")
        self._margins = room[layout.margin_at : layout.margin_at + layout.rows * layout.margin]

    def write(self, row: int, samples: Sequence[Any], at_once: bool = False) -> list[tuple[int, Any]]:
        """Write ``samples`` into the rows from ``row`` on; returns what must travel with the ticket, by first row.

        Raises Reused unless it is known of all that they are what they were when the dataset returned them; ``at_once``
        says that it has returned them all in one.
        """
        waiting = Waiting(self._data, at_once) if self._data is not None and len(samples) > 1 else None
        asides: list[Any] = []
        if scatter(self.layout.tree, samples, iter(self.columns), row, asides, waiting):
            if waiting is not None:
                waiting.check()
            return self._finish(row, len(samples), asides)
        each = list(samples)
        if waiting is not None:
            waiting.look_into(each)
            waiting.check()
        return self._write_each(row, each)

    def _write_each(self, row: int, samples: list[Any]) -> list[tuple[int, Any]]:
        """Write samples, one of which doesn't fit."""
        if len(samples) == 1:
            return self._keep_aside(row, self._seal(samples), 0, 1, RowState.ODD)
        written, half = [], len(samples) // 2
        for at, some in ((row, samples[:half]), (row + half, samples[half:])):
            asides: list[Any] = []
            fit = scatter(self.layout.tree, some, iter(self.columns), at, asides)
            written += self._finish(at, len(some), asides) if fit else self._write_each(at, some)
        return written

    def _finish(self, row: int, count: int, asides: list[Any]) -> list[tuple[int, Any]]:
        """The columns of these rows are written; so is what stands aside, now."""
        if self.layout.asides:
            values = list(zip(*asides, strict=True))
            return self._keep_aside(row, self._seal(values), 0, len(values), RowState.DONE)
        self.states[row : row + count] = bytes((RowState.DONE,)) * count
        return []

    def _keep_aside(self, row: int, sealed: Any, begin: int, end: int, state: RowState) -> list[tuple[int, Any]]:
        """In the margins of these rows, the fewer together the less room there is."""
        envelope, count, margin = sealed.part(begin, end), end - begin, self.layout.margin
        fits = envelope.size <= count * margin
        if not fits and count > 1 and not (self._together and envelope.size <= _MOST_TOGETHER):
            middle = begin + count // 2
            first = self._keep_aside(row, sealed, begin, middle, state)
            return [*first, *self._keep_aside(row + middle - begin, sealed, middle, end, state)]
        if fits:
            envelope.write(self._margins[row * margin : row * margin + envelope.size])
        self.lengths[row] = envelope.size if fits else 0
        self.states[row : row + count] = bytes((state,)) * count
        return [] if fits else [(row, envelope.bytes())]

    def asides(self, row: int, copy: bool = False) -> list[Any]:
        """What lies in the margin for ``row`` and those after it: its arrays are views of it, or of a copy."""
        start = row * self.layout.margin
        found = self._margins[start : start + self.lengths[row]]
        return open_envelope(memoryview(bytearray(found)) if copy else found)
