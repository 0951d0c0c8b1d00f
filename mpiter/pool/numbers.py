"""Numbers for the workers of a Pool that doesn't number them itself.

The workers count in one file without a name, which belongs to the consumer and ends
with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Any

from ..transport.memory import SharedFile

_BYTES = 8


class Numbers:
    """Gives each worker the next number below ``workers``, and then 0 again."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._file = SharedFile()
        descriptor = self._file.fd
        os.ftruncate(descriptor, _BYTES)
        self._path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._inode = os.fstat(descriptor).st_ino

    def __getstate__(self) -> tuple[int, str, int]:
        # Workers open the file by its path.
        return self._workers, self._path, self._inode

    def __setstate__(self, state: tuple[int, str, int]) -> None:
        self._workers, self._path, self._inode = state

    def take(self) -> int:
        """Return the number of the worker that calls this."""
        # Without such paths, and on another machine, where the path may lead to another
        # file, two workers may get the same number.
        guess = os.getpid() % self._workers
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return guess
        try:
            if os.fstat(descriptor).st_ino != self._inode:
                return guess
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            taken = int.from_bytes(os.pread(descriptor, _BYTES, 0), "little")
            os.pwrite(descriptor, (taken + 1).to_bytes(_BYTES, "little"), 0)
        finally:
            os.close(descriptor)
        return taken % self._workers

    def close(self) -> None:
        self._file.close()


def begin_with_number(
    initializer: Callable[..., object],
    numbers: Numbers,
    initargs: tuple[Any, ...],
) -> None:
    """Call ``initializer`` in a new worker, with the worker's number as the last."""
    initializer(*initargs, numbers.take())
