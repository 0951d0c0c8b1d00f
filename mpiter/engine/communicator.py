"""The bounded queue between the prefetch thread and the consumer.

``put`` runs in the prefetch thread, ``get`` in the consumer, which waits while nothing is queued.  At most
``n_prefetch`` deliveries are queued; what a put brings beyond that stands in line until the consumer has taken as
many, and the next put waits while anybody does.  Guarantees that after ``reset`` nothing of an earlier run is
handed out, and that both sides come back at once after ``terminate``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ..pool.stopwatch import Stopwatch

T = TypeVar("T")


class Terminated(Exception):
    """The other side has ended the conversation."""


class _Communicator(Generic[T]):
    """A queue of at most ``n_prefetch`` deliveries."""

    def __init__(self, n_prefetch: int, note: Callable[[T], None] = lambda delivery: None) -> None:
        self.n_prefetch = n_prefetch  # may be changed
        self._note = note  # is told of each delivery as it is taken
        self._lock = threading.RLock()  # terminate() may be the garbage collector's, in whoever has it
        self._not_empty = threading.Condition(self._lock)
        self._not_full = threading.Condition(self._lock)
        self._queue: deque[T] = deque()  # guarded by _lock, like all below
        self._line: deque[T] = deque()  # what a waiting put has brought
        self._run = 0
        self._terminated = False
        self.taken = 0  # by the consumer so far
        self._when_taken: tuple[int, Callable[[], None]] | None = None

    def put(self, deliveries: Iterable[T], run: int) -> bool:
        """Stand in line with deliveries, waiting while somebody does already; False if they belong to the past.

        The consumer lets them in as it takes, never more than ``n_prefetch`` at once.  So the producer is woken once
        for all that it brings, and only if the consumer is the slower of the two.
        """
        with self._lock:
            if self._line:
                self._not_full.wait_for(lambda: not self._line or self._terminated or run != self._run)
            if self._terminated:
                raise Terminated
            if run != self._run:
                return False
            self._line.extend(deliveries)
            self._admit_locked()
            if self._queue:
                self._not_empty.notify()
            return True

    def _admit_locked(self) -> None:
        while self._line and len(self._queue) < self.n_prefetch:
            self._queue.append(self._line.popleft())
            if not self._line:
                self._not_full.notify()

    def get(self, is_alive: Callable[[], bool], stalled: Callable[[float], None], glance_s: float = 1.0) -> T:
        """The next delivery; ``stalled`` is told once in ``glance_s`` how long there was none, while we were awake."""
        with self._lock:
            if self._queue:
                return self._take_locked()
        stopwatch, waited = Stopwatch(glance_s), 0.0
        while True:
            with self._lock:
                self._not_empty.wait_for(lambda: self._queue or self._terminated, glance_s)
                if self._queue:
                    return self._take_locked()
                if self._terminated:
                    raise Terminated
            if not is_alive():
                raise Terminated
            waited += stopwatch.lap()
            stalled(waited)

    def _take_locked(self) -> T:
        delivery = self._queue.popleft()
        self.taken += 1
        self._note(delivery)
        self._admit_locked()
        self._call_locked()
        return delivery

    def _call_locked(self) -> None:
        if self._when_taken is not None and self.taken >= self._when_taken[0]:
            self._when_taken[1]()
            self._when_taken = None

    def call_when_taken(self, count: int, callback: Callable[[], None]) -> None:
        """Call once when the consumer has taken so many in all, now if it has already; forget what was asked before."""
        with self._lock:
            self._when_taken = count, callback
            self._call_locked()

    @property
    def excess(self) -> int:
        """How many the consumer must take before ``put`` needn't wait."""
        return len(self._line)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """Deliveries not yet taken, those in line included."""
        return len(self._queue) + len(self._line)

    def count(self, what: Callable[[T], bool]) -> int:
        """How many of the deliveries not yet taken are of this kind."""
        with self._lock:
            return sum(map(what, [*self._queue, *self._line]))

    def reset(self, run: int) -> None:
        """Drop what is queued; from now on only deliveries of ``run`` are taken."""
        with self._lock:
            self._run = run
            self._queue.clear()
            self._line.clear()
            self._not_full.notify()

    def terminate(self) -> None:
        with self._lock:
            self._terminated = True
            self._queue.clear()
            self._line.clear()
            self._not_empty.notify_all()
            self._not_full.notify_all()
