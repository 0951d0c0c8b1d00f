"""``Rows``: samples that lie in columns, as a sequence of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def container(parts: Any, made: Callable[[Any], Any]) -> Any:
    """Return a tuple, named tuple or dict like ``parts``, of ``made`` of each part."""
    if isinstance(parts, dict):
        return {name: made(part) for name, part in parts.items()}
    kind = type(parts) if isinstance(parts, tuple) else tuple
    return tuple.__new__(kind, map(made, parts))


class Rows(Sequence[Any]):
    """Samples that lie in ``columns``, arrays or lists of one length.

    The columns are in a tuple, a named tuple or a dict.
    """

    __slots__ = ("_length", "columns")

    def __init__(self, columns: Any, length: int) -> None:
        self.columns = columns
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: Any) -> Any:
        return container(self.columns, lambda column: column[row])

    def __iter__(self) -> Iterator[Any]:
        if type(self.columns) is tuple and self.columns:
            return zip(*self.columns, strict=True)
        return map(self.__getitem__, range(self._length))
