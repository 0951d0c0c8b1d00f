"""Objects as bytes: what fits no column travels in an envelope, together with its neighbours, big buffers out of line.

Runs in workers (``seal``) and in the consumer process (``open_envelope``).  Layout: the length of the header, the
header (msgpack: how many objects, how many bytes of pickle, how long each buffer), a pickle for each object, then each
buffer at a multiple of 64, so that arrays come back as aligned, writable views of wherever the envelope lies.  Objects
share nothing, though they may have where they come from.  Classes of ``__main__`` come back as the caller's own.
Assumes that both sides are ours: envelopes hold pickles and never come from a file or a network.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import msgpack
import numpy as np

from . import tensors

ALIGN = 64
_LENGTH = 4  # bytes that hold the header's length


def aligned(offset: int, to: int = ALIGN) -> int:
    return -(-offset // to) * to


@dataclass(frozen=True, slots=True)
class Envelope:
    """Sealed objects: parts to be laid down one after another, and how much room they need."""

    head: bytes
    buffers: tuple[memoryview, ...]
    size: int

    def write(self, room: memoryview) -> None:
        """Lay the envelope down in ``room``, which must hold ``size`` bytes."""
        room[: len(self.head)] = self.head
        at = aligned(len(self.head))
        for buffer in self.buffers:
            room[at : at + buffer.nbytes] = buffer
            at = aligned(at + buffer.nbytes)

    def bytes(self) -> bytearray:
        room = bytearray(self.size)
        self.write(memoryview(room))
        return room


def dumps(value: Any, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Pickle ``value``; ``buffers`` takes what goes out of line."""
    return _dumps_each([value], buffers)


def _dumps_each(values: Sequence[Any], buffers: list[pickle.PickleBuffer] | None) -> bytes:
    """Pickle by reference where the other side can follow it, else by value.

    In a forked worker ``__main__`` is the caller's, so plain pickle succeeds; in any other worker it isn't, plain
    pickle fails, and cloudpickle sends the class by value under the identity that it came with.
    """
    try:
        return _dumps(_by_reference, values, buffers)
    except Exception:  # cloudpickle knows more, and its error is the one to show
        if buffers is not None:
            buffers.clear()  # of what the first attempt had put there
    return _dumps(_ByValue, values, buffers)


def _dumps(pickler: Any, values: Sequence[Any], buffers: list[pickle.PickleBuffer] | None) -> bytes:
    out = io.BytesIO()
    one = pickler(
        out, protocol=5, buffer_callback=None if buffers is None else functools.partial(_stays_in_line, buffers)
    )
    for value in values:
        one.dump(value)
        one.clear_memo()
    return out.getvalue()


def _stays_in_line(buffers: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Empty buffers do: they have no place of their own."""
    if buffer.raw().nbytes:
        buffers.append(buffer)
        return False
    return True


def _by_reference(*args: Any, **kwargs: Any) -> pickle.Pickler:
    """Plain pickle, by C code alone."""
    pickler = pickle.Pickler(*args, **kwargs)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_reducers()}
    return pickler


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, whose own table can't be replaced."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = _reducers()

    def reducer_override(self, value: Any) -> Any:
        reduce = self._known.get(type(value))
        return super().reducer_override(value) if reduce is None else reduce(value)


def _reducers() -> dict[type, Any]:
    return {**tensors.reducers(), np.ndarray: _reduce_array}


def _reduce_array(array: Any) -> Any:
    """How an array is pickled: NumPy's way, which makes some arrays of foreign byte order native."""
    if array.dtype.isnative or array.dtype.names is not None or array.dtype.hasobject:
        return array.__reduce_ex__(5)
    native = array.view(array.dtype.newbyteorder())  # the same bytes, under the native name
    return np.ndarray.view, (native, array.dtype)


def loads(data: Any, buffers: Sequence[Any] = ()) -> Any:
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


def seal(values: Sequence[Any]) -> Envelope:
    found: list[pickle.PickleBuffer] = []
    pickled = _dumps_each(values, found)
    raw = tuple(buffer.raw() for buffer in found)
    header: bytes = msgpack.packb([len(values), len(pickled), [buffer.nbytes for buffer in raw]])
    head = len(header).to_bytes(_LENGTH, "little") + header + pickled
    size = aligned(len(head))
    for buffer in raw:
        size = aligned(size + buffer.nbytes)
    return Envelope(head, raw, size)


@dataclass(frozen=True, slots=True)
class Held:
    """Objects that cannot be pickled and need not be, since nobody leaves the process."""

    values: Sequence[Any]
    size: int = 1 << 62  # fits no margin

    def write(self, room: memoryview) -> None:
        raise TypeError("objects that are held have no bytes")

    def bytes(self) -> Held:
        return self


Sealer = Callable[[Sequence[Any]], Envelope | Held]


def seal_or_hold(values: Sequence[Any]) -> Envelope | Held:
    """For threads: an envelope where possible, so that samples are private; else the objects themselves."""
    try:
        return seal(values)
    except Exception:
        return Held(values)


def opened(sent: Any) -> Sequence[Any]:
    """What somebody sealed, from the bytes that travelled."""
    return sent.values if isinstance(sent, Held) else open_envelope(memoryview(sent))


def open_envelope(room: memoryview) -> list[Any]:
    """The objects again; their arrays are views of ``room``."""
    start = _LENGTH + int.from_bytes(room[:_LENGTH], "little")
    count, pickled, sizes = msgpack.unpackb(room[_LENGTH:start], strict_map_key=True)
    at, buffers = aligned(start + pickled), []
    for size in sizes:
        buffers.append(room[at : at + size])
        at = aligned(at + size)
    pickles, left = io.BytesIO(room[start : start + pickled]), iter(buffers)
    return [_Unpickler(pickles, buffers=left).load() for _ in range(count)]  # an unpickler's memo cannot be cleared


class _Unpickler(pickle.Unpickler):
    """Two corrections to what pickle would find.

    A worker that had to import the caller's script knows ``__main__`` under another name.  And an array that was
    read-only in the worker (``np.asarray`` of a PIL image is) belongs to the user here, who may write to it.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class("__main__" if module == "__mp_main__" else module, name)
        return functools.partial(_writable, found) if name == "_frombuffer" and module in _NUMERIC else found


_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")


def _writable(frombuffer: Callable[..., Any], *args: Any) -> Any:
    array = frombuffer(*args)
    return array if array.flags.writeable else array.copy(order="K")
