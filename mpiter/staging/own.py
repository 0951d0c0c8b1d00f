"""What each process has for itself: descriptors, locks, maps.

Runs wherever samples are fetched or copied.  Guarantees that it is made when a process first asks for it, and neither
pickled nor inherited by a fork: a lock on an inherited descriptor would be everybody's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Own(Generic[T]):
    """Call it to get what this process has."""

    def __init__(self, make: Callable[..., T], *args: Any) -> None:
        self._make, self._args = make, args
        self._made: tuple[int, T] | None = None

    def __call__(self) -> T:
        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), self._make(*self._args)
        return made[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return Own, (self._make, *self._args)


class Descriptor:
    """An open file, closed with this object by the process that has opened it."""

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd, self.pid = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), os.getpid()

    def __del__(self) -> None:
        if self.fd >= 0 and self.pid == os.getpid():
            os.close(self.fd)
