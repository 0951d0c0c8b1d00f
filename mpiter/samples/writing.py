"""The loop that fetches samples, each written into the columns before the next one.

The loop's code is generated once for each tree (how a sample is built), because a call
for each sample would cost as much as the copy.  Guarantees that type, dtype and shape
of a value are checked before it is written, since NumPy would cast and broadcast; and
that a row's number is on the board (memory that the supervisor reads) before it is
fetched.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .kinds import Kind
from .ragged import Area
from .tree import Group, Made, Node

# The board's cell (``worker.board.CELL``) for the row that is being fetched.
ROW = 3
# The lines after a check that has failed: the sample is sent as an object.
_ODD = "    odd(row, sample); row += 1; continue"
# A list of row views is kept up to so many rows: each takes 100 bytes.
_MOST_ROWS = 256
# Formats of numbers that a memoryview writes without changing a bit.
_EXACT = "?bhilqBHILQd"
# Fetches a block, called with (dataset, keys, row, cells, odd, keep).
Fetch = Callable[..., None]


@functools.lru_cache(maxsize=64)
def loop_for(tree: Node, is_seeded: bool) -> Callable[..., Fetch]:
    """Return a function that takes the columns of ``tree`` and returns their loop.

    The loop fetches the samples of ``keys`` from ``dataset`` one by one, and writes
    from ``row`` on.  It calls ``odd(row, sample)`` with a sample that doesn't fit, and
    ``keep(row, values, sample)`` with the values of one that fits which have no
    column.
    """
    code = _Code()
    code.visit(tree, "sample")
    body = [f"cells[{ROW}] = row"]
    if is_seeded:
        body.append("step()")
    body += ["sample = dataset[key]", *code.lines]
    if code.asides:
        body.append(f"keep(row, ({', '.join(code.asides)},), sample)")
    body.append("row += 1")
    columns = "".join(f"C{at}, " for at in range(code.columns))
    lines = [
        f"def make({columns}step):",
        *(f"    {line}" for line in code.opening),
        "    def fetch(dataset, keys, row, cells, odd, keep):",
        "        for key in keys:",
        *(f"            {line}" for line in body),
        "    return fetch",
    ]
    text = "\n".join(lines)
    exec(compile(text, "<the fetch loop of a layout>", "exec"), code.names)
    return code.names["make"]  # type: ignore[no-any-return]


def places(column: Any) -> Any:
    """Return what the loop assigns to in place of ``column``.

    That is a list of row views, or for numbers a memoryview.  An assignment then takes
    a quarter less time, and with numbers half.
    """
    if isinstance(column, Area):
        return column
    if column.ndim > 1:
        if len(column) <= _MOST_ROWS:
            return [*column]
        return column
    if column.dtype.isnative and column.dtype.char in _EXACT:
        return column.data
    return column


class _Code:
    """Generates the lines that check and write a sample.

    ``names`` has the objects that the lines refer to.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.opening: list[str] = []
        self.names: dict[str, Any] = {"in_order": tuple.__iter__}
        self.asides: list[str] = []
        self.columns = 0
        self._count = 0

    def name(self, value: object) -> str:
        self._count += 1
        self.names[f"v{self._count}"] = value
        return f"v{self._count}"

    def column(self) -> str:
        self.columns += 1
        return f"C{self.columns - 1}"

    def unless(self, fits: str) -> None:
        self.lines += [f"if not ({fits}):", _ODD]

    def unless_raises(self, errors: str, line: str) -> None:
        self.lines += ["try:", f"    {line}", f"except {errors}:", _ODD]

    def visit(self, node: Node, value: str) -> None:
        """Add lines that check and write the value of the variable named ``value``."""
        if isinstance(node, Group):
            self._open(node, value)
        elif isinstance(node, Kind):
            node.lines(self, value)
        else:
            self.asides.append(value)

    def _open(self, group: Group, value: str) -> None:
        cls = self.name(group.cls)
        parts = [f"p{self._count}_{at}" for at in range(len(group.parts))]
        if group.kind == "dict":
            names = self.name(group.names)
            types = self.name(group.key_types)
            # Python takes 1, True and 1.0 for the same key, so types are compared too.
            self.unless(
                f"type({value}) is {cls} and tuple({value}) == {names} and (*map(type, "
                f"{value}),) == {types}"
            )
            held = f"{value}.values()"
        elif isinstance(group, Made):
            self.unless(f"type({value}) is {cls}")
            split = self.name(group.leaf.split)
            held = f"{split}({value}, {len(parts)})"
        # A named tuple's own iteration may be the program's code.
        elif group.kind == "namedtuple" or not parts:
            self.unless(f"type({value}) is {cls} and len({value}) == {len(parts)}")
            held = f"in_order({value})"
        else:
            self.unless(f"type({value}) is {cls}")
            # A list or tuple of another length can't be taken apart into these parts.
            self.unless_raises("ValueError", f"{', '.join(parts)}, = {value}")
            held = ""
        if parts and held:
            self.lines.append(f"{', '.join(parts)}, = {held}")
        for part, variable in zip(group.parts, parts, strict=True):
            self.visit(part, variable)
