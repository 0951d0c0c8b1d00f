"""What a worker shows of itself: what it is fetching, and its stack when it crashes.

The *board* has a *line* in shared memory for each worker: a few integers that say what
it is fetching.  Each is read whole, but a line may be read half updated.  The *black
box* is one unnamed file for all worker processes of an iterator.  Even a worker that
never releases the GIL writes its stack there, by a signal handler in C; one that was
killed or stopped doesn't.
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
from typing import NamedTuple

from ..transport.memory import Arena, SharedFile


class Line(NamedTuple):
    """The integers that one worker shares about itself, as they were read."""

    # The process's id, or the native id of a thread.
    pid: int
    # 1 once the dataset is loaded and worker_init has returned.
    ready: int
    # The number of the current block, -1 before the first.
    block: int
    # The row of the block that is being fetched or written.
    row: int
    # When the block was begun, in monotonic nanoseconds.
    since: int
    # 1 while a block is fetched, 0 when idle.  2 while several of its rows are read at
    # once: none of them is known to be read.  3 while several samples are under way:
    # ``row`` is waited for.
    active: int


# The place of each integer in its line.
CELL = Line(*range(len(Line._fields)))
LINE_BYTES = 64  # one cache line
_USED_BYTES = 8 * len(CELL)


class Board:
    """A line of shared integers for each worker.

    The board is sent to every worker, which finds its own line on it.
    """

    def __init__(self, workers: int, arena: Arena | None = None) -> None:
        self._arena = arena
        self._left: list[int] = []
        # Without an arena no other process has to see the board.
        self._memory: bytearray | None = None
        if arena is not None:
            self._places = [arena.allocate(LINE_BYTES) for _ in range(workers)]
        else:
            self._memory = bytearray(workers * LINE_BYTES)
            self._places = [worker * LINE_BYTES for worker in range(workers)]
        for worker in range(workers):
            self.clear(worker)

    def cells(self, worker: int) -> memoryview:
        """Return a worker's line as a memoryview of integers."""
        if self._arena is not None:
            memory = memoryview(self._arena.map)
        else:
            assert self._memory is not None
            memory = memoryview(self._memory)
        start = self._places[worker]
        return memory[start : start + _USED_BYTES].cast("q")

    def lines(self, pids: Mapping[int, int] | None = None) -> list[Line]:
        """Return all lines as they are now; ``pids`` replace the workers' own ids."""
        lines = []
        for worker in range(len(self._places)):
            line = Line(*self.cells(worker))
            if pids is not None:
                line = line._replace(pid=pids.get(worker, line.pid))
            lines.append(line)
        return lines

    def clear(self, worker: int) -> None:
        zeros = memoryview(bytes(_USED_BYTES))
        self.cells(worker)[:] = zeros.cast("q")

    def move(self, worker: int) -> None:
        """Use another line for ``worker`` from now on.

        Its predecessor couldn't be ended, and may still write into the old one.
        """
        if self._arena is not None:
            self._left.append(self._places[worker])
            self._places[worker] = self._arena.allocate(LINE_BYTES)
        self.clear(worker)

    def go_private(self) -> None:
        """Have this process write to a copy of the shared memory.

        The lines and the batches lie there.
        """
        if self._arena is not None:
            self._arena.go_private()

    def close(self) -> None:
        if self._arena is not None:
            for place in [*self._places, *self._left]:
                self._arena.free(place, LINE_BYTES)


_LONGEST = 20_000  # characters of a stack
_ASK: int | None = None
if hasattr(signal, "SIGRTMAX"):
    # A signal that nothing else uses.
    _ASK = int(signal.SIGRTMAX) - 3


class BlackBox(SharedFile):
    """The file that workers write their stacks to.

    ``arm`` is called in a worker, the rest in the consumer process.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read_to = 0

    def arm(self) -> None:
        """Have this process write its stack when it crashes, or is asked for it."""
        faulthandler.enable(self.fd)
        if _ASK is not None:
            faulthandler.register(_ASK, self.fd, all_threads=True, chain=False)

    def ask(self, pid: int) -> None:
        """Ask process ``pid`` for its stack.

        Once it is written, ``read`` returns it.
        """
        # The line of a worker that hasn't begun has pid 0, and a signal to 0 would go
        # to our own process group.
        if _ASK is not None and pid > 0:
            with contextlib.suppress(OSError):
                os.kill(pid, _ASK)

    def read(self) -> str:
        """Return the stacks that workers have written since the last ``turn_over``.

        Long ones are shortened.
        """
        written = os.pread(self.fd, 1 << 20, self._read_to)
        text = written.decode(errors="replace").strip()
        if len(text) <= _LONGEST:
            return text
        return text[:_LONGEST] + "\n…"

    def turn_over(self) -> None:
        """Have ``read`` skip what was written so far."""
        self._read_to = os.fstat(self.fd).st_size


def thread_stack(native_id: int) -> str:
    """Return the stack of a thread of this process; empty if it has ended."""
    for thread in threading.enumerate():
        if thread.native_id == native_id:
            frames = sys._current_frames()
            # It may have ended since the threads were listed.
            if thread.ident in frames:
                stack = traceback.format_stack(frames[thread.ident])
                return "".join(stack)[-_LONGEST:]
    return ""
