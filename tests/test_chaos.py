"""Deaths at random moments: every sample comes exactly once, bit-identical to a quiet run.

The short version of `bench/chaos.py`, whose pieces these tests use.
"""

from __future__ import annotations

import threading
from typing import Any

import chaos
import numpy as np
import pytest
from datasets import Squares

import mpiter

BATCHES, KILLS = 400, 8


@pytest.fixture(scope="module")
def quiet() -> chaos.Run:
    return chaos.run(BATCHES, n_processes=0)


@pytest.mark.parametrize("serializer", ["slots", "packed"])
@pytest.mark.parametrize(
    "method",
    ["forkserver", pytest.param("fork", marks=pytest.mark.slow), pytest.param("spawn", marks=pytest.mark.slow)],
)
def test_nothing_is_lost_and_nothing_comes_twice(quiet: chaos.Run, method: str, serializer: str) -> None:
    strikes = chaos.Strikes(BATCHES, KILLS, seed=3)
    struck = chaos.run(BATCHES, strikes, backend=mpiter.Process(method), serializer=serializer)
    assert chaos.Differences.between(quiet, struck) == chaos.Differences(lost=0, repeated=0, different=0)
    assert struck.checksums == quiet.checksums
    assert strikes.are_over
    assert struck.stats.restarts > 0


def test_the_comparison_sees_what_is_wrong(quiet: chaos.Run) -> None:
    """Otherwise the test above could not fail."""
    other = chaos.Run([*quiet.checksums[:-1], 0], quiet.labels[1:] + quiet.labels[1:2])
    assert chaos.Differences.between(quiet, other) == chaos.Differences(lost=1, repeated=1, different=1)


@pytest.mark.slow
def test_skipping_survives_as_well(quiet: chaos.Run) -> None:
    struck = chaos.run(BATCHES, chaos.Strikes(BATCHES, KILLS, seed=4), on_error="skip", run_ahead=0)
    assert struck.checksums == quiet.checksums
    assert struck.stats.skipped == 0


class Stuck(Squares):
    """Some samples hold their thread up the first time, until the test is over."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__(200)
        self.release = release
        self.held: set[int] = set()

    def __getitem__(self, index: int) -> Any:
        if index % 70 == 50 and index not in self.held:
            self.held.add(index)
            self.release.wait(60)
        return super().__getitem__(index)


def test_stuck_threads_are_left_behind_and_the_epoch_is_complete() -> None:
    release = threading.Event()
    dataset = Stuck(release)
    try:
        with mpiter.MultithreadIterator(dataset, 10, False, False, 2, sample_timeout=0.5) as it:
            seen = [(float(array[0, 0]), number) for batch in it for array, number in batch]
            restarts, slots = it.stats().restarts, it._loop._transport.slots
        assert seen == [(float(number) ** 2, number) for number in range(200)]
        assert restarts in (2, 3), "two may be stuck at the same time"
        assert slots.bytes > slots.count * slots.size or not slots.count, "slots that a thread may write to are lost"
    finally:
        release.set()


def test_a_hoarder_among_deaths_keeps_what_he_was_given() -> None:
    with mpiter.MultiprocessIterator(chaos.Noisy(), 8, n_processes=2, seed=5) as it:
        strikes = chaos.Strikes(60, 4, seed=5, kinds=("SIGKILL",))
        kept, copies = [], []
        for number in range(60):
            strikes.before(number, it)
            kept.append(next(it).columns[0])
            copies.append(kept[-1].copy())
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))
