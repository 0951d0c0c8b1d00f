"""A worker ends with the main process, whatever it is doing at that moment.

Runs in workers.  Every worker holds the reading end of a pipe whose other end only the main process has.  Guarantees on
Linux that the kernel kills the worker when that end closes, even one that is stopped or holds the GIL for ever;
elsewhere a thread waits for it, which needs the GIL.  And it ends when the dataset has closed the pipes that it has to
the main process, before anything of it is written to what has their numbers by then.

Not by PR_SET_PDEATHSIG: that is for the end of the *thread* that started us, and with a fork server not even that of
the right process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from typing import Any

CUT_OFF = 87  # the exit code of a worker whose dataset has closed its pipes
_pipes: dict[int, tuple[int, int]] = {}  # by descriptor, which device and which inode


def watch(*descriptors: int) -> None:
    """These lead to the main process."""
    for number in descriptors:
        found = os.fstat(number)
        _pipes[number] = found.st_dev, found.st_ino


def look() -> None:
    """End this process if one of its pipes is closed."""
    for number, pipe in _pipes.items():
        try:
            found = os.fstat(number)
        except OSError:
            os._exit(CUT_OFF)
        if (found.st_dev, found.st_ino) != pipe:
            os._exit(CUT_OFF)


def die_with_parent() -> None:
    """Tie this process's life to that of the main process."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    pipe: Any = parent.sentinel
    try:
        _let_the_kernel_kill(pipe)
    except (ImportError, AttributeError, OSError):  # not Linux
        threading.Thread(target=_wait, args=(pipe,), name="mpiter-lifeline", daemon=True).start()
        return
    if connection.wait([pipe], 0):  # it was over before we could say so
        os._exit(1)


def _let_the_kernel_kill(pipe: int) -> None:
    import fcntl

    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


def _wait(pipe: Any) -> None:
    connection.wait([pipe])
    os._exit(1)
