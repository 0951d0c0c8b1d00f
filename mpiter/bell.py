"""How a loop that waits for descriptors is woken: a bell that any thread may ring, even a weak reference's callback.

One descriptor (an eventfd, elsewhere a pipe).  ``ring`` is C from end to end and never blocks: the garbage collector
may call it anywhere, and no Ctrl-C is lost in it.  Ringing twice is ringing once.  A descriptor that has become
another's is never rung: it is closed when the last holder of ``ring`` has let go of it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import select
import weakref
from collections.abc import Callable

_ONE = (1).to_bytes(8, "little")  # what an eventfd counts; eight bytes as good as any to a pipe


class Bell:
    """Any thread rings it; the loop that waits for its descriptor hears it."""

    def __init__(self) -> None:
        ends = [os.eventfd(0, os.EFD_CLOEXEC)] if hasattr(os, "eventfd") else [*os.pipe()]
        for end in ends:
            os.set_blocking(end, False)
        self._heard = ends[0]
        self._poll = select.poll()  # kept: multiprocessing's ``wait`` would make one each time, which takes 20 µs
        self._poll.register(self._heard, select.POLLIN)
        clapper = io.FileIO(ends[-1], "w", closefd=False)
        weakref.finalize(clapper, _close, ends).atexit = False
        self.ring: Callable[[], object] = functools.partial(clapper.write, _ONE)

    def fileno(self) -> int:
        return self._heard

    def wait(self, timeout: float | None, at_once: bool = False) -> None:
        """Wait until it is rung, unless there is something to do ``at_once``, and hush it."""
        if self._poll.poll(0 if at_once else None if timeout is None else 1e3 * timeout):
            self.hush()

    def hush(self) -> None:
        """Forget the rings so far."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._heard, 1 << 12)

    def close(self) -> None:
        """Make ``ring`` do nothing from now on."""
        self.ring = lambda: None
        self._heard = -1


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
