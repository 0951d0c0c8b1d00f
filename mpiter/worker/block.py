"""What travels between the processes: a block out, and what was done of it back.

Plain values, pickled by the Pool.  A *block* is rows of one batch, the whole batch unless that is dear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Place = tuple[int, int, int, int]  # of a sample: its batch, row, epoch and position
Keys = (
    bytes | Indices | tuple[Any, ...]
)  # int64, one a row, as bytes where they travel; or whatever a sampler has given


class Block(NamedTuple):
    """What one worker is asked for in one go."""

    number: int
    dataset: int  # key in the registry of datasets
    seed: int
    batch: int
    row: int  # of the batch: the first one
    rows: int
    stretches: Iterable[tuple[int, int, int, Keys]]  # row of the batch, epoch and position of the first, and the keys
    brief: bytes = b""  # the layout, pickled; none: samples travel as objects
    address: int | None = None  # of the slot; None: what is written travels
    singly: bool = False  # one of the rows may have killed a worker
    sent: float = 0.0  # on the monotonic clock

    def sample(self, at: int) -> tuple[Place, Any] | None:
        """The place and the index of its row number ``at``, if it has so many."""
        row = self.row + at
        for first, epoch, position, keys in self.stretches:
            if first <= row < first + length_of(keys):
                return (self.batch, row, epoch, position + row - first), listed(keys)[row - first]
        return None


def length_of(keys: Keys) -> int:
    return len(keys) >> 3 if type(keys) is bytes else len(keys)


def listed(keys: Keys) -> list[Any]:
    """What the dataset is asked for, one a row."""
    return list(keys) if isinstance(keys, tuple) else as_array(keys).tolist()


def as_array(keys: bytes | Indices) -> Indices:
    """The same, as an array."""
    return np.frombuffer(keys, np.int64) if isinstance(keys, bytes) else keys


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


class Done(NamedTuple):
    """A worker's answer to a block."""

    number: int  # the block's
    worker: int
    rows: int = 0
    seconds: float = 0.0  # spent fetching and writing them
    payload: Any = None  # what lies in no slot
    faults: tuple[Fault, ...] = ()
    mail: tuple[Any, ...] = ()  # prints, log records and warnings
    startup: str | None = None  # why this worker cannot work at all
    began: float = 0.0  # on the monotonic clock…
    queue_s: float = 0.0  # …so long after it was sent
    cpu_s: float = 0.0  # of the seconds: at work, not waiting
    read_s: float = 0.0  # …in the dataset's read(), where one sees inside
    delay_s: float = 0.0  # …waiting for a core
    drawn: frozenset[str] = frozenset()  # the global generators that the dataset draws from, as far as its worker knows


class Lost(NamedTuple):
    """What comes in an answer's place when the Pool itself failed."""

    number: int  # the block's
    error: BaseException
