"""``Packed``: a read-only sequence of many small objects that all processes share.

They are in one piece of memory, an unnamed file: the items one after another, then the
offset at which each ends.  An item is written in msgpack if that keeps values and types
exactly, else as a pickle.  Classes and functions that pickles name are in a list, which
is pickled along with the dataset (those of ``__main__`` by value).  Unpickling is safe,
because all pickles are written here and never come from a network.
"""

from __future__ import annotations

import copyreg
import errno
import io
import os
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, SupportsIndex, TypeVar, overload

import msgpack

from .. import machine
from ..errors import SharedMemoryFull
from ..samples.byvalue import reducers
from ..samples.envelope import aligned
from ..transport.memory import SharedBytes, SharedFile, write_all
from .ship import explain

T = TypeVar("T")

# Bytes to write at once.
_AT_ONCE = 1 << 20
# The first byte of a pickle; in msgpack it is the empty dict, a single byte.
_PICKLED = pickle.PROTO[0]
# Stands before a pickle that names classes or functions; msgpack never uses it.
_NAMING = b"\xc1"
_LEAVES = {str, int, float, bool, bytes, type(None)}
_REMEDY = (
    "Leave such things out of the items, and open them in worker_init or on first use."
)


class Packed(Sequence[T]):
    """A sequence of Python objects, packed once into memory that all workers share.

    For datasets of very many small objects (annotations, file names, records), which
    each worker would otherwise copy.  It is read-only, and replaces a list in any
    loader.  ``items`` may be any iterable: a generator's items are packed as they come,
    so they are never all in memory.  Each ``packed[i]`` is a new object.

    A slice is a ``Packed`` on the same memory.  A worker process maps that memory when
    it is started.  Pickling a slice otherwise copies all of it, so pickle
    ``Packed(packed[:10])``, which has only its own ten items.

    >>> packed = Packed(
    ...     {"name": f"{number:04}.jpg", "box": (number, 0, 8, 8)}
    ...     for number in range(1000)
    ... )
    >>> packed[3]
    {'name': '0003.jpg', 'box': (3, 0, 8, 8)}
    >>> packed[-10:]
    <Packed: 10 items in 55.8 kB>
    """

    __slots__ = ("_data", "_ends", "_memory", "_names", "_places", "_table")

    def __init__(self, items: Iterable[T]) -> None:
        names: list[Any] = []
        memory, table, count = _packed(items, names)
        self._attach(memory, table, names, range(count))

    def _attach(
        self,
        memory: SharedBytes,
        table: tuple[int, str],
        names: list[Any],
        places: range,
    ) -> None:
        """Set the attributes.

        ``table`` is the offset and the format of the items' ends in ``memory``.
        """
        self._memory = memory
        self._table = table
        self._names = names
        self._places = places
        self._data = memoryview(memory)
        self._ends = self._data[table[0] :].cast(table[1])  # type: ignore[call-overload]

    @property
    def nbytes(self) -> int:
        """The size of the memory in bytes.

        That of a slice is the whole memory, which it shares.
        """
        return len(self._memory)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Packed[T]: ...
    def __getitem__(self, index: Any) -> Any:
        try:
            at = self._places[index]
        except IndexError:
            raise IndexError(f"there is no item {index} among {len(self)}") from None
        if type(at) is int:
            return self._open(at)
        return _attached(self._memory, self._table, self._names, at)

    def __iter__(self) -> Iterator[T]:
        return map(self._open, self._places)

    def _open(self, at: int) -> Any:
        data = self._data[self._ends[at] : self._ends[at + 1]]
        first = data[0]
        if first == _NAMING[0]:
            return _ByName(data[1:], self._names).load()
        if first == _PICKLED and len(data) > 1:
            return pickle.loads(data)
        return msgpack.unpackb(data, strict_map_key=False)

    def __repr__(self) -> str:
        if len(self) == 1:
            items = "1 item"
        else:
            items = f"{len(self):,} items"
        return f"<Packed: {items} in {_size(self.nbytes)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._memory, self._table, self._names, self._places)


def _size(count: int) -> str:
    """Return a number of bytes in words, such as "38.8 kB"."""
    for unit, of in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= of:
            return f"{count / of:.1f} {unit}"
    return f"{count} bytes"


def _attached(
    memory: SharedBytes,
    table: tuple[int, str],
    names: list[Any],
    places: range,
) -> Packed[Any]:
    packed: Packed[Any] = Packed.__new__(Packed)
    packed._attach(memory, table, names, places)
    return packed


def _packed(
    items: Iterable[Any], names: list[Any]
) -> tuple[SharedBytes, tuple[int, str], int]:
    """Return the memory, with the items and a table of where each ends.

    Return also the offset and format of that table, and the number of items.
    """
    waiting = bytearray()
    ends = array("Q", [0])
    scribe = _Scribe(names)
    file = SharedFile()
    written = 0
    try:
        for item in items:
            try:
                waiting += scribe.written(item)
            except MemoryError:
                raise
            except Exception as error:
                name = f"items[{len(ends) - 1}]"
                raise explain(item, name, error, _REMEDY) from error
            ends.append(written + len(waiting))
            if len(waiting) > _AT_ONCE:
                _write(file.fd, memoryview(waiting), written)
                written = ends[-1]
                waiting = bytearray()
        _write(file.fd, memoryview(waiting), written)
        start = aligned(ends[-1])
        # Offsets below 4 GB take half the memory.
        code = "I" if ends[-1] < 1 << 32 else "Q"
        table = memoryview(array(code, ends))
        _write(file.fd, table.cast("B"), start)
        return SharedBytes(file), (start, code), len(ends) - 1
    except BaseException:
        file.close()
        raise


def _write(
    fd: int,
    data: memoryview,
    at: int,
) -> None:
    try:
        # The file lies in memory, and is never told that there is no more.
        if data.nbytes > machine.memory_available():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(fd, data, at)
    except OSError as error:
        raise SharedMemoryFull(
            f"after {at / 1e6:.0f} MB of packed items there is no more memory: "
            f"{error}. Pack fewer or smaller ones, or keep them in a file or database "
            "that workers read from."
        ) from error


class _Scribe(pickle.Pickler):
    """Writes items one by one.

    Pickles refer to classes and functions by their index in the list ``names``.
    """

    def __init__(self, names: list[Any]) -> None:
        self._out = io.BytesIO()
        super().__init__(self._out, protocol=5)
        self.dispatch_table = {**copyreg.dispatch_table, **reducers()}
        self._pack = msgpack.Packer().pack
        self._names = names
        # The index in ``names``, by the id of the class or function.
        self._numbers: dict[int, int] = {}
        # True if the current item's pickle names a class or function.
        self._has_named = False

    def written(self, item: object) -> bytes:
        # contextlib.suppress would double the time of this.
        try:
            if _is_plain(item):
                return self._pack(item)  # type: ignore[no-any-return]
        except (ValueError, OverflowError, RecursionError):
            # msgpack refuses surrogates in a string, integers of more than 64 bits, and
            # an item within itself.
            pass
        self._out.seek(0)
        self._out.truncate()
        self.clear_memo()
        self._has_named = False
        self.dump(item)
        if self._has_named:
            return _NAMING + self._out.getvalue()
        return self._out.getvalue()

    def persistent_id(self, value: object) -> int | None:
        if not isinstance(value, (type, FunctionType)):
            return None
        self._has_named = True
        number = self._numbers.setdefault(id(value), len(self._names))
        if number == len(self._names):
            self._names.append(value)
        return number


def _is_plain(value: Any) -> bool:
    """Return True if msgpack returns ``value`` with the same types throughout."""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) not in _LEAVES:
                return False
        value = value.values()
    elif kind is not list:
        return kind in _LEAVES
    # ``all`` takes twice as long as a loop, and there may be a million items.
    for part in value:
        if type(part) not in _LEAVES and not _is_plain(part):
            return False
    return True


class _ByName(pickle.Unpickler):
    """An unpickler that finds classes and functions in the list ``names``."""

    def __init__(self, data: memoryview, names: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._names = names

    def persistent_load(self, number: int) -> object:
        return self._names[number]
