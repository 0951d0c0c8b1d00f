"""The pilot behind "auto": how it flies on machines that don't exist, and what it does with real workers."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cores import Load, Service, simulate

import mpiter
from mpiter.engine.pilot import Auto, Look, Wings
from mpiter.tuning.auto import AutoPilot

GB, DEADLINE_S, FIRST = 1 << 30, 90.0, 1
NO_STEP = Service(0.0)


def drawn(mean_s: float, spread: float = 0.3, cpu: bool = True) -> list[Service]:
    rng = random.Random(0)
    times = [mean_s * rng.lognormvariate(-spread * spread / 2, spread) for _ in range(4000)]
    return [Service(one) if cpu else Service(0.05 * one, 0.95 * one) for one in times]


def straggling(mean_s: float) -> list[Service]:
    rng = random.Random(1)
    return [Service(0.0, mean_s * (50 if rng.random() < 0.02 else 1)) for _ in range(4000)]


def bursts(low_s: float, high_s: float, every: int, length: int) -> list[Service]:
    return [Service(0.0, high_s if at % every < length else low_s) for at in range(every) for _ in range(8)]


def load(samples: list[Service], step: Service = NO_STEP, **more: Any) -> Load:
    return Load(samples, [step], batch_size=8, start_s=0.3, **more)


LOADS = {
    "CPU-bound, 8 cores": (load(drawn(10e-3), Service(1e-3)), 8),
    "I/O-bound": (load(drawn(20e-3, 0.6, cpu=False), Service(1e-3)), 64),
    "bursty": (load(bursts(5e-3, 50e-3, 20, 2), Service(0.0, 10e-3)), 64),
    "straggling": (load(straggling(5e-3), Service(0.0, 8e-3)), 64),
    "memory-limited": (load(drawn(10e-3), Service(1e-3), worker_bytes=GB), 64),
    "trainer-bound": (load(drawn(1e-3), Service(0.0, 50e-3)), 64),
}


@pytest.mark.parametrize("name", LOADS)
def test_auto_is_as_good_as_the_best_of_a_sweep_and_steady(name: str) -> None:
    (of, cores), most, batches = LOADS[name], 24 * GB, 1500
    fitting = [count for count in (8, 20, 64) if count * of.worker_bytes <= 0.9 * most]
    best = min(simulate(of, workers, batches, cores=cores).batch_s(800) for workers in fitting)
    pilot = AutoPilot(Auto(most=64), memory=lambda stats: most)
    outcome = simulate(of, FIRST, batches, pilot, cores)
    assert outcome.batch_s(800) <= 1.05 * best, pilot.changes
    assert sum(change.batches > 200 for change in pilot.changes) <= 3
    assert outcome.peak_bytes <= most
    assert outcome.workers <= 2 * cores, "of as fast ones the fewest"


def test_a_load_that_changes_is_followed() -> None:
    """It becomes four times the work."""
    half = 1000
    samples = [one for mean_s in (2e-3, 8e-3) for one in drawn(mean_s, cpu=False)[: 4 * half] * 2]
    of = Load(samples, [Service(0.0, 8e-3)], batch_size=8, start_s=0.3)
    pilot = AutoPilot(Auto(most=64), memory=lambda stats: 1e12)
    outcome = simulate(of, FIRST, 2 * half, pilot)
    fixed = [simulate(of, workers, 2 * half) for workers in (4, 8, 16)]
    best = min(one.taken[half] for one in fixed) + min(one.seconds - one.taken[half] for one in fixed)
    assert outcome.seconds <= 1.1 * best, pilot.changes
    assert any(change.batches > half for change in pilot.changes)


def test_a_pilot_keeps_to_what_it_was_told_and_logs_each_change(caplog: pytest.LogCaptureFixture) -> None:
    pilot = AutoPilot(Auto(2, 5), memory=lambda stats: 1e12)
    with caplog.at_level(logging.INFO, "mpiter.tuning"):
        assert simulate(load(drawn(10e-3)), 2, 200, pilot).workers == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"after {change.batches} batches {change.reason}" for change in pilot.changes
    ]


# -- memory ----------------------------------------------------------------------------------------------------------


def fly(batches: int, service_s: float, memory: Callable[[float], int], each: Callable[[int], int]) -> AutoPilot:
    """Of a steady load: ``memory`` that there is at a time, and what a worker takes after so many batches."""
    pilot = AutoPilot(Auto(most=64), memory=lambda seen: memory(seen.seconds))
    now, step_s, seconds, wait_s = FIRST, 0.02, 0.0, 0.0
    for batch in range(1, batches):
        took = max(step_s, service_s / now)
        seconds, wait_s = seconds + took, wait_s + took - step_s
        used = each(batch) * now
        seen = Look(batch, seconds, wait_s, batch * service_s, 0, 1, used)
        now = pilot.look(batch, now, lambda seen=seen: seen) or now  # type: ignore[misc]
    return pilot


def late(pilot: AutoPilot) -> list[int]:
    """To how many workers it has changed after 200 batches."""
    return [change.after for change in pilot.changes if change.batches > 200]


def test_workers_that_grow_go_one_by_one_though_all_was_settled() -> None:
    pilot = fly(8000, 0.15, lambda seconds: 64 * GB, lambda batch: GB // 2 + GB * max(0, batch - 500) // 200)
    assert late(pilot) == [8, 7, 6, 5, 4, 3, 2, 1]


def test_memory_that_comes_and_goes_is_not_followed_for_ever() -> None:
    pilot = fly(4000, 0.8, lambda seconds: (20 if int(seconds / 5) % 2 else 64) * GB, lambda batch: GB)
    assert 18 in [change.after for change in pilot.changes]
    assert len(late(pilot)) <= 3, pilot.changes


def test_workers_whom_memory_has_taken_come_back_when_there_is_some_again() -> None:
    pilot = fly(3000, 0.8, lambda seconds: (20 if 10 < seconds < 15 else 64) * GB, lambda batch: GB)
    assert late(pilot)[0] == 18
    assert late(pilot)[-1] >= 40


def test_workers_stay_while_the_memory_they_take_varies_a_little() -> None:
    assert not late(fly(3000, 3.0, lambda seconds: 41 * GB - int(seconds) % 2 * 3 * GB // 2, lambda batch: GB))


def test_the_counters_are_read_once_in_many_batches() -> None:
    looks: list[int] = []

    def look() -> Look:
        looks.append(at)
        return Look(at, at * 1e-3, 0.0, at * 1e-3, 0, 1, 0)

    pilot = AutoPilot(Auto(most=4), memory=lambda stats: 1e12)
    for at in range(1, 20_000):
        pilot.look(at, FIRST, look)
    assert len(looks) < 300


# -- for real ----------------------------------------------------------------------------------------------------------


class Store:
    """Samples that wait for a disk, say."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        time.sleep(self.seconds)
        return index, mpiter.get_rng().random(3)


def test_real_workers_are_followed_and_the_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = Wings.pilot
    monkeypatch.setattr(Wings, "pilot", lambda *asked: made.append(make(*asked)) or made[-1])
    ends, found = time.monotonic() + DEADLINE_S, []
    with mpiter.batches(Store(0.005), 4, seed=7, epochs=None, n_processes=Auto(most=4)) as stream:
        while not made or not made[0].changes:
            assert time.monotonic() < ends, stream.stats()
            found.append([np.array(column) for column in next(stream)])
        found += [[np.array(column) for column in batch] for batch in itertools.islice(stream, 10)]
        assert stream.stats().workers <= 4
    assert made[0].changes[0].after > FIRST
    with mpiter.batches(Store(0.0), 4, n_processes=0, seed=7, epochs=None) as alone:
        for batch, expected in zip(found, alone, strict=False):
            assert all(map(np.array_equal, batch, expected))


def test_bounds_that_make_no_sense_are_refused() -> None:
    for bounds, said in (((0, 2), "least=0"), ((1, True), "most=True"), ((3, 2), "most=2 is less")):
        with pytest.raises(mpiter.OptionError, match=said):
            mpiter.Auto(*bounds)
