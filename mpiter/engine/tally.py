"""The counters of one iterator, which ``stats()`` reads.

Written by the prefetch thread, except those about waiting and taking batches, which the
consumer's thread writes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..stats import Stats
from ..worker.block import Fault

# So many skipped samples are listed with their errors.
_LISTED = 100
# Two looks count as two if so much time is between them.
_LOOK_S = 1.0


class Skipped:
    """The samples that an iterator or a loader has left out, in all its loops."""

    def __init__(self) -> None:
        self.count = 0
        # The index and the error of each of the first.
        self.first: tuple[tuple[Any, str], ...] = ()
        # A loader's epochs may overlap, each with a thread of its own.
        self._lock = threading.Lock()

    def add(self, faults: list[Fault]) -> None:
        with self._lock:
            self.count += len(faults)
            more = _LISTED - len(self.first)
            self.first += tuple((fault.index, fault.summary) for fault in faults[:more])


class _Moment(NamedTuple):
    """A moment from which a period is counted: what there was until then."""

    at: float = 0.0
    wait_s: float = 0.0
    batches: int = 0


_START = _Moment()


@dataclass(slots=True)
class Tally:
    """The counters behind ``Stats``."""

    all_skipped: Skipped = field(default_factory=Skipped)
    batches: int = 0
    samples: int = 0
    odd_rows: int = 0
    copies: int = 0
    sample_s: float = 0.0
    sample_cpu_s: float = 0.0
    start_s: float = 0.0
    # The seconds that next() has waited; and since when it waits now.
    waits: tuple[float, float | None] = (0.0, None)
    # When the first batch came.
    began: float | None = None
    # Where the period that a look tells of begins.
    since: _Moment = _START
    # The same for the period after the next look.
    looked: _Moment = _START
    # The samples that were skipped since the last good one.
    barren: int = 0

    @property
    def wait_s(self) -> float:
        """The seconds that ``next()`` has waited, up to now."""
        seconds, since = self.waits
        if since is None:
            return seconds
        return seconds + time.monotonic() - since

    def handed_out(self, samples: int) -> None:
        """Count a batch of ``samples`` samples that the user gets."""
        if self.began is None:
            self.began = time.monotonic()
            self.start_s = self.wait_s
            self.looked = _Moment(self.began, self.start_s)
            self.since = self.looked
        self.batches += 1
        self.samples += samples

    def fetched(
        self,
        samples: int,
        seconds: float,
        cpu_s: float,
    ) -> None:
        """Update the moving averages: ``samples`` samples took ``seconds``."""
        if not samples:
            return
        each_s = seconds / samples
        each_cpu_s = cpu_s / samples
        # The first measurement is the average so far.
        if not self.sample_s:
            self.sample_s = each_s
            self.sample_cpu_s = each_cpu_s
        self.sample_s += 0.25 * (each_s - self.sample_s)
        self.sample_cpu_s += 0.25 * (each_cpu_s - self.sample_cpu_s)

    def look(self) -> Stats:
        """Return the counters, with the recent times.

        A look within a second of the last one, or before another batch, continues its
        period: progress bars look often.
        """
        found = Stats(
            batches=self.batches,
            samples=self.samples,
            odd_rows=self.odd_rows,
            copies=self.copies,
            sample_s=self.sample_s,
            sample_cpu_s=self.sample_cpu_s,
            wait_s=self.wait_s,
            start_s=self.start_s,
            _began_s=self.began,
        )
        if self.began is None:
            return found
        now = time.monotonic()
        wait_s = self.wait_s
        has_more = self.batches > self.looked.batches
        if has_more and now - self.looked.at >= _LOOK_S:
            self.since = self.looked
            self.looked = _Moment(now, wait_s, self.batches)
        since = self.since
        return replace(
            found,
            recent_s=now - since.at,
            recent_wait_s=wait_s - since.wait_s,
            recent_batches=self.batches - since.batches,
        )
