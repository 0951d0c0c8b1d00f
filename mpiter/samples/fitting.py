"""What the next rooms look like: columns laid out by the first sample, and anew when the samples turn out otherwise.

Runs in the consumer process, in the prefetch thread.  Guarantees that layouts only ever widen (a leaf that varies steps
aside, a margin grows), so that they settle.  A layout is a guess that costs speed when it is wrong, never correctness:
the row that doesn't fit travels as an object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .envelope import ALIGN, Apart, Held, aligned, opened
from .layout import Contents, Layout, Pen, RowState
from .leaves import Aside
from .tree import Node, asides_in, asides_of, describe, is_record, merge

_COMMON = 4  # lay out anew when one row in so many did not fit
_DONE, _ODD = int(RowState.DONE), int(RowState.ODD)  # compared for every row


class Fitting:
    """The layout of the moment, and how it follows the samples."""

    def __init__(
        self,
        most_bytes: int,
        has_margins: bool,
        dumps: Callable[[Any], bytes],
        as_samples: bool = False,
    ) -> None:
        self._has_margins, self._dumps = has_margins, dumps
        self._as_samples = as_samples
        self._rows = 1  # of the largest batch so far
        self._most_bytes = most_bytes  # of one room
        self.layout: Layout | None = None
        self.brief = b""

    def begin(self, sample: Any) -> None:
        """Lay out rooms for samples like this one."""
        tree = describe(sample)
        if self._as_samples and is_record(tree):
            tree = Aside()  # pickled and opened as a whole: taking it apart and putting it together costs more
        aside = Apart([tuple(asides_in(tree, sample))]).part(0, 1).bytes() if asides_of(tree) else b""
        self._lay_out(tree, self._widened(_size(aside)), or_else=0)

    def make_room(self, rows: int) -> Layout:
        """The layout, for so many rows at the least."""
        assert self.layout is not None
        if rows > self._rows:
            self._rows = rows
            self._lay_out(self.layout.tree, self.layout.margin, or_else=0)
        return self.layout

    def follow(self, contents: Contents) -> None:
        """Lay out anew if too many rows of this batch did not fit."""
        if not (contents.odd or contents.apart):
            return
        assert self.layout is not None
        tree, margin = self.layout.tree, self.layout.margin
        if len(contents.odd) * _COMMON >= contents.rows:
            for sample in contents.odd.values():
                tree = merge(tree, describe(sample)) or tree
        if len(contents.apart) * _COMMON >= contents.rows:
            margin = max(margin, *map(self._widened, contents.apart))
        if (tree, margin) != (self.layout.tree, self.layout.margin):
            self._lay_out(tree, margin, or_else=self.layout.margin)

    def _widened(self, size: int) -> int:
        return aligned(size + size // 4, ALIGN) if self._has_margins else 0

    def _lay_out(self, tree: Node, margin: int, or_else: int) -> None:
        layout = Layout(tree, self._rows, margin)
        if layout.size > self._most_bytes:
            layout = Layout(tree, self._rows, or_else)
        self.layout, self.brief = layout, self._dumps(layout)


def _size(envelope: Any) -> int:
    """Of what might lie in a margin."""
    return 0 if isinstance(envelope, Held) else len(envelope)


def collect(
    layout: Layout, room: Any, rows: int, larges: dict[int, Any], failed: frozenset[int], copy: bool = False
) -> Contents:
    """Read what has been written into ``room``: views of it, or copies."""
    columns = layout.columns(room, rows)
    contents = Contents(layout.tree, rows, [c.copy() for c in columns] if copy else columns, failed=failed, copied=copy)
    contents.apart = [_size(large) for large in larges.values()]
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
