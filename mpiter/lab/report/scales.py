"""Numbers on axes: round ticks, places along an axis, labels that keep apart.

Pure.  Guarantees that ticks are multiples of 1, 2 or 5 times a power of ten, begin at or below zero, cover all values
and are no more than asked for.  What is no figure (None, nan, infinite) has no place on an axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeGuard

from ..text import MINUS, number

_LARGEST, _SMALLEST = 1e300, 1e-300  # beyond these, steps of an axis would overflow or vanish


def is_figure(value: float | None) -> TypeGuard[float]:
    """Has it a place on an axis?"""
    return value is not None and abs(value) <= _LARGEST  # false for nan, too


def quartiles(low: float | None, high: float | None) -> str:
    """Both, or nothing where one is missing."""
    return f"{number(low)} to {number(high)}" if is_figure(low) and is_figure(high) else ""


def ticks(values: Iterable[float], most: int = 6, *, whole: bool = False) -> tuple[float, ...]:
    """From zero, or below, in round steps beyond the last value; at most `most` of them, which is at least 3.

    >>> ticks([0.3, 4.2])
    (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    >>> ticks([1, 2], whole=True)
    (0.0, 1.0, 2.0)
    """
    figures = [0.0, *values]
    low, high = min(figures), max(figures)
    if max(-low, high) < _SMALLEST:
        return (0.0, 1.0)
    finest = math.floor(math.log10(max(-low, high) / most)) - 1
    for exponent in count(max(finest, 0) if whole else finest):
        for digit in (1, 2, 5):
            first, last = -_steps(-low, digit, exponent), _steps(high, digit, exponent)
            if last - first < most:
                return tuple(_multiple(step, digit, exponent) for step in range(first, last + 1))
    raise AssertionError("a step as long as the axis leaves three ticks at most")


def _multiple(step: int, digit: int, exponent: int) -> float:
    return float(f"{step * digit}e{exponent}")  # by way of text: the float nearest to 0.3, not 3 * 0.1


def _steps(length: float, digit: int, exponent: int) -> int:
    """How many steps cover it: the division may be off by one in the last place, the comparison is not."""
    steps = max(0, math.floor(length / float(f"{digit}e{exponent}")) - 1)
    while _multiple(steps, digit, exponent) < length:
        steps += 1
    return steps


def labels(marks: Sequence[float]) -> tuple[str, ...]:
    """The texts at ticks, all with as many decimals.

    >>> labels((0.0, 0.5, 1.0))
    ('0', '0.5', '1.0')
    """
    step = marks[1] - marks[0]
    if step < 1e-4 or max(abs(marks[0]), marks[-1]) >= 1e9:
        return tuple(number(mark) for mark in marks)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return tuple(f"{mark:,.{decimals}f}".replace("-", MINUS) if mark else "0" for mark in marks)


@dataclass(frozen=True, slots=True)
class Scale:
    """Where a value lies between two ends of an axis."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


def kept_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, at least `gap` from each other where there is room between `low` and `high`.

    >>> kept_apart([50, 50, 10], gap=10, low=0, high=55)
    [45, 55, 10]
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    places = list(wanted)
    floor = low
    for index in order:
        places[index] = max(places[index], floor)
        floor = places[index] + gap
    ceiling = high
    for index in reversed(order):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places
