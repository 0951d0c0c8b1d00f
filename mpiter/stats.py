"""Counters of one iterator, and the frozen snapshot that ``stats()`` returns.

The tally is written by the prefetch thread (and, for the waiting time, by the consumer); the snapshot is for everybody:
the progress line, the tuner, the report, the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Stats:
    """What an iterator has done so far, and what it holds at the moment."""

    batches: int = 0  # handed out
    samples: int = 0
    odd_rows: int = 0  # that fitted no column and travelled as objects
    copies: int = 0  # batches handed out as copies
    errors: int = 0  # samples whose fetch raised
    skipped: int = 0  # …and that on_error="skip" left out
    restarts: int = 0  # workers replaced because they had died or were stuck
    renewals: int = 0  # …because they had fetched maxtasksperchild samples
    tasks: int = 0
    cut_again: int = 0  # tasks that ran over their time budget
    sample_s: float = 0.0  # seconds that fetching a sample takes, lately
    wait_s: float = 0.0  # seconds that next() waited
    ready_batches: int = 0  # finished, waiting to be taken
    in_flight_batches: int = 0  # planned and not yet taken, the ready ones included
    in_flight_bytes: int = 0
    peak_in_flight_batches: int = 0
    peak_in_flight_bytes: int = 0
    room_bytes: int = 0  # one batch on its way
    leased_batches: int = 0  # handed out and still referenced
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
