"""Who copies what at the moment: one at a time, among all threads of all processes that have the same file open.

Runs wherever samples are fetched or copied.  A claim is a lock on a byte of the file, which needn't exist: whoever dies
gives it back at once, whatever ends him.  Within a process a table tells threads apart.  Assumes Linux, whose locks
belong to an open file; elsewhere they belong to the process and are lost with the first of its descriptors on the
file, so that two tiers of one process may copy the same sample, which harms nobody.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator

from .own import Descriptor

with contextlib.suppress(ImportError):  # Windows, where nobody gets as far as this
    import fcntl

_FLOCK = struct.Struct("hhqqi4x")  # Linux's struct flock, on machines of 64 bits


class Claims:
    """Of one process."""

    def __init__(self, path: str) -> None:
        self._file = Descriptor(path)
        self._changed = threading.Condition()
        self._taken: set[int] = set()  # in this process; guarded by _changed

    @contextlib.contextmanager
    def claim(self, number: int, waits: bool = True) -> Iterator[bool]:
        """Is it ours?  ``waits`` until it is; an OSError if that could go on for ever, as far as the system can see."""
        if not self._take(number, waits):
            yield False
            return
        try:
            if not self._lock(number, waits):
                yield False
                return
            try:
                yield True
            finally:
                self._set(fcntl.F_UNLCK, number, False)
        finally:
            with self._changed:
                self._taken.discard(number)
                self._changed.notify_all()

    def _take(self, number: int, waits: bool) -> bool:
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: number not in self._taken)
            elif number in self._taken:
                return False
            self._taken.add(number)
            return True

    def _lock(self, number: int, waits: bool) -> bool:
        try:
            self._set(fcntl.F_WRLCK, number, waits)
        except (BlockingIOError, PermissionError):  # two numbers that systems have for it
            return False
        return True

    def _set(self, kind: int, number: int, waits: bool) -> None:
        if hasattr(fcntl, "F_OFD_SETLK"):
            asked = fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK
            fcntl.fcntl(self._file.fd, asked, _FLOCK.pack(kind, os.SEEK_SET, number, 1, 0))
        elif kind == fcntl.F_UNLCK:
            fcntl.lockf(self._file.fd, fcntl.LOCK_UN, 1, number)
        else:
            fcntl.lockf(self._file.fd, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB), 1, number)
