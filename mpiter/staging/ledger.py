"""How many bytes are kept, of how many that may be: the bound, which holds for all processes together.

Runs wherever samples are kept.  Two numbers at the beginning of a file that everybody maps, changed under a lock on it.
Whoever is killed between reserving room and using it leaves the room reserved, until somebody counts anew.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator

from .own import Descriptor, Own
from .sheet import Sheet

with contextlib.suppress(ImportError):  # Windows, where nobody gets as far as this
    import fcntl

BYTES = 16  # of the file


class Ledger:
    """Of a file by its path, or of a sheet of memory."""

    def __init__(self, capacity: int, where: str | Sheet) -> None:
        self.capacity, self._here = capacity, Own(_Opened, where)
        self._here()  # now, before there are threads that would make two

    def reserve(self, size: int, items: int = 1) -> bool:
        """Room for so many bytes more, or, below zero, less; False if there is none."""
        with self._here().locked() as cells:
            if size > 0 and cells[0] + size > self.capacity:
                return False
            cells[0] += size
            cells[1] += items
            return True

    def advance(self, size: int) -> int:
        """Room for so many bytes more, beyond any bound: how many there were before."""
        with self._here().locked() as cells:
            before: int = cells[0]
            cells[0] += size
            cells[1] += 1
            return before

    def count_anew(self, size: int, items: int) -> None:
        """This is what there is."""
        with self._here().locked() as cells:
            cells[0], cells[1] = size, items

    @property
    def used(self) -> tuple[int, int]:
        """Bytes, and items."""
        cells = self._here().cells
        return cells[0], cells[1]

    @property
    def is_full(self) -> bool:
        """Is there no room for one more of the average size?"""
        used, items = self.used
        return used + (used // items if items else 0) > self.capacity


class _Opened:
    """What a process has of it."""

    def __init__(self, where: str | Sheet) -> None:
        self._file = Descriptor(where) if isinstance(where, str) else where  # which stays open as long
        self._fd = self._file.fd
        if os.fstat(self._fd).st_size < BYTES:
            self._begin()
        self.cells = memoryview(mmap.mmap(self._fd, BYTES)).cast("q")
        self._one_at_a_time = threading.Lock()

    def _begin(self) -> None:
        """Write zeros: a mapped file that was only made longer ends with SIGBUS when the disk is full."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if os.fstat(self._fd).st_size < BYTES:
                os.pwrite(self._fd, bytes(BYTES), 0)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextlib.contextmanager
    def locked(self) -> Iterator[memoryview]:
        with self._one_at_a_time:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield self.cells
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # said, for a process forked meanwhile has it too
