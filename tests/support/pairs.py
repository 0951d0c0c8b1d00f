"""Takes a few combinations of a test's parameters in place of all.

This will do where no more than two parameters interact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return combinations in which each value of an axis meets each of any other."""
    left = {
        combination: _pairs_in(combination) for combination in itertools.product(*axes)
    }
    missing = set[Any]().union(*left.values())
    chosen = []
    while missing:
        best = max(left, key=lambda combination: len(left[combination] & missing))
        missing -= left.pop(best)
        chosen.append(best)
    return chosen


def slow_but(values: Iterable[Any], *usual: Any) -> list[Any]:
    """Mark all values as slow except for the usual ones."""
    return [
        value if value in usual else pytest.param(value, marks=pytest.mark.slow)
        for value in values
    ]


def _pairs_in(combination: tuple[Any, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(combination), 2))
