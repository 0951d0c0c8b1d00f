"""The end of an MPI program that has lost a rank, or in which one doesn't come back from its work.

Runs in rank 0, the trainer's.  mpi4py would wait for such a rank for ever: here the iterators are closed, and then the
program ends with its own exit status.  A launcher that kills all ranks with SIGKILL leaves no time to say anything:
the last words are said by a shell in a session of its own, where the launcher does not look.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
import time
from typing import Any

from ..engine import lifetime
from ..errors import WorkerCrashed

_SHELL = 'trap "" INT TERM HUP; read -r _ || printf "%s\\n" "$0" >&2'  # a line means that all is well
_TO_READ_S = 0.3  # that mpiexec has for what was said last: told to abort, it drops the rest
_STUCK = "an MPI rank has not come back from its sample: all ranks are ended, as the program has."

lost = ""  # why no rank can be expected to answer
pools: list[threading.Event] = []  # of each, what is set when all of its ranks are back
_lock = threading.Lock()  # iterators begin in threads of their own
_is_prepared = False  # guarded by _lock


def prepare(text: str) -> None:
    """See to the end of this program, before any Pool is told of it; ``text`` is said if the program is killed."""
    global _is_prepared
    with _lock:
        if _is_prepared:
            return
        _is_prepared = True
        sys.modules["mpi4py.futures._core"].SharedPool.threads[_last] = _last
        if os.name == "posix":
            command = ["/bin/sh", "-c", _SHELL, f"mpiter: {text}"]
            shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
            atexit.register(shell.communicate, b"\n")


def raise_if_lost() -> None:
    if lost:
        raise WorkerCrashed(lost)


class _Last:
    """Looks to mpi4py like one of its Pools, which it tells to end when the program does."""

    def put(self, item: object) -> None:
        error = sys.exc_info()[1]
        code: Any = error.code if isinstance(error, SystemExit) else int(error is not None)
        status = code if isinstance(code, int) else int(code is not None)  # as mpi4py sees it
        lifetime.end_all()
        if not lost and all(is_over.is_set() for is_over in pools):
            return
        if error is not None and not isinstance(error, SystemExit):
            sys.excepthook(type(error), error, error.__traceback__)
        if error is None or not lost:  # else it has just been said
            print(f"mpiter: {lost or _STUCK}", file=sys.stderr)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        time.sleep(_TO_READ_S)
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(status or int(bool(lost)))

    def join(self) -> None: ...


_last = _Last()
