"""The *arena*: one piece of memory that all processes of an iterator share.

Parts of it, *ranges*, are in use.  On Linux it is a memfd, freed with the last process,
however that ends; elsewhere an unlinked temporary file.  ``Arena`` guarantees that a
range is backed by memory before it is used (if memory is full it raises an error with
numbers, instead of a later SIGBUS).  Only the consumer process may allocate.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import mmap
import operator
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Protocol, SupportsIndex

import numpy as np

from .. import machine
from ..errors import SharedMemoryFull
from ..samples.envelope import aligned
from ..samples.tree import PAGE

# Bytes of address space to reserve at least.
_SMALLEST = 1 << 26
# Bytes of available memory left to other programs.
_HEADROOM = 1 << 26


class SharedFile:
    """An unnamed file, which processes that are being started can have as well.

    Pickling it sends its descriptor, which works only for these.
    """

    def __init__(self) -> None:
        self.fd = unnamed_file()

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __reduce__(self) -> tuple[object, ...]:
        context.assert_spawning(self)
        return _opened_again, (type(self), reduction.DupFd(self.fd))


class _Handle(Protocol):
    """A descriptor on its way to another process."""

    def detach(self) -> int: ...


def _opened_again(
    kind: type[SharedFile],
    handle: _Handle,
) -> SharedFile:
    file = kind.__new__(kind)
    file.fd = handle.detach()
    return file


class Arena:
    """Shared memory: address space is reserved at once, memory committed by ranges."""

    def __init__(self, reserve: int) -> None:
        self._file = SharedFile()
        wanted = aligned(reserve, PAGE)
        self.size, self.map = _map_as_much_as_possible(self._file, wanted)
        # (start, stop), sorted; neighbours are joined.
        self._free = [(0, self.size)]
        # The size of each range in use, by its start.
        self._taken: dict[int, int] = {}
        # Called with a range's address before that is used for something else.
        self._watchers: list[Callable[[int], None]] = []
        self.address = _address_of(self.map)
        _live.add(self)

    def allocate(self, size: int) -> int:
        """Return the offset of ``size`` bytes that are backed by memory.

        Their contents are arbitrary.
        """
        size = aligned(size, PAGE)
        available = machine.memory_available() - _HEADROOM
        start = None
        if size <= available:
            start = self._take(size)
        if start is None:
            raise _full(size, available, self.size)
        try:
            self._commit(start, size)
        except OSError as error:
            self._give(start, size)
            raise _full(size, available, self.size) from error
        self._taken[start] = size
        return start

    def _take(self, size: int) -> int | None:
        """Take ``size`` bytes from the first free range that has as many.

        Return their start, or None if no range has.
        """
        for at, (start, stop) in enumerate(self._free):
            if stop - start > size:
                self._free[at] = (start + size, stop)
                return start
            if stop - start == size:
                del self._free[at]
                return start
        return None

    def _give(
        self,
        start: int,
        size: int,
    ) -> None:
        """Add a range to the free ones, and join it with its neighbours."""
        stop = start + size
        at = bisect.bisect(self._free, (start, stop))
        if at and self._free[at - 1][1] == start:
            at -= 1
            start = self._free.pop(at)[0]
        if at < len(self._free) and self._free[at][0] == stop:
            stop = self._free.pop(at)[1]
        self._free.insert(at, (start, stop))

    def range_at(self, address: int) -> tuple[int, int] | None:
        """Return address and size of the range in use that has ``address``, or None."""
        offset = address - self.address
        # It is a copy, since another thread may allocate or free ranges meanwhile.
        for start, size in list(self._taken.items()):
            if start <= offset < start + size:
                return self.address + start, size
        return None

    def watch(self, gone: Callable[[int], None]) -> None:
        """Have ``gone`` called with a range's address before the range is freed.

        It is also called for each range before the arena is closed.
        """
        self._watchers.append(gone)

    def _give_up(self, start: int) -> None:
        self._taken.pop(start, None)
        for gone in self._watchers:
            gone(self.address + start)

    def free(
        self,
        start: int,
        size: int,
    ) -> None:
        """Free a range, and return its memory to the system where that is possible."""
        size = aligned(size, PAGE)
        self._give_up(start)
        # Where the memory can't be returned it stays committed and is used again.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            self.map.madvise(mmap.MADV_REMOVE, start, size)
        self._give(start, size)

    def _commit(
        self,
        start: int,
        size: int,
    ) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fd, start, size)
            return
        # Writing to the file has the same effect, where the system lacks this call.
        stop = start + size
        for at in range(start, stop, 1 << 20):
            count = min(1 << 20, stop - at)
            os.pwrite(self._file.fd, bytes(count), at)

    def close(self) -> None:
        """Close the descriptor.

        The memory itself lives until the last view of it is dropped.
        """
        for start in list(self._taken):
            self._give_up(start)
        self._file.close()

    def go_private(self) -> None:
        """Have this process keep a copy of the memory.

        What it writes from now on, no other process sees.
        """
        _map_privately(self._file.fd, self.address, self.size)

    def __reduce__(self) -> tuple[object, ...]:
        return _attached, (self._file, self.size)


# The arenas that this process has made, as long as anything refers to them.
_live: weakref.WeakSet[Arena] = weakref.WeakSet()


def arena_at(address: int) -> Arena | None:
    """Return the arena of this process that ``address`` lies in, or None."""
    for arena in list(_live):
        if arena.address <= address < arena.address + arena.size:
            return arena
    return None


def _attached(file: SharedFile, size: int) -> Arena:
    arena = Arena.__new__(Arena)
    arena._file = file
    arena.size = size
    arena.map = mmap.mmap(file.fd, size)
    arena.address = _address_of(arena.map)
    return arena


def _address_of(memory: mmap.mmap) -> int:
    array = np.frombuffer(memory, np.uint8)
    return int(array.__array_interface__["data"][0])


# The same number in <sys/mman.h> of Linux and of macOS.
_MAP_FIXED = 0x10


def _map_privately(
    fd: int,
    address: int,
    size: int,
) -> None:
    """Replace the map of a file at ``address`` by a private one with its contents."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    # Where memory may not be overcommitted the system may refuse a private map that can
    # be written to.  With one that can't, a process that writes ends instead.
    for protection in (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ):
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        if libc.mmap(address, size, protection, flags, fd, 0) == address:
            return
    raise OSError(ctypes.get_errno(), "cannot map shared memory privately")


class SharedBytes(mmap.mmap):
    """A read-only map of a finished file.

    It is pickled as the file for a process that is being started, else as bytes.
    """

    file: SharedFile

    def __new__(cls, file: SharedFile) -> SharedBytes:
        try:
            self = super().__new__(cls, file.fd, 0, access=mmap.ACCESS_READ)
        except OSError as error:
            # RLIMIT_AS leaves too little address space.
            size = os.fstat(file.fd).st_size
            raise SharedMemoryFull(
                f"cannot map {size / 1e6:.0f} MB ({error}); raise ulimit -v."
            ) from error
        self.file = file
        weakref.finalize(self, file.close)
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        if context.get_spawning_popen() is not None:
            return SharedBytes, (self.file,)
        if operator.index(protocol) >= 5:
            return shared_bytes, (pickle.PickleBuffer(self),)
        return shared_bytes, (bytes(self),)


def shared_bytes(
    buffer: bytes | bytearray | memoryview | pickle.PickleBuffer | SharedBytes,
) -> SharedBytes:
    """Return a copy of ``buffer`` that other processes can map.

    If they can map ``buffer`` itself, that is returned.
    """
    if isinstance(buffer, SharedBytes):
        return buffer
    file = SharedFile()
    try:
        write_all(file.fd, memoryview(buffer), 0)
        return SharedBytes(file)
    except BaseException:
        file.close()
        raise


def write_all(
    fd: int,
    buffer: memoryview,
    at: int,
) -> None:
    done = 0
    while done < buffer.nbytes:
        # Linux writes no more than 2 GB at once.
        part = buffer[done : done + (1 << 30)]
        done += os.pwrite(fd, part, at + done)


def memfd() -> int:
    return os.memfd_create("mpiter", os.MFD_CLOEXEC)


def unnamed_file() -> int:
    """Return a descriptor of a new memfd, or of an unlinked file if there is none."""
    try:
        return memfd()
    except (AttributeError, OSError):
        # This isn't Linux, or a sandbox that forbids it.
        return unlinked_file()


def unlinked_file() -> int:
    handle, path = tempfile.mkstemp(prefix="mpiter-")
    os.unlink(path)
    return handle


def _map_as_much_as_possible(
    file: SharedFile,
    size: int,
) -> tuple[int, mmap.mmap]:
    while True:
        try:
            os.ftruncate(file.fd, size)
            return size, mmap.mmap(file.fd, size)
        except (OSError, ValueError) as error:
            # The cause is RLIMIT_AS, RLIMIT_FSIZE or strict overcommit, which may allow
            # less, unless there are too many open files.
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
                file.close()
                raise
            if size > _SMALLEST:
                size = aligned(max(_SMALLEST, size // 2), PAGE)
                continue
            file.close()
            raise SharedMemoryFull(
                f"cannot map {size / 1e6:.0f} MB ({error}); raise ulimit -v or -f."
            ) from error


def _full(
    size: int,
    available: int,
    reserve: int,
) -> SharedMemoryFull:
    error = SharedMemoryFull(
        f"a slot of {size / 1e6:.1f} MB does not fit: {max(available, 0) / 1e6:.1f} MB "
        f"of memory are available, {reserve / 1e6:.1f} MB of address space (ulimit -v) "
        "for all slots; lower batch_size, n_prefetch or run_ahead, or free memory."
    )
    error.errno = errno.ENOSPC  # type: ignore[attr-defined]
    return error
