"""Who copies what at the moment: one at a time, among all threads of all processes that have the same file open.

Runs wherever samples are fetched or copied.  A claim is a lock on a byte of the file, which needn't exist: whoever dies
gives it back at once, whatever ends him.  Within a process a table tells threads apart.  Guarantees that nobody waits
for longer than he has said, whatever the owner does.  Assumes Linux, whose locks belong to an open file; elsewhere they
belong to the process and are lost with the first of its descriptors on the file, so that two tiers of one process may
copy the same sample, which harms nobody.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Iterator

from .own import Descriptor

with contextlib.suppress(ImportError):  # Windows, where nobody gets as far as this
    import fcntl

_FLOCK = struct.Struct("hhqqi4x")  # Linux's struct flock, on machines of 64 bits
_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05  # between two attempts, at first and in the end


class Claims:
    """Of one process."""

    def __init__(self, path: str) -> None:
        self._file = Descriptor(path)
        self._changed = threading.Condition()
        self._taken: set[int] = set()  # in this process; guarded by _changed

    @contextlib.contextmanager
    def claim(self, number: int, patience: float = 0.0) -> Iterator[bool]:
        """Is it ours?  At once, or within so many seconds."""
        until = time.monotonic() + patience
        if not self._take(number, patience):
            yield False
            return
        try:
            if not self._lock(number, until):
                yield False
                return
            try:
                yield True
            finally:
                self._set(fcntl.F_UNLCK, number)
        finally:
            with self._changed:
                self._taken.discard(number)
                self._changed.notify_all()

    def _take(self, number: int, patience: float) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: number not in self._taken, patience):
                return False
            self._taken.add(number)
            return True

    def _lock(self, number: int, until: float) -> bool:
        """Asks again and again: the system's own waiting for such a lock (``F_OFD_SETLKW``) has no bound in time."""
        pause = _PAUSE_S
        while not self._try(number):
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)
        return True

    def _try(self, number: int) -> bool:
        try:
            self._set(fcntl.F_WRLCK, number)
        except (BlockingIOError, PermissionError):  # two numbers that systems have for it
            return False
        return True

    def _set(self, kind: int, number: int) -> None:
        if hasattr(fcntl, "F_OFD_SETLK"):
            fcntl.fcntl(self._file.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, number, 1, 0))
        else:
            asked = fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB
            fcntl.lockf(self._file.fd, asked, 1, number)
