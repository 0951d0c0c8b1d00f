"""Where the processes of a machine have decoded groups of some files.

Each group has a *place*: words that tell which process has its memory, a memfd, under
which descriptor.  The words are in a memfd of their own, and go when the last process
goes.  One process opens the other's memory through /proc, which fails once that has
let it go.  A place is locked while its group is decoded; the system gives up the locks
of a process that ends.  Programs that don't know each other, such as ranks, find the
words by an abstract socket, a name that ends with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int64]
# The time that another program has to answer: it only sends a descriptor.
_ANSWER_S = 5.0
# Two programs may begin at once, and each find the other's name taken but not served.
_TRIES = 5


class Door(NamedTuple):
    """A descriptor of a process, by which others open the same memory."""

    pid: int
    descriptor: int


# The words of a group: its door, all zeros if no process has the group, and how often
# it was decoded.
_A_PLACE = len(Door._fields) + 1
_PLACE_BYTES = 8 * _A_PLACE


class Places:
    """The places of the groups of some files, by number.

    ``name`` is the files'.  ``door`` is where the consumer of this process has the
    words, if it has told.
    """

    def __init__(self, name: str, groups: int, door: Door | None = None) -> None:
        self._label = f"mpiter {name}"
        self._pid = os.getpid()
        found: int | None = None
        if door is not None:
            found = _opened(door, self._label, os.O_RDWR)
        # The socket's thread must not keep this object.
        self._meeting: _Meeting | None = None
        if found is None:
            self._meeting = _Meeting(self._label, groups * _PLACE_BYTES)
            found = self._meeting.descriptor
        self._descriptor = found
        self._words = _words(found, groups)
        self._close = weakref.finalize(self, _end, self._meeting, found)

    @property
    def door(self) -> Door:
        return Door(os.getpid(), self._descriptor)

    def decodes(self) -> Words:
        """Return how often each group was decoded."""
        return self._words[:, -1].copy()

    def open(self, group: int) -> int | None:
        """Return a descriptor of a group's memory; None if no process has it."""
        door = Door(*self._words[group, :-1].tolist())
        if not door.pid:
            return None
        return _opened(door, self._label_of(group), os.O_RDONLY)

    def create(self, group: int) -> int:
        """Return a descriptor of new memory for a group."""
        return os.memfd_create(self._label_of(group), os.MFD_CLOEXEC)

    def tell(self, group: int, descriptor: int) -> None:
        """Tell others that this process has decoded a group, whose place is locked."""
        decodes = int(self._words[group, -1]) + 1
        self._words[group] = (*Door(os.getpid(), descriptor), decodes)

    @contextlib.contextmanager
    def locked(self, group: int, waits: bool) -> Iterator[bool]:
        """Lock a place; False if another process has locked it and this one can't wait.

        Threads of one process don't lock each other out.
        """
        self._be_here()
        how = fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK
        try:
            fcntl.fcntl(self._descriptor, how, _lock(fcntl.F_WRLCK, group))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            free = _lock(fcntl.F_UNLCK, group)
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, free)

    def _be_here(self) -> None:
        """Have locks of its own in a process that was forked."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            inherited = self._descriptor
            self._descriptor = os.open(f"/proc/self/fd/{inherited}", _OPEN)

    def _label_of(self, group: int) -> str:
        return f"{self._label} {group}"


_OPEN = os.O_RDWR | os.O_CLOEXEC


def _words(descriptor: int, groups: int) -> Words:
    memory = mmap.mmap(descriptor, max(1, groups) * _PLACE_BYTES)
    return np.frombuffer(memory, np.int64).reshape(-1, _A_PLACE)


def _lock(kind: int, group: int) -> bytes:
    """Return C's struct flock for one byte."""
    return struct.pack("hhqqi", kind, os.SEEK_SET, group, 1, 0)


def _opened(door: Door, label: str, how: int) -> int | None:
    """Return a descriptor of another process's memory; None if that has gone."""
    try:
        path = f"/proc/{door.pid}/fd/{door.descriptor}"
        descriptor = os.open(path, how | os.O_CLOEXEC)
    except OSError:
        return None
    # The number may belong to another file, or the process to another program by now.
    if os.readlink(f"/proc/self/fd/{descriptor}") == f"/memfd:{label} (deleted)":
        return descriptor
    os.close(descriptor)
    return None


def _end(meeting: _Meeting | None, descriptor: int) -> None:
    if meeting is not None:
        meeting.end()
    os.close(descriptor)


class _Meeting:
    """Finds the words that another program has, or makes them and hands them out."""

    def __init__(self, label: str, size: int) -> None:
        self._pid = os.getpid()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        # Users can't take each other's names.
        address = f"\0{label} {os.getuid()}"
        for _ in range(_TRIES):
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(address)
            except OSError:
                listener.close()
            else:
                self.descriptor = _made(label, size)
                self._serve(listener)
                return
            found = _asked(address, label)
            if found is not None:
                self.descriptor = found
                return
        # A program has the name and doesn't answer: this one goes by itself.
        self.descriptor = _made(label, size)

    def _serve(self, listener: socket.socket) -> None:
        listener.listen()
        self._listener = listener
        self._thread = threading.Thread(
            target=_hand_out,
            args=(listener, self.descriptor),
            name="mpiter-places",
            daemon=True,
        )
        self._thread.start()

    def end(self) -> None:
        if self._listener is None or self._thread is None:
            return
        # A forked process has the same socket, which the other one still needs.
        if self._pid != os.getpid():
            self._listener.close()
            return
        # Only this wakes a thread that waits for a connection.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_ANSWER_S)


def _made(label: str, size: int) -> int:
    descriptor = os.memfd_create(label, os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max(1, size))
    return descriptor


def _hand_out(listener: socket.socket, descriptor: int) -> None:
    while True:
        try:
            other, _ = listener.accept()
        except OSError:
            return
        with other, contextlib.suppress(OSError):
            if _uid_of(other) == os.getuid():
                socket.send_fds(other, [b"words"], [descriptor])


def _uid_of(other: socket.socket) -> int:
    told = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("iii", told)
    return int(uid)


def _asked(address: str, label: str) -> int | None:
    """Return a descriptor of the words of the program that has this name."""
    with socket.socket(socket.AF_UNIX) as other:
        other.settimeout(_ANSWER_S)
        try:
            other.connect(address)
            if _uid_of(other) != os.getuid():
                return None
            _, descriptors, _, _ = socket.recv_fds(other, 16, 1)
        except OSError:
            return None
    if not descriptors:
        return None
    [received] = descriptors
    # As it was sent, both programs would have the same locks.
    own = _opened(Door(os.getpid(), received), label, os.O_RDWR)
    os.close(received)
    return own
