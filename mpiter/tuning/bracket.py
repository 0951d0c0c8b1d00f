"""The search for the number of workers: few trials, and a difference counts only beyond the measured spread.

Pure.  Numbers are doubled while that helps, then tried between neighbours where more workers could help (a batch can't
take less than in proportion, and more workers help less and less), then the best take turns until they differ or don't.
Guarantees that 0 workers are tried; that of numbers that don't differ the fewest are chosen; at most nine trials, or a
quarter of those of a sweep in five rounds, before other numbers of waiting batches are tried, if they are; and none
that is expected to take more memory than allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.pilot import Setting
from .trials import Notes

SAME = 0.02  # less is no difference, whatever the spread
WORTH = 0.02  # what a number between two must promise
_NEAR = 0.04  # what is as good as the fastest so far, or could be
LEAST_TRIALS = 9
_FINALISTS, _ROUNDS = 4, 5


def most_trials(most: int) -> int:
    """For numbers from 0 to the most."""
    return max(LEAST_TRIALS, 5 * (most + 1) // 4)


@dataclass(frozen=True, slots=True)
class Choice:
    """What to take, and why."""

    setting: Setting
    reason: str


class Bracket:
    """One search."""

    def __init__(
        self, notes: Notes, most: int, memory_bytes: float = math.inf, prefetches: Sequence[int] = (2,)
    ) -> None:
        self._notes, self._most, self._memory_bytes, self._prefetches = notes, most, memory_bytes, prefetches
        self._bound = ""  # why there are no more workers

    def choose(self) -> Choice:
        if self._scout():
            while (between := self._between()) is not None and self._try(between):
                pass
            self._race()
            self._confirm()
            self._prefetch()
        chosen = self._fewest()
        return Choice(chosen, self._reason(chosen))

    # -- three phases --------------------------------------------------------------------------------------------

    def _scout(self) -> bool:
        """Double the number while that helps; False: it is over."""
        if not self._try(0):
            return False
        before, workers = 0, 1
        while workers <= self._most:
            workers = self._that_fits(before, workers)
            if workers == before:
                return True
            if not self._try(workers):
                return False
            if before and not self._helps(workers, before):
                if not self._try(workers):  # once more, lest a disturbance ends it
                    return False
                if not self._helps(workers, before):
                    return True
            before, workers = workers, min(2 * workers, self._most) if workers < self._most else self._most + 1
        return True

    def _between(self) -> int | None:
        """A number between two that were tried, which could be faster than all, or as fast as more workers."""
        times = {setting.workers: self._notes.batch_s(setting) for setting in self._eligible() if setting.workers}
        if not times:
            return None
        fastest = min(times.values())
        tried, best = sorted(times), next(w for w in sorted(times) if times[w] <= fastest * (1 + SAME))
        fewer = [workers for workers in tried if workers < best]
        if fewer:
            enough = math.ceil(fewer[-1] * times[fewer[-1]] / (fastest * (1 + SAME)) - 1e-9)
            if fewer[-1] < enough < best:
                return enough
        more = [workers for workers in tried if workers > best]
        if more and more[0] - best > 1:
            least = min(_least(times, between) for between in range(best + 1, more[0]))
            if least < fastest * (1 - WORTH):
                return max(best + 1, min(more[0] - 1, round(math.sqrt(best * more[0]))))
        return None

    def _race(self) -> None:
        """The best take turns until they differ beyond doubt, or have had their turns."""
        fastest = self._fastest()
        doubt = max(_NEAR, 3 * self._notes.spread)
        near = [one for one in self._eligible() if self._slower(one, fastest) <= doubt]
        running = sorted(sorted(near, key=self._notes.batch_s)[:_FINALISTS])
        for number in range(_ROUNDS):
            if len(running) < 2:
                return
            for one in running if number % 2 else running[::-1]:
                if not self._notes.take(one):
                    return
            fastest = min(running, key=self._notes.batch_s)
            running = [
                one for one in running if self._slower(one, fastest) <= SAME + 2 * self._notes.doubt(one, fastest)
            ]

    def _confirm(self) -> None:
        """What would be chosen for its few trials' doubt has to show it in more."""
        while len(self._notes.of[chosen := self._fewest()]) < _ROUNDS and self._notes.take(chosen):
            pass

    def _prefetch(self) -> None:
        """More batches that wait, while that helps."""
        chosen = self._fewest()
        for n_prefetch in self._prefetches[1:] if chosen.workers else ():
            self._notes.most = self._notes.count + 3
            more = chosen._replace(n_prefetch=n_prefetch)
            if not all(self._notes.take(one) for one in (more, chosen, more)):
                return
            if self._slower(chosen, more) <= self._countable(chosen, more):
                return
            chosen = more

    # -- what is known -------------------------------------------------------------------------------------------

    def _try(self, workers: int) -> bool:
        return self._notes.take(Setting(workers, self._prefetches[0]))

    def _eligible(self) -> list[Setting]:
        """Those within the memory; if none is, the one that takes least."""
        tried = sorted(self._notes.of)
        fitting = [one for one in tried if (self._notes.bytes(one) or 0) <= self._memory_bytes]
        return fitting or [min(tried, key=lambda one: self._notes.bytes(one) or 0)]

    def _fastest(self) -> Setting:
        return min(self._eligible(), key=self._notes.batch_s)

    def _slower(self, one: Setting, other: Setting) -> float:
        """By which share one is slower than the other."""
        return self._notes.batch_s(one) / self._notes.batch_s(other) - 1

    def _countable(self, one: Setting, other: Setting) -> float:
        """Less is no difference, as far as can be told."""
        return max(SAME, self._notes.doubt(one, other))

    def _helps(self, workers: int, fewer: int) -> bool:
        one, other = Setting(workers, self._prefetches[0]), Setting(fewer, self._prefetches[0])
        return self._slower(other, one) > self._countable(one, other)

    def _fewest(self) -> Setting:
        """The fewest workers that aren't slower than the fastest by more than can be told."""
        fastest = self._fastest()
        return next(one for one in self._eligible() if self._slower(one, fastest) <= self._countable(one, fastest))

    def _that_fits(self, before: int, workers: int) -> int:
        """So many workers, or as many more than before as memory allows."""
        sizes = {one.workers: size for one in self._notes.of if (size := self._notes.bytes(one)) is not None}
        if self._memory_bytes == math.inf or len(sizes) < 2:
            return workers
        (few, least), (many, most) = sorted(sizes.items())[-2:]
        each = max(1.0, (most - least) / (many - few))
        fitting = max(before, min(workers, before + int((self._memory_bytes - most) / each)))
        if fitting < workers:
            self._bound = "memory"
        return fitting

    def _reason(self, chosen: Setting) -> str:
        notes, workers = self._notes, chosen.workers
        parts = []
        none = next((one for one in notes.of if not one.workers), None)
        if workers and none is not None:
            parts.append(f"{notes.batch_s(none) / notes.batch_s(chosen):.2g} times as fast as none")
        others = [one for one in self._eligible() if one.workers != workers]
        more = [one for one in others if one.workers > workers]
        if more:
            best = min(more, key=notes.batch_s)
            gain = notes.batch_s(chosen) / notes.batch_s(best) - 1
            told = f"{gain:.0%} faster" if gain >= 0.005 else f"{-gain:.0%} slower" if gain <= -0.005 else "as fast"
            doubt = self._countable(chosen, best)
            parts.append(
                f"{best.workers} are {told}" + (f", and only more than {doubt:.0%} counts" if gain > 0 else "")
            )
        elif workers == self._most and workers:
            parts.append("more were not to be tried")
        if self._bound:
            parts.append("more do not fit into the memory allowed")
        if notes.over:
            tried = any(one.workers for one in notes.of)
            parts.append("the budget ended the search" if tried else "the budget ended before any worker was tried")
        return "; ".join(parts) or "nothing else was tried"


def _least(times: dict[int, float], between: int) -> float:
    """What a batch takes at least with so many workers, if more help less and less: chords, continued, lie below."""
    fewer, more = [w for w in sorted(times) if w < between], [w for w in sorted(times) if w > between]
    bounds = [times[fewer[-1]] * fewer[-1] / between]
    for near, far in ((fewer[-1:], fewer[-2:-1]), (more[:1], more[1:2])):
        if near and far:
            slope = (times[near[0]] - times[far[0]]) / (near[0] - far[0])
            bounds.append(times[near[0]] + slope * (between - near[0]))
    return max(bounds)
