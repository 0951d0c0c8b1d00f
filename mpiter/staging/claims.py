"""Who copies what at the moment: one at a time, among all threads of all processes that have the same file open.

Runs wherever samples are fetched or copied.  A claim is a lock on a byte of the file, which needn't exist: whoever dies
gives it back at once, whatever ends him, and children don't inherit it.  Within a process a table tells threads apart.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator

with contextlib.suppress(ImportError):  # Windows, where nobody gets as far as this
    import fcntl


class Claims:
    """Of one file; ``claims_at`` finds them."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._taken: set[int] = set()  # in this process; guarded by _changed

    @contextlib.contextmanager
    def claim(self, number: int, waits: bool = True) -> Iterator[bool]:
        """Is it ours?  ``waits`` until it is; an OSError if that could go on for ever, as far as the system can see."""
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: number not in self._taken)
            elif number in self._taken:
                yield False
                return
            self._taken.add(number)
        try:
            if not self._lock(number, waits):
                yield False
                return
            try:
                yield True
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)
        finally:
            with self._changed:
                self._taken.discard(number)
                self._changed.notify_all()

    def _lock(self, number: int, waits: bool) -> bool:
        if waits:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, number)
            return True
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError:  # somebody else is at it
            return False
        return True

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == os.getpid():
            os.close(self._fd)


# A process that closes a file loses its locks on it, by whichever descriptor: so it opens the file once.
_known: weakref.WeakValueDictionary[tuple[int, str], Claims] = weakref.WeakValueDictionary()
_finding = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_finding.acquire, after_in_parent=_finding.release, after_in_child=_finding.release)


def claims_at(path: str) -> Claims:
    """This process's, of this file."""
    with _finding:
        key = os.getpid(), path
        found = _known.get(key)
        if found is None:
            found = _known[key] = Claims(path)
        return found
