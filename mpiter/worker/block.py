"""What processes send to each other: a block to a worker, and the worker's answer.

A *block* is the rows of one batch that a worker is to fetch: the whole batch, or a part
of one that takes long.  The answer has a fault for each row that failed.  Guarantees
that a fault can be unpickled: an exception is sent itself only if the worker could
pickle and unpickle it, else as a ``SampleError`` with its type and text.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..errors import RemoteTraceback, SampleError, SampleNotSendable
from ..samples.byvalue import culprit
from ..samples.envelope import dumps, loads
from .here import NotOfASample
from .sheets import Payload
from .underway import Placed
from .worker import Worker

_LONGEST = 20_000  # characters of a traceback
_SUMMARY = 500  # characters of an error's text, and of our notes on it
_OURS = "mpiter: "  # notes of ours begin so
Indices = NDArray[np.int64]
# One key for each row.  Indices are sent to a process as the bytes of their int64s,
# which takes less time than pickling an array; a tuple has a sampler's own keys.
UnpackedKeys = Indices | tuple[Any, ...]
Keys = bytes | UnpackedKeys
# A stretch as it travels: its first row, the epoch and position of that row, the keys.
SentStretch = tuple[int, int, int, Keys]


class Place(NamedTuple):
    """Where a sample is: its batch and row, and its place in the order."""

    batch: int  # number
    row: int  # counted in the batch
    epoch: int
    position: int


class Block(NamedTuple):
    """Rows of one batch, for one worker to fetch."""

    number: int
    dataset: int  # key in the registry of datasets
    seed: int
    batch: int
    row: int  # the first one, counted in the batch
    rows: int
    stretches: Iterable[SentStretch]
    # The pickled layout.  It is empty while samples are sent as objects.
    brief: bytes = b""
    # The slot's place in shared memory.  Without one the columns are sent.
    address: int | None = None
    # One of the rows may have killed a worker.  None are read together, so that a
    # second death shows which row it was.
    singly: bool = False
    sent: float = 0.0  # on the monotonic clock

    def placed(self) -> Iterator[Placed]:
        """Yield the place (seed, epoch, position) and the key of each row."""
        for _, epoch, position, keys in self.stretches:
            for offset, key in enumerate(listed(unpacked(keys))):
                yield (self.seed, epoch, position + offset), key

    def sample(self, at: int) -> tuple[Place, Any] | None:
        """Return the place and the key of the block's row ``at``, if there is one."""
        row = self.row + at
        for first, epoch, position, keys in self.stretches:
            found = unpacked(keys)
            offset = row - first
            if 0 <= offset < len(found):
                place = Place(self.batch, row, epoch, position + offset)
                return place, key_at(found, offset)
        return None


def unpacked(keys: Keys) -> UnpackedKeys:
    """Return keys as a tuple, or as an array that can't be written to."""
    if isinstance(keys, tuple):
        return keys
    if isinstance(keys, bytes):
        return np.frombuffer(keys, np.int64)
    found = keys.view()
    found.flags.writeable = False
    return found


def listed(keys: UnpackedKeys) -> list[Any]:
    """Return keys as a list of Python's own numbers, or of other objects."""
    if isinstance(keys, tuple):
        return list(keys)
    indices: list[Any] = keys.tolist()
    return indices


def key_at(keys: UnpackedKeys, at: int) -> Any:
    [key] = listed(keys[at : at + 1])
    return key


@dataclass(frozen=True, slots=True)
class Fault:
    """The failure of a row, or of one sample in a row that is made of several."""

    batch: int
    row: int
    index: object
    epoch: int
    position: int
    worker: str
    summary: str  # type and message
    trace: str  # the worker's traceback
    # The exception itself, if it can be pickled and unpickled.
    pickled: bytes | None
    # If not, only one sample of the row has failed, and the row keeps the others.
    ends_row: bool = True
    # If not, what failed is no sample, so there is nothing to leave out.
    may_skip: bool = True
    # The exception, if it was raised in this process.
    itself: BaseException | None = None


class Done(NamedTuple):
    """A worker's answer to a block: what was fetched, and what failed."""

    number: int  # the block's
    worker: int
    rows: int = 0
    # The time that fetching and writing took.
    seconds: float = 0.0
    faults: tuple[Fault, ...] = ()
    # Warnings of mpiter's own for the user.
    notices: tuple[str, ...] = ()
    # Why the worker couldn't start, with the traceback.
    startup: str | None = None
    began: float = 0.0  # on the monotonic clock
    # The time from when the block was sent until the worker began with it.
    queue_s: float = 0.0
    cpu_s: float = 0.0  # processor time within ``seconds``
    # The global generators that the dataset draws from, as far as the worker knows.
    drawn: frozenset[str] = frozenset()
    # What lies in no slot: columns and sealed values.
    payload: Payload | None = None

    def fields(self) -> Fields:
        """Return the answer as it travels: in plain tuples, which pickle faster."""
        if self.payload is None:
            return self[:]
        return (*self[:-1], self.payload[:])


class Lost(NamedTuple):
    """Takes the place of an answer that the Pool couldn't send or read."""

    number: int  # the block's
    error: BaseException


# The fields of a block or a done, as they travel.
Fields = tuple[Any, ...]
# Takes half the time of ``Block(…)``.
make_block: Callable[[Fields], Block] = partial(tuple.__new__, Block)


def make_done(fields: Fields) -> Done:
    """Return the answer that has travelled as ``fields``."""
    payload = fields[-1]
    if payload is not None:
        fields = (*fields[:-1], tuple.__new__(Payload, payload))
    # This takes half the time of ``Done(…)``.
    return tuple.__new__(Done, fields)


def take_down(
    error: BaseException,
    place: Place,
    index: object,
    worker: Worker,
) -> Fault:
    """Return the fault for ``error``, which fetching ``index`` raised."""
    batch, row, epoch, position = place
    may_skip = not isinstance(error, NotOfASample)
    if not may_skip:
        # The user wants to see the reason, not what we wrapped it in.
        error = error.__cause__ or error
    summary = _summary(error)
    where = (batch, row, index, epoch, position, worker.info.name, summary)
    # An exception keeps the frames that it passed, and so their samples.  That is right
    # for the one that is raised; many that are only counted would fill the memory.
    if worker.rules.in_process and not worker.rules.skips_errors:
        return Fault(
            *where,
            trace="",
            pickled=None,
            may_skip=may_skip,
            itself=error,
        )
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    trace = "".join(lines)[-_LONGEST:]
    fault = Fault(*where, trace, _pickled(error), may_skip=may_skip)
    # The dataset may raise the same object again, for another sample.
    with contextlib.suppress(Exception):
        error.__notes__ = [note for note in error.__notes__ if not _is_ours(note)]
    return fault


def take_down_here(
    error: Exception,
    place: Place,
    index: object,
    worker: str,
) -> Fault:
    """Return the fault for an error with a sample that came from ``worker``.

    It was raised in this process, the consumer's.
    """
    batch, row, epoch, position = place
    summary = _summary(error)
    where = (batch, row, index, epoch, position, worker, summary)
    return Fault(*where, trace="", pickled=None, itself=error)


def unsendable(
    sample: object,
    name: str,
    error: BaseException,
) -> SampleNotSendable:
    path, value, reason = culprit(sample, name, error, dumps)
    blamed = ""
    if value is not sample:
        kind = type(value).__qualname__
        blamed = f"{path} ({kind}): "
    unsendable = SampleNotSendable(
        f"{name} returned {type(sample).__qualname__}, which cannot be sent from a "
        f"worker: {blamed}{reason}. Return arrays, numbers, strings or containers of "
        "them."
    )
    unsendable.__cause__ = error
    return unsendable


def _may_be_raised(error: BaseException | None) -> TypeGuard[Exception]:
    """True if ``next()`` may raise ``error``, which no loop then takes for its end."""
    if isinstance(error, (StopIteration, StopAsyncIteration)):
        return False
    return isinstance(error, Exception)


def _pickled(error: BaseException) -> bytes | None:
    if not _may_be_raised(error):
        return None
    try:
        data = dumps(error)
        again = loads(data)
        same = type(again) is type(error) and _text(again) == _text(error)
    except BaseException:
        # An exception that can't be pickled is described in words.
        return None
    return data if same else None


def _summary(error: BaseException) -> str:
    """Return type and text of an error, with our notes.

    They say which of several samples it is about, or where that is from.
    """
    summary = f"{type(error).__name__}: {_text(error)}"[:_SUMMARY]
    notes = list[str]()
    for note in getattr(error, "__notes__", ()):
        if _is_ours(note):
            notes.append(note.removeprefix(_OURS).removesuffix("."))
    if notes:
        summary += f" ({'; '.join(notes)})"[:_SUMMARY]
    return summary


def _is_ours(note: object) -> bool:
    return isinstance(note, str) and note.startswith(_OURS)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:
        return "<its text cannot be shown>"


def raised(fault: Fault) -> Exception:
    """Return the exception to raise in the consumer."""
    error: Exception | None = None
    if _may_be_raised(fault.itself):
        error = fault.itself
    if fault.pickled is not None:
        with contextlib.suppress(Exception):
            error = loads(fault.pickled)
    if error is None:
        error = SampleError(f"dataset[{fault.index!r:.60}] raised {fault.summary}")
        error.__cause__ = fault.itself
    # A class of the user's may forbid a cause or a note.  The exception is worth more
    # than either.
    with contextlib.suppress(Exception):
        if fault.itself is None and fault.trace:
            error.__cause__ = RemoteTraceback(fault.trace)
        # The same exception may be raised again and again, and needs one note only.
        note = _note(fault)
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return error


def _note(fault: Fault) -> str:
    position = f"(position {fault.position} of epoch {fault.epoch})"
    where = f"{position}, fetched by {fault.worker}"
    # A batch of a stream is fetched by a key that isn't a sample's.
    if getattr(fault.index, "is_batch", False):
        return f"mpiter: {fault.index!r:.60} {where}."
    if isinstance(fault.index, list):
        return f"mpiter: samples {fault.index!r:.60} {where}, together."
    return (
        f"mpiter: sample {fault.index!r:.60} {where}; dataset[{fault.index!r:.60}] "
        "repeats it in this process."
    )
