"""The search for the number of workers: few trials, and a difference counts only beyond the measured spread.

Pure: the measuring is passed in.  Numbers are doubled while that helps, then tried between neighbours where that could
pay, then the best take turns until they differ or don't.  Guarantees that 0 workers are tried; that of numbers that
don't differ the fewest are chosen; that a search takes a quarter of the trials of a sweep in five rounds at most, or
nine; and that nothing is tried that is expected to take more memory than allowed.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

_SAME = 0.02  # less is no difference, whatever the spread
_PRIOR, _PRIOR_COUNTS = 0.03, 2  # the spread where no trial was repeated, and for how many repetitions that counts
_MIDDLE = 0.6745 * math.sqrt(2)  # half of the differences of two normal draws are below that, in deviations
_LEAST_TRIALS, _FINALISTS, _ROUNDS = 9, 4, 5


class Trial(NamedTuple):
    """What a turn of loading has shown."""

    batch_s: float
    bytes: int | None = None  # of all processes
    cost_s: float = 0.0  # with the start of the workers and the warm-up


Measure = Callable[[int, float], Trial]  # loads for a while with so many workers, for so many seconds at the most


@dataclass(frozen=True, slots=True)
class Row:
    """All that was tried of one number."""

    workers: int
    seconds: float  # for a batch
    bytes: int | None  # of all processes; None where that isn't counted
    spread: float | None  # the slowest trial less the fastest, as a share of the middle one; None: there was one
    trials: int


class Bracket:
    """One search, from 0 to ``most`` workers."""

    def __init__(self, measure: Measure, most: int, budget_s: float = math.inf, memory_bytes: float = math.inf) -> None:
        self._measure, self._most, self._budget_s, self._memory_bytes = measure, most, budget_s, memory_bytes
        self._most_trials = max(_LEAST_TRIALS, 5 * (most + 1) // 4)
        self.of: dict[int, list[Trial]] = {}
        self.all: list[Trial] = []
        self._is_over = self._is_short = False  # the budget has ended the search; memory bounds it

    def choose(self) -> tuple[int, str]:
        """The number to take, and why."""
        if self._scout():
            while (between := self._between()) is not None and self._take(between):
                pass
            self._race()
        return self._fewest, self._reason()

    def _take(self, workers: int) -> bool:
        """Try that for a turn; False if budget or trials are used up: all but the first have to fit."""
        left = self._budget_s - self.spent_s
        like_it = self.of.get(workers) or self.all
        self._is_over = bool(like_it) and left <= like_it[-1].cost_s
        if self._is_over or len(self.all) >= self._most_trials:
            return False
        self.all.append(self._measure(workers, left))
        self.of.setdefault(workers, []).append(self.all[-1])
        return True

    @property
    def spent_s(self) -> float:
        return sum(trial.cost_s for trial in self.all)

    def _batch_s(self, workers: int) -> float:
        """Seconds for a batch: the middle one of the trials; of two the shorter, disturbances making them longer."""
        return statistics.median_low(trial.batch_s for trial in self.of[workers])

    def _bytes(self, workers: int) -> int:
        return statistics.median_low(trial.bytes or 0 for trial in self.of[workers])

    @property
    def _spread(self) -> float:
        """The deviation of a trial, as a share of its time: the middle one of the differences between repetitions."""
        differences = [_PRIOR * _MIDDLE] * _PRIOR_COUNTS
        for trials in self.of.values():
            differences += [abs(math.log(a.batch_s / b.batch_s)) for a, b in itertools.pairwise(trials)]
        return statistics.median(differences) / _MIDDLE

    def row(self, workers: int) -> Row:
        times, middle = [trial.batch_s for trial in self.of[workers]], self._batch_s(workers)
        spread = (max(times) - min(times)) / middle if len(times) > 1 else None
        return Row(workers, middle, self._bytes(workers) or None, spread, len(times))

    def _scout(self) -> bool:
        """Double the number while that helps; False: the search is over."""
        before, workers = -1, 0
        while before < workers:
            for _ in range(2):  # lest a disturbance ends it
                if not self._take(workers):
                    return False
                if before < 1 or self._beats(workers, before):
                    break
            else:
                return True
            doubled = min(max(1, 2 * workers), self._most)
            before, workers = workers, self._that_fits(before, workers, doubled) if workers else doubled
        return True

    def _between(self) -> int | None:
        """A number between two that were tried, which could be faster than all, or as fast as more workers."""
        times = {one: self._batch_s(one) for one in self._eligible if one}
        if not times:
            return None
        enough_s = min(times.values()) * (1 + _SAME)
        best = min(workers for workers in times if times[workers] <= enough_s)
        fewer = max((workers for workers in times if workers < best), default=best)
        more = min((workers for workers in times if workers > best), default=best)
        enough = math.ceil(fewer * times[fewer] / enough_s - 1e-9)  # a batch takes no less than in proportion
        if fewer < enough < best:
            return enough
        return round(math.sqrt(best * more)) if more > best + 1 else None

    def _race(self) -> None:
        """The best take turns until they differ beyond doubt, or have had their turns."""
        for _ in range(_ROUNDS):
            fastest, *others = sorted(self._eligible, key=self._batch_s)[:_FINALISTS]
            near = {self._fewest, fastest, *(one for one in others if not self._beats(fastest, one, sure=2.0))}
            for one in sorted(near):
                if len(self.of[one]) < _ROUNDS and not self._take(one):
                    return

    @property
    def _eligible(self) -> list[int]:
        """Those within the memory; if none is, the one that takes least."""
        tried = sorted(self.of)
        return [one for one in tried if self._bytes(one) <= self._memory_bytes] or [min(tried, key=self._bytes)]

    @property
    def _fewest(self) -> int:
        """The fewest workers that aren't slower than the fastest by more than can be told."""
        fastest = min(self._eligible, key=self._batch_s)
        return next(one for one in self._eligible if not self._beats(fastest, one))

    def _beats(self, one: int, other: int, sure: float = 1.0) -> bool:
        """Is one faster than the other, by more than could be chance?"""
        doubt = self._spread * math.sqrt(1 / len(self.of[one]) + 1 / len(self.of[other]))
        return self._batch_s(other) / self._batch_s(one) - 1 > max(_SAME, sure * doubt)

    def _that_fits(self, fewer: int, now: int, wanted: int) -> int:
        """So many workers, or as many as memory allows, by what the last ones took."""
        least, size = (self._bytes(one) for one in (fewer, now))
        each = max(1.0, (size - least) / (now - fewer))
        fitting = now + max(0.0, (self._memory_bytes - size) / each) if size else math.inf
        self._is_short = fitting < wanted
        return int(min(wanted, fitting))

    def _reason(self) -> str:
        chosen, parts = self._fewest, []
        if chosen:
            parts.append(f"{self._batch_s(0) / self._batch_s(chosen):.2g} times as fast as none")
        if max(self.of) > chosen:
            parts.append("more of them gain nothing that could be told from noise")
        elif chosen == self._most:
            parts.append("more were not to be tried")
        parts += ["more do not fit into the memory allowed"] * self._is_short
        return "; ".join([*parts, *["the budget ended the search"] * self._is_over])
