"""Reads ranges of bytes from files, here and at stores.

A file is opened once in a process, and few are open at a time.  Reads don't move a
common place in it, so threads and processes that were forked don't disturb each other.
Guarantees that a file which has changed by the time it is opened is an error.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

from ..errors import DamagedFile
from .paths import File, store_of

# Descriptors that a process keeps open: many systems allow 1,024.
_MOST = 32


class _Opened:
    """A descriptor, closed when nothing refers to it any more."""

    def __init__(self, file: File) -> None:
        self._pid = -1
        self.number = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        self._pid = os.getpid()
        status = os.fstat(self.number)
        now = status.st_size, str(status.st_mtime_ns)
        if now != (file.size, file.version):
            raise DamagedFile(
                f"{file.path} has changed: it had {file.size:,} bytes when the dataset "
                f"was made, and now has {status.st_size:,}, or another time.  Make the "
                "dataset again."
            )

    def __del__(self) -> None:
        # In a process that was forked, the number may be another file's by now.
        if self._pid == os.getpid():
            os.close(self.number)


class Ranges:
    """Some files, by number."""

    def __init__(self, files: Sequence[File]) -> None:
        self._files = files
        self._begin()

    def _begin(self) -> None:
        """Have descriptors and a lock of its own, also in a process that was forked."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # guarded by _lock: the files that are open, the last that was used at the end.
        self._opened: OrderedDict[int, _Opened] = OrderedDict()

    def read(self, number: int, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to before ``end``.

        They are fewer only where the file ends.
        """
        file = self._files[number]
        if not file.is_local:
            system, path = store_of(file.path)
            return bytes(system.cat_file(path, start=begin, end=end))
        opened = self._at(number)
        data = os.pread(opened.number, end - begin, begin)
        # A network file system may return fewer bytes than were asked for.
        while len(data) < end - begin:
            at = begin + len(data)
            more = os.pread(opened.number, end - at, at)
            if not more:
                break
            data += more
        return data

    def _at(self, number: int) -> _Opened:
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            opened = self._opened.get(number)
            if opened is None:
                opened = self._opened[number] = _Opened(self._files[number])
                # Another thread that reads from the oldest one still refers to it.
                if len(self._opened) > _MOST:
                    self._opened.popitem(last=False)
            else:
                self._opened.move_to_end(number)
        return opened

    def __getstate__(self) -> Sequence[File]:
        return self._files

    def __setstate__(self, files: Sequence[File]) -> None:
        self._files = files
        self._begin()
