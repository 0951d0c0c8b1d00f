"""A piece of memory that several processes have in common, and that each finds by itself, by where it lies.

Runs anywhere.  On Linux it is unnamed and opened through the process that has made it (``/proc/PID/fd``), elsewhere a
temporary file.  Guarantees that it is gone with the processes that have it open, and that each of them, forked ones
too, has a descriptor of its own, so that locks on it hold between them.  Who comes when nobody has it any more gets an
empty one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from typing import Any

from ..transport.memory import unnamed_file

_FDS = "/proc/self/fd"


class Sheet:
    """So many bytes, zeros at first; what nobody writes to takes no memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        if os.path.isdir(_FDS):
            fd = unnamed_file()
            self.path = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            fd, self.path = tempfile.mkstemp(prefix="mpiter-")
            weakref.finalize(self, _remove, self.path, os.getpid())
        os.ftruncate(fd, size)
        self._attach(fd)
        self._inode = os.fstat(fd).st_ino

    def _attach(self, fd: int) -> None:
        self._fd, self._pid = fd, os.getpid()
        weakref.finalize(self, _close, fd, self._pid).atexit = False  # a thread may be writing to it even then

    @property
    def fd(self) -> int:
        """This process's descriptor."""
        if self._pid != os.getpid():  # forked
            self._attach(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        return self._fd

    def map(self, size: int | None = None) -> mmap.mmap:
        """The memory itself, or its beginning."""
        return mmap.mmap(self.fd, self.size if size is None else size)

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (self.path, self._inode, self.size)


def _found(path: str, inode: int, size: int) -> Sheet:
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_ino == inode:
            sheet = Sheet.__new__(Sheet)
            sheet.size, sheet.path, sheet._inode = size, path, inode
            sheet._attach(fd)
            return sheet
        os.close(fd)
    return Sheet(size)


def _close(fd: int, pid: int) -> None:
    if pid == os.getpid():
        os.close(fd)


def _remove(path: str, pid: int) -> None:
    if pid == os.getpid():
        with contextlib.suppress(OSError):
            os.unlink(path)
