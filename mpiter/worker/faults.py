"""A dataset's exception on its way: taken down in the worker, raised again in the consumer.

Guarantees that nothing crosses that could fail on arrival: an exception travels as itself only if it survived a trial
journey in the worker; otherwise its type's name and text do, in a ``SampleError``.  The worker's traceback is chained,
and a note names the sample and the line that fetches it without any worker.  Where the consumer itself fetches, the
exception is raised as it is.
"""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import replace
from typing import Any

from ..errors import RemoteTraceback, SampleError, SampleNotSendable
from ..samples.byvalue import culprit
from ..samples.envelope import dumps, loads
from . import parts
from .block import Fault, Place
from .info import WorkerInfo

_LONGEST = 20_000  # characters of a traceback


def take_down(error: BaseException, place: Place, index: Any, worker: WorkerInfo) -> Fault:
    """Describe ``error``, raised by the fetch of ``index``."""
    batch, row, epoch, position = place
    where = batch, row, index, epoch, position, worker.name, f"{type(error).__name__}: {_text(error)}"[:500]
    if worker.backend == "serial":
        return Fault(*where, trace="", pickled=None, itself=error)
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_LONGEST:]
    return Fault(*where, trace, _pickled(error))


class Faults:
    """What has failed of a block, or of a batch."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(self, error: BaseException, place: Place, index: Any, worker: WorkerInfo) -> None:
        """Note that a row has failed."""
        if isinstance(error, parts.AllLeftOut):
            last = max(at for at, fault in enumerate(self.found) if fault.row == place[1])
            self.found[last] = replace(self.found[last], ends_row=True)
            return
        may_skip = not isinstance(error, parts.NotOfASample)
        fault = take_down(error if may_skip else error.__cause__ or error, place, index, worker)
        self.found.append(replace(fault, may_skip=may_skip))

    def add_part(self, error: BaseException, place: Place, key: Any, at: int, worker: WorkerInfo) -> None:
        """Note that one of the samples of a row has failed."""
        batch, row, epoch, position = place
        fault = take_down(error, (batch, row, epoch, position + at), key, worker)
        if (row, fault.position) not in ((known.row, known.position) for known in self.found):  # else it comes again
            self.found.append(replace(fault, ends_row=False))


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
    """Would it mean nothing else to those who catch it where the batch is asked for?"""
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
        if fault.itself is None:
            error.__cause__ = RemoteTraceback(fault.trace) if fault.trace else None
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
