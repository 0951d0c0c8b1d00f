"""A dataset's exception on its way: taken down in the worker, raised again in the consumer.

Guarantees that nothing crosses that could fail on arrival: an exception travels as itself only if it survived a trial
journey in the worker; otherwise its type's name and text do, in a ``SampleError``.  The worker's traceback is chained,
and a note names the sample and the line that fetches it without any worker.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from ..errors import RemoteTraceback, SampleError, SampleNotSendable
from ..samples.byvalue import culprit
from ..samples.envelope import dumps, loads
from .task import Fault, Piece

_LONGEST = 20_000  # characters of a traceback


def take_down(error: BaseException, piece: Piece, row: int, index: Any, worker: str) -> Fault:
    """Describe ``error``, raised by the fetch of ``index``."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_LONGEST:]
    summary = f"{type(error).__name__}: {_text(error)}"[:500]
    position = piece.position + row - piece.row
    return Fault(piece.batch, row, index, piece.epoch, position, worker, summary, trace, _pickled(error))


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


def _pickled(error: BaseException) -> bytes | None:
    if not isinstance(error, Exception) or isinstance(error, (StopIteration, StopAsyncIteration)):
        return None  # would mean something to whoever catches it here
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
    error: Exception | None = None
    if fault.pickled is not None:
        try:
            error = loads(fault.pickled)
        except Exception:
            error = None
    if error is None:
        error = SampleError(f"dataset[{fault.index!r:.60}] raised {fault.summary}")
    with contextlib.suppress(Exception):  # classes may forbid either
        error.__cause__ = RemoteTraceback(fault.trace) if fault.trace else None
        error.add_note(_note(fault))
    return error


def _note(fault: Fault) -> str:
    where = f"(position {fault.position} of epoch {fault.epoch}), fetched by {fault.worker}"
    if isinstance(fault.index, tuple):
        return f"mpiter: {fault.index!r:.60} {where}."
    if isinstance(fault.index, list):
        return f"mpiter: samples {fault.index!r:.60} {where}, together."
    return f"mpiter: sample {fault.index!r:.60} {where}; dataset[{fault.index!r:.60}] repeats it in this process."
