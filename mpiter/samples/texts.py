"""Columns of texts and bytes: in a batch's memory, each behind the other.

A batch whose rows come together, as those of a Parquet file do, brings a whole column
of texts.  As UTF-8 in the batch's memory they need no pickle and no pipe.  Pure.
Behind each text lies a NUL, by which Python splits a thousand of them as one; where a
text has a NUL itself, each is cut out by its place.  Guarantees that a text comes back
as it was, also one that is no valid Unicode, and that None comes back among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import NoneType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .kinds import Code
from .ragged import Area, Uneven

# What a column can hold.
Text = str | bytes | None
TEXTS = (str, bytes, NoneType)
_Places = NDArray[np.int64]
# Python's texts may have single surrogates, which UTF-8 lacks.
_ERRORS = "surrogatepass"
_BYTE = np.dtype(np.uint8)


class Texts(Sequence[Text]):
    """Texts or bytes, one after the other in ``data``, each with a NUL behind it.

    ``data[starts[i]:stops[i]]`` is the one with number ``i``.  None has no bytes and no
    NUL: it stops one before its start.  ``kind`` is ``str`` or ``bytes``.
    """

    def __init__(
        self,
        kind: type,
        data: NDArray[np.uint8],
        starts: _Places,
        stops: _Places,
    ) -> None:
        self.kind = kind
        self.data = data
        self.starts = starts
        self.stops = stops
        self._listed: list[Text] | None = None

    @classmethod
    def laid_out(cls, kind: type, data: NDArray[np.uint8], offsets: _Places) -> Texts:
        """Return texts with their NULs from each offset to the next."""
        return cls(kind, data, offsets[:-1], offsets[1:] - 1)

    @classmethod
    def of(cls, values: Sequence[object]) -> Texts | None:
        """Return texts as one, or bytes; None for anything else, and for only None."""
        if isinstance(values, Texts):
            return values
        kinds = set(map(type, values))
        has_nulls = NoneType in kinds
        kinds.discard(NoneType)
        if len(kinds) != 1:
            return None
        [kind] = kinds
        if kind not in (str, bytes):
            return None
        some: Sequence[Any] = values
        if has_nulls:
            some = [value for value in values if value is not None]
        raw = some
        if kind is bytes:
            data = b"\0".join(some) + b"\0"
        else:
            text = "\0".join(some) + "\0"
            data = _encoded(text)
            if len(text) != len(data):
                raw = [*map(_encoded, some)]
        sizes = np.array([*map(len, raw)], np.int64) + 1
        if has_nulls:
            is_there = [value is not None for value in values]
            some_sizes = sizes
            sizes = np.zeros(len(values), np.int64)
            sizes[is_there] = some_sizes
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        return cls.laid_out(kind, np.frombuffer(data, _BYTE), offsets)

    def __len__(self) -> int:
        return len(self.stops)

    def __getitem__(self, row: Any) -> Any:
        return self.tolist()[row]

    def __iter__(self) -> Iterator[Text]:
        return iter(self.tolist())

    def tolist(self) -> list[Text]:
        """Return the values as a list, which is made once."""
        if self._listed is None:
            self._listed = self._made()
        return self._listed

    def _made(self) -> list[Text]:
        is_there = self.stops >= self.starts
        starts = self.starts
        stops = self.stops
        has_nulls = not is_there.all()
        if has_nulls:
            starts = starts[is_there]
            stops = stops[is_there]
        found = _cut(self.kind, self.data.data, starts, stops)
        if not has_nulls:
            return found
        some = iter(found)
        return [next(some) if is_text else None for is_text in is_there.tolist()]


def _cut(kind: type, data: memoryview, starts: _Places, stops: _Places) -> list[Text]:
    found: list[Text] = []
    if kind is bytes:
        for begin, end in zip(starts.tolist(), stops.tolist(), strict=True):
            found.append(bytes(data[begin:end]))
        return found
    # Each worker's rows of a batch lie in a share of their own.
    gaps = np.flatnonzero(starts[1:] != stops[:-1] + 1) + 1
    for first, last in pairwise([0, *gaps.tolist(), len(stops)]):
        if first < last:
            found += _split(data, starts[first:last], stops[first:last])
    return found


def _split(data: memoryview, starts: _Places, stops: _Places) -> list[str]:
    """Return texts that follow each other, one at least."""
    found = _text(data[int(starts[0]) : int(stops[-1])]).split("\0")
    if len(found) == len(stops):
        return found
    places = zip(starts.tolist(), stops.tolist(), strict=True)
    return [_text(data[begin:end]) for begin, end in places]


def _text(data: memoryview) -> str:
    return str(data, "utf-8", _ERRORS)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", _ERRORS)


class TextArea(Area):
    """The rows of a column of texts in a batch's memory."""

    # Texts count as nothing in a batch, wherever they lie.
    nbytes = 0

    def begin(self, rows: int) -> None:
        super().begin(rows)
        # A row that isn't written is None.  What lay here before may be cut texts.
        self.starts[:rows] = 0
        self.stops[:rows] = -1

    def put(self, row: int, value: Text) -> bool:
        """Write the next text; return False if it finds no room."""
        begin, most = self.at
        self.starts[row] = begin
        self.stops[row] = begin - 1
        if value is None:
            return True
        data = value if isinstance(value, bytes) else _encoded(value)
        end = begin + len(data)
        if end >= most:
            return False
        self.values[begin:end] = np.frombuffer(data, _BYTE)
        self.values[end] = 0
        self.stops[row] = end
        self.at[0] = end + 1
        return True

    def extend(self, start: int, texts: Texts) -> bool:
        """Write texts that lie in one piece, into the rows from ``start`` on.

        Return False if they find no room.
        """
        begin, most = self.at
        first = int(texts.starts[0])
        stop = int(texts.stops[-1]) + 1
        end = begin + stop - first
        if end > most:
            return False
        self.values[begin:end] = texts.data[first:stop]
        rows = slice(start, start + len(texts))
        self.starts[rows] = texts.starts + (begin - first)
        self.stops[rows] = texts.stops + (begin - first)
        self.at[0] = end
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class TextColumn(Uneven):
    """A column of texts, or of bytes, some of which may be None."""

    kind: type = str

    area = TextArea

    @classmethod
    def fitting(cls, values: Sequence[object], rows: int) -> Self | None:
        """Return the column that ``values`` fit; None if there is none.

        It has room for batches of ``rows`` rows like them.
        """
        texts = Texts.of(values)
        if texts is None:
            return None
        return cls(_BYTE, kind=texts.kind).with_room_for(texts.tolist(), rows)

    def lines(self, code: Code, value: str) -> None:
        is_text = f"type({value}) is {code.name(self.kind)}"
        area = code.column()
        code.unless(f"({is_text} or {value} is None) and {area}.put(row, {value})")

    def write(self, column: Any, start: int, values: Any) -> bool:
        if not len(values):
            return True
        texts = Texts.of(values)
        if texts is None:
            # With nothing but None among them nothing says what they are.
            if set(map(type, values)) != {NoneType}:
                return False
            return all(
                column.put(row, None) for row in range(start, start + len(values))
            )
        return texts.kind is self.kind and column.extend(start, texts)

    def read(self, column: Any) -> Sequence[Any]:
        rows = len(column.stops)
        return Texts(
            self.kind, column.values, column.starts[:rows], column.stops
        ).tolist()

    def stack(self, column: Any) -> Any:
        return self.read(column)

    def tensor(self, column: Any) -> Any:
        found = self.read(column)
        if None in found:
            raise TypeError("torch's collating refuses None")
        return found

    @property
    def taken(self) -> tuple[type, ...]:
        """The types of its values."""
        return self.kind, NoneType

    def length(self, value: Any) -> int:
        if value is None:
            return 0
        # The NUL behind it takes room as well.
        if isinstance(value, str):
            value = _encoded(value)
        return len(value) + 1
