"""The benchmark of resuming: ours goes through its scenes, a planted fault is found, and what others do is told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from loaders import NO_TORCH
from resume import verdicts
from resume_loaders import Seat, keys_of
from resume_scenes import KILLED, SCENES, Found, faults_of
from resume_sitting import LENGTH, LOST, SAVE_EVERY, TWICE, newest, said_by, save

ROOT = Path(__file__).resolve().parents[2]
GOOD = Found("ours", "trainer", 0, is_over=True, is_sound=True)


def ran(*options):
    command = [sys.executable, ROOT / "bench" / "resume.py", "--rows", "ours", "--rounds", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


@pytest.mark.slow
def test_ours_goes_on_with_other_ranks_and_loses_nothing(tmp_path):
    done = ran("--scenes", "ranks", "--out", tmp_path / "out.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ranks: ours: exact" in done.stdout
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["found"][0]["audit"][0] == "6 logs: 1 rank, then 3 ranks, then 2 ranks"
    assert "each of 288 samples exactly once" in told["found"][0]["audit"][1]
    assert [verdict["says"] for verdict in told["verdicts"]] == ["PASS"]


def test_a_sample_that_is_lost_is_found():
    done = ran("--scenes", "trainer", "--plant", LOST)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "trainer: ours: 1 lost" in done.stdout
    assert "FAIL" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        "ours",
        "ours, DataLoader",
        pytest.param("ours, torch", marks=pytest.mark.skipif(not find_spec("torch"), reason=NO_TORCH)),
    ],
)
@pytest.mark.parametrize("scene", ["worker", "again", "workers", "batches"])
def test_ours_loses_nothing(row, scene):
    done = ran("--rows", row, "--scenes", scene)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{scene}: {row}: exact" in done.stdout


@pytest.mark.slow
def test_a_sample_that_comes_twice_is_found():
    done = ran("--scenes", "trainer", "--plant", TWICE)
    assert done.returncode == 1
    assert "trainer: ours: 1 twice" in done.stdout


@pytest.mark.parametrize(
    ("worse", "says"),
    [
        ({}, "exact"),
        ({"lost": 2, "is_sound": False}, "2 lost"),
        ({"lost": 2, "twice": 1, "is_sound": False}, "2 lost, 1 twice"),
        ({"is_sound": False}, "not sound"),
        ({"faults": ["RuntimeError: gone"]}, "RuntimeError: gone; then exact"),
        ({"faults": ["ValueError: no"], "is_refused": True}, "does not resume: ValueError: no"),
        ({"why": "absent: no module"}, "absent: no module"),
    ],
)
def test_each_thing_that_is_wrong_is_told_and_fails(worse, says):
    found = replace(GOOD, **({"is_over": False} if "why" in worse else {}), **worse)
    assert str(found) == says

    class Asked:
        scenes, rows, rounds = ("trainer",), ("ours", "torchdata"), 1

    (verdict,) = verdicts(Asked, [found])
    assert verdict.failed == bool(worse)


def test_steps_divide_evenly_in_every_scene():
    for scene in SCENES.values():
        left = LENGTH
        for sitting in scene.sittings:
            per_worker = left / (sitting.ranks * sitting.workers)
            assert per_worker % sitting.batch == 0
            left -= sitting.ranks * sitting.batch * (sitting.steps - sitting.steps % SAVE_EVERY)


def test_who_waits_for_a_rank_in_vain_is_not_at_fault():
    late = {"error": "gave no answer within 60 s"}
    assert faults_of([{"raised": "ValueError: no", "steps": 0}, late], [False, True]) == ["ValueError: no"]
    assert faults_of([late, {"steps": 4}], [False, False]) == ["gave no answer within 60 s"]
    assert faults_of([{"error": KILLED}], [True]) == []
    assert faults_of([{"error": KILLED}], [False]) == [KILLED]


def test_a_state_is_a_ranks_own_where_there_are_as_many(tmp_path):
    seats = {(rank, size): Seat(tmp_path, LENGTH, rank, size, 2, 4, 0) for rank, size in ((0, 3), (1, 3), (1, 2))}
    assert newest(seats[1, 3], 0) is None
    for rank in (0, 1):
        save(seats[rank, 3], 0, {"state": rank})
    assert newest(seats[1, 3], 1)["state"] == 1
    assert newest(seats[1, 2], 1)["state"] == 0
    assert newest(seats[1, 2], 0) is None, "its own sitting's are no past"


def test_an_error_is_told_in_a_line():
    assert said_by(AssertionError()) == "AssertionError"
    assert said_by(RuntimeError("worker (pid(s) 17, 4) exited\nmore")) == "RuntimeError: worker exited"
    assert said_by(IndexError("Caught IndexError in worker\n  File\nIndexError: no")) == "IndexError: no"


def test_a_batch_is_a_list_of_numbers():
    import numpy as np

    assert keys_of(np.arange(3)) == keys_of((0, 1, 2)) == [0, 1, 2]
