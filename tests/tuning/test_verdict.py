"""The verdict: of loads whose truth is known, what waits, for what, and what would help."""

from __future__ import annotations

import dataclasses
import time

import pytest

import mpiter
from mpiter import machine
from mpiter.engine.pilot import Setting
from mpiter.stats import Stats
from mpiter.tuning.explain import HANDOVER_S, Case, predicted
from mpiter.tuning.simulation import Load, Machine, Service, simulate
from mpiter.tuning.tune import default_most
from mpiter.tuning.verdict import fewest, predicted_s, times, verdict


def counted(
    trainer=0.1, own=1e-6, cpu=0.0, io=0.0, delay=0.0, read=0.0, pack=0.0, workers=2, threads=0, waited=0.0, batches=100
):
    """What stats() says after so many batches of 10, of which each took so many seconds."""
    return Stats(
        own_cpu_s=batches * own,
        threads=threads,
        batches=batches + 1,
        samples=10 * (batches + 1),
        seconds=batches * (trainer + waited),
        start_s=0.5,
        wait_s=0.5 + batches * waited,
        fetch_s=(batches + 1) * (cpu + io + delay - pack),
        fetch_cpu_s=(batches + 1) * cpu,
        fetch_delay_s=(batches + 1) * delay,
        read_s=(batches + 1) * read,
        pack_s=(batches + 1) * pack,
        workers=workers,
    )


def test_what_a_batch_takes_is_told_apart_without_the_start():
    found = times(counted(trainer=0.1, cpu=0.02, io=0.03, delay=0.01, waited=0.05, pack=0.005))
    assert found is not None
    assert (found.trainer_s, found.waited_s, found.cpu_s, found.io_s, found.delay_s, found.pack_s) == pytest.approx(
        (0.1, 0.05, 0.02, 0.03, 0.01, 0.005)
    )
    assert (found.samples, found.workers) == (10, 2)


def test_what_came_since_an_earlier_look_is_told_by_itself():
    early, late = counted(io=0.3, waited=0.1), counted(io=0.3, waited=0.1, batches=300)
    found = times(late, since=early)
    assert found is not None
    assert (found.trainer_s, found.waited_s, found.io_s) == pytest.approx((0.1, 0.1, 0.3))


@pytest.mark.parametrize(("backend", "threads"), [("process", 0), ("thread", 2), ("serial", 0)])
def test_what_it_needs_to_know_of_the_trainers_process_is_counted(backend, threads):
    with mpiter.batches(range(8), 4, n_processes=2, backend=backend) as stream:
        next(stream)
        until = time.process_time() + 0.05
        while time.process_time() < until:  # work
            pass
        assert stream.stats().own_cpu_s >= 0.05
        assert stream.stats().threads == threads


@pytest.mark.parametrize(
    ("who", "cpu"), [({}, 0.07), ({"threads": 2}, 0.05), ({"workers": 0}, 0.05)], ids=["processes", "threads", "none"]
)
def test_what_the_trainers_process_computed_is_told_apart_from_its_workers(who, cpu):
    assert times(counted(own=0.07, cpu=0.02, **who)).trainer_cpu_s == pytest.approx(cpu, abs=1e-3)


def test_a_trainer_of_which_nobody_knows_is_taken_to_compute():
    assert times(counted(trainer=0.1, own=0.0, waited=0.3)).trainer_cpu_s == pytest.approx(0.1)


@pytest.mark.parametrize("step_s", [0.05, 0.1])
@pytest.mark.parametrize("cores", [2, 4])
def test_workers_beside_a_trainer_that_computes_get_what_it_leaves_of_the_cores(step_s, cores):
    load, many = Load([Service(0.15 / 20)], [Service(step_s)], batch_size=20), Machine.of(cores)
    said = verdict(simulate(load, many, 1, batches=100).stats, capacity=many.capacity)
    hidden = simulate(load, many, said.advice.workers, batches=200)
    assert said.advice.samples_per_s == pytest.approx(20 / hidden.batch_s(40), rel=0.1)


def test_a_trainer_that_takes_no_time_at_all_is_worth_a_verdict_too():
    said = verdict(Stats(batches=10, samples=80, seconds=1.0, wait_s=1.5, fetch_s=2.0, workers=2), capacity=[1, 2])
    assert said is not None
    assert (said.waited, said.advice.workers, said.advice.hides, said.advice.is_most) == (1.0, 8, False, True)


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_no_more_workers_are_advised_than_tune_tries(cores, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    said = verdict(counted(trainer=1e-6, io=1.0, waited=0.5))
    assert said is not None
    assert said.advice.workers == default_most("bracket")


@pytest.mark.parametrize(
    ("sample", "step"),
    [
        (Service(0.0, 0.005), Service(0.0, 1e-5)),
        (Service(0.0, 0.005), Service(0.0, 0.02)),
        (Service(0.004, 0.0), Service(0.0, 0.01)),
        (Service(0.002, 0.004), Service(0.02, 0.0)),
    ],
    ids=["many", "waits", "computes", "both"],
)
def test_its_number_is_that_of_a_replay(sample, step):
    case = Case(Load([sample], [step], batch_size=16, task_s=HANDOVER_S), Machine.of(4), Setting(2, 2))
    said = verdict(case.replay(100).stats, capacity=case.machine.capacity)
    replayed = predicted("", dataclasses.replace(case, setting=Setting(said.advice.workers, 2)))
    assert said.advice.samples_per_s == pytest.approx(replayed.samples_per_s, rel=0.1)


@pytest.mark.parametrize("bound", ["data", "trainer"])
def test_of_threads_that_take_turns_nothing_is_predicted(bound, monkeypatch):
    """They wait for each other, which looks like waiting for a disk."""
    load = counted(cpu=0.05, io=0.15, threads=2, waited=0.1 if bound == "data" else 0.0)
    line = {
        "data": "data-bound: the trainer waited 50% of the time; 50% of a worker's time is dataset[i], of it 75% "
        "waiting; nothing is predicted: threads under a GIL may wait for each other, which can't be told apart",
        "trainer": "trainer-bound: the trainer waited 0% of the time",
    }[bound]
    monkeypatch.setattr(machine, "gil_is_in_use", lambda: True)
    assert str(verdict(load)) == line
    monkeypatch.setattr(machine, "gil_is_in_use", lambda: False)
    assert str(verdict(load, capacity=[1, 2])) != line


def test_it_is_too_early_for_a_verdict_before_the_second_batch():
    assert verdict(Stats()) is None
    assert verdict(Stats(batches=1, samples=4, wait_s=1.0, start_s=1.0)) is None


@pytest.mark.parametrize(
    ("load", "capacity", "line"),
    [
        (
            {"trainer": 0.1, "cpu": 0.06, "io": 0.54, "read": 0.5, "workers": 3, "waited": 0.1},
            [1, 2, 3, 4],
            "data-bound: the trainer waited 50% of the time; 100% of a worker's time is dataset[i], of it 83% reading; "
            "7 workers would hide it: 100 samples/s predicted",
        ),
        (
            {"trainer": 0.1, "io": 0.4, "workers": 2, "waited": 0.1},
            [1, 2],
            "data-bound: the trainer waited 50% of the time; 100% of a worker's time is dataset[i], of it 100% "
            "waiting; 5 workers would hide it: 100 samples/s predicted",
        ),
        (
            {"trainer": 0.05, "cpu": 0.3, "delay": 0.1, "workers": 2, "waited": 0.15},
            [1, 2],
            "data-bound: the trainer waited 75% of the time; 100% of a worker's time is dataset[i], of it 0% waiting; "
            "25% is waiting for a core; no more than 2 workers would help: 66.7 samples/s predicted; then "
            "samples must become cheaper",
        ),
        (
            {"trainer": 1e-4, "io": 0.08, "workers": 2, "waited": 0.04},
            [1, 2],
            "data-bound: the trainer waited 100% of the time; 100% of a worker's time is dataset[i], of it 100% "
            "waiting; more than 8 workers would help: 1,000 samples/s predicted with 8",
        ),
        (
            {"trainer": 1e-4, "io": 0.32, "workers": 16, "waited": 0.02},
            [1, 2],
            "data-bound: the trainer waited 100% of the time; 100% of a worker's time is dataset[i], of it 100% "
            "waiting; more than 16 workers would help: 500 samples/s predicted with 16",
        ),
        (
            {"trainer": 0.1, "cpu": 0.15, "workers": 4},
            [1, 2, 3, 4],
            "trainer-bound: the trainer waited 0% of the time; 2 workers would do",
        ),
        (
            {"trainer": 0.1, "cpu": 0.001, "workers": 1},
            [1, 2],
            "trainer-bound: the trainer waited 0% of the time; it would hardly wait without workers",
        ),
    ],
    ids=["reading", "waiting", "cores", "many", "more", "trainer", "cheap"],
)
def test_the_line_says_what_waits_for_what_and_what_would_help(load, capacity, line):
    assert str(verdict(counted(**load), capacity=capacity)) == line


def test_the_fewest_workers_of_the_article_hide_its_loading():
    """ImageNet: a batch takes a worker 1.7 s and the step 654 ms, which 3 workers nearly hide and 4 completely."""
    found = times(counted(trainer=0.654, cpu=0.32, io=1.38, workers=1, waited=1.046))
    assert found is not None
    eight = [float(count) for count in range(1, 9)]
    assert fewest(found, eight) == 3
    assert [round(1e3 * predicted_s(found, workers, eight)) for workers in (1, 2, 3, 4)] == [1700, 850, 654, 654]


@pytest.mark.parametrize(
    ("sample", "step", "workers"),
    [
        (Service(0.0, 0.01), Service(0.0, 0.05), 2),
        (Service(0.01, 0.0), Service(0.0, 0.05), 2),
        (Service(0.004, 0.006), Service(0.04, 0.0), 3),
        (Service(0.001, 0.0), Service(0.0, 0.2), 2),
    ],
    ids=["waits", "computes", "both", "trainer"],
)
def test_it_is_right_within_five_points_where_the_truth_is_known(sample, step, workers):
    load, eight = Load([sample], [step], batch_size=20), Machine.of(8)
    run = simulate(load, eight, workers, batches=60)
    worker_s, step_s = 20 * (sample.cpu_s + sample.wait_s), step.cpu_s + step.wait_s
    truth = max(0.0, 1 - step_s / max(step_s, worker_s / workers))
    said = verdict(run.stats, capacity=eight.capacity)
    assert said is not None
    assert said.waited == pytest.approx(truth, abs=0.05)
    hidden = simulate(load, eight, max(said.advice.workers, 1), batches=60)
    assert said.advice.samples_per_s == pytest.approx(20 / hidden.batch_s(10), rel=0.1)
