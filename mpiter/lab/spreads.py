"""Medians, spreads and ratios: what may be concluded from a few interleaved rounds, and what may not.

Pure.  Guarantees that a ratio is never taken from a single run: it is the median of the rounds' own ratios, each of two
turns of the same round, so that a machine that grows slower takes both along; and that one whose rounds disagree by
more than `NOISY` is called no conclusion.  Few values have no quartiles worth the name: of fewer than five the
interquartile range is estimated from their whole range, as it would be of normal noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NOISY = 0.15  # interquartile range against the median
LEAST_ROUNDS = 2
_OF_THE_RANGE = {2: 1.20, 3: 0.80, 4: 0.66}  # 1.35 / d2: an interquartile range in terms of the range of so few


@dataclass(frozen=True)
class Spread:
    """Median and interquartile range of one figure over the rounds."""

    median: float
    iqr: float
    values: tuple[float, ...]

    @property
    def relative(self) -> float:
        return self.iqr / abs(self.median) if self.median else math.inf if self.iqr else 0.0

    @property
    def is_noisy(self) -> bool:
        return self.relative > NOISY

    @property
    def edges(self) -> tuple[float, float] | None:
        """The quartiles, of few values the extremes; None of a single run."""
        if len(self.values) < LEAST_ROUNDS:
            return None
        return (min(self.values), max(self.values)) if len(self.values) in _OF_THE_RANGE else _quartiles(self.values)


def spread(values: Sequence[float]) -> Spread:
    if len(values) < LEAST_ROUNDS:
        return Spread(values[0], 0.0, tuple(values))
    few = _OF_THE_RANGE.get(len(values))
    low, high = _quartiles(values)
    iqr = few * (max(values) - min(values)) if few else high - low
    return Spread(statistics.median(values), iqr, tuple(values))


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratio(one: Mapping[int, float], other: Mapping[int, float]) -> Spread | None:
    """How many times as much `one` is as `other`, round by round; None from fewer than two rounds of both."""
    ratios = [value / other[round_] for round_, value in one.items() if other.get(round_)]
    return spread(ratios) if len(ratios) >= LEAST_ROUNDS else None
