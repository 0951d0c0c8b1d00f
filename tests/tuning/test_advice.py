"""How many workers are of use: of loads whose truth is known."""

from __future__ import annotations

import dataclasses

import pytest

from mpiter.engine.pilot import Setting
from mpiter.tuning.advice import Times, advised, fewest, predicted_s
from mpiter.tuning.explain import HANDOVER_S, Case, predicted, times_of
from mpiter.tuning.simulation import Load, Machine, Service, simulate
from mpiter.tuning.tune import default_most


def taking(trainer, cpu=0.0, io=0.0, workers=1):
    """What a batch of 10 takes."""
    return Times(trainer, 1e-6, cpu, io, 10, workers)


@pytest.mark.parametrize(
    ("trainer", "cpu", "io", "cores", "wanted"),
    [
        (0.1, 0.06, 0.54, 4, (7, True, False)),
        (0.1, 0.0, 0.4, 2, (5, True, False)),
        (0.05, 0.3, 0.0, 2, (2, False, False)),
        (1e-4, 0.0, 0.08, 2, (8, False, True)),
        (0.1, 0.15, 0.0, 4, (2, True, False)),
        (0.1, 0.001, 0.0, 2, (0, True, False)),
    ],
    ids=["reading", "waiting", "cores", "many", "computing", "cheap"],
)
def test_so_many_workers_hide_what_they_do_or_are_of_use(trainer, cpu, io, cores, wanted):
    said = advised(taking(trainer, cpu, io), [float(count) for count in range(1, cores + 1)])
    assert (said.workers, said.hides, said.is_most) == wanted


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_no_more_workers_are_advised_than_tune_tries(cores, monkeypatch):
    monkeypatch.setattr("mpiter.machine.cores", lambda: cores)
    said = advised(taking(1e-6, io=1.0), [float(count) for count in range(1, cores + 1)])
    assert said.workers == default_most("bracket")


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
    said = advised(times_of(case.load, 2), case.machine.capacity)
    replayed = predicted("", dataclasses.replace(case, setting=Setting(said.workers, 2)))
    assert said.samples_per_s == pytest.approx(replayed.samples_per_s, rel=0.1)


@pytest.mark.parametrize("step_s", [0.05, 0.1])
@pytest.mark.parametrize("cores", [2, 4])
def test_workers_beside_a_trainer_that_computes_get_what_it_leaves_of_the_cores(step_s, cores):
    load, many = Load([Service(0.15 / 20)], [Service(step_s)], batch_size=20), Machine.of(cores)
    said = advised(times_of(load, 1), many.capacity)
    hidden = simulate(load, many, said.workers, batches=200)
    assert said.samples_per_s == pytest.approx(20 / hidden.batch_s(40), rel=0.1)


def test_the_fewest_workers_of_the_article_hide_its_loading():
    """ImageNet: a batch takes a worker 1.7 s and the step 654 ms, which 3 workers nearly hide and 4 completely."""
    found = taking(0.654, cpu=0.32, io=1.38)
    eight = [float(count) for count in range(1, 9)]
    assert fewest(found, eight) == 3
    assert [round(1e3 * predicted_s(found, workers, eight)) for workers in (1, 2, 3, 4)] == [1700, 850, 654, 654]
