"""What a worker tells of itself: what it is doing right now, on the board, and the stack of its last moments.

The board has a line of shared memory for each worker: a few integers, written by workers, read by what supervises them.
A reader sees whole numbers (aligned 64-bit stores); the line as a whole may be torn, which its readers must bear.

The black box is one unnamed file for all worker processes of an iterator.  It gets a stack also of a worker that holds
the GIL for ever (a signal handler in C writes it); none of one that was killed or stopped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import machine
from ..transport.memory import SharedFile


class Line(NamedTuple):
    """A worker's line as it was read, cell by cell."""

    pid: int  # of the process, or the system's number of the thread
    ready: int  # the dataset is loaded and worker_init has returned
    block: int  # number of the block in hand, -1 before the first
    row: int  # the row being fetched or written, of the block's
    since: int  # when the block was begun, monotonic nanoseconds
    active: int  # 1 while there is a block in hand, 2 while several of its rows are read at once, 0 when idle


class Cell:
    """The places of a line's cells."""

    PID, READY, BLOCK, ROW, SINCE, ACTIVE = range(len(Line._fields))


_CELLS = len(Line._fields)
LINE_BYTES = 64  # a line of the cache


class Board:
    """A line for each worker; travels to each of them, and says where its line is."""

    def __init__(self, workers: int, arena: Any = None) -> None:
        self._arena = arena
        size = workers * LINE_BYTES
        self._memory = None if arena else bytearray(size)  # no process shares memory with us
        self._taken: list[tuple[int, int]] = []  # ranges of the arena
        first = self._take(size)
        self._places = [first + worker * LINE_BYTES for worker in range(workers)]
        for worker in range(workers):
            self.clear(worker)

    def _take(self, size: int) -> int:
        if self._arena is None:
            return 0
        self._taken.append((self._arena.allocate(size), size))
        return self._taken[-1][0]

    def cells(self, worker: int) -> memoryview:
        """The cells of one worker as a memoryview of integers."""
        at = self._places[worker]
        return memoryview(self._memory or self._arena.map)[at : at + 8 * _CELLS].cast("q")

    def lines(self, pids: Mapping[int, int] | None = None) -> list[Line]:
        """All present lines, with the process ids that are known here."""
        lines = [Line(*self.cells(worker)) for worker in range(len(self._places))]
        return lines if pids is None else [line._replace(pid=pids.get(at, line.pid)) for at, line in enumerate(lines)]

    def heard(self, worker: int) -> None:
        """Note an answer of a worker that doesn't share the board: it is ready, and makes progress."""
        cells = self.cells(worker)
        cells[Cell.READY], cells[Cell.SINCE] = 1, time.monotonic_ns()

    def clear(self, worker: int) -> None:
        """Clear the line for a new worker in this place."""
        self.cells(worker)[:] = memoryview(bytes(8 * _CELLS)).cast("q")

    def move(self, worker: int) -> None:
        """Give this place another line: the worker that had the old one may still write there."""
        if self._arena is not None:
            self._places[worker] = self._take(LINE_BYTES)
        self.clear(worker)

    def close(self) -> None:
        """Give the memory back: no worker writes any more."""
        for start, size in self._taken:
            self._arena.free(start, size)
        self._taken.clear()


_LONGEST = 20_000  # characters of a stack
_MOST_ROOM = 1 << 20  # bytes read
_ASK = int(signal.SIGRTMAX) - 3 if hasattr(signal, "SIGRTMAX") else None  # a signal that nothing else uses


class BlackBox(SharedFile):
    """The file for a worker's stack; ``arm`` is called in the worker, the rest in the consumer process."""

    def __init__(self) -> None:
        super().__init__()
        self._read_to = 0

    def arm(self) -> None:
        """Have a crash, and the signal of ``ask``, write the stack here."""
        faulthandler.enable(self.fd)
        if _ASK is not None:
            faulthandler.register(_ASK, self.fd, all_threads=True, chain=False)

    def ask(self, pid: int) -> None:
        """Ask a worker for its stack; ``read`` returns it once the worker has answered."""
        if _ASK is not None and pid > 0:  # 0 would be the signal for our own process group
            with contextlib.suppress(OSError):
                os.kill(pid, _ASK)

    def read(self) -> str:
        """Everything written since the last ``turn_over``."""
        text = os.pread(self.fd, _MOST_ROOM, self._read_to).decode(errors="replace").strip()
        return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n…"

    def turn_over(self) -> None:
        """Skip what was written so far."""
        self._read_to = os.fstat(self.fd).st_size


def thread_stack(native_id: int) -> str:
    """The stack of a thread of this process."""
    for thread in threading.enumerate():
        if thread.native_id == native_id and thread.ident in (frames := sys._current_frames()):
            return "".join(traceback.format_stack(frames[thread.ident]))[-_LONGEST:]
    return ""


def is_stopped(pid: int) -> bool:
    """Is the process stopped, by SIGSTOP most likely?"""
    return machine.stat_of(pid)[:1] == ["T"]
