"""Objects as bytes: what fits no column travels in an envelope, big buffers raw and out of line.

Runs in workers (``seal``) and in the consumer process (``open_envelope``).  Layout: the length of the header, the
header (msgpack: how long the pickle of each object is, and each buffer), a pickle for each object, then each buffer at
a multiple of 64, so that arrays come back as aligned, writable views of wherever the envelope lies.  Objects
of one envelope share nothing when they arrive, whatever they had in common before.  Classes of ``__main__`` come back
as the caller's own.  Assumes that both sides are ours: envelopes hold pickles and never come from a file or a network.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from multiprocessing.connection import Connection
from typing import Any

import msgpack
import numpy as np

from .. import script
from . import tensors
from .byvalue import ByValue, refuse

ALIGN = 64
_MUCH = 1 << 16  # bytes
_LENGTH = 4  # bytes that hold the header's length
_NAMES_SOMETHING = pickle.STACK_GLOBAL  # the opcode without which no class or function is looked up


def aligned(offset: int, to: int = ALIGN) -> int:
    return -(-offset // to) * to


@dataclass(frozen=True, slots=True)
class Envelope:
    """Parts to be laid down one after another, and how much room they need."""

    head: bytes
    pickles: memoryview
    buffers: Sequence[memoryview]
    size: int

    def write(self, room: memoryview) -> None:
        """Lay the envelope down in ``room``, which must hold ``size`` bytes."""
        start = len(self.head)
        end = start + len(self.pickles)
        room[:start], room[start:end] = self.head, self.pickles
        at = aligned(end)
        for buffer in self.buffers:
            room[at : at + buffer.nbytes] = buffer
            at = aligned(at + buffer.nbytes)

    def bytes(self) -> bytearray:
        room = bytearray(self.size)
        self.write(memoryview(room))
        return room


@dataclass(frozen=True, slots=True)
class Sealed:
    """Objects, pickled one after another: any stretch of them can be put into an envelope."""

    pickles: memoryview
    buffers: Sequence[memoryview]
    ends: Sequence[tuple[int, int]]  # of each object's pickle and of its buffers, after those of nothing

    def part(self, begin: int, end: int) -> Envelope:
        (start, first), (stop, last) = self.ends[begin], self.ends[end]
        pickles, buffers = self.pickles[start:stop], self.buffers[first:last]
        lengths = [self.ends[at + 1][0] - self.ends[at][0] for at in range(begin, end)]
        header: bytes = msgpack.packb([lengths, [buffer.nbytes for buffer in buffers]])
        head = len(header).to_bytes(_LENGTH, "little") + header
        size = aligned(len(head) + len(pickles))
        for buffer in buffers:
            size = aligned(size + buffer.nbytes)
        return Envelope(head, pickles, buffers, size)


def seal(values: Sequence[Any]) -> Sealed:
    out, found = io.BytesIO(), list[pickle.PickleBuffer]()
    ends = _dump_each(values, out, found)
    return Sealed(memoryview(out.getvalue()), [buffer.raw() for buffer in found], ends)


def dumps(value: Any, buffers: list[pickle.PickleBuffer] | None = None) -> bytes:
    """Pickle ``value``; ``buffers`` takes what goes out of line."""
    out = io.BytesIO()
    _dump_each([value], out, buffers)
    return out.getvalue()


def _dump_each(
    values: Sequence[Any], out: io.BytesIO, buffers: list[pickle.PickleBuffer] | None
) -> list[tuple[int, int]]:
    """Pickle by reference where the other side can follow it, else by value; where each pickle ends, and its buffers,
    after those of nothing.

    In a forked worker ``__main__`` is the caller's, so plain pickle succeeds; in any other worker it isn't, plain
    pickle fails, and cloudpickle sends the class by value under the identity that it came with.
    """
    outside: list[pickle.PickleBuffer] = [] if buffers is None else buffers
    take = None if buffers is None else functools.partial(_stays_in_line, buffers)
    plain, ends = by_reference(out, protocol=5, buffer_callback=take), [(0, 0)]
    for value in values:
        try:
            plain.dump(value)
        except Exception:  # cloudpickle knows more, and its error is the one to show
            out.seek(ends[-1][0])
            out.truncate()
            del outside[ends[-1][1] :]
            _ByValue(out, protocol=5, buffer_callback=take).dump(value)
        plain.clear_memo()
        ends.append((out.tell(), len(outside)))
    return ends


def _stays_in_line(buffers: list[pickle.PickleBuffer], buffer: pickle.PickleBuffer) -> bool:
    """Empty buffers do: they have no place of their own."""
    if buffer.raw().nbytes:
        buffers.append(buffer)
        return False
    return True


def by_reference(*args: Any, **kwargs: Any) -> pickle.Pickler:
    """Plain pickle, by C code alone."""
    pickler = pickle.Pickler(*args, **kwargs)
    pickler.dispatch_table = {**copyreg.dispatch_table, **reducers()}
    return pickler


class _ByValue(ByValue):
    """Knows in addition how tensors and arrays are to be pickled; cloudpickle's own table can't be replaced."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._known = reducers()

    def reducer_override(self, value: Any) -> Any:
        reduce = self._known.get(type(value))
        return super().reducer_override(value) if reduce is None else reduce(value)


def reducers() -> dict[type, Any]:
    """For a pickler's table: what pickle would not bring back as it was, or at what price."""
    return {
        **tensors.reducers(),
        np.ndarray: _reduce_array,
        np.bytes_: reduce_text,
        np.str_: reduce_text,
        Connection: refuse,
    }


def reduce_text(text: Any) -> Any:
    """How NumPy's own bytes and strings are pickled: NumPy's way loses zeros at the end."""
    return type(text), (bytes(text) if isinstance(text, bytes) else str.__str__(text),)


def _reduce_array(array: Any) -> Any:
    """How an array is pickled: NumPy's way, which makes some arrays of foreign byte order native."""
    if array.dtype.isnative or array.dtype.names is not None or array.dtype.hasobject:
        return array.__reduce_ex__(5)
    native = array.view(array.dtype.newbyteorder())  # the same bytes, under the native name
    return np.ndarray.view, (native, array.dtype)


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that travel from where they lie to where they are wanted, if the Pool knows how; else by way of a copy."""

    memory: Any

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Raw, (pickle.PickleBuffer(self.memory) if protocol >= 5 else bytes(self.memory),)


@dataclass(frozen=True, slots=True)
class Held:
    """An object that cannot be pickled and need not be, since nobody leaves the process."""

    value: Any
    size: int = 1 << 62  # fits no margin

    def write(self, room: memoryview) -> None:
        raise TypeError("an object that is held has no bytes")

    def bytes(self) -> Held:
        return self


@dataclass(frozen=True, slots=True)
class Apart:
    """For threads: objects one by one, sealed where possible, so that samples are private; else held.

    Never together: a thread that was given up may come back and write its rows once more, when others have.  What it
    writes into the share of one row is then what lies there already.
    """

    values: Sequence[Any]

    def part(self, begin: int, end: int) -> Envelope | Held:
        value = self.values[begin:end]
        if len(value) > 1:
            return Held(value)
        try:
            return seal(value).part(0, 1)
        except Exception:
            return Held(value[0])


Sealer = Callable[[Sequence[Any]], Sealed | Apart]


def opened(sent: Any) -> list[Any]:
    """What somebody sealed, from the bytes that travelled."""
    if isinstance(sent, Held):
        return [sent.value]
    return open_envelope(memoryview(sent.memory if isinstance(sent, Raw) else sent))


def as_raw(sent: Any) -> Any:
    """The same for the way through a pipe: much of it isn't copied into a pickle, and out of it again."""
    return Raw(sent) if isinstance(sent, bytearray) and len(sent) >= _MUCH else sent


def open_envelope(room: memoryview) -> list[Any]:
    """The objects again; their arrays are views of ``room``."""
    start = _LENGTH + int.from_bytes(room[:_LENGTH], "little")
    lengths, sizes = msgpack.unpackb(room[_LENGTH:start], strict_map_key=True)
    pickles = room[start : start + sum(lengths)]
    at, buffers = aligned(start + len(pickles)), []
    for size in sizes:
        buffers.append(room[at : at + size])
        at = aligned(at + size)
    left, ends = iter(buffers), [0, *accumulate(lengths)]
    load = loads if _NAMES_SOMETHING in bytes(pickles) else pickle.loads
    return [load(pickles[begin:end], buffers=left) for begin, end in pairwise(ends)]  # each by itself: none shares


def loads(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """What ``dumps`` has pickled."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    """Two corrections to what pickle would find.

    A worker that had to import the caller's script knows ``__main__`` under another name.  And an array that was
    read-only in the worker (``np.asarray`` of a PIL image is) belongs to the user here, who may write to it.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(script.home(module), name)
        return functools.partial(_writable, found) if name == "_frombuffer" and module in _NUMERIC else found


_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")


def _writable(frombuffer: Callable[..., Any], *args: Any) -> Any:
    array = frombuffer(*args)
    return array if array.flags.writeable else array.copy(order="K")
