"""An object as bytes: what doesn't fit a column travels in one of these, its big buffers raw and out of line.

Runs in workers (``seal``) and in the consumer process (``open_envelope``).  Layout: the length of the header, the
header (msgpack: how many bytes of pickle, how long each buffer), the pickle, then each buffer at a multiple of 64, so
that arrays come back as aligned, writable views of wherever the envelope lies.  Classes of ``__main__`` come back as
the caller's own.  Assumes that both sides are ours: envelopes hold pickles and never come from a file or a network.
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
    """A sealed object: parts to be laid down one after another, and how much room they need."""

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
    """Pickle by reference where the other side can follow it, else by value; ``buffers`` takes what goes out of line.

    In a forked worker ``__main__`` is the caller's, so plain pickle succeeds; in any other worker it isn't, plain
    pickle fails, and cloudpickle sends the class by value under the identity that it came with.
    """
    try:
        return _dumps(_by_reference, value, buffers)
    except Exception:  # cloudpickle knows more, and its error is the one to show
        if buffers is not None:
            buffers.clear()  # of what the first attempt had put there
    return _dumps(_ByValue, value, buffers)


def _dumps(pickler: Any, value: Any, buffers: list[pickle.PickleBuffer] | None) -> bytes:
    out = io.BytesIO()
    pickler(out, protocol=5, buffer_callback=None if buffers is None else buffers.append).dump(value)
    return out.getvalue()


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


def seal(value: Any) -> Envelope:
    found: list[pickle.PickleBuffer] = []
    pickled = dumps(value, found)
    if any(not buffer.raw().nbytes for buffer in found):
        found, pickled = [], dumps(value)  # empty buffers have no place of their own
    raw = tuple(buffer.raw() for buffer in found)
    header: bytes = msgpack.packb([len(pickled), [buffer.nbytes for buffer in raw]])
    head = len(header).to_bytes(_LENGTH, "little") + header + pickled
    size = aligned(len(head))
    for buffer in raw:
        size = aligned(size + buffer.nbytes)
    return Envelope(head, raw, size)


@dataclass(frozen=True, slots=True)
class Held:
    """An object that cannot be pickled and need not be, since nobody leaves the process."""

    value: Any
    size: int = 1 << 62  # fits no margin

    def write(self, room: memoryview) -> None:
        raise TypeError("an object that is held has no bytes")

    def bytes(self) -> Held:
        return self


Sealer = Callable[[Any], Envelope | Held]


def seal_or_hold(value: Any) -> Envelope | Held:
    """For threads: an envelope where possible, so that samples are private; else the object itself."""
    try:
        return seal(value)
    except Exception:
        return Held(value)


def opened(sent: Any) -> Any:
    """What somebody sealed, from the bytes that travelled."""
    return sent.value if isinstance(sent, Held) else open_envelope(memoryview(sent))


def open_envelope(room: memoryview) -> Any:
    """The object again; its arrays are views of ``room``."""
    start = _LENGTH + int.from_bytes(room[:_LENGTH], "little")
    pickled, sizes = msgpack.unpackb(room[_LENGTH:start], strict_map_key=True)
    at, buffers = aligned(start + pickled), []
    for size in sizes:
        buffers.append(room[at : at + size])
        at = aligned(at + size)
    return loads(room[start : start + pickled], buffers)


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
