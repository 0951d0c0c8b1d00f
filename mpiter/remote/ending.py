"""The end of an MPI program in which a rank doesn't come back from its work: mpi4py would wait for it for ever.

Runs in rank 0, the trainer's.  Guarantees that such a program ends, with what it had to say and its own exit status: at
once if it ends by an error, and else when the rank has had its time.  Iterators that are still open are closed first.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
from typing import Any

from ..engine import lifetime
from . import last_words

_log = logging.getLogger("mpiter")
lost: list[str] = []  # why no rank can be expected to answer
_left: list[tuple[threading.Event, float | None]] = []  # set when all of a Pool's ranks are back; seconds they may take


def watch() -> None:
    """See to the end of this program, before any Pool is told of it."""
    sys.modules["mpi4py.futures._core"].SharedPool.threads[_last] = _last


def leave_behind(is_over: threading.Event, patience: float | None) -> None:
    """A Pool would not end: a rank is still at work for it."""
    _left.append((is_over, patience))


class _Last:
    """Looks to mpi4py like one of its Pools, which it tells to end when the program does."""

    def put(self, item: object) -> None:
        _, error, _ = sys.exc_info()
        status = _status(error)
        lifetime.end_all()
        if why := lost[0] if lost else _waited(has_time=status == 0):
            if error is not None and not isinstance(error, SystemExit):
                sys.excepthook(type(error), error, error.__traceback__)
            if not (lost and error is not None):  # then it has just been said
                print(f"mpiter: {why}", file=sys.stderr)
            _abort(1 if lost and status == 0 else status)

    def join(self) -> None: ...


def _waited(has_time: bool) -> str:
    """Wait for the ranks that are still at work; why to go on without them, if they don't come back."""
    for is_over, patience in _left:
        if is_over.is_set():
            continue
        time = "" if patience is None else f" for {patience:g} s (sample_timeout)"
        if has_time:
            _log.warning("the program has ended, and an MPI rank is still in a sample: waiting for it%s", time)
        if not is_over.wait(patience if has_time else 0):
            waited = time if has_time else ""
            return f"an MPI rank has not come back from its sample{waited}: all ranks are ended, as the program has."
    return ""


def _status(error: BaseException | None) -> int:
    """What the program ends with, as mpi4py sees it."""
    code: Any = error.code if isinstance(error, SystemExit) else 0 if error is None else 1
    return code if isinstance(code, int) else int(code is not None)


def _abort(status: int) -> None:
    from mpi4py import MPI as mpi

    atexit._run_exitfuncs()
    last_words.forget()
    sys.stdout.flush()
    sys.stderr.flush()
    mpi.COMM_WORLD.Abort(status)


_last = _Last()
