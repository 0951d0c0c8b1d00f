"""Who is killed, when and how, and when that is got over: what chaos.py does to the workers of an iterator.

Runs in the consumer process, between its batches. Assumes that the last column of each batch says which process
fetched the sample. Guarantees that workers are only struck where mpiter promises to go on: it gives up, as it should,
after more than three setbacks without a finished batch, and on a sample that was in hand at two deaths.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

TO_ALL, TWICE, STARTING = "SIGKILL to all", "SIGKILL twice", "SIGKILL while starting"
KINDS = ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGABRT", "SIGSTOP", TO_ALL, TWICE)
_PATIENCE_S = 10.0  # against hanging; nothing here is expected to take long


@dataclass
class Strike:
    """A kill, and how long it took to get over it: until a batch with a sample of a new worker was handed out."""

    kind: str
    at: float = field(default_factory=time.perf_counter)
    recovered_s: float | None = None
    longest_wait_s: float = 0.0  # that the consumer had for one batch until then


class Strikes:
    """Kills workers when certain batches are due, or as soon after as all earlier strikes are got over.

    Two don't wait: the second half of TWICE, which meets the new workers while they are starting, and whatever follows
    on a SIGSTOP, which is noticed late.
    """

    def __init__(self, batches: int, kills: int, seed: int, kinds: Sequence[str] = KINDS) -> None:
        self._dice = random.Random(seed)
        self._kinds = kinds
        stretch = batches / (kills + 1)  # each has a kill somewhere, the last has time to get over it
        self._due = [stretch * (number + self._dice.random()) for number in range(kills)]
        self._open: list[Strike] = []  # not got over
        self._at_work: set[int] = set()  # processes that have fetched something
        self._struck: set[int] = set()  # processes that must go, for one of their shift was struck
        self.done: list[Strike] = []

    @property
    def are_over(self) -> bool:
        return not self._due

    def among(self, iterator: Any, batches: int) -> Iterator[Any]:
        """So many batches, and in between what is due."""
        for number in range(batches):
            if self._due and number > 0:
                self._strike_if_due(number, iterator)
            asked = time.perf_counter()
            batch = next(iterator)
            self._note(set(batch.columns[-1].tolist()), asked)
            yield batch

    def _strike_if_due(self, number: int, iterator: Any) -> None:
        if self._open and self._open[-1].kind == TWICE:
            newcomers = self._newcomers(iterator)
            self._strike(STARTING, newcomers, newcomers[-1:])
        elif number >= self._due[0]:
            pids = iterator.worker_pids
            if able := self._able(pids):
                time.sleep(self._dice.uniform(0, 0.005))  # whatever the workers are doing by then
                kind = self._dice.choice(self._kinds)
                self._strike(kind, pids, able if kind == TO_ALL else [self._dice.choice(able)])
            elif not self.done:
                time.sleep(0.05)  # the last of the first shift may need longer to start than batches to come

    def _able(self, pids: Sequence[int]) -> list[int]:
        """Who can bear a strike: workers that have fetched something; the first shift of all must be complete."""
        if any(strike.kind != "SIGSTOP" for strike in self._open):
            return []
        able = [pid for pid in pids if pid in self._at_work]
        return able if self.done or len(able) == len(pids) else []

    def _newcomers(self, iterator: Any) -> tuple[int, ...]:
        """The new workers, just started; waiting for them only where the consumer would have to wait as well."""
        end = time.perf_counter() + _PATIENCE_S
        while True:
            pids = iterator.worker_pids
            if pids and self._struck.isdisjoint(pids):
                return pids
            if iterator.stats().ready_batches or time.perf_counter() > end:
                return ()
            time.sleep(0.0005)

    def _strike(self, kind: str, shift: Collection[int], victims: Collection[int]) -> None:
        strike, number = Strike(kind), getattr(signal, kind.split()[0])
        if [pid for pid in victims if _send(pid, number)]:
            self._due.pop(0)
            self._struck.update(shift)
            self._open.append(strike)
            self.done.append(strike)

    def _note(self, fetchers: set[int], asked: float) -> None:
        """A batch has been handed out."""
        now = time.perf_counter()
        self._at_work |= fetchers
        for strike in self._open:
            strike.longest_wait_s = max(strike.longest_wait_s, now - asked)
        if self._open and fetchers - self._struck:
            for strike in self._open:
                strike.recovered_s = now - strike.at
            self._open.clear()


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has just died of an earlier one
        return False
    return True
