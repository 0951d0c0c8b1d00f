"""Many small objects in one piece of memory that all processes share: ``Packed``, a sequence to be read.

The memory is an unnamed file: the items one after another, then where each ends.  An item is written in msgpack if that
says exactly the same, else as a pickle; the classes and functions that pickles name stand in a table, which travels
beside the memory as the dataset's pickler has it (those of ``__main__`` by value).  Items come back with value and
type, each time as a new object that is the caller's own.  A process that is started with it, by whatever method, maps
the same memory; one that gets it otherwise gets a copy; nothing is left behind.  Pickles are ours: nothing here comes
from a network.
"""

from __future__ import annotations

import copyreg
import errno
import io
import os
import pickle
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import eq
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

_AT_ONCE = 1 << 20  # bytes written
_PICKLED = pickle.PROTO[0]  # begins a pickle; in msgpack it is the empty dict, a single byte
_NAMING = b"\xc1"  # before a pickle that names something; msgpack never uses it
_LEAVES = {str, int, float, bool, bytes, type(None)}
_REMEDY = "Leave such things out of the items, and open them in worker_init or on first use."


class Packed(Sequence[T]):
    """A sequence of Python objects, packed once into memory that all workers share.

    For datasets that hold a great many small objects (annotations, file names, records), of which each worker would
    else have its own. Read-only; takes the place of a list in any loader. ``items`` may be any iterable: what a
    generator yields is packed as it comes, and never stands in memory together.  Each ``packed[i]`` is a new object.

    A slice is a ``Packed`` on the same memory, and is pickled with the whole of it unless it goes to a process that is
    being started, which maps it; ``Packed(packed[:10])`` has memory of its own.

    >>> packed = Packed({"name": f"{number:04}.jpg", "box": (number, 0, 8, 8)} for number in range(1000))
    >>> packed[3]
    {'name': '0003.jpg', 'box': (3, 0, 8, 8)}
    >>> packed[-10:]
    <Packed: 10 items of 0.1 MB>
    """

    __slots__ = ("_data", "_ends", "_memory", "_names", "_places", "_table")

    def __init__(self, items: Iterable[T]) -> None:
        names: list[Any] = []
        memory, table, count = _packed(items, names)
        self._attach(memory, table, names, range(count))

    def _attach(self, memory: SharedBytes, table: tuple[int, str], names: list[Any], places: range) -> None:
        """``table`` says where that of the ends begins, and in which format."""
        self._memory, self._table, self._names, self._places = memory, table, names, places
        self._data = memoryview(memory)
        self._ends = self._data[table[0] :].cast(table[1])  # type: ignore[call-overload]

    @property
    def nbytes(self) -> int:
        """The bytes of memory, shared with what this is a slice of."""
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
        return self._open(at) if type(at) is int else _attached(self._memory, self._table, self._names, at)

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

    def __eq__(self, other: object) -> bool:
        """Compare as a list of the same objects."""
        if not isinstance(other, (Packed, list)):
            return NotImplemented
        return self is other or (len(self) == len(other) and all(map(eq, self, other)))

    def __repr__(self) -> str:
        return f"<Packed: {len(self):,} items of {self.nbytes / 1e6:.1f} MB>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (self._memory, self._table, self._names, self._places)


def _attached(*about: Any) -> Packed[Any]:
    packed: Packed[Any] = Packed.__new__(Packed)
    packed._attach(*about)
    return packed


def _packed(items: Iterable[Any], names: list[Any]) -> tuple[SharedBytes, tuple[int, str], int]:
    """The memory; where and how the ends of the items stand in it; how many items there are."""
    waiting, ends, scribe = bytearray(), array("Q", [0]), _Scribe(names)
    file, written = SharedFile(), 0
    try:
        for item in items:
            try:
                waiting += scribe.written(item)
            except MemoryError:
                raise
            except Exception as error:
                raise explain(item, f"items[{len(ends) - 1}]", error, _REMEDY) from error
            ends.append(written + len(waiting))
            if len(waiting) > _AT_ONCE:
                _write(file.fd, memoryview(waiting), written)
                written, waiting = ends[-1], bytearray()
        _write(file.fd, memoryview(waiting), written)
        start, code = aligned(ends[-1]), "I" if ends[-1] < 1 << 32 else "Q"
        _write(file.fd, memoryview(array(code, ends)).cast("B"), start)
        return SharedBytes(file), (start, code), len(ends) - 1
    except BaseException:
        file.close()
        raise


def _write(fd: int, data: memoryview, at: int) -> None:
    try:
        if data.nbytes > machine.memory_available():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(fd, data, at)
    except OSError as error:
        raise SharedMemoryFull(
            f"after {at / 1e6:.0f} MB of packed items there is no more memory: {error}. Pack fewer or smaller ones, or "
            f"keep them in a file or database that workers read from."
        ) from error


class _Scribe(pickle.Pickler):
    """Writes items one by one; pickles refer to classes and functions by their numbers in a table of ``names``."""

    def __init__(self, names: list[Any]) -> None:
        self._out = io.BytesIO()
        super().__init__(self._out, protocol=5)
        self.dispatch_table = {**copyreg.dispatch_table, **reducers()}
        self._pack = msgpack.Packer().pack
        self._names, self._numbers = names, dict[int, int]()
        self._has_named = False  # anything, in this item

    def written(self, item: Any) -> bytes:
        try:  # contextlib.suppress would take as long as all the rest
            if _is_plain(item):
                return self._pack(item)  # type: ignore[no-any-return]
        except (ValueError, OverflowError, RecursionError):
            pass  # surrogates in a string, integers of more than 64 bits, an item within itself
        self._out.seek(0)
        self._out.truncate()
        self.clear_memo()
        self._has_named = False
        self.dump(item)
        return _NAMING * self._has_named + self._out.getvalue()

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, (type, FunctionType)):
            return None
        self._has_named = True
        number = self._numbers.setdefault(id(value), len(self._names))
        if number == len(self._names):
            self._names.append(value)
        return number


def _is_plain(value: Any) -> bool:
    """Does msgpack bring this back with the same types throughout?"""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) not in _LEAVES:
                return False
        value = value.values()
    elif kind is not list:
        return kind in _LEAVES
    for part in value:  # noqa: SIM110 (all() takes twice as long, and a million items come by)
        if type(part) not in _LEAVES and not _is_plain(part):
            return False
    return True


class _ByName(pickle.Unpickler):
    """Finds classes and functions in the table again."""

    def __init__(self, data: memoryview, names: list[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._names = names

    def persistent_load(self, number: int) -> Any:
        return self._names[number]
