"""Values of several lengths, texts and lists of numbers, as bytes of Arrow's.

Rows that lie side by side are a slice of Arrow's array.  Rows in random order are
*views*: a view is of 16 bytes, lies in the row's record, and says where the row's bytes
are, or has them itself if they are few.  So Arrow gathers the bytes of a thousand rows
of several groups in one call, which looks at no offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..order.order import Indices
from ..samples.jagged import Jagged
from ..samples.texts import Texts
from .arrays import filled, has_arrays, is_list, nulls_in, offsets_in

if TYPE_CHECKING:
    import pyarrow as pa

# Rows of a group: those that follow each other, or any.
Which = slice | Indices
# What the bytes are: numbers of a dtype, or texts of a type.
Meaning = np.dtype[Any] | type
# Views, which NumPy copies faster as plain bytes than as the four numbers that each is.
# Of these the first is the length, and the third is the buffer's number.
Views = NDArray[np.void]
_VIEW = np.dtype("V16")
_NUMBERS = np.dtype(np.int32)
_PARTS = 4
_LENGTH = 0
_BUFFER = 2
# A view of so many bytes has them itself, behind their number.
_INSIDE = 12
_BEHIND_LENGTH = 4
# Arrow takes longer for so many values than Python.
_FEW = 8
# Arrow counts the bytes of texts that it joins, and of views, in 31 bits.
_MOST = 1 << 30


def as_bytes(array: pa.Array) -> tuple[pa.Array, Meaning] | None:
    """Return texts, bytes or lists of numbers as bytes, and what they are.

    None for other values.
    """
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if isinstance(array, pa.ExtensionArray) or array.nbytes > _MOST:
        return None
    if types.is_string(kind) or types.is_large_string(kind):
        # What isn't UTF-8 is an error of the row that has it, and of no other.
        if not _is_utf8(array):
            return None
        return _joined(array), str
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _joined(array), bytes
    if is_list(kind) and has_arrays(array):
        return lists_as_bytes(array)
    return None


def _is_utf8(array: pa.Array) -> bool:
    import pyarrow as pa

    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _joined(array: Any) -> pa.Array:
    """Return texts as ``Texts`` has them: each with a NUL, and a null without."""
    import pyarrow as pa
    from pyarrow import compute

    lengths = filled(compute.binary_length(array))
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths + 1, out=offsets[1:])
    absent = nulls_in(array)
    if absent is not None:
        offsets[1:] -= np.cumsum(absent)
        array = array.drop_null()
    # Arrow joins the texts of each list: here there is one, which has all texts, and an
    # empty one behind them, so that a NUL is behind each.
    array = pa.concat_arrays([array, pa.array([""], array.type)])
    whole = pa.ListArray.from_arrays([0, len(array)], array)
    joined = compute.binary_join(whole, pa.scalar("\0", array.type))
    return _binary(offsets, joined[0].as_buffer())


def lists_as_bytes(array: Any) -> tuple[pa.Array, np.dtype[Any]]:
    """Return lists of numbers as bytes, and the type of the numbers."""
    import pyarrow as pa

    values = np.ascontiguousarray(filled(array.values))
    valid = None
    absent = nulls_in(array)
    if absent is not None:
        valid = pa.array(~absent).buffers()[1]
    offsets = offsets_in(array) * values.itemsize
    data = pa.py_buffer(values.view(np.uint8))
    return _binary(offsets, data, valid), values.dtype


def _binary(
    offsets: NDArray[np.int64],
    data: pa.Buffer,
    valid: pa.Buffer | None = None,
) -> pa.Array:
    import pyarrow as pa

    buffers = [valid, pa.py_buffer(offsets), data]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


class BytesColumn:
    """A column of such values, as an array of Arrow's."""

    def __init__(self, array: pa.Array, kind: Meaning) -> None:
        self._array = array
        self._kind = kind

    def take(self, rows: Which) -> Jagged | Texts | list[Any]:
        return values_in(some(self._array, rows), self._kind)


def some(array: pa.Array, rows: Which) -> pa.Array:
    if isinstance(rows, slice):
        return array[rows]
    return array.take(rows)


def values_in(array: pa.Array, kind: Meaning) -> Jagged | Texts | list[Any]:
    """Return values that are bytes to Arrow, in new memory or in the array's."""
    _, borders, content = array.buffers()
    every = np.frombuffer(borders, np.int64)
    offsets = every[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(content or b"", np.uint8)
    if isinstance(kind, type):
        return Texts.laid_out(kind, data, offsets)
    first = int(offsets[0])
    values = data[first : int(offsets[-1])].copy().view(kind)
    found = Jagged(values, (offsets - first) // kind.itemsize)
    absent = nulls_in(array)
    if absent is None:
        return found
    return [
        None if is_absent else one
        for is_absent, one in zip(absent.tolist(), found, strict=True)
    ]


# -- views -----------------------------------------------------------------------------


def views_of(array: pa.Array) -> tuple[Views, pa.Buffer]:
    """Return views of bytes, none of which is null, and the buffer they refer to."""
    import pyarrow as pa

    _, views, *data = array.cast(pa.binary_view()).buffers()
    found = np.frombuffer(views, _VIEW)[: len(array)]
    return found, data[0] if data else pa.py_buffer(b"")


def viewed(
    views: Views,
    numbers: NDArray[np.int32],
    buffers: Sequence[pa.Buffer],
    kind: Meaning,
) -> Jagged | Texts | list[Any]:
    """Return the values that views refer to; each has the number of its buffer."""
    import pyarrow as pa

    if len(views) <= _FEW:
        return _cut(views, numbers.tolist(), buffers, kind)
    told = np.array(views).view(_NUMBERS).reshape(-1, _PARTS)
    np.copyto(told[:, _BUFFER], numbers, where=told[:, _LENGTH] > _INSIDE)
    all_buffers = [None, pa.py_buffer(told), *buffers]
    array = pa.Array.from_buffers(pa.binary_view(), len(views), all_buffers)
    return values_in(array.cast(pa.large_binary()), kind)


def _cut(
    views: Views,
    numbers: Sequence[int],
    buffers: Sequence[pa.Buffer],
    kind: Meaning,
) -> list[Any]:
    """Return the values of a few views, one by one."""
    found: list[Any] = []
    inside = views.tobytes()
    told = np.frombuffer(inside, _NUMBERS).reshape(-1, _PARTS).tolist()
    at = 0
    for (length, _, _, begin), number in zip(told, numbers, strict=True):
        if length <= _INSIDE:
            data = inside[at + _BEHIND_LENGTH : at + _BEHIND_LENGTH + length]
        else:
            data = buffers[number][begin : begin + length].to_pybytes()
        at += _VIEW.itemsize
        if kind is str:
            found.append(data[:-1].decode() if data else None)
        elif kind is bytes:
            found.append(data[:-1] if data else None)
        else:
            # It may be written to.
            found.append(np.frombuffer(bytearray(data), kind))
    return found
