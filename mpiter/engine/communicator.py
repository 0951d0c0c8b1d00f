"""The bounded queue between the prefetch thread and the consumer.

The thread calls ``put``, which never waits, and the consumer ``get``.  Guarantees that
after ``reset`` nothing of an earlier run (the batches from one position on) is handed
out, and that both sides raise Terminated at once after ``terminate``.  Assumes that the
thread puts no more batches than there is ``room`` for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from ..pool.endings import Stopwatch
from .delivery import Delivery


class Terminated(Exception):
    """The queue was closed while the consumer was waiting in it, or before."""


class _Communicator:
    """A queue of at most ``n_prefetch`` finished batches, and the end of their run.

    ``taken`` is called with each delivery as it is taken.
    """

    def __init__(
        self,
        n_prefetch: int,
        taken: Callable[[Delivery], None],
    ) -> None:
        self._most = n_prefetch
        self._taken = taken
        # Reentrant, since the garbage collector may call ``terminate`` in a thread that
        # holds it.
        self._lock = threading.RLock()
        self._not_empty = threading.Condition(self._lock)
        # Guarded by _lock, like all below.  Only the loop makes it longer, so the loop
        # may take its length without the lock: there is at least as much room.
        self.queue: deque[Delivery] = deque()
        self._run = 0
        # Once it is True it stays so, and any thread may look.
        self.is_terminated = False

    @property
    def room(self) -> int:
        """How many more batches the loop may put, at least."""
        return self._most - len(self.queue)

    def put(
        self,
        deliveries: Iterable[Delivery],
        run: int,
    ) -> None:
        """Queue deliveries; those of an earlier run are dropped."""
        with self._lock:
            if self.is_terminated:
                raise Terminated
            if run == self._run:
                self.queue.extend(deliveries)
                # All are notified, since a thread that Ctrl-C has ended in its wait may
                # still be listed, and would get the only notification.
                self._not_empty.notify_all()

    def get(
        self,
        stalled: Callable[[float], None],
        glance_s: float = 1.0,
    ) -> Delivery:
        """Wait for the next delivery.

        Every ``glance_s`` seconds ``stalled`` gets the time waited so far.
        """
        stopwatch = Stopwatch(glance_s)
        waited = 0.0
        while True:
            try:
                with self._lock:
                    self._not_empty.wait_for(
                        lambda: self.queue or self.is_terminated, glance_s
                    )
                    if self.queue:
                        # Ctrl-C may lose the delivery from here on.  The pump notices
                        # by the number of the next, and begins again.
                        delivery = self.queue.popleft()
                        self._taken(delivery)
                        return delivery
                    if self.is_terminated:
                        raise Terminated
            except RuntimeError as error:
                # Ctrl-C came just when ``wait_for`` had released the lock, so leaving
                # the ``with`` failed.  The caller gets the Ctrl-C, not that failure.
                raise error.__context__ or error from None
            waited += stopwatch.lap()
            stalled(waited)

    def reset(self, run: int) -> None:
        """Drop the queued deliveries, and from now on accept only those of ``run``."""
        with self._lock:
            self._run = run
            self.queue.clear()

    def terminate(self) -> None:
        with self._lock:
            self.is_terminated = True
            self.queue.clear()
            self._not_empty.notify_all()
