"""What travels between the processes, named for its place on the journey: piece and task out, fault and ticket back.

Plain frozen values, pickled by the Pool.  A *task* is what one worker is asked to do in one go: pieces of one or
several batches, with a time budget.  A *ticket* is its answer: how many rows it finished before the budget ended, and
what travels beside the rooms.  The wire format is frozen: it names the dataset, the run and the budget, so that
supervision can fetch again exactly what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Piece(NamedTuple):
    """A run of rows of one batch, all of one epoch."""

    batch: int
    row: int
    epoch: int
    position: int  # in the epoch's order, of the first row
    indices: bytes | tuple[Any, ...]  # int64, one a row; or whatever keys a sampler has given
    address: tuple[int, ...]  # the room's; empty before there is a plan

    @property
    def rows(self) -> int:
        return len(self.indices) >> 3 if type(self.indices) is bytes else len(self.indices)

    @property
    def keys(self) -> list[Any]:
        """What the dataset is asked for, one a row."""
        indices = self.indices
        return np.frombuffer(indices, np.int64).tolist() if isinstance(indices, bytes) else list(indices)

    def rest(self, done: int) -> Piece:
        """What is left of it after ``done`` rows."""
        indices = self.indices[self._width * done :]
        return Piece(self.batch, self.row + done, self.epoch, self.position + done, indices, self.address)

    def first(self, rows: int) -> Piece:
        """Its first ``rows`` rows."""
        indices = self.indices[: self._width * rows]
        return Piece(self.batch, self.row, self.epoch, self.position, indices, self.address)

    @property
    def _width(self) -> int:
        return 8 if isinstance(self.indices, bytes) else 1


class Task(NamedTuple):
    """What one worker is asked to do."""

    dataset: int  # key in the registry of datasets
    run: int  # late answers to earlier ones are dropped
    number: int
    seed: int
    budget_ns: int  # return what is finished after this long
    brief: bytes  # the transport's word to its pens
    pieces: tuple[Piece, ...]
    singly: bool = False  # fetch and write row by row: one of them may have killed a worker
    sent: float = 0.0  # on the monotonic clock


@dataclass(frozen=True, slots=True)
class Fault:
    """A row whose fetch raised, or a sample of one."""

    batch: int
    row: int
    index: Any
    epoch: int
    position: int
    worker: str
    summary: str  # type and message
    trace: str  # the worker's traceback
    pickled: bytes | None  # the exception itself, where it survives the journey
    ends_row: bool = True  # nothing is left of the row; it has other samples where this is False
    may_skip: bool = True  # False: it was no sample that failed
    itself: BaseException | None = None  # the exception, where it has no journey before it


@dataclass(frozen=True, slots=True)
class Lost:
    """What comes back in a ticket's place when the Pool itself failed."""

    number: int  # the task's
    error: BaseException


class Ticket(NamedTuple):
    """A worker's answer to a task."""

    number: int
    run: int
    worker: int
    rows: int  # finished, in the order of the task's pieces
    seconds: float  # spent fetching them
    payloads: tuple[Any, ...]  # one for each piece that was begun
    faults: tuple[Fault, ...] = ()
    mail: tuple[Any, ...] = ()  # prints, log records and warnings
    startup: str | None = None  # why this worker cannot work at all
    began: float = 0.0  # on the monotonic clock…
    queue_s: float = 0.0  # …so long after it was sent
    cpu_s: float = 0.0  # of the seconds: at work, not waiting
    pack_s: float = 0.0  # …writing samples
    read_s: float = 0.0  # …in the dataset's read(), where one sees inside
    delay_s: float = 0.0  # …waiting for a core
    drawn: frozenset[str] = frozenset()  # the global generators that the dataset draws from, as far as its worker knows
