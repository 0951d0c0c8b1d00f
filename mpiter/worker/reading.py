"""Where a worker's time goes: into the dataset's reading, and into waiting for a core.

Runs in workers.  Reading is seen where the dataset has the methods ``read(i)`` and ``transform(sample)``, and in
processes of their own, whose dataset is a copy of the user's: its ``read`` is replaced by one that takes the time.
What ``dataset[i]`` returns stays the dataset's own affair.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

_clock = time.monotonic_ns


class Reading:
    """A dataset's ``read``, and the nanoseconds spent in it so far."""

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read, self.ns = read, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        began = _clock()
        try:
            return self._read(*args, **options)
        finally:
            self.ns += _clock() - began


def watched(dataset: Any) -> Reading | None:
    """Take the time of the dataset's reading from now on, if one can see inside."""
    if not all(callable(getattr(type(dataset), name, None)) for name in ("read", "transform")):
        return None
    reading = Reading(dataset.read)
    try:
        dataset.read = reading  # before that of its class
    except AttributeError:
        return None
    return reading


class RunDelay:
    """How long this thread has waited for a core, though it could have run; 0 where nobody counts."""

    def __init__(self, is_counted: bool = True) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            if is_counted:
                self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def ns(self) -> int:
        """So far."""
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 64, 0).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    def __del__(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
