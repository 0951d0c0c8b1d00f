"""Values that differ in size: texts, binaries and lists of numbers, as bytes.

All bytes of a column lie in one *area*.  The *place* of a value there, its begin and
its end, is part of its row's record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from ..samples.jagged import Jagged
from .arrow import Values, has_arrays, nulls_in, offsets_in

if TYPE_CHECKING:
    import pyarrow as pa

# A place: begin and end, in bytes.
_NUMBER = np.uint32
# An area of more bytes has places that don't fit.
_MOST = np.iinfo(_NUMBER).max
# The place of a null, which no value has.
_NULL = (1, 0)
# The forms of values; that of lists is the dtype of their numbers.
_TEXT = "text"
_BINARY = "binary"


class Area(NamedTuple):
    """The bytes of a column in one group, and what they are."""

    form: str
    data: memoryview


class Pieces(NamedTuple):
    """The values of a column, to be written."""

    form: str
    # Begin and end of each.
    places: NDArray[np.uint32]
    data: NDArray[np.uint8]


def pieces_in(array: pa.Array) -> Pieces | None:
    """Return the values of a column as bytes; None if they can't be."""
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return pieces_in(array.storage)
    if types.is_dictionary(kind):
        return pieces_in(array.dictionary_decode())
    form = ""
    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    if types.is_string(kind) or types.is_large_string(kind):
        form = _TEXT
    elif types.is_binary(kind) or types.is_large_binary(kind):
        form = _BINARY
    if form:
        _, borders, content = array.buffers()
        is_large = types.is_large_string(kind) or types.is_large_binary(kind)
        numbers = np.frombuffer(borders, np.int64 if is_large else np.int32)
        offsets = numbers[array.offset : array.offset + len(array) + 1].astype(np.int64)
        data = np.frombuffer(b"" if content is None else content, np.uint8)
    elif (types.is_list(kind) or types.is_large_list(kind)) and has_arrays(array):
        values = np.ascontiguousarray(array.values.to_numpy(zero_copy_only=False))
        form = values.dtype.str
        offsets = offsets_in(array) * values.itemsize
        data = values.view(np.uint8)
    else:
        return None
    begin = int(offsets[0])
    end = int(offsets[-1])
    if end - begin > _MOST:
        return None
    places = np.empty((len(array), 2), _NUMBER)
    places[:, 0] = offsets[:-1] - begin
    places[:, 1] = offsets[1:] - begin
    absent = nulls_in(array)
    if absent is not None:
        places[absent] = _NULL
    return Pieces(form, places, data[begin:end])


class Gathering:
    """Gathers values of a column from the areas of some groups."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._pieces: list[memoryview] = []

    def add(self, area: Area, places: NDArray[np.uint32]) -> None:
        """Add the values at some places of a group's area."""
        data = area.data
        begins = places[:, 0].tolist()
        ends = places[:, 1].tolist()
        self._pieces += [
            data[begin:end] for begin, end in zip(begins, ends, strict=True)
        ]

    def values(self, places: NDArray[np.uint32], back: Indices | None) -> Values:
        """Return the values in the order that ``back`` says, that of ``places`` too."""
        pieces = self._pieces
        if back is not None:
            pieces = [pieces[at] for at in back.tolist()]
        # Unlike bytes, these may be written to.
        whole = bytearray().join(pieces)
        lengths = places[:, 1].astype(np.int64) - places[:, 0]
        absent = np.flatnonzero(lengths < 0)
        lengths[absent] = 0
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        values: Jagged | list[Any]
        if self._form in (_TEXT, _BINARY):
            values = _listed(self._form, whole, offsets)
        else:
            numbers = np.frombuffer(whole, self._form)
            values = Jagged(numbers, offsets // numbers.itemsize)
        if not len(absent):
            return values
        found = [*values]
        for at in absent.tolist():
            found[at] = None
        return found


def _listed(form: str, data: bytearray, offsets: NDArray[np.int64]) -> list[Any]:
    """Return texts or binaries that lie between offsets."""
    import pyarrow as pa

    kind = pa.large_string() if form == _TEXT else pa.large_binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
    found: list[Any] = array.to_pylist()
    return found
