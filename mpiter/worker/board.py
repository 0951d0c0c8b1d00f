"""The notice board: what each worker is doing right now, in a line of shared memory of its own.

Written by workers, read by whoever supervises them and by ``get_rng``.  A line is eight integers.  Guarantees that a
reader sees whole numbers (aligned 64-bit stores); the line as a whole may be torn, which its readers must bear.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class Cell(IntEnum):
    """What stands where in a worker's line."""

    PID = 0  # of the process, or the system's number of the thread
    READY = 1  # the dataset is loaded and worker_init has returned
    RUN = 2
    TASK = 3  # number of the task in hand, -1 when idle
    BATCH = 4
    ROW = 5  # the row being fetched
    SINCE = 6  # when the clock was last read: its fetch began then or later, monotonic nanoseconds
    ACTIVE = 7  # 1 while the row is fetched or written, 2 while several up to it are written at once, 0 when idle


_CELLS = len(Cell)
LINE_BYTES = 8 * _CELLS


class Line(NamedTuple):
    """A worker's line as it was read, cell by cell."""

    pid: int
    ready: int
    run: int
    task: int
    batch: int
    row: int
    since: int
    active: int


class Board:
    """A line for each worker; travels to each of them, and says where its line is."""

    def __init__(self, workers: int, arena: Any = None) -> None:
        self._arena = arena
        self._memory = None if arena else bytearray(workers * LINE_BYTES)  # nobody shares memory with us
        self._taken: list[tuple[int, int]] = []  # ranges of the arena
        start = self._take(workers * LINE_BYTES)
        self._places = [start + worker * LINE_BYTES for worker in range(workers)]
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
        return memoryview(self._memory or self._arena.map)[at : at + LINE_BYTES].cast("q")

    def lines(self) -> list[Line]:
        """All lines, as they are now."""
        return [Line(*self.cells(worker)) for worker in range(len(self._places))]

    def clear(self, worker: int) -> None:
        """For a new worker in this place."""
        self.cells(worker)[:] = memoryview(bytes(LINE_BYTES)).cast("q")

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
