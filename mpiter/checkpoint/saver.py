"""The writer of snapshots: one at a time, in a thread of its own, or where it is
called.

Guarantees that a snapshot is written as it was when it was taken, though the training
goes on; and that an error of the thread is raised by a later call.
"""

from __future__ import annotations

import threading

import numpy as np

from . import file
from .kept import Keeping


class Saver:
    """Writes the snapshots of one checkpoint; with ``background``, ``begin`` doesn't
    wait for them.
    """

    def __init__(self, keeping: Keeping, background: bool) -> None:
        self._keeping = keeping
        self._background = background
        self._thread: threading.Thread | None = None
        # Of the thread, not yet raised.
        self._error: OSError | None = None
        # For the arrays of copies, kept from one to the next: new memory comes page by
        # page, which takes five times as long as the copying.  In one piece it comes in
        # large pages.
        self._memory: file.Memory = np.empty(0, np.uint8)

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def copy(self, snapshot: file.Snapshot) -> file.Snapshot:
        """Return a copy of a snapshot, once the one before is written: both take the
        same memory.
        """
        self.wait()
        if self._memory.nbytes < snapshot.nbytes:
            self._memory = np.empty(snapshot.nbytes, np.uint8)
        return snapshot.copied(self._memory)

    def begin(self, snapshot: file.Snapshot, keeps: bool) -> None:
        """Write a snapshot beside the training, which may change what it was taken of;
        ``keeps``: keep it by its step.

        If the one before can't be written, ``raise_error`` will tell.
        """
        if not self._background:
            return self.save(snapshot, keeps)
        self._start(self.copy(snapshot), keeps)

    def begin_copy(self, copied: file.Snapshot) -> None:
        """Write what ``copy`` has returned."""
        self._start(copied, keeps=False) if self._background else self.save(
            copied, keeps=False
        )

    def save(self, snapshot: file.Snapshot, keeps: bool) -> None:
        """Write a snapshot now, once the one before is written."""
        self.wait()
        # It is told by the present one, or is over.
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

    def _start(self, snapshot: file.Snapshot, keeps: bool) -> None:
        self.wait()
        # No daemon: at the program's end Python waits until the file is whole.
        self._thread = threading.Thread(
            target=self._run, args=(snapshot, keeps), name="mpiter checkpoint"
        )
        self._thread.start()

    def _run(self, snapshot: file.Snapshot, keeps: bool) -> None:
        try:
            self._write(snapshot, keeps)
        except OSError as error:
            self._error = error

    def _write(self, snapshot: file.Snapshot, keeps: bool) -> None:
        file.write(snapshot, self._keeping.path)
        if keeps:
            self._keeping.keep(snapshot.step)
