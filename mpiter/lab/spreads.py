"""Medians, spreads and ratios: what may be concluded from a few interleaved rounds, and what may not.

Pure.  Guarantees that a ratio is never taken from a single run: it is the median of the rounds' own ratios, each of two
turns that followed one another, so that a machine that grows slower takes both along; and that one whose rounds
disagree by more than `NOISY` is called no conclusion.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOISY = 0.15  # interquartile range against the median
LEAST_ROUNDS = 2


@dataclass(frozen=True)
class Spread:
    """Median and interquartile range of one figure over the rounds."""

    median: float
    iqr: float
    values: tuple[float, ...]

    @property
    def relative(self) -> float:
        return self.iqr / abs(self.median) if self.median else 0.0

    @property
    def is_noisy(self) -> bool:
        return self.relative > NOISY

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The lower and the upper one; None of a single run."""
        if len(self.values) < LEAST_ROUNDS:
            return None
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high


def spread(values: Sequence[float]) -> Spread:
    if len(values) < LEAST_ROUNDS:
        return Spread(values[0], 0.0, tuple(values))
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(statistics.median(values), high - low, tuple(values))


def ratio(one: Mapping[int, float], other: Mapping[int, float]) -> Spread | None:
    """How many times as much `one` is as `other`, round by round; None from fewer than two rounds of both."""
    ratios = [value / other[round_] for round_, value in one.items() if other.get(round_)]
    return spread(ratios) if len(ratios) >= LEAST_ROUNDS else None


def summary(answers: list[dict[str, Any]], case: str, row: str, figures: Sequence[str]) -> dict[str, Spread]:
    """The figures of one row of one case over the rounds, or nothing."""
    found = [answer for answer in answers if (answer["case"], answer["row"]) == (case, row) and "error" not in answer]
    return {figure: spread([answer[figure] for answer in found]) for figure in figures} if found else {}
