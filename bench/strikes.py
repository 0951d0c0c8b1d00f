"""Strikes against the workers of an iterator, for chaos.py.

They have victims, moments and signals, and the recovery from each is measured.

Runs in the consumer process, between its batches. Assumes that the last column of each
batch says which process fetched the sample. Guarantees that workers are only struck
where mpiter promises to go on: it gives up, as it should, after more than three
setbacks without a finished batch, and on a sample that was in hand at two deaths. Only
struck workers may be replaced; a process that wasn't there before is a replacement.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

TO_ALL = "SIGKILL to all"
TWICE = "SIGKILL twice"
STARTING = "SIGKILL while starting"
SINGLE = ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGABRT")  # one worker's sudden end
KINDS = (*SINGLE, "SIGSTOP", TO_ALL, TWICE)
# In which a new worker is started, if not yet ready.
_SOON_S = 0.1


@dataclass
class Strike:
    """A kill, and how long it took to get over it.

    It is over when a batch with a sample of a new worker is handed out.
    """

    kind: str
    there: frozenset[int]  # the workers of that moment…
    victims: frozenset[int]
    # When no more than so many batches are to come, nothing is left of what was on its
    # way then.
    safe: int
    at: float = field(default_factory=time.perf_counter)
    recovered_s: float | None = None
    # That the consumer had for one batch until then.
    longest_wait_s: float = 0.0


class Struck(Protocol):
    """An iterator whose workers are struck."""

    @property
    def worker_pids(self) -> Sequence[int]: ...
    def stats(self) -> Any: ...
    def __next__(self) -> Any: ...


class Strikes:
    """Kills workers when certain batches are due.

    A strike waits until all earlier ones are got over.

    Two don't wait: the second half of TWICE, which meets the new worker while it is
    starting, and whatever follows on a SIGSTOP, which is noticed late. And where
    batches would run out before new workers have come, it has to suffice that none is
    on its way any more that may have been in hand at an earlier strike.
    """

    def __init__(
        self, batches: int, kills: int, seed: int, kinds: Sequence[str] = KINDS
    ) -> None:
        self._dice = random.Random(seed)
        self._kinds = kinds
        # Each of these stretches has a kill somewhere. One more follows without a kill,
        # in which the last one can be got over.
        self._stretch = batches / (kills + 1)
        self._due = [
            self._stretch * (number + self._dice.random()) for number in range(kills)
        ]
        self._left = batches
        # Strikes that aren't got over yet.
        self._open: list[Strike] = []
        # Processes that have fetched something, and those that must go.
        self._at_work: set[int] = set()
        self._struck: set[int] = set()
        # Processes by whose work a strike was got over.
        self._replacements: set[int] = set()
        self.done: list[Strike] = []

    @property
    def are_over(self) -> bool:
        return not self._due

    def among(self, iterator: Struck, batches: int) -> Iterator[Any]:
        """Yield so many batches, and strike in between when a strike is due."""
        for number in range(batches):
            self._left = batches - number
            if self._due and number > 0:
                self._strike_if_due(number, iterator)
            asked = time.perf_counter()
            batch = next(iterator)
            self._note(set(batch.columns[-1].tolist()), asked, iterator)
            yield batch

    def _strike_if_due(self, number: int, iterator: Struck) -> None:
        if self._open and self._open[-1].kind == TWICE:
            newcomers = self._newcomers(self._open[-1], iterator)
            self._strike(STARTING, iterator.worker_pids, newcomers, iterator)
        elif number >= self._due[0]:
            pids = iterator.worker_pids
            if able := self._able(pids):
                # Workers go on meanwhile: the strike comes at any moment of theirs.
                time.sleep(self._dice.uniform(0, 0.005))
                kind = self._dice.choice(self._kinds)
                victims = able
                if kind != TO_ALL:
                    victims = [self._dice.choice(able)]
                self._strike(kind, pids, victims, iterator)

    def _able(self, pids: Sequence[int]) -> list[int]:
        """Return the workers that can be struck: those that have fetched something."""
        is_late = self._left < self._stretch * len(self._due)
        if any(
            not (
                (is_late and self._left <= strike.safe) or _is_missed_late(strike, pids)
            )
            for strike in self._open
        ):
            return []
        return [pid for pid in pids if pid in self._at_work - self._struck]

    def _newcomers(self, strike: Strike, iterator: Struck) -> list[int]:
        """Return the new worker that has just started."""
        end = time.perf_counter() + _SOON_S
        while time.perf_counter() < end:
            if found := [
                pid for pid in iterator.worker_pids if pid not in strike.there
            ]:
                return found[:1]
            time.sleep(0.0005)
        return []

    def _strike(
        self,
        kind: str,
        there: Collection[int],
        victims: Collection[int],
        iterator: Struck,
    ) -> None:
        safe = self._left - iterator.stats().in_flight_batches
        strike = Strike(kind, frozenset(there), frozenset(victims), safe)
        number = getattr(signal, kind.split()[0])
        if [pid for pid in victims if _send(pid, number)]:
            self._due.pop(0)
            self._struck.update(victims)
            self._open.append(strike)
            self.done.append(strike)

    def _note(self, fetchers: set[int], asked: float, iterator: Struck) -> None:
        """Note that a batch has been handed out."""
        now = time.perf_counter()
        self._at_work |= fetchers
        for strike in self._open:
            strike.longest_wait_s = max(strike.longest_wait_s, now - asked)
        over = [
            strike for strike in self._open if self._is_over(strike, fetchers, iterator)
        ]
        for strike in over:
            strike.recovered_s = now - strike.at
            self._open.remove(strike)
            self._replacements |= fetchers - strike.there

    def _is_over(self, strike: Strike, fetchers: set[int], iterator: Struck) -> bool:
        """Tell whether the victims are gone and a new worker has fetched.

        A stopped one is gone once it is missed.
        """
        newcomers = fetchers - strike.there - self._replacements
        return bool(newcomers) and strike.victims.isdisjoint(iterator.worker_pids)


def _is_missed_late(strike: Strike, pids: Collection[int]) -> bool:
    """Tell whether a worker is stopped and the engine hasn't noticed it yet."""
    return strike.kind == "SIGSTOP" and not strike.victims.isdisjoint(pids)


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It has just died of an earlier one.
        return False
    return True
