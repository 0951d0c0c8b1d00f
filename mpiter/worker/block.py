"""What travels between the processes: a block out, and what was done of it back, with what has failed.

Plain values, which the Pool pickles unless they are ``short``.  A *block* is rows of one batch, the whole batch unless
that is dear.  Guarantees that no fault could fail on arrival: an exception travels as itself only if it survived a
trial journey in the worker; otherwise its type's name and text do, in a ``SampleError``.  The worker's traceback is
chained, and a note names the sample and the line that fetches it without any worker.  Where the consumer itself
fetches, the exception is raised as it is.
"""

from __future__ import annotations

import contextlib
import marshal
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
from .here import NotOfASample, WorkerInfo

_LONGEST = 20_000  # characters of a traceback
Indices = NDArray[np.int64]
Place = tuple[int, int, int, int]  # of a sample: its batch, row, epoch and position
Keys = bytes | Indices | tuple[Any, ...]  # int64, one a row, as bytes where they travel; or what a sampler has given


class Block(NamedTuple):
    """Rows of one batch, for one worker to fetch."""

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
        """The place and the key of row ``at``, or None if the block has no such row."""
        row = self.row + at
        for first, epoch, position, keys in self.stretches:
            if first <= row < first + len(found := listed(keys)):
                return (self.batch, row, epoch, position + row - first), found[row - first]
        return None


def listed(keys: Keys) -> list[Any]:
    """The keys of the rows."""
    return list(keys) if isinstance(keys, tuple) else as_array(keys).tolist()


def as_array(keys: bytes | Indices) -> Indices:
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
    drawn: frozenset[str] = frozenset()  # the global generators that the dataset draws from, as far as its worker knows


class Lost(NamedTuple):
    """The Pool failed to send or to read an answer."""

    number: int  # the block's
    error: BaseException


# -- most blocks and answers are numbers and bytes, which marshal writes and reads in a third of pickle's time ---------

make_block: Callable[[tuple[Any, ...]], Block] = partial(tuple.__new__, Block)  # in half the time
_SHORT: dict[int, Any] = {ord("B"): make_block, ord("D"): partial(tuple.__new__, Done)}  # a pickle begins otherwise
_NUMBERS = {int, float, bool, type(None), bytes, tuple, frozenset}  # NumPy's have other types


def short(value: Any) -> bytes | None:
    """Write a block or an answer of numbers and bytes by marshal; None for all else, which marshal would change."""
    kind = type(value)
    if kind is Done:
        is_short = value.payload is None and not (value.faults or value.mail or value.startup)
    elif kind is Block and type(value.stretches) is tuple and len(value.stretches) == 1:
        *place, keys = value.stretches[0]
        is_short = type(keys) is bytes and _NUMBERS.issuperset(map(type, place))
    else:
        return None
    if is_short and _NUMBERS.issuperset(map(type, value)):
        return (b"D" if kind is Done else b"B") + marshal.dumps(value[:])
    return None


def from_short(data: bytes) -> Any:
    """The object that ``short`` was given; None if these bytes are not from there."""
    make = _SHORT.get(data[0])
    return None if make is None else make(marshal.loads(memoryview(data)[1:]))


# -- a dataset's exception: taken down in the worker, raised again in the consumer -------------------------------------


def take_down(error: BaseException, place: Place, index: Any, worker: WorkerInfo) -> Fault:
    """Describe ``error``, raised by the fetch of ``index``."""
    batch, row, epoch, position = place
    may_skip = not isinstance(error, NotOfASample)
    error = error if may_skip else error.__cause__ or error
    where = batch, row, index, epoch, position, worker.name, f"{type(error).__name__}: {_text(error)}"[:500]
    if worker.backend == "serial":
        return Fault(*where, trace="", pickled=None, may_skip=may_skip, itself=error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_LONGEST:]
    return Fault(*where, trace, _pickled(error), may_skip=may_skip)


def unsendable(sample: Any, name: str, error: BaseException) -> SampleNotSendable:
    path, value, reason = name, sample, str(error) or type(error).__name__
    if isinstance(error, Exception):  # looking for it again would end who looks
        path, value, reason = culprit(sample, name, error, dumps)
    blamed = "" if value is sample else f"{path} ({type(value).__qualname__}): "
    unsendable = SampleNotSendable(
        f"{name} returned {type(sample).__qualname__}, which cannot be sent from a worker: {blamed}{reason}. "
        f"Return arrays, numbers, strings or containers of them."
    )
    unsendable.__cause__ = error
    return unsendable


def _may_be_raised(error: BaseException | None) -> bool:
    """May it be raised by ``next()``, where no loop or test takes it for a signal of its own?"""
    return isinstance(error, Exception) and not isinstance(error, (StopIteration, StopAsyncIteration))


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
    """The exception to raise in the consumer."""
    error: Any = fault.itself if _may_be_raised(fault.itself) else None
    if fault.pickled is not None:
        try:
            error = loads(fault.pickled)
        except Exception:
            error = None
    if error is None:
        error = SampleError(f"dataset[{fault.index!r:.60}] raised {fault.summary}")
        error.__cause__ = fault.itself
    with contextlib.suppress(Exception):  # classes may forbid either
        if fault.itself is None and fault.trace:
            error.__cause__ = RemoteTraceback(fault.trace)
        if (note := _note(fault)) not in getattr(error, "__notes__", ()):  # it may be raised again and again
            error.add_note(note)
    return error  # type: ignore[no-any-return]


def _note(fault: Fault) -> str:
    where = f"(position {fault.position} of epoch {fault.epoch}), fetched by {fault.worker}"
    if isinstance(fault.index, tuple):
        return f"mpiter: {fault.index!r:.60} {where}."
    if isinstance(fault.index, list):
        return f"mpiter: samples {fault.index!r:.60} {where}, together."
    return f"mpiter: sample {fault.index!r:.60} {where}; dataset[{fault.index!r:.60}] repeats it in this process."
