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
from typing import Protocol


class Endable(Protocol):
    """A loop that can be ended."""

    # The process that it was made in, which alone may end it.
    pid: int

    def stop(self) -> None: ...
    def close(self) -> None: ...


# The interpreter is exiting.
_is_over = False
_running: weakref.WeakSet[Endable] = weakref.WeakSet()
# The process in which multiprocessing has been asked to call ``end_all``.
_asked_in: int | None = None
# Puts ours before its finalizers that terminate workers.
_FIRST = 100


def end_with(pump: object, loop: Endable) -> weakref.finalize[[Endable], object]:
    """Arrange that ``loop`` ends when ``pump`` is garbage-collected.

    At the latest it ends when the interpreter exits.
    """
    global _asked_in
    finalizer = weakref.finalize(pump, _let_go, loop)
    # At exit ``end_all`` ends the loop, and waits until it has.
    finalizer.atexit = False
    _running.add(loop)
    # A forked child must ask again, since multiprocessing there has forgotten it.
    if _asked_in != os.getpid():
        _asked_in = os.getpid()
        util.Finalize(None, end_all, exitpriority=_FIRST)
    return finalizer


def _let_go(loop: Endable) -> None:
    # A forked child has its parent's pumps too, and drops them.
    if loop.pid == os.getpid():
        loop.stop()


def go_quietly() -> None:
    """Stop a daemon thread that asks for batches while the interpreter exits.

    It would print an error otherwise.
    """
    if _is_over and threading.current_thread().daemon:
        threading.Event().wait()


@atexit.register
def end_all() -> None:
    """End every loop that is still running, because the program is over."""
    global _is_over
    _is_over = True
    # The stack calls all of them, even if one raises an error.
    with contextlib.ExitStack() as all_of_them:
        for loop in list(_running):
            if loop.pid == os.getpid():
                all_of_them.callback(loop.close)
