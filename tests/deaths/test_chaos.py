"""Workers die at random moments, and every sample comes exactly once, bit-identical.

This is the short version of `bench/chaos.py`, whose parts these tests use.  It measures
nothing.
"""

from __future__ import annotations

import threading
from typing import Any

import chaos
import numpy as np
import pytest
from chaos import Differences
from datasets import Squares
from strikes import Strikes

import mpiter

pytestmark = pytest.mark.death

BATCHES = 280
KILLS = 6


@pytest.mark.parametrize("concurrency", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_nothing_is_lost_and_nothing_comes_twice(concurrency: int) -> None:
    quiet = chaos.run(BATCHES, n_processes=0)
    planned = Strikes(BATCHES, KILLS, seed=3)
    # Few batches are in flight, so that each death shows soon and all of them fit into
    # the run.  The timeout is long, because on a busy machine a worker may stand still
    # for half a second by itself.
    options: dict[str, Any] = {"run_ahead": 8, "concurrency": concurrency}
    struck = chaos.run(BATCHES, planned, sample_timeout=3.0, **options)
    assert Differences.between(quiet, struck) == Differences(
        lost=0, repeated=0, different_batches=0
    )
    assert struck.checksums == quiet.checksums
    assert planned.are_over
    victims = set().union(*(strike.victims for strike in planned.done))
    assert 0 < struck.stats.restarts <= len(victims), "only struck workers are replaced"
    assert struck.stats.skipped == 0


class Stuck(Squares):
    """Some samples hold up the thread that fetches them first.

    When they are released, that thread returns them wrong.
    """

    def __init__(self, release: threading.Event) -> None:
        super().__init__(200)
        self.release = release
        self.held: dict[int, threading.Thread] = {}

    def __getitem__(self, index: int) -> Any:
        array, number = super().__getitem__(index)
        if index in (50, 120, 190) and index not in self.held:
            self.held[index] = threading.current_thread()
            self.release.wait(60)
            array = np.full_like(array, np.nan)
        return array, number


def test_stuck_threads_are_left_behind_and_cannot_spoil_what_they_wrote_to() -> None:
    release = threading.Event()
    dataset = Stuck(release)
    try:
        with mpiter.MultithreadIterator(
            dataset, 10, False, False, 2, sample_timeout=0.5
        ) as it:
            batches = list(it)
            restarts = it.stats().restarts
            release.set()
            for thread in dataset.held.values():
                thread.join(60)
        seen = [
            (float(array[0, 0]), number) for batch in batches for array, number in batch
        ]
    finally:
        release.set()
    assert seen == [(float(number) ** 2, number) for number in range(200)]
    assert sorted(dataset.held) == [50, 120, 190]
    assert restarts >= 2, "two may be stuck at the same time"


# The number of batches.  More of them must lie between two strikes than are in flight,
# or the worker that is left would fetch them all.
_LONG = 360


def test_batches_that_are_kept_through_deaths_stay_as_they_were() -> None:
    with mpiter.MultiprocessIterator(chaos.Noisy(), 8, n_processes=2, seed=5) as it:
        planned = Strikes(_LONG, 2, seed=6, kinds=["SIGKILL"])
        kept = [
            (batch.columns[0], batch.columns[0].copy())
            for batch in planned.among(it, _LONG)
        ]
    assert all(np.array_equal(array, copy) for array, copy in kept)
    assert planned.are_over
