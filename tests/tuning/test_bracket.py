"""The search finds the best number of workers, on loads whose times are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
from curves import Curve, Fake, curves
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiter.tuning.bracket import Bracket

# A trial lasts so long if a batch takes a second without workers.
TRIAL_S = 50.0
TIMES = st.floats(1e-3, 10.0)


def searched(fake: Any, most: int, **options: Any) -> tuple[int, str]:
    return Bracket(fake, most, **options).choose()


def chosen(fake: Any, most: int, **options: Any) -> int:
    return searched(fake, most, **options)[0]


def excess(curve: Curve, most: int, choice: int) -> float:
    """Return how much slower the choice is than the best number, as a share."""
    return curve(choice) / min(map(curve, range(most + 1))) - 1


@pytest.mark.parametrize("most", [4, 64])
def test_without_noise_the_choice_is_within_five_percent_of_the_best(most: int) -> None:
    found = [excess(curve, most, chosen(Fake(curve), most)) for curve in curves(most)]
    assert max(found) <= 0.05


def test_with_noise_of_two_percent_it_is_so_in_99_of_100_searches() -> None:
    found = [
        excess(c, 16, chosen(Fake(c, 0.02, seed), 16))
        for c in curves(16)
        for seed in range(4)
    ]
    misses = sum(one > 0.05 for one in found)
    assert misses <= len(found) / 100, (
        f"{misses} of {len(found)}, by up to {max(found):.0%}"
    )


@settings(max_examples=30)
@given(times=st.lists(TIMES, min_size=17, max_size=65), seed=st.integers(0, 99))
def test_whatever_it_measures_it_takes_no_more_than_a_quarter_of_a_sweep_in_five_rounds(
    times: list[float], seed: int
) -> None:
    most = len(times) - 1
    fake = Fake(times.__getitem__, 0.1, seed)
    chosen(fake, most)
    assert len(fake.costs) <= 5 * len(times) / 4
    sweep = Fake(times.__getitem__)
    for workers in [*range(most + 1)] * 5:
        sweep(workers, math.inf)
    # A single batch may take longer than a trial.
    lasting = [cost for cost in fake.costs if cost <= 1.5 * TRIAL_S]
    assert sum(lasting) <= 1.2 * sum(sweep.costs) / 4


@settings(max_examples=30)
@given(
    times=st.lists(TIMES, min_size=2, max_size=40),
    budget_s=st.floats(0.5, 2000.0),
    start_s=st.floats(0, 3.0),
)
def test_the_budget_is_kept_but_for_a_start_and_a_batch(
    times: list[float], budget_s: float, start_s: float
) -> None:
    fake = Fake(times.__getitem__, start_s=start_s)
    choice = chosen(fake, len(times) - 1, budget_s=budget_s)
    assert sum(fake.costs) <= budget_s + start_s * len(times) + max(times)
    assert sum(fake.costs[:-1]) < budget_s
    assert {0, choice} <= {*fake.tried}


def test_a_budget_that_ends_the_search_is_told() -> None:
    choice, reason = searched(
        Fake(lambda workers: 1 / max(1, workers)), 16, budget_s=3.5 * TRIAL_S
    )
    assert reason.endswith("the budget ended the search")
    assert choice == 2
    _, reason = searched(Fake(lambda workers: 1.0), 16, budget_s=TRIAL_S)
    assert "raise budget_s" in reason, "nothing was compared"


def test_where_a_load_saturates_the_fewest_workers_are_taken() -> None:
    for best in range(1, 17):
        taken = chosen(
            Fake(lambda workers, best=best: 1 / min(max(1, workers), best)), 16
        )  # type: ignore[misc]
        assert taken == (best if best > 1 else 0)


def test_a_difference_counts_beyond_the_spread_and_not_within() -> None:
    taken = [chosen(Fake(lambda workers: 1.0, 0.02, seed), 16) for seed in range(50)]
    assert taken.count(0) >= 40
    assert max(taken) <= 4
    taken = [
        chosen(Fake(lambda workers: 1.0 if workers < 2 else 0.92, 0.01, seed), 16)
        for seed in range(25)
    ]
    assert min(taken) == 2


def test_one_disturbed_trial_does_not_mislead_it() -> None:
    def curve(workers: int) -> float:
        return max(1 / workers, 0.1) if workers else 1.0

    for disturbed in range(12):
        assert excess(curve, 16, chosen(Fake(curve, disturbed=disturbed), 16)) <= 0.05


@settings(max_examples=30)
@given(
    base=st.integers(0, 1000), each=st.integers(1, 300), allowed=st.integers(1, 6000)
)
def test_numbers_that_take_more_memory_than_allowed_are_not_tried(
    base: int, each: int, allowed: int
) -> None:
    def bytes_of(workers: int) -> int:
        return base + each * workers

    fake = Fake(lambda workers: 1 / max(1, workers), bytes_of=bytes_of)
    choice, reason = searched(fake, 16, memory_bytes=allowed)
    fitting = [workers for workers in range(17) if bytes_of(workers) <= allowed]
    # The search knows what one worker takes only once it has tried one.
    assert max(fake.tried) <= max([*fitting, 1])
    assert choice == (max(fitting) if max([0, *fitting]) > 1 else 0)
    if fitting and max(fitting) in range(2, 16):
        assert "more do not fit into the memory allowed" in reason


@pytest.mark.parametrize(
    ("curve", "most", "reason"),
    [
        (
            lambda workers: 1 / max(1, workers),
            4,
            "4 times as fast as none; more were not to be tried",
        ),
        (lambda workers: 1.0 + workers, 4, "more gain nothing"),
    ],
)
def test_the_choice_says_why(curve: Curve, most: int, reason: str) -> None:
    assert searched(Fake(curve), most)[1] == reason
