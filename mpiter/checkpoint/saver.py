"""The writer of snapshots, one at a time.

Runs in a thread of its own, or where it is called.  Guarantees that a snapshot is
written as it was when it was taken, though the training goes on; and that an error of
the thread is raised by a later call.
"""

from __future__ import annotations

import threading

import numpy as np

from . import file
from .kept import Keeping


class Saver:
    """Writes the snapshots of one checkpoint."""

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self._thread: threading.Thread | None = None
        # What the thread has met, until it is raised in the thread that trains.
        self._error: OSError | None = None
        # The arrays of copies lie in this memory.  It is kept from one copy to the
        # next, since new memory comes page by page, which takes five times as long as
        # the copying; it is one piece, which comes in large pages.
        self._memory: file.Memory = np.empty(0, np.uint8)

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def copy(self, snapshot: file.Snapshot) -> file.Snapshot:
        """Return a copy of a snapshot, once the one before is written."""
        # Both lie in the same memory, and half of the file before would be of this
        # step.
        self.wait()
        if self._memory.nbytes < snapshot.nbytes:
            self._memory = np.empty(snapshot.nbytes, np.uint8)
        return snapshot.copied(self._memory)

    def begin(self, copied: file.Snapshot, keeps: bool) -> None:
        """Write a copy beside the training; if it ``keeps``, also by its step.

        Raise the error of the one before, if that couldn't be written, once this one
        has begun.
        """
        self.wait()
        # What the new thread meets must wait for a later call, so the error of the one
        # before is taken now.
        before = self._error
        self._error = None
        # The thread isn't a daemon, so that at the program's end Python waits until the
        # file is whole.
        self._thread = threading.Thread(
            target=self._run, args=(copied, keeps), name="mpiter checkpoint"
        )
        self._thread.start()
        if before is not None:
            raise before

    def save(self, snapshot: file.Snapshot, keeps: bool) -> None:
        """Write a snapshot now, once the one before is written."""
        self.wait()
        # If what has stopped the one before goes on, this one raises it as well.
        self._error = None
        self._write(snapshot, keeps)

    def wait(self) -> None:
        """Wait until the snapshot that was begun is written, or can't be."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        """Raise the error of the thread, once."""
        if self._error is not None:
            error = self._error
            self._error = None
            raise error

    def _run(self, snapshot: file.Snapshot, keeps: bool) -> None:
        try:
            self._write(snapshot, keeps)
        except OSError as error:
            self._error = error

    def _write(self, snapshot: file.Snapshot, keeps: bool) -> None:
        file.write(snapshot, self._keeping.path)
        if keeps:
            self._keeping.keep(snapshot.step)
