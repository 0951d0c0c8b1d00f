"""The loop that fetches samples and writes each where it stands before the next is asked for.

Runs in workers.  The loop is a function made once for the shape of a sample: a call for each sample, or for each of its
parts, would cost as much as the copy.  Guarantees that a value is compared by type, dtype and shape before it is
written, since NumPy would cast and broadcast in silence; that a sample which doesn't fit is set aside as a whole; and
that a row is noted on the board before it is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from . import tensors
from .tree import Array, Group, Leaf, Node, Number, Tensor, is_plain

ROW = 3  # the cell of the board (``worker.board.Cell``) that has the row in hand
_ODD = "    odd(row, sample); row += 1; continue"
_TOO_LARGE = "(OverflowError, ValueError)"  # as NumPy says it, and a memoryview
_MOST_ROWS = 256  # of a slot whose arrays are kept apart: each takes 100 bytes
_EXACT = "?bhilqBHILQd"  # numbers that a memoryview takes bit by bit
Fetch = Callable[..., None]  # (dataset, keys, row, cells, odd, keep, born) for a block


@functools.lru_cache(maxsize=64)
def loop_for(tree: Node | None, is_seeded: bool) -> Callable[..., Fetch]:
    """Generate the function that makes the loop that fills such columns.

    The loop asks ``dataset`` for one of the ``keys`` after the other, and writes from ``row`` on.  ``odd(row, sample)``
    takes a sample that doesn't fit, ``keep(row, values, sample)`` the values of one that does which have no
    column.  Without a
    tree ``keep(sample)`` takes each sample.
    """
    code = _Code()
    if tree is not None:
        code.visit(tree, "sample")
    kept = f"keep(row, ({', '.join(code.asides)},), sample)" if code.asides else "" if tree else "keep(sample)"
    body = [
        f"cells[{ROW}] = row",
        *["step()"] * is_seeded,
        "sample = dataset[key]",
        "if home.generation != born: home.end_child(born)",
        *code.lines,
        *filter(None, [kept]),
        "row += 1",
    ]
    columns = "".join(f"C{at}, " for at in range(code.columns))
    text = "\n".join(
        [
            f"def make({columns}step, home):",
            "    def fetch(dataset, keys, row, cells, odd, keep, born):",
            "        for key in keys:",
            *(f"            {line}" for line in body),
            "    return fetch",
        ]
    )
    exec(compile(text, "<the fetch loop of a layout>", "exec"), code.names)
    return code.names["make"]  # type: ignore[no-any-return]


def places(column: Any) -> Any:
    """The targets of the loop's assignments: a column's rows one by one, numbers as plain memory.

    It saves a quarter of what an assignment takes, and half.
    """
    if column.ndim > 1:
        return [*column] if len(column) <= _MOST_ROWS else column
    return column.data if column.dtype.isnative and column.dtype.char in _EXACT else column


class _Code:
    """The lines that check a sample and write it, and what they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"ndarray": np.ndarray, "memmap": np.memmap, "as_array": tensors.as_array}
        self.names |= {"is_plain": is_plain, "in_order": tuple.__iter__}
        self.asides: list[str] = []
        self.columns = self._count = 0

    def _name(self, value: Any) -> str:
        """A name for a value that the lines refer to."""
        self._count += 1
        self.names[f"v{self._count}"] = value
        return f"v{self._count}"

    def _unless(self, fits: str) -> None:
        self.lines += [f"if not ({fits}):", _ODD]

    def visit(self, node: Node, value: str) -> None:
        """Check and write what lies in the variable ``value``."""
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
            names, types = self._name(group.names), self._name(group.key_types)
            self._unless(f"type({value}) is {cls} and tuple({value}) == {names} and (*map(type, {value}),) == {types}")
            held = f"{value}.values()"
        elif group.kind == "dataclass":
            self._unless(f"type({value}) is {cls} and is_plain({value})")
            held = "".join(f"{value}.{name}, " for name in group.names) or "()"
        elif group.kind == "namedtuple" or not parts:
            self._unless(f"type({value}) is {cls} and len({value}) == {len(parts)}")
            held = f"in_order({value})"
        else:
            self._unless(f"type({value}) is {cls}")
            self.lines += ["try:", f"    {', '.join(parts)}, = {value}", "except ValueError:", _ODD]  # is longer, say
            held = ""
        if parts and held:
            self.lines.append(f"{', '.join(parts)}, = {held}")
        for part, variable in zip(group.parts, parts, strict=True):
            self.visit(part, variable)

    def _write(self, leaf: Leaf, value: str) -> None:
        column, dtype = f"C{self.columns}[row]", self._name(leaf.dtype)
        self.columns += 1
        if isinstance(leaf, Number):
            self._unless(f"type({value}) is {self._name(leaf.kind)}")
            self.lines += ["try:", f"    {column} = {value}", f"except {_TOO_LARGE}:", _ODD]  # an int beyond 64 bits
            return
        is_dtype = f"({value}.dtype is {dtype} or {value}.dtype == {dtype})"
        if isinstance(leaf, Tensor):
            array = f"a{self.columns}"
            self.lines.append(f"{array} = as_array({value})")
            self._unless(
                f"{array} is not None and {is_dtype.replace(value, array)} and {array}.shape == {leaf.shape!r}"
            )
            value = array
        elif isinstance(leaf, Array):
            self._unless(
                f"(type({value}) is ndarray or type({value}) is memmap) and {is_dtype} and "
                f"{value}.shape == {leaf.shape!r}"
            )
        else:
            kind = self._name(leaf.dtype.type)
            says_more = leaf.dtype.kind not in "biufc"  # dates have units, strings have lengths
            self._unless(f"type({value}) is {kind}{f' and {value}.dtype == {dtype}' if says_more else ''}")
        self.lines.append(f"{column}[...] = {value}" if leaf.shape else f"{column} = {value}")
