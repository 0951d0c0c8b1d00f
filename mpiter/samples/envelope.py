"""Objects as bytes: what fits no column travels sealed, each object as a pickle of its own, large buffers beside it.

Runs in workers (``Sealing``) and in the consumer process (``Sealed.open``).  Objects share nothing when they arrive,
whatever they had in common before, and what their arrays show is writable.  Classes of ``__main__`` come back as the
caller's own.  Assumes that both sides are ours: what is sealed holds pickles and never comes from a file or a network.
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

from .. import script
from .byvalue import ByValue, reducers

ALIGN = 64
OUT_OF_LINE = 1 << 12  # bytes: smaller buffers are part of the pickle
_NAMES_SOMETHING = pickle.STACK_GLOBAL  # the opcode without which no class or function is looked up


def aligned(offset: int, to: int = ALIGN) -> int:
    return -(-offset // to) * to


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that travel without a copy where the transport can."""

    memory: Any

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Raw, (pickle.PickleBuffer(self.memory) if protocol >= 5 else bytes(self.memory),)


@dataclass(frozen=True, slots=True)
class Sealed:
    """Sealed values on their way."""

    ends: Sequence[tuple[int, int]]  # where each object's pickle ends, and how many buffers there are by then
    pickles: Raw
    buffers: Sequence[Raw]

    def open(self) -> list[Any]:
        """Unpickle the values, each by itself: none shares anything with another."""
        pickles, buffers = bytes(memoryview(self.pickles.memory)), (raw.memory for raw in self.buffers)
        load = loads if _NAMES_SOMETHING in pickles else pickle.loads
        found, start, used = [], 0, 0
        for end, count in self.ends:
            found.append(load(pickles[start:end], buffers=list(islice(buffers, count - used))))
            start, used = end, count
        return found


class Sealing:
    """Seals values one by one, as they are at that moment: a dataset may fill their memory again."""

    def __init__(self) -> None:
        self._out, self._buffers, self._ends = io.BytesIO(), list[Any](), list[tuple[int, int]]()
        self._take = functools.partial(_stays_in_line, self._buffers)
        self._plain = by_reference(self._out, protocol=5, buffer_callback=self._take)

    def add(self, value: Any) -> None:
        """Seal a value; one that can't be pickled raises and leaves no trace.

        It is pickled by reference where the other side can follow that, else by value.  In a forked worker ``__main__``
        is the caller's, so plain pickle succeeds; in any other worker it isn't, plain pickle fails, and cloudpickle
        sends the class by value under the identity that it came with.
        """
        start, count = self._out.tell(), len(self._buffers)
        try:
            try:
                self._plain.dump(value)
            except Exception:  # cloudpickle knows more, and its error is the one to show
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
        """The sealed values, ready to travel."""
        return Sealed(self._ends, Raw(bytearray(self._out.getbuffer())), list(map(Raw, self._buffers)))


def _stays_in_line(buffers: list[Any], buffer: pickle.PickleBuffer) -> bool:
    raw = buffer.raw()
    if raw.nbytes < OUT_OF_LINE:
        return True
    buffers.append(raw)
    return False


def dumps(value: Any) -> bytes:
    """Pickle ``value``, by reference where possible."""
    try:
        by_reference(out := io.BytesIO(), protocol=5).dump(value)
    except Exception:  # cloudpickle knows more, and its error is the one to show
        ByValue(out := io.BytesIO(), protocol=5).dump(value)
    return out.getvalue()


def by_reference(*args: Any, **kwargs: Any) -> pickle.Pickler:
    """Plain pickle, by C code alone."""
    pickler = pickle.Pickler(*args, **kwargs)
    pickler.dispatch_table = {**copyreg.dispatch_table, **reducers()}
    return pickler


def loads(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Unpickle what ``dumps`` has pickled."""
    return _Unpickler(io.BytesIO(data), buffers=buffers).load()


class _Unpickler(pickle.Unpickler):
    """Correct two lookups of pickle's.

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
