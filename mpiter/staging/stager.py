"""Threads that copy ahead: they go through the order before the workers do.

A plan observer.  ``planned`` runs in the prefetch thread, which alone asks for the order; the threads run in the
consumer process.  It guarantees that samples are copied in the order in which the iterator will want them, no more than
``ahead`` of them beyond what is planned.  The threads end with the iterator, after the copies in hand.
"""

from __future__ import annotations

import contextlib
import queue
import threading

from ..order.cursor import Cursor, Plan, Plans
from ..pool.starting import never_interrupted
from .staged import StagedFetch


class Stager:
    """The threads of one iterator: what the dataset's ``plan_observer()`` makes."""

    def __init__(self, fetch: StagedFetch, ahead: int, threads: int) -> None:
        self._fetch, self._ahead, self._threads = fetch, ahead, threads
        self._wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # samples to copy; None ends a thread
        self._after: Cursor | None = None  # the place up to which is planned…
        self._front = 0  # …and so many samples beyond it are, or were, wanted
        self._has_ended = False

    def planned(self, plan: Plan, plans: Plans) -> None:
        """One more batch is planned; what has not been copied of it is left to the workers."""
        begins = self._after is None
        self._front = max(0, self._front - (plan.samples or plan.rows)) if plan.before is self._after else 0
        self._after = plan.after
        with contextlib.suppress(queue.Empty):
            while self._wanted.qsize() > self._front:
                self._wanted.get_nowait()
        if self._front <= self._ahead // 2 and not self._has_ended:
            while self._front < self._ahead and len(found := plans.beyond(plan.after, self._front, self._ahead)):
                for index in found.tolist():
                    self._wanted.put(index)
                self._front += len(found)
        if begins:
            for number in range(self._threads):
                threading.Thread(target=self._copy, name=f"mpiter-staging-{number}", daemon=True).start()
        if self._has_ended:  # meanwhile, perhaps: the threads have yet to be told
            self.close()

    def _copy(self) -> None:
        never_interrupted()
        while not self._has_ended:
            index = self._wanted.get()
            with contextlib.suppress(Exception):  # the store's: the worker that wants the sample will meet it too
                if index is None or not self._fetch.copy(index):
                    self.close()

    def close(self) -> None:
        """Copy nothing more."""
        self._has_ended = True
        for _ in range(self._threads):
            self._wanted.put(None)
