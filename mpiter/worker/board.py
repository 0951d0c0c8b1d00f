"""The notice board: what each worker is doing right now, in a line of shared memory of its own.

Written by workers, read by whoever supervises them and by ``get_rng``.  A line is a few integers.  Guarantees that a
reader sees whole numbers (aligned 64-bit stores); the line as a whole may be torn, which its readers must bear.
Before the lines stands what the loop has counted, for ``mpiter top``, which reads it all from another process: the
board is the first thing in the loop's shared memory, and begins with a mark.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple


class Cell(IntEnum):
    """What stands where in a worker's line."""

    PID = 0  # of the process, or the system's number of the thread
    READY = 1  # the dataset is loaded and worker_init has returned
    BLOCK = 2  # number of the block in hand, -1 before the first
    ROW = 3  # the row being fetched or written, of the block's
    SINCE = 4  # when the block was begun, monotonic nanoseconds
    ACTIVE = 5  # 1 while there is a block in hand, 2 while several of its rows are read at once, 0 when idle


_CELLS = len(Cell)
LINE_BYTES = 64  # a line of the cache
MARK = int.from_bytes(b"mpiter\0\3", "little")  # another one when what follows is laid out in another way
COUNTED = (  # of Stats, what the tally counts
    *("batches", "samples", "errors", "skipped", "tasks", "payload_bytes", "wait_s", "start_s", "sample_s"),
    *("order_s", "queue_s", "fetch_s", "fetch_cpu_s", "fetch_delay_s", "read_s", "deliver_s"),
)
FIGURES = (*COUNTED, "restarts", "workers", "ready_batches", "in_flight_batches", "room_bytes")  # in this order
# The mark, how many lines, when the first batch came (0: it hasn't), when the figures were written if next() waits and
# waits (0: it doesn't), the figures.
_HEAD = f"qqdd{len(FIGURES)}d"
HEAD = struct.Struct(f"{_HEAD}{-struct.calcsize(_HEAD) % LINE_BYTES}x")


class Line(NamedTuple):
    """A worker's line as it was read, cell by cell."""

    pid: int
    ready: int
    block: int
    row: int
    since: int
    active: int


class Board:
    """A line for each worker; travels to each of them, and says where its line is."""

    def __init__(self, workers: int, arena: Any = None) -> None:
        self._arena = arena
        size = HEAD.size + workers * LINE_BYTES
        self._memory = None if arena else bytearray(size)  # nobody shares memory with us
        self._taken: list[tuple[int, int]] = []  # ranges of the arena
        self._head = self._take(size)
        self._places = [self._head + HEAD.size + worker * LINE_BYTES for worker in range(workers)]
        self.publish(0.0, 0.0, [0.0] * len(FIGURES))
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

    def publish(self, began: float, waits: float, figures: Sequence[float]) -> None:
        """What the loop has counted, since the first batch came."""
        HEAD.pack_into(self._memory or self._arena.map, self._head, MARK, len(self._places), began, waits, *figures)

    def lines(self, pids: Mapping[int, int] | None = None) -> list[Line]:
        """All lines, as they are now, with the numbers of the processes where these are known better."""
        lines = [Line(*self.cells(worker)) for worker in range(len(self._places))]
        return lines if pids is None else [line._replace(pid=pids.get(at, line.pid)) for at, line in enumerate(lines)]

    def heard(self, worker: int) -> None:
        """Nobody shares the board with a worker that has answered: it is ready, and gets on."""
        cells = self.cells(worker)
        cells[Cell.READY], cells[Cell.SINCE] = 1, time.monotonic_ns()

    def clear(self, worker: int) -> None:
        """For a new worker in this place."""
        self.cells(worker)[:] = memoryview(bytes(8 * _CELLS)).cast("q")

    def move(self, worker: int) -> None:
        """Another line for this place: whoever had the old one may still write there."""
        if self._arena is not None:
            self._places[worker] = self._take(LINE_BYTES)
        self.clear(worker)

    def close(self) -> None:
        """Nobody writes any more."""
        for start, size in self._taken:
            self._arena.free(start, size)
        self._taken.clear()
