"""What processes send to each other: a block to a worker, and the answer, with a fault
for each row that failed.

A *block* is the rows of one batch that a worker is to fetch: the whole batch, or a part
of one that takes long. Guarantees that a fault can be unpickled: an exception is sent
itself only if the worker could pickle and unpickle it, else as a ``SampleError`` with
its type and text.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import RemoteTraceback, SampleError, SampleNotSendable
from ..samples.byvalue import culprit
from ..samples.envelope import dumps, loads
from .here import NotOfASample
from .worker import Worker

_LONGEST = 20_000  # characters of a traceback
Indices = NDArray[np.int64]
# A sample's batch, row, epoch and position.
Place = tuple[int, int, int, int]
# One for each row: int64, as bytes if sent to a process; or a sampler's own.
Keys = bytes | Indices | tuple[Any, ...]


class Block(NamedTuple):
    """Rows of one batch, for one worker to fetch."""

    number: int
    dataset: int  # key in the registry of datasets
    seed: int
    batch: int
    # The first one, counted in the batch.
    row: int
    rows: int
    # First row, its epoch, its position, and the keys.
    stretches: Iterable[tuple[int, int, int, Keys]]
    # The pickled layout; empty: samples are sent as objects.
    brief: bytes = b""
    # Of the slot in shared memory; None: the columns are sent.
    address: int | None = None
    # Read no rows together, since one may have killed a worker.
    singly: bool = False
    sent: float = 0.0  # on the monotonic clock

    def sample(self, at: int) -> tuple[Place, Any] | None:
        """Return the place and the key of the block's row ``at``, or None if it has no
        such row.
        """
        row = self.row + at
        for first, epoch, position, keys in self.stretches:
            if first <= row < first + len(found := listed(keys)):
                return (self.batch, row, epoch, position + row - first), found[
                    row - first
                ]
        return None


def listed(keys: Keys) -> list[Any]:
    if isinstance(keys, tuple):
        return list(keys)
    indices: list[Any] = as_array(keys).tolist()
    return indices


def as_array(keys: bytes | Indices) -> Indices:
    if isinstance(keys, bytes):
        return np.frombuffer(keys, np.int64)
    return keys


@dataclass(frozen=True, slots=True)
class Fault:
    """The failure of a row, or of one sample in a row that is made of several."""

    batch: int
    row: int
    index: Any
    epoch: int
    position: int
    worker: str
    summary: str  # type and message
    trace: str  # the worker's traceback
    # The exception itself, if it can be pickled and unpickled.
    pickled: bytes | None
    # False: the row keeps its other samples.
    ends_row: bool = True
    # False: not a sample failed, so it can't be left out.
    may_skip: bool = True
    # The exception, if it was raised in this process.
    itself: BaseException | None = None


class Done(NamedTuple):
    """A worker's answer to a block (rows of one batch): what it fetched, and what
    failed.
    """

    number: int  # the block's
    worker: int
    rows: int = 0
    # Time that fetching and writing took.
    seconds: float = 0.0
    # Columns and sealed values that are in no slot.
    payload: Any = None
    faults: tuple[Fault, ...] = ()
    # Warnings of mpiter's own for the user.
    notices: tuple[str, ...] = ()
    # Why the worker couldn't start, with the traceback.
    startup: str | None = None
    began: float = 0.0  # on the monotonic clock…
    queue_s: float = 0.0  # …this long after it was sent
    # Processor time within ``seconds``
    cpu_s: float = 0.0
    # Global generators that the dataset draws from, as known so far.
    drawn: frozenset[str] = frozenset()


class Lost(NamedTuple):
    """Takes the place of an answer that the Pool couldn't send or read."""

    number: int  # the block's
    error: BaseException


# these take half the time of ``Block(…)`` and ``Done(…)``
make_block: Callable[[tuple[Any, ...]], Block] = partial(tuple.__new__, Block)
make_done: Callable[[tuple[Any, ...]], Done] = partial(tuple.__new__, Done)


def take_down(error: BaseException, place: Place, index: Any, worker: Worker) -> Fault:
    """Return the fault for ``error``, which fetching ``index`` raised."""
    batch, row, epoch, position = place
    may_skip = not isinstance(error, NotOfASample)
    if may_skip:
        error = error
    else:
        error = error.__cause__ or error
    where = (
        batch,
        row,
        index,
        epoch,
        position,
        worker.info.name,
        f"{type(error).__name__}: {_text(error)}"[:500],
    )
    # Which keeps the frames, and so the samples.
    if worker.rules.in_process and not worker.rules.skips_errors:
        return Fault(*where, trace="", pickled=None, may_skip=may_skip, itself=error)
    trace = "".join(
        traceback.format_exception(type(error), error, error.__traceback__)
    )[-_LONGEST:]
    return Fault(*where, trace, _pickled(error), may_skip=may_skip)


def unsendable(sample: Any, name: str, error: BaseException) -> SampleNotSendable:
    path, value, reason = culprit(sample, name, error, dumps)
    if value is sample:
        blamed = ""
    else:
        blamed = f"{path} ({type(value).__qualname__}): "
    unsendable = SampleNotSendable(
        f"{name} returned {type(sample).__qualname__}, which cannot be sent from a "
        f"worker: {blamed}{reason}. Return arrays, numbers, strings or containers of "
        "them."
    )
    unsendable.__cause__ = error
    return unsendable


def _may_be_raised(error: BaseException | None) -> bool:
    """True if ``next()`` may raise ``error``; False if a loop would take it for its
    end, say.
    """
    return isinstance(error, Exception) and not isinstance(
        error, (StopIteration, StopAsyncIteration)
    )


def _pickled(error: BaseException) -> bytes | None:
    if not _may_be_raised(error):
        return None
    try:
        data = dumps(error)
        again = loads(data)
        same = type(again) is type(error) and _text(again) == _text(error)
    except BaseException:
        return None
    return data if same else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "<its text cannot be shown>"


def raised(fault: Fault) -> Exception:
    """Return the exception to raise in the consumer."""
    error: Any = fault.itself if _may_be_raised(fault.itself) else None
    if fault.pickled is not None:
        with contextlib.suppress(Exception):
            error = loads(fault.pickled)
    if error is None:
        error = SampleError(f"dataset[{fault.index!r:.60}] raised {fault.summary}")
        error.__cause__ = fault.itself
    with contextlib.suppress(Exception):  # classes may forbid either
        if fault.itself is None and fault.trace:
            error.__cause__ = RemoteTraceback(fault.trace)
        # It may be raised again and again.
        if (note := _note(fault)) not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return error  # type: ignore[no-any-return]


def _note(fault: Fault) -> str:
    where = (
        f"(position {fault.position} of epoch {fault.epoch}), fetched by {fault.worker}"
    )
    if isinstance(fault.index, tuple):
        return f"mpiter: {fault.index!r:.60} {where}."
    if isinstance(fault.index, list):
        return f"mpiter: samples {fault.index!r:.60} {where}, together."
    return (
        f"mpiter: sample {fault.index!r:.60} {where}; dataset[{fault.index!r:.60}] "
        "repeats it in this process."
    )
