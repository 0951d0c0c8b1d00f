"""How a loop that waits for descriptors is woken: a bell that any thread may ring, even a weak reference's callback.

One descriptor (an eventfd, elsewhere a pipe).  ``ring`` is C from end to end and never blocks: the garbage collector
may call it anywhere, and no Ctrl-C is lost in it.  Ringing twice is ringing once.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
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
        self._clapper = io.FileIO(struck, "w")  # which knows that it is closed: its number may be another's by then
        self.ring: Callable[[], object] = functools.partial(self._clapper.write, _ONE)

    def fileno(self) -> int:
        return self._heard

    def hush(self) -> None:
        """Whoever rang so far has been heard."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._heard, 1 << 12)

    def close(self) -> None:
        """From now on ``ring`` is a ValueError."""
        if not self._clapper.closed:
            if self._heard != self._clapper.fileno():
                os.close(self._heard)
            self._clapper.close()
