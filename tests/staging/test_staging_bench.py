"""The benchmark of staging: its store is as slow as it says, its requirements fail by themselves, and it runs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from slow_store import BYTES_PER_S, LATENCY_S, SIZE, Checked, Remote, content, serving
from staging import ALL, BENCH, FIRST, FOLDER, KILLED, MEMORY, NONE, OFF, OVER, SHARES, WARM, WRONG

from mpiter.lab.spreads import spread
from mpiter.lab.verdict import judge

ROOT = Path(__file__).resolve().parents[2]


def test_the_store_is_slow_and_says_the_truth():
    with serving() as port:
        remote = Remote(port, 4)
        began = time.monotonic()
        assert [remote.fetch(index) for index in (0, 3, 0)] == [content(0), content(3), content(0)]
        assert time.monotonic() - began >= 3 * (LATENCY_S + SIZE / BYTES_PER_S), (
            "never faster, however fast the machine"
        )
        remote.close()
        checked = Checked(port, 4)
        assert checked[2] == (2, True)
        checked.close()


GOOD = {
    (ALL, NONE): {WARM: 80, FIRST: 80},
    (ALL, FOLDER): {WARM: 800, FIRST: 200, OFF: 0, OVER: 0},
    (ALL, MEMORY): {WARM: 900, FIRST: 200, OFF: 0},
    **{(case, row): {OFF: 0.01, OVER: 0} for case in SHARES for row in (FOLDER, MEMORY)},
    (KILLED, FOLDER): {WRONG: 0, OVER: 0},
}


def failing(worse):
    figures = {
        key: {name: spread([value] * 5) for name, value in (GOOD[key] | worse.get(key, {})).items()} for key in GOOD
    }
    return [claim.text for claim in BENCH.claims(figures) if judge(claim, 5).failed]


@pytest.mark.parametrize(
    ("worse", "texts"),
    [
        ({}, []),
        ({(ALL, FOLDER): {WARM: 399}}, ["all: warm, folder >= 5 x none"]),
        ({(ALL, MEMORY): {FIRST: 79}}, ["all: first epoch, memory >= 1 x none"]),
        ({("half", FOLDER): {OFF: 0.021}}, ["half: hits of folder off by <= 0.02"]),
        ({("quarter", FOLDER): {OVER: 1}}, ["quarter: bytes beyond the bound <= 0"]),
        ({(KILLED, FOLDER): {WRONG: 1}}, ["killed: samples that are not the store's <= 0"]),
    ],
)
def test_each_requirement_fails_by_itself(worse, texts):
    assert failing(worse) == texts


@pytest.mark.slow
def test_a_short_round_of_the_benchmark_runs(tmp_path):
    command = [sys.executable, ROOT / "bench" / "staging.py", "--quick", "--samples", "64"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "PROBLEM" not in ran.stdout
    assert "must  half: hits of folder off by <= 0.02" in ran.stdout
