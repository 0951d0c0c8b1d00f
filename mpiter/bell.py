"""How a loop that waits for descriptors is woken: a bell that any thread may ring, even a weak reference's callback.

One descriptor (an eventfd, elsewhere a pipe).  ``ring`` is C from end to end and never blocks: the garbage collector
may call it anywhere, and no Ctrl-C is lost in it.  Ringing twice is ringing once.  Guarantees that nobody ever rings a
descriptor that has become another's: it is closed when the last who could ring it has let go of it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import weakref
from collections.abc import Callable

_ONE = (1).to_bytes(8, "little")  # what an eventfd counts; eight bytes as good as any to a pipe


class Bell:
    """Rung by anybody, heard by the one who waits for its descriptor."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._heard = struck = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        else:
            self._heard, struck = os.pipe()
            os.set_blocking(self._heard, False)
            os.set_blocking(struck, False)
        clapper = io.FileIO(struck, "w", closefd=False)
        weakref.finalize(clapper, _close, {self._heard, struck}).atexit = False
        self.ring: Callable[[], object] = functools.partial(clapper.write, _ONE)

    def fileno(self) -> int:
        return self._heard

    def hush(self) -> None:
        """Whoever rang so far has been heard."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._heard, 1 << 12)

    def close(self) -> None:
        """Nobody listens any more: from now on ``ring`` does nothing."""
        self.ring = _unheard
        self._heard = -1


def _unheard() -> None: ...


def _close(descriptors: set[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
