"""What a worker shows of itself: on the board what it is fetching, and in the black box
its stack when it crashes.

The *board* has a *line* in shared memory for each worker: a few integers.  Each is read
whole, but a line may be read half updated.  The *black box* is one unnamed file for all
worker processes of an iterator.  Even a worker that never releases the GIL writes its
stack there, by a signal handler in C; one that was killed or stopped doesn't.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..transport.memory import SharedFile


class Line(NamedTuple):
    """The integers that one worker shares about itself, its line on the board, as they
    were read.
    """

    # Of the process, or the native id of the thread.
    pid: int
    # The dataset is loaded and worker_init has returned.
    ready: int
    # Number of the current block, -1 before the first.
    block: int
    # The row of the block that is being fetched or written.
    row: int
    # When the block was begun, in monotonic nanoseconds.
    since: int
    # 1 while a block is fetched, 2 while several of its rows are read at once, 0 when
    # idle.
    active: int


# The place of each integer in its line.
CELL = Line(*range(len(Line._fields)))
LINE_BYTES = 64  # one cache line


class Board:
    """A line of shared integers for each worker; it is sent to every worker, which
    finds its own line in it.
    """

    def __init__(self, workers: int, arena: Any = None) -> None:
        self._arena, self._left = arena, list[int]()
        size = LINE_BYTES
        # without an arena no other process needs it
        if arena:
            self._memory = None
        else:
            self._memory = bytearray(workers * size)
        self._places = [
            arena.allocate(size) if arena else worker * size
            for worker in range(workers)
        ]
        for worker in range(workers):
            self.clear(worker)

    def cells(self, worker: int) -> memoryview:
        """Return a worker's line as a memoryview of integers."""
        at = self._places[worker]
        return memoryview(self._memory or self._arena.map)[
            at : at + 8 * len(CELL)
        ].cast("q")

    def lines(self, pids: Mapping[int, int] | None = None) -> list[Line]:
        """Return all lines as they are now, with the process ids in ``pids`` in place
        of the workers' own.
        """
        lines = [Line(*self.cells(worker)) for worker in range(len(self._places))]
        if pids is None:
            return lines
        return [
            line._replace(pid=pids.get(at, line.pid)) for at, line in enumerate(lines)
        ]

    def clear(self, worker: int) -> None:
        self.cells(worker)[:] = memoryview(bytes(8 * len(CELL))).cast("q")

    def move(self, worker: int) -> None:
        """Use another line for ``worker`` from now on, because its predecessor may
        still write into the old one.
        """
        if self._arena is not None:
            self._left.append(self._places[worker])
            self._places[worker] = self._arena.allocate(LINE_BYTES)
        self.clear(worker)

    def go_private(self) -> None:
        """Have this process write to a copy of the shared memory, in which the lines
        and the batches lie.
        """
        if self._arena is not None:
            self._arena.go_private()

    def close(self) -> None:
        for place in [*self._places, *self._left] if self._arena is not None else ():
            self._arena.free(place, LINE_BYTES)


_LONGEST = 20_000  # characters of a stack
# A signal that nothing else uses.
_ASK = int(signal.SIGRTMAX) - 3 if hasattr(signal, "SIGRTMAX") else None


class BlackBox(SharedFile):
    """The file that workers write their stacks to; ``arm`` is called in a worker, the
    rest in the consumer process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read_to = 0

    def arm(self) -> None:
        """Have this process write its stack to the file when it crashes, and when
        ``ask`` sends its signal.
        """
        faulthandler.enable(self.fd)
        if _ASK is not None:
            faulthandler.register(_ASK, self.fd, all_threads=True, chain=False)

    def ask(self, pid: int) -> None:
        """Ask process ``pid`` for its stack, which ``read`` returns once it has been
        written.
        """
        # 0 would be the signal for our own process group.
        if _ASK is not None and pid > 0:
            with contextlib.suppress(OSError):
                os.kill(pid, _ASK)

    def read(self) -> str:
        """Return the stacks that workers have written since the last ``turn_over``,
        shortened if they are long.
        """
        text = (
            os.pread(self.fd, 1 << 20, self._read_to).decode(errors="replace").strip()
        )
        if len(text) <= _LONGEST:
            return text
        return text[:_LONGEST] + "\n…"

    def turn_over(self) -> None:
        """Have ``read`` skip what was written so far."""
        self._read_to = os.fstat(self.fd).st_size


def thread_stack(native_id: int) -> str:
    """Return the stack of a thread of this process; empty if there is no such
    thread.
    """
    for thread in threading.enumerate():
        if thread.native_id == native_id and thread.ident in (
            frames := sys._current_frames()
        ):
            return "".join(traceback.format_stack(frames[thread.ident]))[-_LONGEST:]
    return ""
