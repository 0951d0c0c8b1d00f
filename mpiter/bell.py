"""A bell that wakes a loop which waits for descriptors.

Any thread may ring it, even a weak reference's callback.  It is one descriptor: an
eventfd, elsewhere a pipe.  ``ring`` is C from end to end and never blocks, so the
garbage collector may call it anywhere, and no Ctrl-C is lost in it.  The descriptor is
closed only when the last holder of ``ring`` has released it, so a number that another
file has got meanwhile is never rung.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import weakref
from collections.abc import Callable

# What an eventfd counts.  For a pipe any bytes would do.
_ONE = (1).to_bytes(8, "little")


class Bell:
    """Any thread may ring it; the loop that waits for its descriptor is then woken."""

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            ends = [os.eventfd(0, os.EFD_CLOEXEC)]
        else:
            ends = [*os.pipe()]
        for end in ends:
            os.set_blocking(end, False)
        self._heard = ends[0]
        # This object is kept, since multiprocessing's ``wait`` would make one for each
        # call, which takes 20 µs.
        self._poll = select.poll()
        self._poll.register(self._heard, select.POLLIN)
        # ``ring`` may be kept, and called, when the bell itself is gone.  So the ends
        # are closed with this file, which ``ring`` holds.
        clapper = io.FileIO(ends[-1], "w", closefd=False)
        for end in ends:
            weakref.finalize(clapper, os.close, end).atexit = False
        self.ring: Callable[[], object] = functools.partial(clapper.write, _ONE)

    def fileno(self) -> int:
        return self._heard

    def wait(self, timeout: float | None, at_once: bool = False) -> None:
        """Wait until the bell is rung, then forget the rings.

        With ``at_once``, don't wait at all.
        """
        limit_ms: float | None = None
        if at_once:
            limit_ms = 0
        elif timeout is not None:
            limit_ms = 1e3 * timeout
        if self._poll.poll(limit_ms):
            self.hush()

    def hush(self) -> None:
        """Forget all rings so far."""
        # Another thread may have read them first.
        with contextlib.suppress(BlockingIOError):
            os.read(self._heard, 1 << 12)

    def close(self) -> None:
        """Make ``ring`` do nothing from now on."""
        self.ring = lambda: None
        self._heard = -1
