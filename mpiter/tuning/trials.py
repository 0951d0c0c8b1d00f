"""What trials have shown: how long a batch takes with so many workers, how sure that is, and what memory they take.

Pure: whoever measures is passed in.  A *trial* is one turn of loading with one setting; a row of the table is all that
was tried of a setting.  Guarantees that no trial begins that is expected to end beyond the budget, except the first.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import Protocol

from ..engine.pilot import Setting

_PRIOR = 0.03  # the spread of a trial where none was repeated, and how much that counts, in repetitions
_PRIOR_COUNTS = 2
_MIDDLE = 0.6745 * math.sqrt(2)  # of two normal draws: what half of their differences are below, in deviations


@dataclass(frozen=True, slots=True)
class Asked:
    """How long to load: at least so many seconds and batches, but not longer than the limit."""

    seconds: float = 0.0
    batches: int = 1
    limit_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Trial:
    """What a turn of loading has shown."""

    seconds: float
    batches: int
    bytes: int | None = None  # of all processes
    cost_s: float = 0.0  # with the start of the workers and the warm-up; 0: the timed part is all

    @property
    def batch_s(self) -> float:
        return self.seconds / self.batches


class Measure(Protocol):
    """Loads for a while with a setting."""

    def __call__(self, setting: Setting, asked: Asked, /) -> Trial: ...


@dataclass(frozen=True, slots=True)
class Row:
    """All that was tried of one number of workers."""

    workers: int
    seconds: float  # for a batch, or for as many as the result says
    bytes: int | None  # of all processes; None: nobody counts
    spread: float | None  # of the trials, as a share of the time; None: there was one
    trials: int
    n_prefetch: int


class Notes:
    """The trials so far, and what remains of the budget."""

    def __init__(self, measure: Measure, asked: Asked, budget_s: float = math.inf, most: float = math.inf) -> None:
        self._measure, self._asked, self._budget_s = measure, asked, budget_s
        self.most = most  # trials
        self.of: dict[Setting, list[Trial]] = {}
        self.spent_s = 0.0
        self.count = 0
        self.over = ""  # what has ended it
        self._last_s = 0.0

    def take(self, setting: Setting) -> bool:
        """Try that for a turn; False: budget or trials are used up."""
        left = self._budget_s - self.spent_s
        known = self.of.get(setting)
        if self.count and left <= (known[-1].cost_s if known else self._last_s):
            self.over = "budget"
            return False
        if self.count >= self.most:
            return False
        trial = self._measure(setting, Asked(self._asked.seconds, self._asked.batches, left))
        self.of.setdefault(setting, []).append(trial)
        self.count += 1
        self._last_s = trial.cost_s or trial.seconds
        self.spent_s += self._last_s
        return True

    def batch_s(self, setting: Setting) -> float:
        """Seconds for a batch: the middle one of the trials; of two the shorter, disturbances making them longer."""
        return statistics.median_low(trial.batch_s for trial in self.of[setting])

    def bytes(self, setting: Setting) -> int | None:
        return max((trial.bytes for trial in self.of[setting] if trial.bytes is not None), default=None)

    @property
    def spread(self) -> float:
        """The standard deviation of a trial, as a share of its time, by how much one differs from the next of its kind.

        From the middle one of those differences: a single disturbance says little of the others.
        """
        differences = [_PRIOR * _MIDDLE] * _PRIOR_COUNTS
        for trials in self.of.values():
            logs = [math.log(trial.batch_s) for trial in trials]
            differences += [abs(one - next_one) for one, next_one in itertools.pairwise(logs)]
        return statistics.median(differences) / _MIDDLE

    def doubt(self, one: Setting, other: Setting) -> float:
        """The standard error of the ratio of their times."""
        return self.spread * math.sqrt(1 / len(self.of[one]) + 1 / len(self.of[other]))

    def row(self, setting: Setting, batches: int = 1) -> Row:
        trials = self.of[setting]
        times = [trial.batch_s for trial in trials]
        middle = self.batch_s(setting)
        spread = (max(times) - min(times)) / middle if len(times) > 1 else None
        return Row(setting.workers, batches * middle, self.bytes(setting), spread, len(trials), setting.n_prefetch)
