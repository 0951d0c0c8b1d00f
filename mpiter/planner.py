"""What the next rooms look like: columns planned from the first sample, replanned when the samples turn out otherwise.

Runs in the consumer process, in the prefetch thread.  Guarantees that plans only ever widen (a leaf that varies steps
aside, a margin grows), so that they settle.  A plan is a guess that costs speed when it is wrong, never correctness:
the row that doesn't fit travels as an object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .envelope import ALIGN, Apart, Held, aligned, opened
from .layout import Layout, Pen, RowState
from .leaves import Aside
from .transport import Contents
from .tree import Node, describe, is_record, merge

_COMMON = 4  # replan when one row in so many did not fit
_DONE, _ODD = int(RowState.DONE), int(RowState.ODD)  # compared for every row


class Planner:
    """The layout of the moment, and how it follows the samples."""

    def __init__(
        self,
        batch_size: int,
        most_bytes: int,
        has_margins: bool,
        dumps: Callable[[Any], bytes],
        as_samples: bool = False,
    ) -> None:
        self._batch_size, self._has_margins, self._dumps = batch_size, has_margins, dumps
        self._as_samples = as_samples
        self._most_bytes = most_bytes  # of one room
        self.layout: Layout | None = None
        self.brief = b""

    def plan(self, sample: Any) -> None:
        """Lay out rooms for samples like this one."""
        tree = describe(sample)
        if self._as_samples and is_record(tree):
            tree = Aside()  # pickled and opened as a whole: taking it apart and putting it together costs more
        trial = Layout(tree, 1)
        larges = Pen(trial, memoryview(bytearray(trial.size)), Apart).write(0, [sample])
        self._lay_out(tree, max((self._widened(large) for _, large in larges), default=0))

    def follow(self, odd: dict[int, Any], larges: dict[int, Any], rows: int) -> None:
        """Replan if too many rows of the last batch did not fit."""
        assert self.layout is not None
        tree, margin = self.layout.tree, self.layout.margin
        if len(odd) * _COMMON >= rows:
            for sample in odd.values():
                tree = merge(tree, describe(sample)) or tree
        if len(larges) * _COMMON >= rows:
            margin = max(margin, *(self._widened(large) for large in larges.values()))
        if (tree, margin) != (self.layout.tree, self.layout.margin):
            self._lay_out(tree, margin)

    def _widened(self, large: Any) -> int:
        size = len(large) if self._has_margins and not isinstance(large, Held) else 0
        return aligned(size + size // 4, ALIGN)

    def _lay_out(self, tree: Node, margin: int) -> None:
        layout = Layout(tree, self._batch_size, margin)
        if layout.size > self._most_bytes:
            layout = Layout(tree, self._batch_size, self.layout.margin if self.layout else 0)
        self.layout, self.brief = layout, self._dumps(layout)


def collect(
    layout: Layout, room: Any, rows: int, larges: dict[int, Any], failed: frozenset[int], copy: bool = False
) -> Contents:
    """Read what has been written into ``room``: views of it, or copies."""
    columns = layout.columns(room, rows)
    contents = Contents(layout.tree, rows, [c.copy() for c in columns] if copy else columns, failed=failed, copied=copy)
    states = bytes(memoryview(room)[:rows])
    if not layout.asides and _ODD not in states:
        return contents
    pen = Pen(layout, memoryview(room).cast("B"))
    asides: list[Sequence[Any]] = [(None,) * layout.asides] * rows
    row = 0
    while row < rows:
        state = states[row]
        if state != _ODD and not (state == _DONE and layout.asides):
            row += 1
            continue
        values = opened(larges[row]) if row in larges else pen.asides(row, copy)
        if state == _ODD:
            contents.odd.update(enumerate(values, row))
        else:
            asides[row : row + len(values)] = values
        row += len(values)
    contents.asides = asides if layout.asides else None
    return contents
