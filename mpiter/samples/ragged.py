"""Ragged columns: arrays of one dtype and one shape but for the first dimension.

The values of all rows lie one after the other in one area of the slot, and two numbers
a row say where each begins and ends.  Pure.  A block of rows (which one worker writes)
has a share of the area of its own, as long as its rows have room together, so that
workers need no lock.  A row that finds no room there is sent as an object, like any
value that doesn't fit.  A batch of several blocks has gaps between the shares:
``Area.packed`` closes them, when the values are handed out in one piece.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from math import ceil, prod
from typing import Any, ClassVar, Self

import numpy as np

from .envelope import aligned
from .jagged import Jagged
from .kinds import Array, Code, Column, Kind, condition

# Bytes of a row's begin or end.
_NUMBER = 8
# The room is that of the mean length so far and a little more: by how much, and by how
# many standard deviations of the mean of a quarter of a batch.  Workers may share a
# batch, and fewer rows are further from the mean.
_MORE = 1.1
_DEVIATIONS = 4
_SHARED_BY = 4


class Area:
    """The rows of a ragged column in a batch's memory, or those from some row on.

    ``at`` says where in ``values`` the next row goes, and where it must end.
    """

    def __init__(
        self,
        values: Column,
        starts: Column,
        stops: Column,
        room: int,
        first: int = 0,
    ) -> None:
        self.values = values
        # There is one more than there are rows: together with it these are offsets.
        self.starts = starts
        self.stops = stops
        self._room = room
        self._first = first
        self.at = [first * room, len(values)]

    def __getitem__(self, rows: slice) -> Self:
        """Return the rows from ``rows.start`` on."""
        row = rows.start
        first = self._first + row
        starts = self.starts[row:]
        return type(self)(self.values, starts, self.stops[row:], self._room, first)

    @property
    def nbytes(self) -> int:
        """The bytes of the rows, without what is free behind them."""
        row_bytes = self.values[:1].nbytes
        return sum(stop - start for start, stop in self.spans()) * row_bytes

    def begin(self, rows: int) -> None:
        """Prepare for the first ``rows`` rows to be written, from the first on."""
        self.at[0] = self._first * self._room
        self.at[1] = min((self._first + rows) * self._room, len(self.values))

    def open(self) -> tuple[Any, Any, Any, list[int]]:
        """Return what the generated loop writes to."""
        return self.values, self.starts.data, self.stops.data, self.at

    def spans(self) -> Iterator[tuple[int, int]]:
        """Return begin and end of each row."""
        return zip(self.starts.tolist(), self.stops.tolist(), strict=False)

    def packed(self) -> tuple[Column, Column]:
        """Return the values of all rows in one piece, and their offsets.

        All rows must have been written.
        """
        starts = self.starts
        stops = self.stops
        rows = len(stops)
        gaps = np.flatnonzero(starts[1:rows] != stops[:-1]) + 1
        if len(gaps) or starts[0]:
            # Each share is moved to the end of what is before it.
            end = 0
            for first, last in zip([0, *gaps], [*gaps, rows], strict=True):
                begin = int(starts[first])
                size = int(stops[last - 1]) - begin
                self.values[end : end + size] = self.values[begin : begin + size]
                starts[first:last] -= begin - end
                stops[first:last] -= begin - end
                end += size
        starts[rows] = stops[-1]
        return self.values[: int(stops[-1])], starts

    def copy(self) -> Self:
        # A row that wasn't written names any place.
        end = min(max(int(self.stops.max()), 0), len(self.values))
        return type(self)(
            self.values[:end].copy(),
            self.starts.copy(),
            self.stops.copy(),
            self._room,
            self._first,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Uneven(Kind):
    """A column whose values have several lengths.

    ``shape`` is that of a value without its first dimension.
    """

    # Elements of the first dimension for each row: what is reserved.
    room: int = 0

    is_ragged: ClassVar[bool] = True
    area: ClassVar[type[Area]] = Area

    def length(self, value: Any) -> int:
        """Return how many elements a value takes."""
        raise NotImplementedError

    def _values(self, rows: int) -> int:
        """Return the bytes of the values."""
        size = rows * self.room * prod(self.shape) * self.dtype.itemsize
        return aligned(size)

    def size(self, rows: int) -> int:
        return self._values(rows) + aligned((rows + 1) * _NUMBER) + rows * _NUMBER

    def column(
        self,
        memory: Any,
        at: int,
        rows: int,
        count: int,
    ) -> Any:
        length = rows * self.room
        values = np.ndarray((length, *self.shape), self.dtype, memory, at)
        at += self._values(rows)
        starts = np.ndarray(count + 1, np.int64, memory, at)
        at += aligned((rows + 1) * _NUMBER)
        stops = np.ndarray(count, np.int64, memory, at)
        return self.area(values, starts, stops, self.room)

    def sent(self, column: Any) -> list[Column]:
        """Return the values that were written, and the begins and ends of the rows."""
        return [column.values[: column.at[0]], column.starts[:-1], column.stops]

    def fill(
        self,
        column: Any,
        row: int,
        rows: int,
        sent: Iterator[Any],
    ) -> None:
        values = np.frombuffer(next(sent), self.dtype).reshape(-1, *self.shape)
        begin = row * self.room
        column.values[begin : begin + len(values)] = values
        for numbers in (column.starts, column.stops):
            numbers[row : row + rows] = np.frombuffer(next(sent), np.int64)
            numbers[row : row + rows] += begin

    def with_room_for(self, values: Sequence[Any], rows: int) -> Self:
        """Return the column with room for batches of ``rows`` values like these.

        It is more room than before.
        """
        lengths = np.array([*map(self.length, values)])
        shared = max(1, rows // _SHARED_BY)
        likely = lengths.mean() * _MORE + _DEVIATIONS * lengths.std() / shared**0.5
        room = max(1, ceil(min(likely, lengths.max() * _MORE)))
        if self.room:
            room = max(room, ceil(self.room * _MORE))
        return dataclasses.replace(self, room=room)


@dataclasses.dataclass(frozen=True, slots=True)
class Ragged(Uneven):
    """A ragged column of arrays, tensors or JAX's arrays.

    No single value shows that it is one of these: ``widened`` makes it of two that
    differ.
    """

    # What each value is.
    item: type[Array] = Array

    def length(self, value: Any) -> int:
        return len(value)

    def lines(self, code: Code, value: str) -> None:
        array = self.item.shown(code, value)
        fits = f"{condition(code, array, self.dtype)} and {array}.ndim == {self.ndim}"
        if self.shape:
            fits += f" and {array}.shape[1:] == {self.shape}"
        code.unless(fits)
        area = code.column()
        values = f"values{area}"
        starts = f"starts{area}"
        stops = f"stops{area}"
        at = f"at{area}"
        begin = f"begin{area}"
        end = f"end{area}"
        code.opening.append(f"{values}, {starts}, {stops}, {at} = {area}.open()")
        code.lines += [f"{begin} = {at}[0]", f"{end} = {begin} + len({array})"]
        code.unless(f"{end} <= {at}[1]")
        code.lines += [
            f"{values}[{begin}:{end}] = {array}",
            f"{starts}[row] = {begin}",
            f"{stops}[row] = {at}[0] = {end}",
        ]

    @property
    def ndim(self) -> int:
        """Dimensions of a value."""
        return 1 + len(self.shape)

    def _fits(self, array: Any) -> bool:
        return (
            array is not None
            and array.dtype == self.dtype
            and array.ndim == self.ndim
            and array.shape[1:] == self.shape
        )

    def write(
        self,
        column: Any,
        start: int,
        values: Any,
    ) -> bool:
        if not len(values):
            return True
        arrays: list[Any]
        if isinstance(values, Jagged):
            first = int(values.offsets[0])
            lengths = values.lengths
            arrays = [self.item.array(values.values[first : int(values.offsets[-1])])]
        else:
            arrays = [*map(self.item.array, values)]
            lengths = None
        if not all(map(self._fits, arrays)):
            return False
        if lengths is None:
            lengths = [len(array) for array in arrays]
        begin, most = column.at
        ends = np.cumsum(lengths) + begin
        if ends[-1] > most:
            return False
        rows = slice(start, start + len(lengths))
        np.concatenate(arrays, out=column.values[begin : ends[-1]], casting="no")
        column.stops[rows] = ends
        column.starts[rows][0] = begin
        column.starts[rows][1:] = ends[:-1]
        column.at[0] = int(ends[-1])
        return True

    def read(self, column: Any) -> Sequence[Any]:
        values = column.values
        # A call for each row would double the time.
        if self.item is Array:
            return [values[begin:end] for begin, end in column.spans()]
        view = self.item.value
        return [view(values[begin:end]) for begin, end in column.spans()]

    def is_even(self, column: Any) -> bool:
        """Return True if all rows have one length."""
        lengths = column.stops - column.starts[:-1]
        return bool((lengths == lengths[0]).all())

    def stack(self, column: Any) -> Any:
        """Return the rows as an array if all have one length, else as a ``Jagged``."""
        is_even = self.is_even(column)
        values, offsets = column.packed()
        if not is_even:
            return Jagged(self.item(self.dtype, self.shape).stack(values), offsets)
        shape = (int(offsets[1]), *self.shape)
        even = values.reshape(len(offsets) - 1, *shape)
        return self.item(self.dtype, shape).stack(even)

    def tensor(self, column: Any) -> Any:
        if not self.is_even(column):
            raise TypeError("torch's collating refuses rows of several lengths")
        values, offsets = column.packed()
        shape = (len(offsets) - 1, int(offsets[1]), *self.shape)
        return self.item(self.dtype, shape[1:]).tensor(values.reshape(shape))


def widened(known: Kind, seen: Kind) -> Ragged | None:
    """Return the ragged column that two columns fit, without any room yet.

    None if there is none.
    """
    shape = known.shape
    item: type[Kind]
    if isinstance(known, Ragged):
        item = known.item
    else:
        item = type(known)
        shape = shape[1:]
        if not known.shape:
            return None
    if not issubclass(item, Array) or type(seen) is not item:
        return None
    # Elements of no bytes have no end.
    if seen.dtype != known.dtype or not seen.dtype.itemsize:
        return None
    if not seen.shape or seen.shape[1:] != shape:
        return None
    if isinstance(known, Ragged):
        return known
    return Ragged(known.dtype, shape, item=item)
