"""The benchmark of echoing: its requirements, its learners, and that it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from echo import BENCH, CLASSES, ECHOES, RATIOS, WITHOUT, Means, Network, Pictures, gain

import mpiter
from mpiter.lab.spreads import spread
from mpiter.lab.verdict import judge

ROOT = Path(__file__).resolve().parents[2]


def judged(case, figure, values):
    summary = {(case, row): {figure: spread([value] * 5)} for row, value in values.items()}
    return [judge(claim, 5) for claim in BENCH.claims(summary) if claim.case == case]


@pytest.mark.parametrize("case", list(RATIOS))
def test_an_echo_must_be_nearly_as_fast_as_it_can_be(case):
    rates = {WITHOUT: 10.0} | {row: 9.1 * gain(case, row) for row in ECHOES if row != WITHOUT}
    assert not [verdict for verdict in judged(case, "steps_per_s", rates) if verdict.failed]
    for row in set(rates) - {WITHOUT}:
        slow = rates | {row: 8.4 * gain(case, row)}
        assert [verdict.failed for verdict in judged(case, "steps_per_s", slow)].count(True) == 1, row


def test_what_an_echo_can_gain_is_bounded_by_the_factor_and_by_the_ratio():
    assert [gain("ratio 2", row) for row in ("1.5", "2", "4", "4, batches", "auto")] == [1.5, 2, 2, 2, 2]
    assert [gain("ratio 1", row) for row in ("1.5", "auto")] == [1, 1]


def test_a_training_must_need_fewer_fresh_samples_and_the_honest_case_must_not():
    assert [verdict.failed for verdict in judged("network", "fresh", {WITHOUT: 100, "example": 70})] == [False]
    assert [verdict.failed for verdict in judged("network", "fresh", {WITHOUT: 100, "example": 71})] == [True]
    assert [verdict.failed for verdict in judged("means", "fresh", {WITHOUT: 100, "augmented": 90})] == [False]
    assert [verdict.failed for verdict in judged("means", "fresh", {WITHOUT: 100, "augmented": 89})] == [True]


@pytest.mark.parametrize("kind", [Network, Means])
def test_the_learners_learn(kind):
    pictures, labels = next(mpiter.batches(Pictures(0), 2000, n_processes=0, seed=0))
    learner = kind(0)
    before = (learner.scores(pictures).argmax(1) == labels).mean()
    for start in range(0, 2000, 100):
        learner.learn(pictures[start : start + 100], labels[start : start + 100])
    after = (learner.scores(pictures).argmax(1) == labels).mean()
    assert before < 2 / CLASSES < after


def test_repeats_tell_means_nothing():
    pictures, labels = next(mpiter.batches(Pictures(0), 100, n_processes=0, seed=0))
    once, twice = Means(0), Means(0)
    once.learn(pictures, labels)
    for _ in range(2):
        twice.learn(pictures, labels)
    assert np.allclose(once.scores(pictures), twice.scores(pictures))


@pytest.mark.slow
def test_a_short_round_of_the_benchmark_runs(tmp_path):
    command = [sys.executable, ROOT / "bench" / "echo.py", "--quick", "--cases", "ratio 2", "means"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "PROBLEM" not in ran.stdout
    for row in (*ECHOES, "augmented", "batch"):
        assert f"\n{row} " in ran.stdout
