"""The images' benchmark: its photographs, its requirements, and that it runs."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from image_cases import CASES, Photographs, write_files
from images import BENCH, BEST, FIGURE, FULL, LINE, SCALED
from PIL import Image

from mpiter.lab.photographs import photograph
from mpiter.lab.spreads import spread
from mpiter.lab.verdict import judge

ROOT = Path(__file__).resolve().parents[2]


def test_photographs_are_always_the_same_and_as_large_as_photographs(tmp_path):
    case = CASES["224"]
    made = [photograph(np.random.default_rng(number), case.size) for number in (0, 1, 0)]
    assert made[0] == made[2] != made[1]
    assert all(70_000 < len(data) < 95_000 for data in made)
    assert Image.open(io.BytesIO(made[0])).size == (500, 375)
    write_files(tmp_path, ["224", "128"], 2)
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["000.jpg", "001.jpg"]
    pictures, label = Photographs(case.files(tmp_path, 2), case.side)[5]
    assert (pictures.shape, pictures.dtype, label) == ((224, 224, 3), np.uint8, 1)


GOOD = {LINE: 100, "chainer": 90, "spdl": 120, "spdl, pillow": 90, "ours": 96, FULL: 60, SCALED: 185, BEST: 185}


@pytest.mark.parametrize(
    ("worse", "failing"),
    [
        ({}, []),
        ({"ours": 94}, ["ours, Pillow >= 0.95 of the line"]),
        ({BEST: 161}, ["ours, best decoder >= 1.8 x Chainer, Pillow"]),
        ({"spdl": 190}, ["ours, best decoder > 1 x spdl"]),
        ({"spdl, pillow": 190}, ["ours, best decoder > 1 x spdl, pillow"]),
        ({FULL: 62}, ["scaled decoding >= 3 x full decoding"]),
    ],
)
def test_each_requirement_fails_by_itself(worse, failing):
    rates = GOOD | worse
    summary = {("camera", row): {FIGURE: spread([rate] * 5)} for row, rate in rates.items()}
    judged = [judge(claim, 5) for claim in BENCH.claims(summary) if claim.case == "camera"]
    assert len(judged) == 5
    assert [verdict.claim for verdict in judged if verdict.failed] == [f"camera: {claim}" for claim in failing]


def test_a_row_that_is_absent_is_not_measured():
    summary = {("224", "ours"): {FIGURE: spread([1.0] * 5)}}
    assert {judge(claim, 5).says.value for claim in BENCH.claims(summary)} == {"not measured"}


@pytest.mark.slow
def test_a_short_round_of_the_benchmark_runs(tmp_path):
    command = [sys.executable, ROOT / "bench" / "images.py", "--quick", "--photographs", "2", "--cases", "224"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "PROBLEM" not in ran.stdout
    assert "must  224: ours, Pillow >= 0.95 of the line" in ran.stdout
    for row in ("one process", "line", "ours", "ours, auto", "ours, scaled"):
        assert f"\n{row} " in ran.stdout
