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
from typing import Any

from .sheet import Sheet

with contextlib.suppress(ImportError):  # Windows, where nobody gets as far as this
    import fcntl

BYTES = 16  # of the file


class Ledger:
    """Of a file by its path, or of a sheet of memory."""

    def __init__(self, capacity: int, where: str | Sheet) -> None:
        self.capacity, self._where = capacity, where
        self._opened: _Opened | None = None

    @property
    def _here(self) -> _Opened:
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = _Opened(self._where)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def reserve(self, size: int, items: int = 1) -> bool:
        """Room for so many bytes more, or, below zero, less; False if there is none."""
        with self._here.locked() as cells:
            if size > 0 and cells[0] + size > self.capacity:
                return False
            cells[0] += size
            cells[1] += items
            return True

    def advance(self, size: int) -> int:
        """Room for so many bytes more, beyond any bound: how many there were before."""
        with self._here.locked() as cells:
            before: int = cells[0]
            cells[0] += size
            cells[1] += 1
            return before

    def count_anew(self, size: int, items: int) -> None:
        """This is what there is."""
        with self._here.locked() as cells:
            cells[0], cells[1] = size, items

    @property
    def used(self) -> tuple[int, int]:
        """Bytes, and items."""
        cells = self._here.cells
        return cells[0], cells[1]

    @property
    def is_full(self) -> bool:
        """Is there no room for one more of the average size?"""
        used, items = self.used
        return used + (used // items if items else 0) > self.capacity


class _Opened:
    """A process's own: a lock that was inherited would be everybody's."""

    def __init__(self, where: str | Sheet) -> None:
        self.pid, self._where = os.getpid(), where
        self._is_own = isinstance(where, str)
        self._fd = os.open(where, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600) if isinstance(where, str) else where.fd
        if os.fstat(self._fd).st_size < BYTES:
            os.ftruncate(self._fd, BYTES)
        self.cells = memoryview(mmap.mmap(self._fd, BYTES)).cast("q")
        self._one_at_a_time = threading.Lock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[memoryview]:
        with self._one_at_a_time:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield self.cells
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # said, for a process forked meanwhile has it too

    def __del__(self) -> None:
        if self._is_own and self.pid == os.getpid() and hasattr(self, "_fd"):
            os.close(self._fd)
