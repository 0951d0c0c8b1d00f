"""Objects as bytes: a value that fits no column is *sealed*, pickled by itself.

Its large buffers are kept beside the pickle.  Runs in workers (``Sealing``) and in the
consumer process (``Sealed.open``).  Guarantees that unpickled objects share nothing
with each other, even if the originals did; that their arrays are writable; that classes
of ``__main__`` come back as the caller's own.  Unpickling is safe because both sides
are ours: pickles never come from a file or a network.
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
from .rows import Rows

# Bytes of a cache line.
ALIGN = 64
# Bytes: smaller buffers are part of the pickle.
OUT_OF_LINE = 1 << 12
# Values of these types can't change, so that nobody notices which of them are shared.
_PLAIN = {str, bytes, int, float, complex, bool, type(None)}
# The opcode that looks up a class or a function.
_NAMES_SOMETHING = pickle.STACK_GLOBAL


def aligned(offset: int, to: int = ALIGN) -> int:
    return -(-offset // to) * to


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that are pickled out of band, so without a copy, if the pickler can."""

    memory: Any

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if protocol >= 5:
            return Raw, (pickle.PickleBuffer(self.memory),)
        return Raw, (bytes(self.memory),)


@dataclass(frozen=True, slots=True)
class Sealed:
    """Values that were sealed, ready to be sent; ``open`` returns them."""

    # For each pickle its end, the number of buffers up to it, and how many values it
    # has: 0 for a single one, else it has their columns.
    ends: Sequence[tuple[int, int, int]]
    pickles: Raw
    buffers: Sequence[Raw]

    def open(self) -> Sequence[Any]:
        """Return the unpickled values, which share nothing with each other."""
        pickles = bytes(memoryview(self.pickles.memory))
        buffers = (raw.memory for raw in self.buffers)
        # Pickles of numbers, strings and the like are read by the faster function: only
        # a class or a function that is looked up may need ours.
        load = loads if _NAMES_SOMETHING in pickles else pickle.loads
        found: list[Any] = []
        start = 0
        used = 0
        for end, count, values in self.ends:
            own = list(islice(buffers, count - used))
            value = load(pickles[start:end], buffers=own)
            if not values:
                found.append(value)
            elif len(self.ends) == 1:
                return Rows(value, values)
            else:
                found += Rows(value, values)
            start = end
            used = count
        return found


class Sealing:
    """Pickles values one by one, each as it comes.

    The dataset may use a value's memory again for the next one.
    """

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._buffers: list[Any] = []
        self._ends: list[tuple[int, int, int]] = []
        self._take = functools.partial(stays_in_line, self._buffers)
        self._plain = by_reference(self._out, protocol=5, buffer_callback=self._take)

    def add(self, value: object) -> None:
        """Seal a value; if it can't be pickled, raise the error.

        The values that were sealed before are kept.  A value is pickled by reference
        where that succeeds, as in a forked worker, whose ``__main__`` is the caller's;
        else cloudpickle sends the class by value, under the identity that it came with.
        """
        start = self._out.tell()
        count = len(self._buffers)
        try:
            try:
                self._plain.dump(value)
            except Exception:
                # cloudpickle can pickle more, and its error is the one to show.
                self._forget(start, count)
                ByValue(self._out, protocol=5, buffer_callback=self._take).dump(value)
        except BaseException:
            # Half a pickle would stand before that of the next value.
            self._forget(start, count)
            raise
        finally:
            # The memo keeps the value alive, and later pickles would refer to it.
            self._plain.clear_memo()
        # These buffers are the dataset's memory, which its next sample may overwrite.
        self._buffers[count:] = map(bytearray, self._buffers[count:])
        end = self._out.tell()
        self._ends.append((end, len(self._buffers), 0))

    def add_together(self, columns: Sequence[Sequence[object]]) -> bool:
        """Seal a tuple for each row of ``columns``; return False if that can't be.

        To pickle a thousand texts at once takes a tenth of the time.
        """
        for column in columns:
            if not _PLAIN.issuperset(map(type, column)):
                return False
        # No value refers to itself, so none needs to be remembered.
        self._plain.fast = True
        self._plain.dump(tuple(map(list, columns)))
        self._plain.fast = False
        self._plain.clear_memo()
        self._ends.append((self._out.tell(), len(self._buffers), len(columns[0])))
        return True

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
    """Return True if a pickler is to make a buffer part of the pickle.

    A large one is added to ``buffers`` instead.
    """
    raw = buffer.raw()
    if raw.nbytes < OUT_OF_LINE:
        return True
    buffers.append(raw)
    return False


def dumps(value: object) -> bytes:
    """Return ``value`` pickled, its classes and functions by reference if possible."""
    out = io.BytesIO()
    try:
        by_reference(out, protocol=5).dump(value)
    except Exception:
        # cloudpickle can pickle more, and its error is the one to show.
        out = io.BytesIO()
        ByValue(out, protocol=5).dump(value)
    return out.getvalue()


def by_reference(*args: Any, **kwargs: Any) -> pickle.Pickler:
    """Return pickle's own pickler, with our reducers added.

    It is written in C, and stores classes by their names.
    """
    pickler = pickle.Pickler(*args, **kwargs)
    pickler.dispatch_table = {**copyreg.dispatch_table, **reducers()}
    return pickler


def loads(data: bytes | memoryview, buffers: Iterable[Any] = ()) -> Any:
    """Return the value that ``dumps`` has pickled."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    """Makes arrays writable that were read-only in the worker.

    Such is ``np.asarray`` of a PIL image.
    """

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name == "_frombuffer" and module in _NUMERIC:
            return functools.partial(_writable, found)
        return found


_NUMERIC = ("numpy.core.numeric", "numpy._core.numeric")


def _writable(frombuffer: Callable[..., Any], *args: object) -> Any:
    array = frombuffer(*args)
    if array.flags.writeable:
        return array
    return array.copy(order="K")
