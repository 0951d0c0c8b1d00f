"""Few combinations in place of all, where the parts of a test don't interact by more
than two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return a part of the product in which every value of an axis still meets every
    value of each other one.
    """
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
    """All of them, of which the usual ones will do where tests are to be quick."""
    return [
        value if value in usual else pytest.param(value, marks=pytest.mark.slow)
        for value in values
    ]


def _pairs_in(combination: tuple[Any, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(combination), 2))
