"""The benchmarks of what is beyond this process, and of orders: requirements fail by themselves, and they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cluster
import numpy as np
import order
import pytest
from cluster import CASES, MPI, OURS, PER_S, PROCESS, RAY, RAY_DATA, SHAPES, WRONG, is_right
from order import FEW, MANY, MEMORY, PLAN, RESUME, ROWS, STATE

from mpiter.lab.cases import Images
from mpiter.lab.spreads import spread
from mpiter.lab.verdict import judge
from mpiter.order.order import Shuffled

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = {(case, row): {PER_S: 100, WRONG: 0} for case in CASES for row in (*OURS, RAY_DATA)}
ORDER = {(case, row): {PLAN: 20, RESUME: 5, STATE: 230, MEMORY: 2} for case in (FEW, MANY) for row in ROWS}


def failing(bench, good, worse):
    figures = {
        key: {name: spread([value] * 5) for name, value in (good[key] | worse.get(key, {})).items()} for key in good
    }
    return [claim.text for claim in bench.claims(figures) if judge(claim, 5).failed]


@pytest.mark.parametrize(
    ("worse", "fails"),
    [
        ({}, []),
        ({("28x28", RAY): {WRONG: 1}}, ["28x28: wrong batches, ray <= 0"]),
        ({("3x64x64", MPI): {WRONG: 2}}, ["3x64x64: wrong batches, mpi <= 0"]),
        ({("3x224x224", RAY): {PER_S: 90}}, ["3x224x224: ours on Ray >= 1 x Ray Data"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else str(len(value)),
)
def test_each_requirement_of_the_cluster_fails_by_itself(worse, fails):
    assert failing(cluster.BENCH, CLUSTER, worse) == fails


@pytest.mark.parametrize(
    ("figure", "value", "fails"),
    [
        (PLAN, 41, "planning, shared <= 2 x alone"),
        (RESUME, 11, "going on, shared <= 2 x alone"),
        (STATE, 401, "bytes of state, shared <= 400"),
        (MEMORY, 17, "MB more, shared <= 16"),
    ],
)
def test_each_requirement_of_orders_fails_by_itself(figure, value, fails):
    assert failing(order.BENCH, ORDER, {}) == []
    assert failing(order.BENCH, ORDER, {(MANY, "shared"): {figure: value}}) == [f"{MANY}: {fails}"]


def test_a_batch_with_one_wrong_bit_is_wrong():
    shape, batch_size = SHAPES["28x28"]
    dataset = Images(shape, cluster.LENGTH)
    keys = Shuffled(cluster.LENGTH, cluster.SEED).take(batch_size, 2 * batch_size)
    images, labels = dataset.images[keys % len(dataset.images)].copy(), keys.copy()
    assert is_right((images, labels), dataset, batch_size, 1)
    assert not is_right((images, labels), dataset, batch_size, 0)
    images.view(np.uint8)[-1, -1, -1] ^= 1
    assert not is_right((images, labels), dataset, batch_size, 1)


@pytest.mark.parametrize(
    ("script", "options"),
    [
        pytest.param("cluster.py", ["--cases", "28x28", "--rows", PROCESS], marks=pytest.mark.slow),
        ("order.py", ["--cases", MANY]),
    ],
    ids=["cluster", "order"],
)
def test_the_script_runs_and_keeps_its_answer(script, options, tmp_path):
    out = tmp_path / "answer.json"
    asked = [sys.executable, ROOT / "bench" / script, "--quick", "--seconds", "0.1", "--out", out, *options]
    ran = subprocess.run(asked, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads(out.read_text())["schema"] == f"mpiter.bench.{script[:-3]}/1"
