"""The dataset's journey to the workers: pickled once, mapped by all of them with its arrays.

``Shipment`` is packed in the consumer process and opened in each worker.  Guarantees one copy of in-memory arrays
however many workers there are (a private, writable map of one unnamed file), that ``np.memmap`` travels as the name of
its file, that classes and functions of ``__main__`` travel by value, and that what cannot travel is named by its path
(``dataset.transform.lock``).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import mmap
import os
import pickle
from itertools import accumulate
from multiprocessing import reduction
from typing import Any

import cloudpickle
import numpy as np

from . import tensors
from .envelope import aligned
from .errors import DatasetNotPicklable, SharedMemoryFull
from .layout import PAGE
from .memory import unnamed_file

_SEARCH_DEPTH = 6
_COMPARED = 1 << 17  # words at once
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


class Shipment:
    """A pickled cargo with its buffers in a file that the workers map."""

    def __init__(self, cargo: Any, by_value: bool = True) -> None:
        self._by_value = by_value
        raw = _packed(cargo, by_value)
        self._first = tuple(_first)
        self._sizes = [buffer.nbytes for buffer in raw]
        self._size = sum(aligned(size, PAGE) for size in self._sizes)
        self._fd = unnamed_file()
        try:
            self._lay_down(raw)
        except OSError as error:
            self.close()
            raise SharedMemoryFull(
                f"the arrays of the dataset ({self._size / 1e6:.0f} MB) do not fit into shared memory: {error}. "
                f"Use np.memmap, free memory, or pass backend=mpiter.Process(start_method='fork')."
            ) from error

    def _lay_down(self, buffers: list[memoryview]) -> None:
        os.ftruncate(self._fd, self._size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, self._size)
        for at, buffer in zip(_starts(self._sizes), buffers, strict=True):
            _write_all(self._fd, buffer, at)

    def open(self) -> Any:
        """The cargo, unpickled; its arrays are private to this worker once it writes to them."""
        for module in self._first:
            importlib.import_module(module)
        memory = memoryview(mmap.mmap(self._fd, self._size, access=mmap.ACCESS_COPY))
        places = zip(_starts(self._sizes), self._sizes, strict=True)
        pickled, *buffers = [memory[at : at + size] for at, size in places]
        return pickle.loads(pickled, buffers=buffers)

    def holds(self, cargo: Any) -> bool:
        """Would packing ``cargo`` now give the same?"""
        try:
            raw = _packed(cargo, self._by_value)
        except Exception:  # it cannot travel any more: whoever starts new workers says why
            return False
        if [buffer.nbytes for buffer in raw] != self._sizes:
            return False
        mine = np.frombuffer(mmap.mmap(self._fd, self._size, access=mmap.ACCESS_READ), np.uint8)
        places = zip(_starts(self._sizes), raw, strict=True)
        return all(_same(mine[at : at + buffer.nbytes], np.frombuffer(buffer, np.uint8)) for at, buffer in places)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __getstate__(self) -> dict[str, Any]:
        handle = reduction.DupFd(self._fd)
        return {"first": self._first, "sizes": self._sizes, "size": self._size, "fd": handle}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._first, self._sizes, self._size = state["first"], state["sizes"], state["size"]
        self._fd = state["fd"].detach()


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


class _ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, which knows in addition that a memmap is a file and a tensor an array."""

    def reducer_override(self, value: Any) -> Any:
        known = _reduced(value)
        return super().reducer_override(value) if known is None else known


class _ByReference(pickle.Pickler):
    """Plain pickle, likewise; the workers import the caller's script."""

    def reducer_override(self, value: Any) -> Any:
        known = _reduced(value)
        return NotImplemented if known is None else known


def _reduced(value: Any) -> Any:
    """How to pickle what carries much memory; None for everything else."""
    if type(value) is np.memmap and (where := _place_in_file(value)) is not None:
        return _map_again, where
    if (array := tensors.as_array(value)) is not None:
        return tensors.from_array, (array,)
    return None


def _packed(cargo: Any, by_value: bool) -> list[memoryview]:
    """The pickle, and the buffers that go out of line."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = _dumps(cargo, buffers, by_value)
    return [memoryview(pickled), *(buffer.raw() for buffer in buffers)]


def _dumps(cargo: Any, buffers: list[pickle.PickleBuffer], by_value: bool) -> bytes:
    out = io.BytesIO()
    pickler = _ByValue if by_value else _ByReference
    pickler(out, protocol=5, buffer_callback=buffers.append).dump(cargo)
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


def _write_all(fd: int, buffer: memoryview, at: int) -> None:
    done = 0
    while done < buffer.nbytes:
        done += os.pwrite(fd, buffer[done : done + (1 << 30)], at + done)


def explain(cargo: Any, name: str, error: Exception) -> DatasetNotPicklable:
    """The error to raise when ``cargo`` cannot travel, naming the attribute that is to blame."""
    path, value, reason = _culprit(cargo, name, error, _SEARCH_DEPTH)
    return DatasetNotPicklable(
        f"{path} ({type(value).__name__}) cannot be pickled: {reason}. Open such things in worker_init or on first "
        f"use, leave them out in __getstate__, or pass backend=mpiter.Process(start_method='fork')."
    )


def _culprit(value: Any, path: str, error: Exception, depth: int) -> tuple[str, Any, str]:
    for name, part in _parts(value, path) if depth else []:
        try:
            _dumps(part, [], by_value=True)
        except Exception as inner:
            return _culprit(part, name, inner, depth - 1)
    return path, value, str(error).strip().rstrip(".") or type(error).__name__


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"{path}[{at}]", part) for at, part in enumerate(value)]
    parts = [(f"{path}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()]
    with contextlib.suppress(AttributeError, ValueError):  # what a function has closed over
        names = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        parts += [(f"{path}:{name}", cell.cell_contents) for name, cell in names]
    return parts


def by_value(value: Any) -> bytes:
    """Pickle something small for a worker that has not imported the caller's script."""
    return cloudpickle.dumps(value, protocol=5)  # type: ignore[no-any-return]
