"""The dataset's journey to the workers: pickled once, mapped by all of them with its arrays.

``Shipment`` is packed in the consumer process and opened in each worker.  Guarantees one copy of in-memory arrays
however many workers there are (a private, writable map of one unnamed file), that ``np.memmap`` travels as the name of
its file, that classes and functions of ``__main__`` travel by value, and that what cannot travel is named by its path
(``dataset.transform.lock``).
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import threading
import warnings
from functools import partial
from itertools import accumulate
from multiprocessing.connection import Connection
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np

from ..errors import DatasetNotPicklable, SharedMemoryFull, warn
from ..samples import tensors
from ..samples.byvalue import ByValue, culprit, is_importable, refuse
from ..samples.envelope import aligned, reduce_text
from ..samples.layout import PAGE
from ..transport.memory import SharedBytes, SharedFile, write_all
from . import settings, variables
from .access import users

_COMPARED = 1 << 17  # words at once
_TOLD = 20  # variables in one warning
_LARGEST = 1 << 26  # bytes of a variable of a module
_MANY = 200_000_000  # bytes of pickled objects: each worker takes seconds to open them, and several times the memory
_LOCKS = {type(make()): make for make in (threading.Lock, threading.RLock)}
_READ_BY = ("__iter__", "__getitem__", "__len__", "__getitems__")
_first: list[str] = []


def import_first(module: str) -> None:
    """Have workers import ``module`` before they open what is sent to them from now on."""
    if module not in _first:
        _first.append(module)


class Kept:
    """What needs no journey: threads and forked workers have it already."""

    def __init__(self, cargo: Any) -> None:
        self._cargo = cargo

    def open(self) -> Any:
        return self._cargo

    def holds(self, cargo: Any) -> bool:
        """Forked workers have it as it was: nobody can tell."""
        return False

    def close(self) -> None: ...


class Hold(Protocol):
    """Where buffers lie that workers read; made of the buffers, it travels to the workers."""

    maps_files: ClassVar[bool]  # may those that are files already travel as such, and not as bytes?

    def __init__(self, buffers: list[memoryview]) -> None: ...
    def buffers(self, is_own: bool) -> list[Any]: ...  # the same again; ``is_own``: where one may write, if possible
    def close(self) -> None: ...


class Mapped:
    """A file without a name that the workers map."""

    maps_files: ClassVar = True

    def __init__(self, buffers: list[memoryview]) -> None:
        self._sizes = [buffer.nbytes for buffer in buffers]
        self._size = sum(aligned(size, PAGE) for size in self._sizes)
        self._file = SharedFile()
        try:
            self._lay_down(buffers)
        except OSError as error:
            self.close()
            raise SharedMemoryFull(
                f"the arrays of the dataset ({self._size / 1e6:.0f} MB) do not fit into shared memory: {error}. "
                f"Use np.memmap, free memory, or pass backend=mpiter.Process(start_method='fork')."
            ) from error

    def _lay_down(self, buffers: list[memoryview]) -> None:
        os.ftruncate(self._file.fd, self._size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fd, 0, self._size)
        for at, buffer in zip(_starts(self._sizes), buffers, strict=True):
            write_all(self._file.fd, buffer, at)

    def buffers(self, is_own: bool) -> list[Any]:
        """``is_own``: what is written there is private to this process."""
        access = mmap.ACCESS_COPY if is_own else mmap.ACCESS_READ
        memory = memoryview(mmap.mmap(self._file.fd, self._size, access=access))
        return [memory[at : at + size] for at, size in zip(_starts(self._sizes), self._sizes, strict=True)]

    def close(self) -> None:
        self._file.close()


class Shipment:
    """A pickled cargo with its buffers where the workers can read them."""

    def __init__(self, cargo: Any, by_value: bool = True, hold: type[Hold] = Mapped) -> None:
        self._by_value, self._maps_files = by_value, hold.maps_files
        raw, self._shared, stays = _packed(cargo, by_value, self._maps_files)
        if stays:
            warn(_told(stays))
        if raw[1].nbytes > _MANY:
            warn(_too_many(raw[1].nbytes))
        self._first, self._methods = tuple(_first), _methods(cargo)
        self._sizes = [buffer.nbytes for buffer in raw]
        self._hold = hold(raw)

    def open(self) -> Any:
        """The cargo, unpickled; its arrays are private to this worker once it writes to them, if it can."""
        for module in self._first:
            importlib.import_module(module)
        found = zip(self._shared, self._hold.buffers(is_own=True), strict=True)
        program, pickled, *buffers = [shared or buffer for shared, buffer in found]
        held, is_set = pickle.loads(program)
        stays = [*variables.put(held, partial(_variable, self._by_value)), *settings.put(is_set)]
        if stays:
            warnings.warn(_told(stays), RuntimeWarning, stacklevel=2)
        cargo = pickle.loads(pickled, buffers=buffers)
        _check_methods(cargo, self._methods)
        return cargo

    def holds(self, cargo: Any) -> bool:
        """Would packing ``cargo`` now give the same?"""
        try:
            raw, shared, _ = _packed(cargo, self._by_value, self._maps_files)
        except Exception:  # it cannot travel any more: whoever starts new workers says why
            return False
        if shared != self._shared or [buffer.nbytes for buffer in raw] != self._sizes:
            return False
        pairs = zip(self._hold.buffers(is_own=False), raw, strict=True)
        return all(_same(np.frombuffer(mine, np.uint8), np.frombuffer(theirs, np.uint8)) for mine, theirs in pairs)

    def close(self) -> None:
        self._shared = []
        self._hold.close()


def _methods(cargo: Any) -> dict[str, str | None]:
    """Where a dataset's class is defined, and the methods by which it is read."""
    kind = type(users(cargo[0]))
    return {"": _defined_at(kind)} | {name: _defined_at(getattr(kind, name, None)) for name in _READ_BY}


def _defined_at(found: Any) -> str | None:
    return found and f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', type(found))}"


def _check_methods(cargo: Any, theirs: dict[str, str | None]) -> None:
    """The same class may have other methods here: its module was changed since, or by the program as it ran."""
    mine = _methods(cargo)
    for name, here in mine.items():
        if here != theirs[name] and mine[""] == theirs[""]:
            raise DatasetNotPicklable(
                f"{mine['']}.{name} is {theirs[name]} in the program and {here} in this worker: define it in the "
                f"class, or pass backend=mpiter.Process(start_method='fork')."
            )


def _same(mine: Any, theirs: Any) -> bool:
    """Are these the same bytes?  In parts that stay in the cache, eight bytes at a time."""
    words = len(mine) // 8 * 8
    if not np.array_equal(mine[words:], theirs[words:]):
        return False
    mine, theirs = mine[:words].view(np.uint64), theirs[:words].view(np.uint64)
    parts = range(0, len(mine), _COMPARED)
    return all(np.array_equal(mine[at : at + _COMPARED], theirs[at : at + _COMPARED]) for at in parts)


def _starts(sizes: list[int]) -> list[int]:
    """Where in the file buffers of these sizes lie."""
    return list(accumulate((aligned(size, PAGE) for size in sizes[:-1]), initial=0)) if sizes else []


class _ByValue(ByValue):
    """Knows in addition that a memmap is a file and a tensor an array."""

    knows_main = names_twins = False
    modules: set[str]  # that what has been pickled names
    maps_files = True
    renews_locks = False  # those of a module's variable, whose other attributes matter

    def reducer_override(self, value: Any) -> Any:
        _note(value, self.modules)
        known = _reduced(value, self)
        if known is None and isinstance(value, FunctionType):
            return variables.share(super().reducer_override(value))
        return super().reducer_override(value) if known is None else known


class _ByReference(pickle.Pickler):
    """Plain pickle, likewise; the workers import the caller's script."""

    modules: set[str]
    maps_files = True
    renews_locks = False

    def reducer_override(self, value: Any) -> Any:
        _note(value, self.modules)
        if isinstance(value, Connection):
            refuse(value)
        if isinstance(value, (type, FunctionType)) and not is_importable(value.__module__):
            raise TypeError(f"workers cannot import its module, {value.__module__}")
        known = _reduced(value, self)
        return NotImplemented if known is None else known


def _note(value: Any, modules: set[str]) -> None:
    if isinstance(value, (type, FunctionType)):
        modules.add(value.__module__)
    elif isinstance(value, ModuleType):
        modules.add(value.__name__)


def _reduced(value: Any, pickler: Any) -> Any:
    """How to pickle what carries much memory; None for everything else."""
    if pickler.renews_locks and type(value) in _LOCKS:
        return _LOCKS[type(value)], ()
    if type(value) is SharedBytes and not pickler.maps_files:
        return np.frombuffer, (pickle.PickleBuffer(value), np.uint8)
    if type(value) in (np.bytes_, np.str_):
        return reduce_text(value)
    if type(value) is np.memmap and (where := _place_in_file(value)) is not None:
        return _map_again, where
    if (array := tensors.as_array(value)) is not None:
        return tensors.from_array, (array,)
    if (device := tensors.device_of(value)) not in ("cpu", "meta"):
        raise TypeError(f"it is a tensor on {device}, which workers cannot share; keep data for them on the CPU")
    return None


def _packed(
    cargo: Any, by_value: bool, maps_files: bool = True
) -> tuple[list[memoryview], list[SharedBytes | None], list[str]]:
    """What the program has set, the cargo's pickle, and the buffers that go out of line.

    Beside them, and in their place, what workers can map already; and which variables stay behind, and why.
    """
    buffers: list[pickle.PickleBuffer] = []
    modules = set[str]()
    pickled = _dumps(cargo, buffers, by_value, modules, maps_files)
    found, stays = variables.read(modules, partial(_variable, by_value), with_main=not by_value)
    program = _dumps((found, settings.read()), None, by_value)
    raw = [memoryview(program), memoryview(pickled), *(buffer.raw() for buffer in buffers)]
    shared = [one.obj if maps_files and isinstance(one.obj, SharedBytes) else None for one in raw]
    return [memoryview(b"") if there else one for one, there in zip(raw, shared, strict=True)], shared, stays


def _variable(by_value: bool, value: Any) -> tuple[bytes, set[str]]:
    """The pickle of a module's variable, and the modules that it names."""
    modules = set[str]()
    return _dumps(value, None, by_value, modules, is_variable=True), modules


class _Bounded(io.BytesIO):
    """Takes the pickle of a variable."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _LARGEST:
            raise OverflowError(f"larger than {_LARGEST >> 20} MB")
        return super().write(data)


def _told(stays: list[str]) -> str:
    some = stays[:_TOLD] + [f"and {len(stays) - _TOLD} more"] * (len(stays) > _TOLD)
    return (
        f"what the program may have set does not reach its workers: {', '.join(some)}.  There it is as the module "
        f"begins.  Hand such things to the dataset, set them in worker_init, or pass "
        f"backend=mpiter.Process(start_method='fork')."
    )


def _too_many(size: int) -> str:
    return (
        f"the dataset holds {size / 1e6:.0f} MB of Python objects, of which each worker makes its own; keep many small "
        f"objects in mpiter.Packed and numbers in arrays, which all workers share."
    )


def _dumps(
    cargo: Any,
    buffers: list[pickle.PickleBuffer] | None,
    by_value: bool,
    modules: set[str] | None = None,
    maps_files: bool = True,
    is_variable: bool = False,
) -> bytes:
    """Pickle ``cargo``; ``buffers`` takes what goes out of line, ``modules`` the names of those that it leads to."""
    out = _Bounded() if is_variable else io.BytesIO()
    make = _ByValue if by_value else _ByReference
    pickler = make(out, protocol=5, buffer_callback=None if buffers is None else buffers.append)
    pickler.modules = set() if modules is None else modules
    pickler.maps_files, pickler.renews_locks = maps_files, is_variable
    pickler.dump(cargo)
    return out.getvalue()


def _place_in_file(value: Any) -> tuple[Any, ...] | None:
    """(file, dtype, mode, offset, shape) of a memmap or a contiguous part of one."""
    mapped = getattr(value, "_mmap", None)
    if mapped is None or value.filename is None or not value.flags.c_contiguous or value.dtype.hasobject:
        return None
    if value.mode == "c":
        return None  # the caller's own changes live in his memory only
    start = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    skipped = value.offset - value.offset % mmap.ALLOCATIONGRANULARITY
    offset = skipped + value.__array_interface__["data"][0] - start
    mode = "r" if value.mode == "r" else "r+"
    return str(value.filename), value.dtype, mode, offset, value.shape


def _map_again(filename: str, dtype: Any, mode: Any, offset: int, shape: tuple[int, ...]) -> Any:
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(filename, dtype, mode, offset, shape)


_OPEN_IT = (
    "Open it in worker_init or on first use, and leave it out in __getstate__: forked workers would share its place in "
    "the file or the connection."
)
_REMEDY = (
    "Open such things in worker_init or on first use, leave them out in __getstate__, or pass "
    "backend=mpiter.Process(start_method='fork')."
)


def explain(cargo: Any, name: str, error: Exception, remedy: str = _REMEDY) -> DatasetNotPicklable:
    """The error to raise when ``cargo`` cannot travel, naming the attribute that is to blame."""
    path, value, reason = culprit(cargo, name, error, lambda part: _dumps(part, [], by_value=True))
    is_handle = isinstance(value, io.IOBase) or type(value).__module__.partition(".")[0] in variables.HANDLES
    remedy = _OPEN_IT if is_handle else remedy
    error = DatasetNotPicklable(f"{path} ({type(value).__name__}) cannot be pickled: {reason}. {remedy}")
    error.is_handle = is_handle
    return error


def by_value(value: Any) -> bytes:
    """Pickle something small for a worker that has not imported the caller's script."""
    return _dumps(value, None, by_value=True)
