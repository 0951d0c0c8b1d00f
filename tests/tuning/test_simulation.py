"""The engine simulated: loads whose truth is known by construction."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest

from mpiter.engine.pilot import Setting
from mpiter.stats import Stats
from mpiter.tuning.simulation import Load, Machine, Outcome, Service, simulate

MACHINE = Machine.of(64)
ROWS = 8
CPU, IO = Service(10e-3), Service(0.0, 10e-3)
BATCH_S = ROWS * 10e-3


def load(sample: Service, **more: object) -> Load:
    return replace(Load([sample], batch_size=ROWS), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_takes_as_long_as_its_samples(workers: int) -> None:
    outcome = simulate(load(CPU), MACHINE, workers, batches=50)
    assert outcome.seconds == pytest.approx(50 * BATCH_S)
    assert outcome.waited_s == pytest.approx(outcome.seconds)
    assert outcome.worker_busy_s == pytest.approx(outcome.seconds)
    assert (outcome.batches, outcome.stats.samples) == (50, 50 * ROWS)


@pytest.mark.parametrize("sample", [CPU, IO])
@pytest.mark.parametrize("workers", [2, 8, 32])
def test_workers_share_the_time(sample: Service, workers: int) -> None:
    outcome = simulate(load(sample), MACHINE, workers, batches=400)
    assert outcome.batch_s(96, 352) == pytest.approx(BATCH_S / workers, rel=0.02)


@pytest.mark.parametrize(("sample", "gain"), [(CPU, 1.0), (IO, 4.0)])
def test_one_core_is_shared_by_who_works_and_not_by_who_waits(sample: Service, gain: float) -> None:
    one, four = (simulate(load(sample), Machine.of(1), workers, batches=200) for workers in (1, 4))
    assert one.batch_s(50) / four.batch_s(50) == pytest.approx(gain, rel=0.02)


def test_two_threads_of_a_core_do_what_they_were_measured_to_do() -> None:
    outcome = simulate(load(CPU), Machine((1.0, 1.3)), 2, batches=200)
    assert outcome.batch_s(50) == pytest.approx(BATCH_S / 1.3, rel=0.01)


def test_a_consumer_at_work_takes_its_share_of_the_core() -> None:
    """Both want all of it: a batch takes what its samples and its step take together."""
    outcome = simulate(load(CPU, steps=[Service(40e-3)]), Machine.of(1), 1, batches=200)
    assert outcome.batch_s(50) == pytest.approx(BATCH_S + 40e-3, rel=0.01)


def test_a_slow_consumer_hides_everything() -> None:
    outcome = simulate(load(IO, steps=[Service(0.0, 2 * BATCH_S)]), MACHINE, 1, batches=100)
    assert outcome.seconds - outcome.start_s == pytest.approx(100 * 2 * BATCH_S)
    assert outcome.waited_s == outcome.start_s == pytest.approx(BATCH_S)


def test_a_step_that_waits_for_what_is_half_as_fast_waits_half_the_time() -> None:
    outcome = simulate(load(IO, steps=[Service(0.0, BATCH_S / 4)]), MACHINE, 2, batches=400)
    share = (outcome.waited_s - outcome.start_s) / (outcome.seconds - outcome.start_s)
    assert share == pytest.approx(0.5, abs=0.01)


def test_workers_take_tasks_when_they_have_started() -> None:
    outcome = simulate(load(IO, start_s=3.0), MACHINE, 1, batches=10)
    assert outcome.start_s == pytest.approx(3.0 + BATCH_S)


@pytest.mark.parametrize(("which", "extra"), [({"task_s": 4e-3}, 4e-3), ({"batch_s": 4e-3}, 0.0)])
def test_tasks_and_batches_cost_what_they_are_said_to(which: dict[str, float], extra: float) -> None:
    """Of one worker that is never idle a batch is one task here; the consumer's share is hidden behind it."""
    outcome = simulate(load(IO, **which), MACHINE, 1, batches=200)
    assert outcome.batch_s(50) == pytest.approx(BATCH_S + extra, rel=0.01)


def straggling() -> Load:
    rng = random.Random(0)
    samples = [Service(0.0, 50e-3 if rng.random() < 0.02 else 1e-3) for _ in range(5000)]
    return Load(samples, batch_size=ROWS)


def test_who_runs_further_ahead_is_held_up_less_by_stragglers() -> None:
    """Batches leave in order, so that all wait for one; its work is the same."""
    least = sum(one.wait_s for one in straggling().samples) / 5000 * ROWS / 8
    none, some, far = (
        simulate(straggling(), MACHINE, 8, n_prefetch=1, batches=600, run_ahead=ahead).batch_s(50)
        for ahead in (0, 7, 64)
    )
    assert none > 1.2 * some > 1.2 * 1.2 * far
    assert 0.97 * least < far < 1.1 * least


def test_little_memory_holds_workers_back() -> None:
    """What doesn't fit is not begun, however many could."""
    little = replace(MACHINE, memory_bytes=8 * 12 << 20)
    dear = load(Service(0.0, 12e-3), room_bytes=1 << 20)  # a batch to a task
    ample = simulate(dear, MACHINE, 32, batches=300)
    short = simulate(dear, little, 32, batches=300)
    assert ample.batch_s(100) < 0.8 * short.batch_s(100)
    assert short.peak_bytes <= 32 + 3 + 2 << 20 < ample.peak_bytes


def test_the_same_load_has_the_same_outcome() -> None:
    assert simulate(straggling(), MACHINE, 5, batches=100) == simulate(straggling(), MACHINE, 5, batches=100)


class Plan:
    """A pilot that has been told when to do what."""

    def __init__(self, *changes: tuple[int, Setting]) -> None:
        self._changes = list(changes)

    def look(self, batches: int, now: Setting, stats: object) -> Setting | None:
        return self._changes.pop(0)[1] if self._changes and batches >= self._changes[0][0] else None


def piloted(*changes: tuple[int, Setting], **more: object) -> Outcome:
    return simulate(load(IO, **more), MACHINE, 1, batches=900, pilot=Plan(*changes), most_workers=8)


def test_a_pilots_workers_come_and_go() -> None:
    outcome = piloted((100, Setting(8, 2)), (500, Setting(2, 4)), start_s=1.0)
    assert [setting for _, setting in outcome.changes] == [Setting(8, 2), Setting(2, 4)]
    assert outcome.batch_s(20, 90) == pytest.approx(BATCH_S, rel=0.02)
    assert outcome.batch_s(200, 456) == pytest.approx(BATCH_S / 8, rel=0.03)
    assert outcome.batch_s(600, 850) == pytest.approx(BATCH_S / 2, rel=0.02)
    assert outcome.stats.workers == 2
    assert outcome.batches == 900


def test_what_a_pilot_sees_is_what_happens() -> None:
    seen: list[Stats] = []

    class Watching:
        def look(self, batches: int, now: Setting, stats: object) -> None:
            if batches and batches % 100 == 0:
                seen.append(stats())  # type: ignore[operator]

    steps = [Service(0.0, BATCH_S / 4)]
    outcome = simulate(load(IO, steps=steps, worker_bytes=7), MACHINE, 2, batches=400, pilot=Watching())
    first, last = seen[0], seen[-1]
    batches, seconds = last.batches - first.batches, last.seconds - first.seconds
    assert seconds / batches == pytest.approx(outcome.batch_s(100, 300), rel=0.03)
    assert (last.wait_s - first.wait_s) / seconds == pytest.approx(0.5, abs=0.02)
    assert (last.fetch_s - first.fetch_s) / (2 * seconds) == pytest.approx(1.0, abs=0.02)
    assert last.fetch_cpu_s == 0.0
    assert (last.workers, last.worker_bytes) == (2, 14)


def test_an_outcome_is_there_in_a_moment() -> None:
    """A sweep has dozens of them; the limit is generous, for machines that are busy."""
    began = time.process_time()
    simulate(load(IO), MACHINE, 64, batches=500)
    assert time.process_time() - began < 5.0
