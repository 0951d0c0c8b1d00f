"""Who copies ahead: threads that go through the order before the workers do.

A plan observer.  ``planned`` runs in the prefetch thread, which alone asks for the order; the threads run in the
consumer process and take one sample after the other, each sample once.  Guarantees that samples are copied in the order
in which the iterator will want them, no more than ``ahead`` of them beyond what is planned, and that another place in
the order counts from the next plan on.  The threads end with the iterator, after the copies in hand.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import dataclass

from ..order.cursor import Cursor, Plan, Plans
from ..pool.starting import never_interrupted
from .staged import StagedFetch


@dataclass(frozen=True, slots=True)
class Ahead:
    """Makes the observer of each iterator's plans: ``dataset.plan_observer`` of a dataset that is staged."""

    fetch: StagedFetch
    samples: int  # beyond what is planned
    threads: int

    def __call__(self) -> Stager:
        return Stager(self.fetch, self.samples, self.threads)


class Stager:
    """Of one iterator."""

    def __init__(self, fetch: StagedFetch, ahead: int, threads: int) -> None:
        self._fetch, self._ahead, self._threads = fetch, ahead, threads
        self._changed = threading.Condition()
        self._wanted: deque[int] = deque()  # samples to copy; guarded by _changed, like the rest
        self._after: Cursor | None = None  # the place up to which is planned…
        self._front = 0  # …and so many samples beyond it are, or were, wanted
        self._has_ended = self._has_begun = False

    def planned(self, plan: Plan, plans: Plans) -> None:
        """One more batch is on its way: what has not been copied of it is the workers' to fetch."""
        with self._changed:
            if self._has_ended:
                return
            goes_on = plan.before is self._after
            self._front = max(0, self._front - (plan.samples or plan.rows)) if goes_on else 0
            self._after = plan.after
            while len(self._wanted) > self._front:
                self._wanted.popleft()
            if self._front <= self._ahead // 2:
                self._look_ahead(plan.after, plans)
            self._changed.notify_all()
            begins, self._has_begun = not self._has_begun, True
        if begins:
            for number in range(self._threads):
                threading.Thread(target=self._copy, name=f"mpiter-staging-{number}", daemon=True).start()

    def _look_ahead(self, place: Cursor, plans: Plans) -> None:
        while self._front < self._ahead:
            found = plans.beyond(place, self._front, self._ahead)
            if not len(found):
                return
            self._wanted.extend(found.tolist())
            self._front += len(found)

    def _copy(self) -> None:
        never_interrupted()
        while (index := self._next()) is not None:
            with contextlib.suppress(Exception):  # the store's: whoever wants the sample will have it again
                if not self._fetch.copy(index):
                    self.close()

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._has_ended)
            return None if self._has_ended else self._wanted.popleft()

    def close(self) -> None:
        """Copy nothing more."""
        with self._changed:
            self._has_ended = True
            self._wanted.clear()
            self._changed.notify_all()
