"""A lock between processes that its holder's death leaves shut, without a name: a record lock on an unnamed file.

The locks of a stock Pool's queues are semaphores, which under forkserver and spawn have names that stay in /dev/shm
when the whole process group is killed.  A record lock has none, and the kernel gives it back when its holder ends,
however that happens.  What the lock guards is then half done (a message half written or half read), so whoever gets it
next must know: a mark beside the lock says that somebody is inside, and who finds it there goes no further until he is
ended with all the others.  Guarantees exclusion between processes, not between the threads of one: of a Pool's queues
each end has one user in a process.
"""

from __future__ import annotations

import mmap
import os
import threading
from multiprocessing import context, reduction
from typing import Any

from .memory import unnamed_file

try:
    import fcntl
except ImportError:  # not a POSIX system: its locks have no names anyway
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
_SIZE = mmap.PAGESIZE


class LockFile:
    """The file whose bytes are locked and marked, and the locks on it."""

    def __init__(self) -> None:
        self.fd = unnamed_file()
        os.ftruncate(self.fd, _SIZE)
        self.marks = mmap.mmap(self.fd, _SIZE)
        self.consumer = os.getpid()  # who takes a lock only when all others have ended, and minds no mark
        self._locks = 0

    def new_lock(self) -> RecordLock:
        self._locks += 1
        return RecordLock(self, self._locks)

    def close(self) -> None:
        """In the consumer process.  In a worker none is ever closed: that would release whatever the worker holds."""
        if self.fd >= 0:
            self.marks.close()
            os.close(self.fd)
            self.fd = -1

    def __reduce__(self) -> tuple[Any, ...]:
        context.assert_spawning(self)  # it travels to processes that are being started, and nowhere else
        return _attached, (reduction.DupFd(self.fd),)


def _attached(handle: Any) -> LockFile:
    """The file in a worker."""
    file = LockFile.__new__(LockFile)
    file.fd, file.consumer, file._locks = handle.detach(), 0, 0
    file.marks = mmap.mmap(file.fd, _SIZE)
    return file


class RecordLock:
    """What ``multiprocessing.Lock`` is, as far as its queues ask."""

    def __init__(self, file: LockFile, at: int) -> None:
        self._file, self._at = file, at

    def acquire(self) -> bool:
        """Wait for the lock; for ever, if its last holder ended with it in hand."""
        fcntl.lockf(self._file.fd, fcntl.LOCK_EX, 1, self._at)
        if self._file.marks[self._at] and os.getpid() != self._file.consumer:
            threading.Event().wait()  # for the end
        self._file.marks[self._at] = 1
        return True

    def release(self) -> None:
        self._file.marks[self._at] = 0
        fcntl.lockf(self._file.fd, fcntl.LOCK_UN, 1, self._at)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
