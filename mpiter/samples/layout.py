"""Where the columns of a batch lie in a stretch of memory, and what arrives of one.

Pure arithmetic and numpy views; runs on both sides, which compute the same offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import SharedMemoryFull
from ..machine import memory_total
from .envelope import aligned
from .tree import Column, Node, asides_of, columns_of

PAGE = 4096
MANY = 100_000  # rows: samples of so large a batch might fit no memory


@dataclass(frozen=True)
class Layout:
    """Offsets of the columns of ``rows`` samples shaped like ``tree``."""

    tree: Node
    rows: int
    leaves: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...] = field(init=False)  # shape, dtype, offset
    asides: int = field(init=False)  # values of a sample that fit no column
    size: int = field(init=False)

    def __post_init__(self) -> None:
        at, leaves = 0, []
        for leaf in columns_of(self.tree):
            leaves.append((leaf.shape, leaf.dtype, at))
            at = aligned(at + self.rows * leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=object)))
        found = {"leaves": tuple(leaves), "asides": asides_of(self.tree), "size": aligned(at, PAGE) or PAGE}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def columns(self, memory: Any, rows: int | None = None) -> list[Column]:
        """The columns as arrays on ``memory``, any writable buffer."""
        count = self.rows if rows is None else rows
        return [np.ndarray((count, *shape), dtype, memory, at) for shape, dtype, at in self.leaves]


def check_memory(tree: Node, rows: int) -> None:
    """Refuse a batch of such samples that no memory could hold."""
    if rows > MANY and (size := Layout(tree, rows).size) > memory_total():
        raise SharedMemoryFull(
            f"a batch of {rows} samples like the first one takes {size / 1e9:.0f} GB, more than there is; lower "
            f"batch_size."
        )


@dataclass(slots=True)
class Contents:
    """A batch as it arrived: columns where the samples agree, objects where they don't."""

    tree: Node
    rows: int
    columns: list[Column] = field(default_factory=list)
    asides: list[Sequence[Any]] | None = None  # a tuple of values for each row
    objects: list[Any] | None = None  # all samples as they are, with nothing in columns
    odd: dict[int, Any] = field(default_factory=dict)  # whole samples, by row
    failed: frozenset[int] = frozenset()
    copied: bool = False
