"""Searches for the number of workers by a bracket, which needs few trials.

The bracket doubles the number while that helps, tries numbers in between that could be
better, then repeats the best in turn until their times differ clearly or the rounds are
used up.  It always tries 0 workers, chooses the smallest number whose time differs from
the best by no more than the noise, and tries none that would take too much memory.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

# A smaller difference counts as none, whatever the spread.
_SAME = 0.02
# The spread assumed before any trial is repeated, and its weight in repetitions.
_PRIOR = 0.03
_PRIOR_COUNTS = 2
# The median difference of two normal draws, in standard deviations.
_MIDDLE = 0.6745 * math.sqrt(2)
_LEAST_TRIALS = 9
_FINALISTS = 4
_ROUNDS = 5


class Trial(NamedTuple):
    """The measurements of one trial with some number of workers.

    ``bytes`` is the memory of all processes, or 0 if that is unknown; ``cost_s``
    includes the start of the workers and the warm-up.  ``useful`` is how many samples
    at a time the workers would have had time for, 0 if they have not waited.
    """

    batch_s: float
    bytes: int = 0
    cost_s: float = 0.0
    useful: int = 0


# Runs a trial with a number of workers, limited to a number of seconds.
Measure = Callable[[int, float], Trial]


class Bracket:
    """Searches for a number of workers from 0 to ``most``.

    ``of`` has the trials of each number that was tried.
    """

    def __init__(
        self,
        measure: Measure,
        most: int,
        budget_s: float = math.inf,
        memory_bytes: float = math.inf,
    ) -> None:
        self._measure = measure
        self._most = most
        self._budget_s = budget_s
        self._memory_bytes = memory_bytes
        # The seconds that all trials have taken.
        self.spent_s = 0.0
        self._trials_left = max(_LEAST_TRIALS, 5 * (most + 1) // 4)
        self._last_cost_s = 0.0
        self.of: dict[int, list[Trial]] = {}
        # The budget has ended the search.
        self._is_over = False
        # The memory limits the number of workers.
        self._is_short = False

    def choose(self) -> tuple[int, str]:
        """Search, and return the best number and the reason."""
        if self._scout():
            between = self._between()
            while between is not None and self._take(between):
                between = self._between()
            self._race()
        return self._fewest, self._reason()

    def _take(self, workers: int) -> bool:
        """Run a trial with ``workers``; return False if budget or trials are used up.

        The first trial always runs.
        """
        left = self._budget_s - self.spent_s
        # A trial is taken to cost what the last one with as many workers did, or else
        # the last of all.
        if workers in self.of:
            cost_s = self.of[workers][-1].cost_s
        else:
            cost_s = self._last_cost_s
        self._is_over = bool(self.of) and left <= cost_s
        if self._is_over or not self._trials_left:
            return False
        trial = self._measure(workers, left)
        self.of.setdefault(workers, []).append(trial)
        self._trials_left -= 1
        self.spent_s += trial.cost_s
        self._last_cost_s = trial.cost_s
        return True

    def median(self, workers: int) -> Trial:
        """Return the median of each figure.

        Of two it is the lower one, since disturbances only add to a time.
        """
        figures = zip(*self.of[workers], strict=True)
        return Trial(*map(statistics.median_low, figures))

    def batch_s(self, workers: int) -> float:
        return self.median(workers).batch_s

    @property
    def _spread(self) -> float:
        """The standard deviation of a trial's time, divided by that time.

        It is estimated from the median difference between two trials of the same number
        of workers.
        """
        differences = [_PRIOR * _MIDDLE] * _PRIOR_COUNTS
        for trials in self.of.values():
            for one, other in itertools.pairwise(trials):
                difference = math.log(one.batch_s / other.batch_s)
                differences.append(abs(difference))
        return statistics.median(differences) / _MIDDLE

    def _scout(self) -> bool:
        """Double the number of workers while that helps.

        One worker need not beat none, since two may.  Return False if budget or trials
        are used up before that.
        """
        before = -1
        workers = 0
        while before < workers:
            # A number that doesn't help is tried twice, so that one disturbance doesn't
            # end the doubling.
            for _ in range(2):
                if not self._take(workers):
                    return False
                if before < 1 or self._beats(workers, before):
                    break
            else:
                return True
            following = min(max(1, 2 * workers), self._most)
            if workers:
                following = self._that_fits(before, workers, following)
            before = workers
            workers = following
        return True

    def _between(self) -> int | None:
        """Return a number between two that were tried which could be better, or None.

        It could be faster, or as fast with fewer workers.
        """
        with_workers = [one for one in self._eligible if one]
        times = {one: self.batch_s(one) for one in with_workers}
        if not times:
            return None
        enough_s = min(times.values()) * (1 + _SAME)
        best = min(one for one in times if times[one] <= enough_s)
        below = [one for one in times if one < best]
        above = [one for one in times if one > best]
        fewer = max(below, default=best)
        more = min(above, default=best)
        # At best the time falls in proportion to the workers, so fewer than `enough`
        # can't be as fast as the best.
        enough = math.ceil(fewer * times[fewer] / enough_s - 1e-9)
        if fewer < enough < best:
            return enough
        # The fastest number may lie above the best so far, but below the next tried.
        if more > best + 1:
            return round(math.sqrt(best * more))
        return None

    def _race(self) -> None:
        """Repeat the best numbers in turn, until they differ clearly.

        It ends at the latest when each has had ``_ROUNDS`` trials.
        """
        for _ in range(_ROUNDS):
            by_time = sorted(self._eligible, key=self.batch_s)
            fastest, *others = by_time[:_FINALISTS]
            near = {self._fewest, fastest}
            for one in others:
                if not self._beats(fastest, one, sure=2.0):
                    near.add(one)
            for one in sorted(near):
                has_had_all = len(self.of[one]) >= _ROUNDS
                if not has_had_all and not self._take(one):
                    return

    @property
    def _eligible(self) -> list[int]:
        """The tried numbers whose memory is within the limit.

        If none is, it has the one that takes least.
        """
        used = {one: self.median(one).bytes for one in sorted(self.of)}
        fitting = [one for one in used if used[one] <= self._memory_bytes]
        if not fitting:
            return [min(used, key=used.__getitem__)]
        return fitting

    @property
    def _fewest(self) -> int:
        """The smallest number of workers that is as fast as the fastest.

        A difference within the noise counts as none.
        """
        fastest = min(self._eligible, key=self.batch_s)
        # These numbers ascend, and the fastest isn't faster than itself.
        return next(one for one in self._eligible if not self._beats(fastest, one))

    def _beats(self, one: int, other: int, sure: float = 1.0) -> bool:
        """True if ``one`` is faster than ``other`` by more than noise × ``sure``."""
        count = len(self.of[one])
        count_other = len(self.of[other])
        doubt = self._spread * math.sqrt(1 / count + 1 / count_other)
        gain = self.batch_s(other) / self.batch_s(one) - 1
        return gain > max(_SAME, sure * doubt)

    def _that_fits(self, fewer: int, now: int, wanted: int) -> int:
        """Return ``wanted``, or fewer if the memory wouldn't suffice.

        It is extrapolated from that of ``fewer`` and of ``now`` workers.
        """
        least = self.median(fewer).bytes
        size = self.median(now).bytes
        each = max(1.0, (size - least) / (now - fewer))
        # Where nothing is known of the memory, it limits nothing.
        fitting = math.inf
        if size:
            fitting = now + max(0.0, (self._memory_bytes - size) / each)
        self._is_short = fitting < wanted
        return int(min(wanted, fitting))

    def _reason(self) -> str:
        chosen = self._fewest
        parts = []
        if chosen:
            gain = self.batch_s(0) / self.batch_s(chosen)
            parts.append(f"{gain:.2g} times as fast as none")
        if max(self.of) > chosen:
            parts.append("more gain nothing")
        elif chosen == self._most:
            parts.append("more were not to be tried")
        if self._is_short:
            parts.append("more do not fit into the memory allowed")
        if self._is_over and len(self.of) == 1 <= self._most:
            parts.append("nothing else was tried: raise budget_s, or lower batch_size")
        elif self._is_over:
            parts.append("the budget ended the search")
        return "; ".join(parts)
