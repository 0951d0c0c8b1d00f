"""How a prefetch loop ends when nobody closes it: with its iterator, or with the interpreter.

Runs wherever the garbage collector finds an iterator unused, even in the loop's own thread, so there it only asks; at
interpreter exit it waits, before multiprocessing ends what it knows of.
"""

from __future__ import annotations

import atexit
import multiprocessing.util  # noqa: F401  # registers its own exit function first, so that ours runs before it
import os
import weakref
from typing import Any

from .prefetch import _PrefetchLoop

_running: weakref.WeakSet[_PrefetchLoop] = weakref.WeakSet()


def end_with(iterator: Any, loop: _PrefetchLoop) -> weakref.finalize[..., Any]:
    """End ``loop`` when ``iterator`` is dropped, and at the latest when the interpreter exits."""
    finalizer = weakref.finalize(iterator, _let_go, loop)
    finalizer.atexit = False
    _running.add(loop)
    return finalizer


def _let_go(loop: _PrefetchLoop) -> None:
    if loop.pid == os.getpid():
        loop.stop()


@atexit.register
def _end_all() -> None:
    for loop in list(_running):
        if loop.pid == os.getpid():
            loop.stop()
            loop.join()
