"""Named semaphores that libraries make in a worker: a killed worker's are given back in its place.

A lock of multiprocessing's (tqdm makes one) has a name in the system until its process ends the ordinary way; of one
that doesn't, multiprocessing's resource tracker says at the end of the program that something has leaked.  So workers
note in an unnamed file, one for all of an iterator, what they make and give back; the consumer process reads it when
they have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from multiprocessing import resource_tracker
from typing import Any

from ..transport.memory import SharedFile

_KIND = "semaphore"  # as the tracker calls them; other things may be meant to outlive a worker


class Semaphores(SharedFile):
    """The file, from either side."""

    def __init__(self) -> None:
        super().__init__()
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_APPEND)  # for all who have it

    def watch(self) -> None:
        """In a worker: note from now on what the tracker will be told of, and what it has been told is no more."""
        register, unregister = resource_tracker.register, resource_tracker.unregister

        def registered(name: Any, rtype: str) -> None:
            self._note("+", name, rtype)
            register(name, rtype)

        def unregistered(name: Any, rtype: str) -> None:
            unregister(name, rtype)
            self._note("-", name, rtype)

        resource_tracker.register, resource_tracker.unregister = registered, unregistered

    def _note(self, sign: str, name: str, rtype: str) -> None:
        if rtype == _KIND:
            os.write(self.fd, f"{sign}{name}\n".encode())

    def give_back(self) -> None:
        """Unlink what nobody has given back, once all who could are gone."""
        if self.fd < 0:
            return
        left: dict[str, None] = {}
        for line in os.pread(self.fd, os.fstat(self.fd).st_size, 0).decode().splitlines():
            if line[0] == "+":
                left[line[1:]] = None
            else:
                left.pop(line[1:], None)
        for name in left:
            with contextlib.suppress(ImportError, OSError):  # somebody else has unlinked it
                from _multiprocessing import sem_unlink  # type: ignore[import-not-found]

                sem_unlink(name)
            resource_tracker.register(name, _KIND)  # it may have died before, between or after the two
            resource_tracker.unregister(name, _KIND)
        self.close()
