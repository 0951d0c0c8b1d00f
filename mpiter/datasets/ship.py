"""Sending a *cargo* (dataset and ``worker_init``) to workers.

It is pickled once, into an unnamed file that they all map.  Arrays in memory are shared
by all workers, until one writes to its map, which is private.  An ``np.memmap`` is sent
as the name of its file, classes and functions of ``__main__`` by value.  If something
can't be pickled, the error has its path (``dataset.transform.lock``).
"""

from __future__ import annotations

import importlib
import io
import mmap
import os
import pickle
import sys
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from operator import is_
from types import FunctionType, ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from ..errors import DatasetNotPicklable, SharedMemoryFull, warn
from ..samples import tensors
from ..samples.byvalue import SCRIPT, ByValue, culprit, is_importable
from ..samples.envelope import aligned
from ..samples.tree import PAGE
from ..transport.memory import SharedBytes, SharedFile, write_all
from . import variables

# Bytes compared at once.  They fit into the cache.
_COMPARED = 1 << 20
# The most bytes of a module's variable.
_LARGEST = 1 << 26
# Bytes of pickled objects, which take each worker seconds and several times the memory.
_MANY = 200_000_000
REMEDY = (
    "Open such things in worker_init or on first use, leave them out in __getstate__, "
    "or pass backend=mpiter.Process(start_method='fork')."
)
_OPEN_IT = (
    "Open it in worker_init or on first use, and leave it out in __getstate__: forked "
    "workers would share its place in the file or the connection."
)
# Modules that workers import before they open a cargo.
_first: list[str] = []


def import_first(module: str) -> None:
    """Have workers import ``module`` before they open a cargo.

    This applies to cargos that are packed from now on.
    """
    # A module that is reloaded comes here again.
    if module not in _first:
        _first.append(module)


class Shared:
    """A cargo that isn't sent: threads share the objects with the consumer."""

    def __init__(self, cargo: Any) -> None:
        self._cargo = cargo

    def open(self, notice: Callable[[str], object]) -> Any:
        return self._cargo

    def holds(self, cargo: Any) -> bool:
        """Return True for the same objects, even if modified."""
        return all(map(is_, self._cargo, cargo))

    def close(self) -> None: ...


class Forked(Shared):
    """A cargo of which forked workers have a copy, since they are a copy of us."""

    def holds(self, cargo: Any) -> bool:
        """Return False: whether theirs still is like ours can't be found out."""
        return False


class Hold(Protocol):
    """Keeps a shipment's buffers where workers can read them.

    It is made from the buffers, sent to the workers, and returns the same buffers
    there.
    """

    # True if buffers that are mapped files are sent as files, not as bytes.
    maps_files: ClassVar[bool]

    def __init__(self, buffers: list[memoryview]) -> None: ...

    def buffers(self, is_own: bool) -> list[Any]: ...

    def close(self) -> None: ...


class Copied:
    """Keeps copies of the buffers, which are sent as bytes."""

    maps_files: ClassVar = False

    def __init__(self, buffers: list[memoryview]) -> None:
        # The dataset may change before a worker gets them.
        self._buffers = list(map(bytearray, buffers))

    def buffers(self, is_own: bool) -> list[Any]:
        return self._buffers

    def close(self) -> None:
        self._buffers = []


class Mapped:
    """A hold that keeps the buffers in an unnamed file, which the workers map."""

    maps_files: ClassVar = True

    def __init__(self, buffers: list[memoryview]) -> None:
        sizes = (aligned(buffer.nbytes, PAGE) for buffer in buffers)
        *starts, size = accumulate(sizes, initial=0)
        self._places = []
        for at, buffer in zip(starts, buffers, strict=True):
            self._places.append(slice(at, at + buffer.nbytes))
        self._size = size
        self._file = SharedFile()
        try:
            # Whole pages are mapped, also behind the last buffer.
            os.ftruncate(self._file.fd, size)
            for at, buffer in zip(starts, buffers, strict=True):
                write_all(self._file.fd, buffer, at)
        except OSError as error:
            self.close()
            raise SharedMemoryFull(
                f"the arrays of the dataset ({size / 1e6:.0f} MB) do not fit into "
                f"shared memory: {error}. Use np.memmap, free memory, or pass "
                "backend=mpiter.Process(start_method='fork')."
            ) from error

    def buffers(self, is_own: bool) -> list[Any]:
        """Return the mapped buffers.

        With ``is_own`` they are writable, and writes are private to this process.
        """
        access = mmap.ACCESS_COPY if is_own else mmap.ACCESS_READ
        memory = memoryview(mmap.mmap(self._file.fd, self._size, access=access))
        return [memory[place] for place in self._places]

    def close(self) -> None:
        self._file.close()


class _Parts(NamedTuple):
    """What is sent of a cargo."""

    # Settings, cargo, arrays.  The buffer of a mapped file is empty.
    buffers: list[memoryview]
    # For each buffer its mapped file, if it has one.
    files: list[SharedBytes | None]
    # What can't be sent.
    stays: list[str]
    # The modules that workers will import.
    modules: set[str]


class Shipment:
    """A pickled cargo; ``hold`` is the class that keeps its buffers.

    ``modules`` are those that opening it imports, without those that every worker has.
    """

    def __init__(self, cargo: object, hold: type[Hold] = Mapped) -> None:
        self._maps_files = hold.maps_files
        # Tensors in shared memory that the pickle refers to.  None: they are copied.
        self._kept: list[Any] | None = None
        if hold.maps_files:
            self._kept = []
        parts = self._packed(cargo, self._kept)
        self._shared = parts.files
        imported = parts.modules.union(_first)
        self.modules = frozenset(filter(_takes_time, imported))
        if parts.stays:
            warn(_told(parts.stays))
        pickled = parts.buffers[1].nbytes
        if pickled > _MANY:
            warn(
                f"the dataset holds {pickled / 1e6:.0f} MB of Python objects, of "
                "which each worker makes its own; keep many small objects in "
                "mpiter.Packed and numbers in arrays, which all workers share."
            )
        self._first = [*_first]
        self._sizes = [buffer.nbytes for buffer in parts.buffers]
        self._hold = hold(parts.buffers)

    def _packed(self, cargo: object, kept: list[Any] | None) -> _Parts:
        """Return what is to be sent; ``kept`` is that of ``_dumps``."""
        buffers = list[pickle.PickleBuffer]()
        modules = set[str]()
        pickled = _dumps(cargo, buffers, modules, self._maps_files, kept=kept)
        dumps = partial(_variable, kept=kept)
        held, stays = variables.read(modules, dumps)
        program = by_value(held)
        whole = [memoryview(program), memoryview(pickled)]
        whole += [buffer.raw() for buffer in buffers]
        modules.update(held.modules)
        parts = _Parts([], [], stays, modules)
        for buffer in whole:
            file = buffer.obj
            if self._maps_files and isinstance(file, SharedBytes):
                parts.buffers.append(memoryview(b""))
                parts.files.append(file)
            else:
                parts.buffers.append(buffer)
                parts.files.append(None)
        return parts

    def open(self, notice: Callable[[str], object]) -> Any:
        """Return the cargo, unpickled; ``notice`` warns the user.

        Pages of arrays that the user's code writes to become private.
        """
        for module in self._first:
            importlib.import_module(module)
        mapped = self._hold.buffers(is_own=True)
        pairs = zip(self._shared, mapped, strict=True)
        program, pickled, *buffers = [file or buffer for file, buffer in pairs]
        stays = list(variables.put(pickle.loads(program), _variable))
        if stays:
            notice(_told(stays))
        return pickle.loads(pickled, buffers=buffers)

    def holds(self, cargo: object) -> bool:
        """Return True if packing ``cargo`` now would give the same bytes.

        Then workers needn't get it again.
        """
        kept: list[Any] | None = None
        if self._maps_files:
            kept = []
        try:
            parts = self._packed(cargo, kept)
        except Exception:
            # It can't be pickled now.  Starting new workers will raise the error.
            return False
        sizes = [buffer.nbytes for buffer in parts.buffers]
        if parts.files != self._shared or sizes != self._sizes:
            return False
        mapped = self._hold.buffers(is_own=False)
        return all(map(_are_equal, mapped, parts.buffers))

    def close(self) -> None:
        modules_of_the_past.update(self.modules)
        self._shared = []
        self._kept = None
        self._hold.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": None}


# Modules that workers which have ended had imported: others may need them again.
modules_of_the_past: set[str] = set()
_OURS = {"mpiter", "numpy", "cloudpickle", "msgpack", "threadpoolctl", *SCRIPT}


def _takes_time(name: str) -> bool:
    """Return True if workers import this module only because the dataset needs it."""
    package = name.partition(".")[0]
    is_there_anyway = package in sys.stdlib_module_names or package in _OURS
    return not is_there_anyway and name in sys.modules and is_importable(name)


def _are_equal(one: memoryview, other: memoryview) -> bool:
    mine = np.frombuffer(one, np.uint8)
    theirs = np.frombuffer(other, np.uint8)
    for at in range(0, len(mine), _COMPARED):
        part = slice(at, at + _COMPARED)
        if not np.array_equal(mine[part], theirs[part]):
            return False
    return True


def _told(stays: list[str]) -> str:
    return (
        "what the program may have set does not reach its workers: "
        f"{', '.join(stays)}.  There it is as the module begins.  Hand such things to "
        "the dataset, set them in worker_init, or pass "
        "backend=mpiter.Process(start_method='fork')."
    )


def _dumps(
    cargo: object,
    buffers: list[pickle.PickleBuffer] | None = None,
    modules: set[str] | None = None,
    maps_files: bool = True,
    kind: type[_ByValue] | None = None,
    kept: list[Any] | None = None,
) -> bytes:
    """Return ``cargo`` pickled.

    ``buffers`` gets its large buffers, ``modules`` the modules that it refers to.
    ``kept`` gets the tensors in shared memory, which must live as long as the pickle is
    used; if None, they are copied.
    """
    out = io.BytesIO()
    take = None if buffers is None else buffers.append
    pickler = (kind or _ByValue)(out, protocol=5, buffer_callback=take)
    if modules is None:
        pickler.modules = set()
    else:
        pickler.modules = modules
    pickler.maps_files = maps_files
    pickler.kept = kept
    pickler.dump(cargo)
    return out.getvalue()


def by_value(value: object) -> bytes:
    """Return a small object pickled for a worker that isn't forked."""
    return _dumps(value)


def _variable(value: object, kept: list[Any] | None = None) -> tuple[bytes, set[str]]:
    modules = set[str]()
    data = _dumps(value, modules=modules, kept=kept)
    if len(data) > _LARGEST:
        raise OverflowError(f"larger than {_LARGEST >> 20} MB")
    return data, modules


class _ByValue(ByValue):
    """Pickles by value, memmaps and torch's shared memory by where they lie.

    Records the modules that the pickled objects refer to.
    """

    knows_main = names_classes = False
    modules: set[str]
    maps_files: bool
    # Gets the tensors whose memory isn't copied.  If None, all are copied.
    kept: list[Any] | None

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, (type, FunctionType, ModuleType)):
            if isinstance(value, ModuleType):
                self.modules.add(value.__name__)
            else:
                self.modules.add(value.__module__)
        elif type(value) is SharedBytes and not self.maps_files:
            return np.frombuffer, (pickle.PickleBuffer(value), np.uint8)
        elif type(value) is np.memmap and (where := _place_in_file(value)) is not None:
            return _map_again, where
        elif self.kept is not None and (reduced := tensors.shared(value)) is not None:
            self.kept.append(value)
            return reduced
        return super().reducer_override(value)


def _place_in_file(value: Any) -> tuple[Any, ...] | None:
    """Return the arguments to map a memmap, or a contiguous part of one, again.

    None if that isn't possible.
    """
    mapped = getattr(value, "_mmap", None)
    if mapped is None or value.filename is None:
        return None
    if not value.flags.c_contiguous or value.dtype.hasobject:
        return None
    # Changes of a copy-on-write map are in the caller's memory only.
    if value.mode == "c":
        return None
    start = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    skipped = value.offset - value.offset % mmap.ALLOCATIONGRANULARITY
    offset = skipped + value.__array_interface__["data"][0] - start
    mode = "r" if value.mode == "r" else "r+"
    return str(value.filename), value.dtype, mode, offset, value.shape


def _map_again(
    filename: str,
    dtype: np.dtype[Any],
    mode: Literal["r", "r+"],
    offset: int,
    shape: tuple[int, ...],
) -> object:
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(filename, dtype, mode, offset, shape)


def explain(
    cargo: object,
    name: str,
    error: Exception,
    remedy: str = REMEDY,
) -> DatasetNotPicklable:
    """Return the error to raise when ``cargo`` can't be pickled.

    It names the attribute that is the cause.
    """
    dumps: Callable[[Any], object] = _look_for_handles
    try:
        dumps(cargo)
        dumps = partial(_dumps, buffers=[])
    except _IsHandle as found:
        error = found
        remedy = _OPEN_IT
    path, value, reason = culprit(cargo, name, error, dumps)
    told = DatasetNotPicklable(
        f"{path} ({type(value).__name__}) cannot be pickled: {reason}. {remedy}"
    )
    told.is_handle = isinstance(error, _IsHandle)
    return told


class _IsHandle(Exception):
    """A file, a connection or the like can't be pickled."""


def _look_for_handles(cargo: object) -> None:
    """Raise ``_IsHandle`` if ``cargo`` holds one, whatever else can't be pickled."""
    try:
        _dumps(cargo, [], kind=_Handles)
    except _IsHandle:
        raise
    except Exception:
        return


class _Handles(_ByValue):
    """Leaves out whatever can't be pickled, but for handles."""

    def reducer_override(self, value: object) -> Any:
        try:
            reduced = super().reducer_override(value)
            is_object = reduced is NotImplemented and not isinstance(value, type)
            # The pickler would call this itself, and raise what this raises.
            if is_object and type(value) not in self.dispatch_table:
                value.__reduce_ex__(5)
            return reduced
        except Exception as error:
            if isinstance(value, io.IOBase) or variables.is_handle(type(value)):
                raise _IsHandle(error) from error
            return int, ()
