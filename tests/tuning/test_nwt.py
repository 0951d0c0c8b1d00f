"""The Num Worker Tuner's rule, as published, on tables whose choice is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from curves import Fake
from hypothesis import given
from hypothesis import strategies as st

from mpiter.tuning.bracket import Trials
from mpiter.tuning.nwt import nwt


def chosen(fake: Fake, most: int, budget_s: float = math.inf, **options: Any) -> tuple[int, str]:
    setting, why = nwt(Trials(fake, budget_s), most, **options)
    return setting.workers, why


def fake_of(seconds: list[float], **options: Any) -> Fake:
    """So many seconds for a hundred batches, of which each is a trial."""
    return Fake(lambda workers: seconds[workers] / 100, trial_s=1e-9, **options)


def test_every_number_from_none_to_the_most_is_tried_once_and_in_order() -> None:
    fake = fake_of([14.25] * 9)
    chosen(fake, 8)
    assert [setting.workers for setting in fake.asked] == [*range(9)]


@pytest.mark.parametrize(
    ("seconds", "workers"),
    [
        ([14.25, 1.49, 1.41, 1.55, 2.21], 1),  # the published times, one after the other: 1.41 saves too little
        ([1.09, 1.43, 0.72], 0),  # our own, docs/results.md
        ([6.39, 6.22, 3.07, 2.01, 1.55], 3),
        ([10.0, 9.6, 9.2, 8.8], 2),  # each against what was taken so far
        ([10.0, 9.45, 9.0, 8.4], 3),
        ([1.0], 0),
    ],
)
def test_a_number_is_taken_if_it_saves_more_than_alpha_of_all_batches(seconds: list[float], workers: int) -> None:
    taken, why = chosen(fake_of(seconds), len(seconds) - 1)
    assert taken == workers
    assert why == "none of the others saves more than 0.5 s of 100 batches"


@given(st.lists(st.floats(0.1, 40.0), min_size=1, max_size=30), st.floats(0.01, 10.0))
def test_what_is_taken_is_never_slower_than_none_and_within_alpha_of_the_best_before_it(
    seconds: list[float], alpha: float
) -> None:
    taken, _ = chosen(fake_of(seconds), len(seconds) - 1, alpha=alpha)
    assert seconds[taken] <= seconds[0]
    assert all(seconds[taken] - alpha <= other + 1e-9 for other in seconds)


def test_on_the_mean_of_a_batch_alpha_would_always_choose_none() -> None:
    curve = [14.25, 1.49, 1.41]
    assert chosen(fake_of(curve), 2, iterations=1)[0] == 0
    assert chosen(fake_of(curve), 2, iterations=100)[0] == 1


def test_a_number_beyond_the_memory_is_passed_over_and_that_is_told() -> None:
    fake = fake_of([9.0, 6.0, 3.0, 1.0], bytes_of=[100, 200, 300, 400].__getitem__)
    taken, why = chosen(fake, 3, memory_bytes=300)
    assert taken == 2
    assert why.endswith("some take more memory than allowed")
    assert chosen(fake, 3, memory_bytes=50)[0] == 0


def test_the_budget_ends_it_and_that_is_told() -> None:
    fake = fake_of([9.0, 6.0, 3.0, 1.0])
    taken, why = chosen(fake, 3, budget_s=0.19)
    assert fake.tried == {0, 1}
    assert taken == 1
    assert why.endswith("the budget ended the search")
