"""How many workers to take: a larger number only if it gains more than a threshold, and is slower in no round.

Pure.  The rule is the Num Worker Tuner's greedy one: from the smallest number upwards, another one is taken if it gains
enough over the one taken so far, in the median of the rounds.  Enough is a share of the time, or, as theirs has it, so
many seconds.  Guarantees that what is taken was in no single round slower than the smallest number, so that noise does
not take it back; and that the reason names the threshold or the rounds that left a seemingly faster number out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .results import Row
from .spreads import Spread
from .text import number, some

GAIN = 0.05
Rounds = Sequence[Mapping[int, float]]  # of each round: the time by number of workers


@dataclass(frozen=True, slots=True)
class Rule:
    """What is enough: `alpha` seconds if they are given, else a `gain`, which is a share."""

    gain: float = GAIN
    alpha: float | None = None

    @property
    def threshold(self) -> float:
        return self.gain if self.alpha is None else self.alpha

    def gained(self, time: float, other: float) -> float:
        """By whoever takes so long, against the other."""
        return other / time - 1 if self.alpha is None else other - time

    def is_enough(self, gained: float) -> bool:
        return gained > self.threshold

    def told(self, gained: float) -> str:
        """The gain, or the threshold, in words."""
        if self.alpha is not None:
            return f"{number(gained)} s"
        return f"{number(round(100 * gained, 6))}%"


def whole_rounds(rows: Sequence[Row], figure: str) -> list[dict[int, float]]:
    """The rounds in which all of these rows were measured."""
    if not rows:
        return []
    whole = set.intersection(*(set(row.by_round[figure]) for row in rows))
    return [{int(row.at["workers"]): row.by_round[figure][at] for row in rows} for at in sorted(whole)]


def choose(rounds: Rounds, rule: Rule) -> int:
    """Greedy, from the smallest number upwards."""
    chosen, *others = sorted(rounds[0])
    for workers in others:
        gains = _gains(rounds, workers, chosen, rule)
        if rule.is_enough(statistics.median(gains)) and min(gains) >= 0:
            chosen = workers
    return chosen


def _gains(rounds: Rounds, workers: int, chosen: int, rule: Rule) -> list[float]:
    return [rule.gained(times[workers], times[chosen]) for times in rounds]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why none of the others; `is_doubtful` says that rounds disagree on one of them, which gains enough in some."""

    text: str
    is_doubtful: bool = False


def reason(rounds: Rounds, chosen: int, rule: Rule, slower: str = "no other number is faster") -> Reason:
    """In words; `slower` is to be said where all others are."""
    gains = {workers: _gains(rounds, workers, chosen, rule) for workers in sorted(rounds[0]) if workers != chosen}
    medians = {workers: statistics.median(gained) for workers, gained in gains.items()}
    threshold = f"more than {rule.told(rule.threshold)}"
    doubtful = [workers for workers, gained in gains.items() if rule.is_enough(max(gained))]
    if doubtful:
        best = max(doubtful, key=lambda workers: (medians[workers], max(gains[workers])))
        low, high = min(gains[best]), max(gains[best])
        mine, are = chosen or "none", "is" if chosen == 1 else "are"
        spread = f"{some(best, 'worker')} ranged from {_against(low, rule)} to {_against(high, rule)} than {mine}"
        why = "noise" if low < 0 else f"in the median {rule.told(medians[best])}, and only {threshold} counts"
        return Reason(f"{spread}: {why}, so {mine} {are} taken", is_doubtful=True)
    faster = [workers for workers, median in medians.items() if median > 0]
    if not faster:
        return Reason(slower)
    most = rule.told(max(medians[workers] for workers in faster))
    gain = f"gain {most} at most" if len(faster) > 1 else f"gains {most}"
    return Reason(f"{_listed(faster)} {gain}, and only {threshold} counts")


def _against(gained: float, rule: Rule) -> str:
    return f"{rule.told(abs(gained))} {'slower' if gained < 0 else 'faster'}"


def _listed(workers: Sequence[int]) -> str:
    *most, last = map(str, workers)
    return f"{', '.join(most)} and {last}" if most else last


def times_as(ratio: Spread) -> str:
    """How many times as much: the median, or from the least to the most where rounds disagree."""
    found = [ratio.median] if not ratio.is_noisy else [min(ratio.values), max(ratio.values)]
    return " to ".join(map(number, found)) + " times"
