"""A lock between processes that dies with its holder: a record lock on an unnamed file.

The locks of a stock Pool's queues are semaphores: a worker killed with one in hand keeps it for ever, and under
forkserver and spawn they have names, which stay in /dev/shm when the whole process group is killed.  The kernel gives a
record lock back when its process ends, however it ends, and there is nothing to name.  Guarantees exclusion between
processes, not between the threads of one: of a Pool's queues each end has one user in a process.
"""

from __future__ import annotations

import contextlib
import os
from multiprocessing import reduction
from typing import Any

from .memory import unnamed_file

try:
    import fcntl
except ImportError:  # not a POSIX system: its locks have no names anyway
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None


class LockFile:
    """The file whose bytes are locked, and the locks on it."""

    def __init__(self) -> None:
        self.fd = unnamed_file()
        self._locks = 0

    def new_lock(self) -> RecordLock:
        self._locks += 1
        return RecordLock(self, self._locks)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (reduction.DupFd(self.fd),)


def _attached(handle: Any) -> LockFile:
    """The file in a worker; closing any descriptor of it there would release what the worker holds, so none ever is."""
    file = LockFile.__new__(LockFile)
    file.fd, file._locks = handle.detach(), 0
    return file


class RecordLock:
    """What ``multiprocessing.Lock`` is, as far as its queues ask."""

    def __init__(self, file: LockFile, at: int) -> None:
        self._file, self._at = file, at

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Wait for the lock; the caller has no use for a timeout other than none at all."""
        try:
            fcntl.lockf(self._file.fd, fcntl.LOCK_EX | (0 if block and timeout is None else fcntl.LOCK_NB), 1, self._at)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        with contextlib.suppress(OSError):  # the file was closed meanwhile: nobody holds anything
            fcntl.lockf(self._file.fd, fcntl.LOCK_UN, 1, self._at)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
