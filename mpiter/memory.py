"""One piece of memory that all our processes see, and who has which range of it.

``Arena`` is made in the consumer process and travels to each worker once, as a descriptor.  On Linux it is a memfd:
bound by no mount, without a name, gone with the last process whatever ends it.  Elsewhere it is an unlinked temporary
file.  Guarantees that a range is backed by memory before anybody touches it (a full machine is an exception with
numbers, never a SIGBUS).  Assumes that only the consumer process allocates.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np

from . import machine
from .envelope import aligned
from .errors import SharedMemoryFull
from .layout import PAGE

_SMALLEST = 1 << 26  # a reserve below this is not worth having
_NOEXEC_SEAL = getattr(os, "MFD_NOEXEC_SEAL", 8)  # Linux 6.3, Python 3.15
_HEADROOM = 1 << 26  # bytes left to everybody else when we check what is available


class Ranges:
    """Which ranges of ``[0, size)`` are free: first fit, neighbours joined."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)]  # (start, stop), sorted, never touching

    def take(self, size: int) -> int | None:
        """The start of a range of ``size`` that was free, or None."""
        for at, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[at : at + 1] = [(start + size, stop)] if stop - start > size else []
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Free a range that was taken."""
        stop = start + size
        at = bisect.bisect(self._free, (start, stop))
        if at and self._free[at - 1][1] == start:
            at -= 1
            start = self._free.pop(at)[0]
        if at < len(self._free) and self._free[at][0] == stop:
            stop = self._free.pop(at)[1]
        self._free.insert(at, (start, stop))


class Arena:
    """Shared memory, reserved generously and committed range by range."""

    def __init__(self, reserve: int | None = None, portable: bool = False) -> None:
        wanted = aligned(reserve or machine.memory_total(), PAGE)
        self._fd = unnamed_file(portable)
        self.size, self.map = _map_as_much_as_possible(self._fd, wanted)
        self._ranges = Ranges(self.size)
        self._taken: dict[int, int] = {}  # start -> size
        self._watchers: list[Callable[[int], None]] = []
        self.address = int(np.frombuffer(self.map, np.uint8).__array_interface__["data"][0])
        _live.add(self)
        self._portable = portable or not hasattr(os, "posix_fallocate")

    def allocate(self, size: int) -> int:
        """The offset of ``size`` bytes of zeros or leftovers, backed by memory."""
        size = aligned(size, PAGE)
        available = machine.memory_available() - _HEADROOM
        start = self._ranges.take(size) if size <= available else None
        if start is None:
            raise _full(size, available, self.size)
        try:
            self._commit(start, size)
        except OSError as error:
            self._ranges.give(start, size)
            raise _full(size, available, self.size) from error
        self._taken[start] = size
        return start

    def range_at(self, address: int) -> tuple[int, int] | None:
        """The address and the size of the range in use that ``address`` lies in."""
        offset = address - self.address
        for start, size in list(self._taken.items()):
            if start <= offset < start + size:
                return self.address + start, size
        return None

    def watch(self, gone: Callable[[int], None]) -> None:
        """Have ``gone`` called with a range's address before the range is given up, or the arena is."""
        self._watchers.append(gone)

    def _give_up(self, start: int) -> None:
        self._taken.pop(start, None)
        for gone in self._watchers:
            gone(self.address + start)

    def free(self, start: int, size: int) -> None:
        """Return a range, and its memory to the system where it lets us."""
        size = aligned(size, PAGE)
        self._give_up(start)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # else it stays committed and is used again
            self.map.madvise(mmap.MADV_REMOVE, start, size)
        self._ranges.give(start, size)

    def _commit(self, start: int, size: int) -> None:
        if self._portable:
            for at in range(start, start + size, 1 << 20):
                os.pwrite(self._fd, bytes(min(1 << 20, start + size - at)), at)
        else:
            os.posix_fallocate(self._fd, start, size)

    def close(self) -> None:
        """Let go of the descriptor; the memory itself lives until the last view of it is dropped."""
        for start in list(self._taken):
            self._give_up(start)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (reduction.DupFd(self._fd), self.size)


_live: weakref.WeakSet[Arena] = weakref.WeakSet()


def arena_at(address: int) -> Arena | None:
    """The arena of this process that ``address`` lies in."""
    return next((arena for arena in list(_live) if arena.address <= address < arena.address + arena.size), None)


def _attached(handle: Any, size: int) -> Arena:
    """The arena in a worker."""
    arena = Arena.__new__(Arena)
    arena._fd = -1
    fd = handle.detach()
    arena.size, arena.map = size, mmap.mmap(fd, size)
    os.close(fd)
    return arena


def memfd() -> int:
    """Memory that is never to be executed: where vm.memfd_noexec is 2 there is no other; old kernels don't know it."""
    with contextlib.suppress(OSError):
        return os.memfd_create("mpiter", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    return os.memfd_create("mpiter", os.MFD_CLOEXEC)


def unnamed_file(portable: bool = False) -> int:
    """A descriptor on memory without a name."""
    if hasattr(os, "memfd_create") and not portable:
        with contextlib.suppress(OSError):  # a sandbox that knows no memfd
            return memfd()
    handle, path = tempfile.mkstemp(prefix="mpiter-")
    os.unlink(path)
    return handle


def _map_as_much_as_possible(fd: int, size: int) -> tuple[int, mmap.mmap]:
    while True:
        try:
            os.ftruncate(fd, size)
            return size, mmap.mmap(fd, size)
        except (OSError, ValueError) as error:  # RLIMIT_AS, RLIMIT_FSIZE or strict overcommit
            if size <= _SMALLEST:
                os.close(fd)
                raise SharedMemoryFull(
                    f"cannot map {size / 1e6:.0f} MB of shared memory ({error}); raise the limit on address space "
                    f"or file size (ulimit -v, ulimit -f), or use serializer='packed'."
                ) from error
            size = aligned(max(_SMALLEST, size // 2), PAGE)


def _full(size: int, available: int, reserve: int) -> SharedMemoryFull:
    error = SharedMemoryFull(
        f"a slot of {size / 1e6:.1f} MB does not fit: {max(available, 0) / 1e6:.1f} MB of memory are available, "
        f"{reserve / 1e6:.1f} MB are reserved for slots; lower batch_size, n_prefetch or run_ahead, or free memory."
    )
    error.errno = errno.ENOSPC  # type: ignore[attr-defined]
    return error
