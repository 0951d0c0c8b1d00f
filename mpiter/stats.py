"""Counters of one iterator, and the frozen snapshot that ``stats()`` returns.

The tally is written by the prefetch thread (and, for the waiting time, by the consumer); the snapshot is for everybody:
the progress line, the tuner, the report, the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
        wait_s: seconds that ``next()`` waited.
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
    ready_batches: int = 0
    in_flight_batches: int = 0
    in_flight_bytes: int = 0
    peak_in_flight_batches: int = 0
    peak_in_flight_bytes: int = 0
    room_bytes: int = 0
    leased_batches: int = 0
    slots: int = 0
    slot_bytes: int = 0


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
    peak_in_flight_batches: int = 0
    peak_in_flight_bytes: int = 0
    barren: int = 0  # samples skipped since the last good one

    def counters(self) -> dict[str, Any]:
        """What of it goes into ``Stats``."""
        return {name: getattr(self, name) for name in Stats.__dataclass_fields__ if hasattr(self, name)}

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
    of_one = {"sample_s", "room_bytes"}
    merge = {name: max if name in of_one else sum for name in Stats.__dataclass_fields__}
    return Stats(**{name: how([getattr(part, name) for part in parts]) for name, how in merge.items()})
