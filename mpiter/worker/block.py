"""What processes send to each other: a block to a worker, and the answer, with a fault for each row that failed.

A *block* is the rows of one batch that a worker is to fetch: the whole batch, or a part of one that takes long.  Blocks
and answers are plain values, which the Pool pickles unless ``short`` can write them.  Guarantees that a fault can be
unpickled: an exception is sent itself only if the worker could pickle and unpickle it, else as a ``SampleError`` with
its type and text.  The worker's traceback is chained, and a note names the sample and the line that fetches it without
a worker.  Where the consumer itself fetches, the exception is raised unchanged.
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
Place = tuple[int, int, int, int]  # a sample's batch, row, epoch and position
Keys = bytes | Indices | tuple[Any, ...]  # one for each row: int64, as bytes if sent to a process; or a sampler's own


class Block(NamedTuple):
    """Rows of one batch, for one worker to fetch."""

    number: int
    dataset: int  # key in the registry of datasets
    seed: int
    batch: int
    row: int  # the first one, counted in the batch
    rows: int
    stretches: Iterable[tuple[int, int, int, Keys]]  # first row, its epoch, its position, and the keys
    brief: bytes = b""  # the pickled layout; empty: samples are sent as objects
    address: int | None = None  # of the slot in shared memory; None: the columns are sent
    singly: bool = False  # read no rows together, since one may have killed a worker
    sent: float = 0.0  # on the monotonic clock

    def sample(self, at: int) -> tuple[Place, Any] | None:
        """Return the place and the key of the block's row ``at``, or None if it has no such row."""
        row = self.row + at
        for first, epoch, position, keys in self.stretches:
            if first <= row < first + len(found := listed(keys)):
                return (self.batch, row, epoch, position + row - first), found[row - first]
        return None


def listed(keys: Keys) -> list[Any]:
    return list(keys) if isinstance(keys, tuple) else as_array(keys).tolist()


def as_array(keys: bytes | Indices) -> Indices:
    return np.frombuffer(keys, np.int64) if isinstance(keys, bytes) else keys


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
    pickled: bytes | None  # the exception itself, if it can be pickled and unpickled
    ends_row: bool = True  # False: the row keeps its other samples
    may_skip: bool = True  # False: not a sample failed, so it can't be left out
    itself: BaseException | None = None  # the exception, if this process fetches


class Done(NamedTuple):
    """A worker's answer to a block (rows of one batch): what it fetched, and what failed."""

    number: int  # the block's
    worker: int
    rows: int = 0
    seconds: float = 0.0  # time that fetching and writing took
    payload: Any = None  # columns and sealed values that are in no slot
    faults: tuple[Fault, ...] = ()
    mail: tuple[Any, ...] = ()  # prints, log records and warnings
    startup: str | None = None  # the traceback, if the worker couldn't start
    began: float = 0.0  # on the monotonic clock…
    queue_s: float = 0.0  # …this long after it was sent
    cpu_s: float = 0.0  # processor time within ``seconds``
    drawn: frozenset[str] = frozenset()  # global generators that the dataset draws from, as known so far


class Lost(NamedTuple):
    """Takes the place of an answer that the Pool couldn't send or read."""

    number: int  # the block's
    error: BaseException


# -- most blocks and answers are numbers and bytes, which marshal writes and reads in a third of pickle's time ---------

make_block: Callable[[tuple[Any, ...]], Block] = partial(tuple.__new__, Block)  # takes half the time of ``Block(…)``
_SHORT: dict[int, Any] = {ord("B"): make_block, ord("D"): partial(tuple.__new__, Done)}  # no pickle begins so
_NUMBERS = {int, float, bool, type(None), bytes, tuple, frozenset}  # not NumPy's scalars


def short(value: Any) -> bytes | None:
    """Return a block or an answer of numbers and bytes as written by marshal; None if marshal would change it."""
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
    """Return the object that ``short`` wrote; None if ``data`` isn't from ``short``."""
    make = _SHORT.get(data[0])
    return None if make is None else make(marshal.loads(memoryview(data)[1:]))


# -- a dataset's exception: recorded in the worker, raised again in the consumer ---------------------------------------


def take_down(error: BaseException, place: Place, index: Any, worker: WorkerInfo) -> Fault:
    """Return the fault for ``error``, which fetching ``index`` raised."""
    batch, row, epoch, position = place
    may_skip = not isinstance(error, NotOfASample)
    error = error if may_skip else error.__cause__ or error
    where = batch, row, index, epoch, position, worker.name, f"{type(error).__name__}: {_text(error)}"[:500]
    if worker.backend == "serial":
        return Fault(*where, trace="", pickled=None, may_skip=may_skip, itself=error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_LONGEST:]
    return Fault(*where, trace, _pickled(error), may_skip=may_skip)


def unsendable(sample: Any, name: str, error: BaseException) -> SampleNotSendable:
    path, value, reason = culprit(sample, name, error, dumps)
    blamed = "" if value is sample else f"{path} ({type(value).__qualname__}): "
    unsendable = SampleNotSendable(
        f"{name} returned {type(sample).__qualname__}, which cannot be sent from a worker: {blamed}{reason}. "
        f"Return arrays, numbers, strings or containers of them."
    )
    unsendable.__cause__ = error
    return unsendable


def _may_be_raised(error: BaseException | None) -> bool:
    """True if ``next()`` may raise ``error``; False if a loop would take it for its end, say."""
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
    """Return the exception to raise in the consumer."""
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
