"""The loop that fetches samples and writes each into the batch's columns before it
fetches the next.

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

import numpy as np

from . import jax_arrays, tensors
from .tree import Array, Group, Leaf, Node, Number, OfJax, Tensor

# The board's cell (``worker.board.CELL``) for the row that is being fetched.
ROW = 3
_ODD = "    odd(row, sample); row += 1; continue"
# Raised by NumPy, and by a memoryview.
_TOO_LARGE = "(OverflowError, ValueError)"
# A list of row views is kept up to so many rows: each takes 100 bytes.
_MOST_ROWS = 256
# Formats of numbers that a memoryview writes without changing a bit.
_EXACT = "?bhilqBHILQd"
# (dataset, keys, row, cells, odd, keep) for a block.
Fetch = Callable[..., None]


@functools.lru_cache(maxsize=64)
def loop_for(tree: Node | None, is_seeded: bool) -> Callable[..., Fetch]:
    """Return a generated function that takes the columns of ``tree`` and returns the
    loop that fills them.

    The loop fetches the samples of ``keys`` from ``dataset`` one by one, and writes
    from ``row`` on.  It calls ``odd(row, sample)`` with a sample that doesn't fit, and
    ``keep(row, values, sample)`` with the values of one that fits which have no
    column.  Without a tree it calls ``keep(sample)`` with each sample.
    """
    code = _Code()
    if tree is not None:
        code.visit(tree, "sample")
    if code.asides:
        kept = f"keep(row, ({', '.join(code.asides)},), sample)"
    else:
        kept = "" if tree else "keep(sample)"
    body = [
        f"cells[{ROW}] = row",
        *["step()"] * is_seeded,
        "sample = dataset[key]",
        *code.lines,
        *filter(None, [kept]),
        "row += 1",
    ]
    columns = "".join(f"C{at}, " for at in range(code.columns))
    text = "\n".join(
        [
            f"def make({columns}step):",
            "    def fetch(dataset, keys, row, cells, odd, keep):",
            "        for key in keys:",
            *(f"            {line}" for line in body),
            "    return fetch",
        ]
    )
    exec(compile(text, "<the fetch loop of a layout>", "exec"), code.names)
    return code.names["make"]  # type: ignore[no-any-return]


def places(column: Any) -> Any:
    """Return what the loop assigns to in place of ``column``: a list of row views, or
    for numbers a memoryview.

    An assignment then takes a quarter less time, and with numbers half.
    """
    if column.ndim > 1:
        if len(column) <= _MOST_ROWS:
            return [*column]
        return column
    if column.dtype.isnative and column.dtype.char in _EXACT:
        return column.data
    return column


class _Code:
    """Generates the lines that check and write a sample; ``names`` has the objects that
    the lines refer to.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "ndarray": np.ndarray,
            "memmap": np.memmap,
            "as_array": tensors.as_array,
        }
        self.names["of_jax"] = jax_arrays.as_array
        self.names["in_order"] = tuple.__iter__
        self.asides: list[str] = []
        self.columns = self._count = 0

    def _name(self, value: Any) -> str:
        self._count += 1
        self.names[f"v{self._count}"] = value
        return f"v{self._count}"

    def _unless(self, fits: str) -> None:
        self.lines += [f"if not ({fits}):", _ODD]

    def visit(self, node: Node, value: str) -> None:
        """Add lines that check and write the value of the variable named ``value``."""
        if isinstance(node, Group):
            self._open(node, value)
        elif isinstance(node, Leaf):
            self._write(node, value)
        else:
            self.asides.append(value)

    def _open(self, group: Group, value: str) -> None:
        cls = self._name(group.cls)
        parts = [f"p{self._count}_{at}" for at in range(len(group.parts))]
        if group.kind == "dict":
            names = self._name(group.names)
            types = self._name(group.key_types)
            self._unless(
                f"type({value}) is {cls} and tuple({value}) == {names} and (*map(type, "
                f"{value}),) == {types}"
            )
            held = f"{value}.values()"
        elif group.kind == "namedtuple" or not parts:
            self._unless(f"type({value}) is {cls} and len({value}) == {len(parts)}")
            held = f"in_order({value})"
        else:
            self._unless(f"type({value}) is {cls}")
            # More parts, say
            self.lines += [
                "try:",
                f"    {', '.join(parts)}, = {value}",
                "except ValueError:",
                _ODD,
            ]
            held = ""
        if parts and held:
            self.lines.append(f"{', '.join(parts)}, = {held}")
        for part, variable in zip(group.parts, parts, strict=True):
            self.visit(part, variable)

    def _write(self, leaf: Leaf, value: str) -> None:
        column = f"C{self.columns}[row]"
        dtype = self._name(leaf.dtype)
        self.columns += 1
        if isinstance(leaf, Number):
            self._unless(f"type({value}) is {self._name(leaf.kind)}")
            # An int beyond 64 bits.
            self.lines += [
                "try:",
                f"    {column} = {value}",
                f"except {_TOO_LARGE}:",
                _ODD,
            ]
            return
        is_dtype = f"({value}.dtype is {dtype} or {value}.dtype == {dtype})"
        if isinstance(leaf, (Tensor, OfJax)):
            array = f"a{self.columns}"
            shows = "as_array" if isinstance(leaf, Tensor) else "of_jax"
            self.lines.append(f"{array} = {shows}({value})")
            self._unless(
                f"{array} is not None and {is_dtype.replace(value, array)} and "
                f"{array}.shape == {leaf.shape!r}"
            )
            value = array
        elif isinstance(leaf, Array):
            self._unless(
                f"(type({value}) is ndarray or type({value}) is memmap) and {is_dtype} "
                f"and {value}.shape == {leaf.shape!r}"
            )
        else:
            kind = self._name(leaf.dtype.type)
            # Dates have units, strings have lengths.
            says_more = leaf.dtype.kind not in "biufc"
            self._unless(
                f"type({value}) is "
                f"{kind}{f' and {value}.dtype == {dtype}' if says_more else ''}"
            )
        self.lines.append(
            f"{column}[...] = {value}" if leaf.shape else f"{column} = {value}"
        )
