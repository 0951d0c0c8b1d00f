"""Counters of one iterator, and the frozen snapshot that ``stats()`` returns.

The tally is written by the prefetch thread (and, for the waiting time, by the consumer); the snapshot is for everybody:
the progress line, the tuner, the report, the tests.
"""

from __future__ import annotations

import html
import time
from dataclasses import dataclass, field
from typing import Any

_WORTH_TELLING = 0.05  # of the time
_TOO_SHORT_S = 0.2  # to tell anything
_LOOK_S = 1.0  # looks within it show the same stretch
_RARE = ("errors", "skipped", "restarts", "renewals", "odd_rows", "copies")


@dataclass(frozen=True, slots=True)
class Stats:
    """What an iterator has done so far, and what it holds at the moment: ``it.stats()``.

    Attributes:
        batches: handed out.
        samples: in them.
        odd_rows: that fitted no column and travelled as objects.
        copies: batches handed out as copies.
        errors: samples whose fetch raised.
        skipped: those of them that ``on_error="skip"`` left out.
        restarts: workers replaced because they had died or were stuck.
        renewals: workers replaced because they had fetched ``maxtasksperchild`` samples.
        tasks: that workers have answered.
        cut_again: tasks that ran over their time budget.
        sample_s: seconds that fetching a sample takes, lately.
        wait_s: seconds that ``next()`` waited, in all.
        start_s: of these until the first batch came: workers had to start.
        seconds: since then.
        recent_s: of these since one has looked last, a second and a batch ago or more…
        recent_wait_s: …and those of them that ``next()`` waited…
        recent_batches: …for so many batches.
        workers: that fetch; 0 where ``next()`` does.
        ready_batches: finished, waiting to be taken.
        in_flight_batches: planned and not yet taken, the ready ones included.
        in_flight_bytes: of these.
        peak_in_flight_batches: the most that there were.
        peak_in_flight_bytes: of these.
        room_bytes: of one batch on its way.
        leased_batches: handed out and still referenced.
        slots: of shared memory.
        slot_bytes: of each.

    >>> from mpiter import batches
    >>> it = batches(range(10), 4, n_processes=0)
    >>> seen = next(it)
    >>> it.stats().batches, it.stats().samples
    (1, 4)
    >>> print(it.stats())
    1 batch, 4 samples; the first came after ... s
    ...
    """

    batches: int = 0
    samples: int = 0
    odd_rows: int = 0
    copies: int = 0
    errors: int = 0
    skipped: int = 0
    restarts: int = 0
    renewals: int = 0
    tasks: int = 0
    cut_again: int = 0
    sample_s: float = 0.0
    wait_s: float = 0.0
    start_s: float = 0.0
    seconds: float = field(default=0.0, compare=False)
    recent_s: float = field(default=0.0, compare=False)
    recent_wait_s: float = field(default=0.0, compare=False)
    recent_batches: int = field(default=0, compare=False)
    workers: int = field(default=0, compare=False)
    ready_batches: int = 0
    in_flight_batches: int = 0
    in_flight_bytes: int = 0
    peak_in_flight_batches: int = 0
    peak_in_flight_bytes: int = 0
    room_bytes: int = 0
    leased_batches: int = 0
    slots: int = 0
    slot_bytes: int = 0

    def __str__(self) -> str:
        """A few lines to read: does one wait for data, and who could help?"""
        if not self.batches:
            return "no batch yet"
        rare = ((name, getattr(self, name)) for name in _RARE)
        lines = [
            f"{_counted(self.batches, 'batch', 'batches')}, {_counted(self.samples, 'sample', 'samples')}; "
            f"the first came after {self.start_s:.2f} s",
            f"waited {self.recent_share:.0%} of the last {self.recent_s:.1f} s, "
            f"for {_counted(self.recent_batches, 'batch', 'batches')}: {self._verdict}",
            f"{self.ready_batches} ready, {self.in_flight_batches} on their way "
            f"({self.in_flight_bytes / 1e6:,.1f} MB), {self.leased_batches} held; "
            f"fetching a sample takes {1e3 * self.sample_s:.3g} ms",
            ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in rare if count),
        ]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def recent_share(self) -> float:
        """How much of the time since one has looked last ``next()`` waited: 0 to 1."""
        return min(1.0, self.recent_wait_s / self.recent_s) if self.recent_s > 0 else 0.0

    @property
    def _verdict(self) -> str:
        if not self.workers:
            return "that is fetching itself, without workers"
        if self.recent_s < _TOO_SHORT_S:
            return "too short a time to tell"
        return "workers suffice" if self.recent_share < _WORTH_TELLING else "workers can't keep up"


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


@dataclass(slots=True)
class Tally:
    """The counters behind ``Stats``."""

    batches: int = 0
    samples: int = 0
    odd_rows: int = 0
    copies: int = 0
    errors: int = 0
    skipped: int = 0
    renewals: int = 0
    tasks: int = 0
    cut_again: int = 0
    sample_s: float = 0.0
    wait_s: float = 0.0
    start_s: float = 0.0
    peak_in_flight_batches: int = 0
    peak_in_flight_bytes: int = 0
    began: float | None = None  # when the first batch came
    since: tuple[float, float, int] = (0.0, 0.0, 0)  # what is told begins: when, what had been waited, for how many
    looked: tuple[float, float, int] = (0.0, 0.0, 0)  # what is told begins here next
    barren: int = 0  # samples skipped since the last good one

    def counters(self) -> dict[str, Any]:
        """What of it goes into ``Stats``."""
        return {name: getattr(self, name) for name in Stats.__dataclass_fields__ if hasattr(self, name)}

    def handed_out(self, samples: int) -> None:
        """One more batch."""
        if self.began is None:
            self.began, self.start_s = time.perf_counter(), self.wait_s
            self.since = self.looked = self.began, self.wait_s, 0
        self.batches += 1
        self.samples += samples

    def look(self) -> dict[str, Any]:
        """What goes into ``Stats`` of the time: since the first batch, and since one has looked last.

        Who looks again within a second, or before there is another batch, sees the same stretch, grown a little: a
        progress bar that asks all the time leaves the others something to see.
        """
        if self.began is None:
            return {}
        now = time.perf_counter()
        if now - self.looked[0] >= _LOOK_S and self.batches > self.looked[2]:
            self.since, self.looked = self.looked, (now, self.wait_s, self.batches)
        then, waited, batches = self.since
        recent = {
            "recent_s": now - then,
            "recent_wait_s": self.wait_s - waited,
            "recent_batches": self.batches - batches,
        }
        return {"seconds": now - self.began, **recent}

    def answered(self, seconds: float, rows: int, again: bool) -> None:
        """A task has come back; follow the time that a sample takes."""
        self.tasks += 1
        self.cut_again += again
        if rows:
            now = seconds / rows
            self.sample_s = now if not self.sample_s else 0.75 * self.sample_s + 0.25 * now

    def in_flight(self, batches: int, size: int) -> None:
        """So many batches, of this size each, are on their way."""
        self.peak_in_flight_batches = max(self.peak_in_flight_batches, batches)
        self.peak_in_flight_bytes = max(self.peak_in_flight_bytes, batches * size)


def total(parts: list[Stats]) -> Stats:
    """Of several engines: what adds up, added up; of times and sizes of one thing, the greatest."""
    if not parts:
        return Stats()
    of_one = {"sample_s", "room_bytes", "start_s", "seconds", "recent_s"}
    merge = {name: max if name in of_one else sum for name in Stats.__dataclass_fields__}
    return Stats(**{name: how([getattr(part, name) for part in parts]) for name, how in merge.items()})
