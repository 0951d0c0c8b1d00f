"""Objects as bytes: a value that fits no column is *sealed*: pickled by itself, with
large buffers kept beside.

Runs in workers (``Sealing``) and in the consumer process (``Sealed.open``).  Guarantees
that unpickled objects share nothing with each other, even if the originals did; that
their arrays are writable; that classes of ``__main__`` come back as the caller's own.
Unpickling is safe because both sides are ours: pickles never come from a file or a
network.
"""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .byvalue import ByValue, reducers

ALIGN = 64
# Bytes: smaller buffers are part of the pickle.
OUT_OF_LINE = 1 << 12
# The opcode that looks up a class or a function.
_NAMES_SOMETHING = pickle.STACK_GLOBAL


def aligned(offset: int, to: int = ALIGN) -> int:
    return -(-offset // to) * to


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that are pickled out of band, so without a copy, where the pickler supports
    it.
    """

    memory: Any

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Raw, (
            pickle.PickleBuffer(self.memory) if protocol >= 5 else bytes(self.memory),
        )


@dataclass(frozen=True, slots=True)
class Sealed:
    """Values that were sealed (each pickled by itself), ready to be sent; ``open``
    returns them.
    """

    # Of each pickle: its end, and the number of buffers up to it.
    ends: Sequence[tuple[int, int]]
    pickles: Raw
    buffers: Sequence[Raw]

    def open(self) -> list[Any]:
        """Return the unpickled values, which share nothing with each other."""
        pickles = bytes(memoryview(self.pickles.memory))
        buffers = (raw.memory for raw in self.buffers)
        load = loads if _NAMES_SOMETHING in pickles else pickle.loads
        found = []
        start = 0
        used = 0
        for end, count in self.ends:
            found.append(
                load(pickles[start:end], buffers=list(islice(buffers, count - used)))
            )
            start = end
            used = count
        return found


class Sealing:
    """Pickles values one by one, each as it comes, because the dataset may use its
    memory again for the next one.
    """

    def __init__(self) -> None:
        self._out, self._buffers, self._ends = (
            io.BytesIO(),
            list[Any](),
            list[tuple[int, int]](),
        )
        self._take = functools.partial(stays_in_line, self._buffers)
        self._plain = by_reference(self._out, protocol=5, buffer_callback=self._take)

    def add(self, value: Any) -> None:
        """Seal a value; if it can't be pickled, raise the error, and the values sealed
        before are kept.

        It is pickled by reference where that succeeds, as in a forked worker, whose
        ``__main__`` is the caller's; else cloudpickle sends the class by value, under
        the identity that it came with.
        """
        start = self._out.tell()
        count = len(self._buffers)
        try:
            try:
                self._plain.dump(value)
            except Exception:
                # Cloudpickle knows more, and its error is the one to show.
                self._forget(start, count)
                ByValue(self._out, protocol=5, buffer_callback=self._take).dump(value)
        except BaseException:
            self._forget(start, count)
            raise
        finally:
            self._plain.clear_memo()
        self._buffers[count:] = map(bytearray, self._buffers[count:])
        self._ends.append((self._out.tell(), len(self._buffers)))

    def _forget(self, start: int, count: int) -> None:
        self._out.seek(start)
        self._out.truncate()
        del self._buffers[count:]

    def sealed(self) -> Sealed:
        """Return all sealed values as one object to send."""
        return Sealed(
            self._ends,
            Raw(bytearray(self._out.getbuffer())),
            list(map(Raw, self._buffers)),
        )


def stays_in_line(buffers: list[Any], buffer: pickle.PickleBuffer) -> bool:
    """Tell a pickler whether a buffer is part of the pickle; a large one is added to
    ``buffers`` instead.
    """
    raw = buffer.raw()
    if raw.nbytes < OUT_OF_LINE:
        return True
    buffers.append(raw)
    return False


def dumps(value: Any) -> bytes:
    """Return ``value`` pickled, with classes and functions by reference where
    possible.
    """
    try:
        by_reference(out := io.BytesIO(), protocol=5).dump(value)
    except Exception:
        # Cloudpickle knows more, and its error is the one to show.
        ByValue(out := io.BytesIO(), protocol=5).dump(value)
    return out.getvalue()


def by_reference(*args: Any, **kwargs: Any) -> pickle.Pickler:
    """Return pickle's own pickler (written in C; it stores classes by their names),
    with our reducers added.
    """
    pickler = pickle.Pickler(*args, **kwargs)
    pickler.dispatch_table = {**copyreg.dispatch_table, **reducers()}
    return pickler


def loads(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Return the value that ``dumps`` has pickled."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    """Makes arrays writable that were read-only in the worker (such as ``np.asarray``
    of a PIL image).
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name == "_frombuffer" and module in _NUMERIC:
            return functools.partial(_writable, found)
        return found


_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")


def _writable(frombuffer: Callable[..., Any], *args: Any) -> Any:
    array = frombuffer(*args)
    if array.flags.writeable:
        return array
    return array.copy(order="K")
