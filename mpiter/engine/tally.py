"""The counters of one iterator: who does something says so here, and ``stats()`` reads it off.

Written by the prefetch thread and, of waiting and opening batches, by the consumer.  Times are on the monotonic clock,
which workers of this machine share.  Always on: what it costs is a few reads of the clock for each batch and task.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ..stats import Stats
from ..worker.block import Done, Fault

_LISTED = 100  # samples that were skipped
_LOOK_S = 1.0  # between two looks that count as two


class Skipped:
    """The samples that an iterator or a loader has left out, in all the loops that it has had."""

    def __init__(self) -> None:
        self.count = 0
        self.first: tuple[tuple[Any, str], ...] = ()  # index and error
        self._lock = threading.Lock()

    def add(self, faults: list[Fault]) -> None:
        with self._lock:
            self.count += len(faults)
            more = _LISTED - len(self.first)
            self.first += tuple((fault.index, fault.summary) for fault in faults[:more])


@dataclass(slots=True)
class Tally:
    """The counters behind ``Stats``."""

    all_skipped: Skipped = field(default_factory=Skipped)
    batches: int = 0
    samples: int = 0
    odd_rows: int = 0
    copies: int = 0
    errors: int = 0
    renewals: int = 0
    tasks: int = 0
    order_s: float = 0.0
    queue_s: float = 0.0
    fetch_s: float = 0.0
    fetch_cpu_s: float = 0.0
    sample_s: float = 0.0
    start_s: float = 0.0
    peak_in_flight_batches: int = 0
    peak_in_flight_bytes: int = 0
    waits: tuple[float, float | None] = (0.0, None)  # seconds that next() has waited; since when it waits now
    began: float | None = None  # when the first batch came
    since: tuple[float, float, int] = (0.0, 0.0, 0)  # what is told begins: when, what had been waited, for how many
    looked: tuple[float, float, int] = (0.0, 0.0, 0)  # what is told begins here next
    barren: int = 0  # samples skipped since the last good one

    def counters(self) -> dict[str, Any]:
        """What of it goes into ``Stats``."""
        return {name: getattr(self, name) for name in Stats.__dataclass_fields__ if hasattr(self, name)}

    @property
    def skipped(self) -> int:
        """How many samples were left out."""
        return self.all_skipped.count

    # -- the consumer's side -------------------------------------------------------------------------------------

    def asked(self) -> float:
        """``next()`` begins to wait; when."""
        now = time.monotonic()
        self.waits = self.waits[0], now  # at once, for those who look from another thread
        return now

    def waited(self, began: float, ended: float) -> None:
        """``next()`` has waited."""
        self.waits = self.waits[0] + ended - began, None

    @property
    def wait_s(self) -> float:
        """Seconds that ``next()`` has waited, up to now."""
        seconds, since = self.waits
        return seconds if since is None else seconds + time.monotonic() - since

    def handed_out(self, samples: int) -> None:
        """The user has one more batch."""
        if self.began is None:
            self.began, self.start_s = time.monotonic(), self.wait_s
            self.since = self.looked = self.began, self.wait_s, 0
        self.batches += 1
        self.samples += samples

    def came(self, samples: int, fetch_s: float, cpu_share: float) -> None:
        """A batch was fetched and made ready where there are no workers: all of it in one call."""
        self.tasks += 1
        self.batches += 1
        self.samples += samples
        self.fetch_s += fetch_s
        self.fetch_cpu_s += fetch_s * cpu_share
        each = fetch_s / samples
        self.sample_s = 0.75 * self.sample_s + 0.25 * each if self.sample_s else each

    def look(self, looks: bool = True) -> dict[str, Any]:
        """What goes into ``Stats`` of the time: since the first batch, and since the user has looked last.

        Who looks again within a second, or before there is another batch, sees the same stretch, grown a little: a
        progress bar that asks all the time leaves the others something to see.  ``looks`` is False where it isn't the
        user who does.
        """
        if self.began is None:
            return {}
        now, wait_s = time.monotonic(), self.wait_s
        if looks and now - self.looked[0] >= _LOOK_S and self.batches > self.looked[2]:
            self.since, self.looked = self.looked, (now, wait_s, self.batches)
        then, waited, batches = self.since
        return {
            "seconds": now - self.began,
            "recent_s": now - then,
            "recent_wait_s": wait_s - waited,
            "recent_batches": self.batches - batches,
        }

    # -- the loop's ----------------------------------------------------------------------------------------------

    def answered(self, done: Done) -> None:
        """A block has come back; follow the time that a sample takes."""
        self.tasks += 1
        self.queue_s += done.queue_s
        self.fetch_s += done.seconds
        self.fetch_cpu_s += done.cpu_s
        if done.rows:
            now = done.seconds / done.rows
            self.sample_s = 0.75 * self.sample_s + 0.25 * now if self.sample_s else now

    def in_flight(self, batches: int, size: int) -> None:
        """So many batches, of this size each, are on their way."""
        self.peak_in_flight_batches = max(self.peak_in_flight_batches, batches)
        self.peak_in_flight_bytes = max(self.peak_in_flight_bytes, batches * size)
