"""Ends a prefetch loop that was never closed: with its pump, or with the interpreter.

The garbage collector may run this in any thread, even in the loop's own, so it only
asks the loop to end; at interpreter exit it also waits for that.  A process that
multiprocessing has started ends without the interpreter's exit functions: there
multiprocessing calls ours.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref

# Registers its own exit function first, so that ours runs before it.
from multiprocessing import util
from typing import Any

_is_over = False  # the interpreter is exiting
_running: weakref.WeakSet[Any] = weakref.WeakSet()
# The process whose multiprocessing has been asked.
_asked_in: int | None = None
# Of its finalizers, all of which run before it terminates workers.
_FIRST = 100


def end_with(pump: Any, loop: Any) -> weakref.finalize[..., Any]:
    """Arrange that ``loop`` ends when ``pump`` is garbage-collected, or at the latest
    when the interpreter exits.
    """
    global _asked_in
    finalizer = weakref.finalize(pump, _let_go, loop)
    finalizer.atexit = False
    _running.add(loop)
    if _asked_in != os.getpid():
        _asked_in = os.getpid()
        util.Finalize(None, end_all, exitpriority=_FIRST)
    return finalizer


def _let_go(loop: Any) -> None:
    if loop.pid == os.getpid():
        loop.stop()


def go_quietly() -> None:
    """Stop a daemon thread that still asks for batches while the interpreter exits, so
    that it prints no error.
    """
    if _is_over and threading.current_thread().daemon:
        threading.Event().wait()


@atexit.register
def end_all() -> None:
    """End every loop that is still running, because the program is over."""
    global _is_over
    _is_over = True
    # An error in the end of one doesn't spare the others.
    with contextlib.ExitStack() as all_of_them:
        for loop in list(_running):
            if loop.pid == os.getpid():
                all_of_them.callback(loop.close)
