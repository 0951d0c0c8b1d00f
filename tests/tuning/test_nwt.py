"""The Num Worker Tuner's rule, as published, on tables whose choice is known."""

from __future__ import annotations

from typing import Any

import pytest
from curves import Fake
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiter.tuning.bracket import nwt


def chosen(seconds: list[float], **options: Any) -> int:
    """By so many seconds for a hundred batches."""
    fake = Fake(lambda workers: seconds[workers] / 100)
    workers, trials = nwt(fake, len(seconds) - 1, **options)
    assert fake.tried == [*range(len(trials))] == [*range(len(seconds))]
    return workers


@pytest.mark.parametrize(
    ("seconds", "workers"),
    [
        ([14.25, 1.49, 1.41, 1.55, 2.21], 1),  # the published times, one after the other: 1.41 saves too little
        ([1.09, 1.43, 0.72], 0),  # our own, bench/results/workers.json
        ([6.39, 6.22, 3.07, 2.01, 1.55], 3),
        ([10.0, 9.6, 9.2, 8.8], 2),  # each against what was taken so far
        ([10.0, 9.45, 9.0, 8.4], 3),
        ([1.0], 0),
    ],
)
def test_a_number_is_taken_if_it_saves_more_than_alpha_of_all_batches(seconds: list[float], workers: int) -> None:
    assert chosen(seconds) == workers


@settings(max_examples=30)
@given(st.lists(st.floats(0.1, 40.0), min_size=1, max_size=30), st.floats(0.01, 10.0))
def test_what_is_taken_is_never_slower_than_none_and_within_alpha_of_the_best_before_it(
    seconds: list[float], alpha: float
) -> None:
    taken = chosen(seconds, alpha=alpha)
    assert seconds[taken] <= seconds[0]
    assert all(seconds[taken] - alpha <= other + 1e-9 for other in seconds)


def test_on_the_mean_of_a_batch_alpha_would_always_choose_none() -> None:
    assert chosen([14.25, 1.49, 1.41], iterations=1) == 0
