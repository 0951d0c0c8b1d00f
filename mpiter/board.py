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
    GENERATION = 2
    TASK = 3  # number of the task in hand, -1 when idle
    BATCH = 4
    ROW = 5  # the row being fetched
    SINCE = 6  # when its fetch began, monotonic nanoseconds
    ACTIVE = 7  # 1 while the row is fetched or written, 2 while several up to it are written at once, 0 when idle


_CELLS = len(Cell)
LINE_BYTES = 8 * _CELLS


def board_bytes(workers: int) -> int:
    return workers * LINE_BYTES


def line(memory: Any, start: int, worker: int) -> memoryview:
    """The cells of one worker as a memoryview of integers."""
    at = start + worker * LINE_BYTES
    return memoryview(memory)[at : at + LINE_BYTES].cast("q")


class Line(NamedTuple):
    """A worker's line as it was read, cell by cell."""

    pid: int
    ready: int
    generation: int
    task: int
    batch: int
    row: int
    since: int
    active: int


def snapshot(memory: Any, start: int, workers: int) -> list[Line]:
    """All lines, as they are now."""
    return [Line(*line(memory, start, worker)) for worker in range(workers)]
