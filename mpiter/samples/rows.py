"""Samples as a whole: columns in, and one sample a row for whoever asks.

Pure; runs in workers.  ``Rows`` is a sequence of samples that lie in columns (arrays or lists of one length, in a
tuple, a named tuple or a dict), so that a pen copies them column by column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def container(parts: Any, made: Callable[[Any], Any]) -> Any:
    """A tuple, named tuple or dict like ``parts``, of what is ``made`` of each."""
    if isinstance(parts, dict):
        return {name: made(part) for name, part in parts.items()}
    return tuple.__new__(type(parts) if isinstance(parts, tuple) else tuple, map(made, parts))


class Rows(Sequence[Any]):
    """Samples that lie in ``columns``."""

    __slots__ = ("_length", "columns")

    def __init__(self, columns: Any, length: int) -> None:
        self.columns, self._length = columns, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: Any) -> Any:
        return container(self.columns, lambda column: column[row])

    def __iter__(self) -> Iterator[Any]:
        if type(self.columns) is tuple and self.columns:
            return zip(*self.columns, strict=True)
        return map(self.__getitem__, range(self._length))
