"""How many workers to take: the smallest number that no larger one beats by more than a threshold, in every round.

Pure.  The rule is the Num Worker Tuner's greedy one: from the smallest number upwards, another one is taken if it is
enough faster than the one taken so far.  Enough is a share of the time, or, as theirs has it, so many seconds.
Guarantees that what is taken was enough faster than the smallest number in each single round, so that noise does not
take it back; and that the reason names the threshold, and whichever number was faster at least once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .results import Row
from .spreads import Spread
from .text import number

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
    """Greedy, from the smallest number upwards: another is taken if it gains enough in every round."""
    chosen, *others = sorted(rounds[0])
    for workers in others:
        if all(rule.is_enough(rule.gained(times[workers], times[chosen])) for times in rounds):
            chosen = workers
    return chosen


def reason(rounds: Rounds, chosen: int, rule: Rule, slower: str = "no other number is faster in any round") -> str:
    """Why none of the others; `slower` is to be said where they are."""
    gains = {w: [rule.gained(times[w], times[chosen]) for times in rounds] for w in sorted(rounds[0]) if w != chosen}
    faster = [workers for workers, gained in gains.items() if max(gained) > 0]
    doubtful = [workers for workers in faster if rule.is_enough(max(gains[workers]))]
    if not faster:
        return slower
    threshold = rule.told(rule.threshold)
    if not doubtful:
        gain = "gain" if len(faster) > 1 else "gains"
        most = max(max(gains[workers]) for workers in faster)
        return f"{_listed(faster)} {gain} at most {rule.told(most)}, and only more than {threshold} counts"
    low, high = (rule.told(edge(edge(gains[w]) for w in doubtful)) for edge in (min, max))
    return (
        f"rounds disagree on {_listed(doubtful)} (gains of {low} to {high}), and only more than {threshold} in every "
        "round counts"
    )


def _listed(workers: Sequence[int]) -> str:
    *most, last = map(str, workers)
    return f"{', '.join(most)} and {last}" if most else last


def times_as(ratio: Spread) -> str:
    """How many times as much: the median, or from the least to the most where rounds disagree."""
    found = [ratio.median] if not ratio.is_noisy else [min(ratio.values), max(ratio.values)]
    return " to ".join(map(number, found)) + " times"
