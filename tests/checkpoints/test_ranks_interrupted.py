"""Ranks are interrupted at planned places, and resumed by as many, fewer or more.

This is a short part of the experiment in `bench/interruptions.py`, which says what is
counted, and how.  All of it must be nought.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import with_torch

pytestmark = [*with_torch, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).resolve().parents[2] / "bench" / "interruptions.py"
# With this seed four trainings have each signal, each place and each way of resuming.
ASKED = ["--rows", "mpiter", "--trainings", "4", "--under-torchrun", "1", "--seed", "2"]

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("interrupted")
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *ASKED, "--out", "found.json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    told: Found = json.loads((folder / "found.json").read_text())
    return told


def problems_of(found: Found, *names: str) -> dict[str, int]:
    """Return the problems of these names that were found, and print their words."""
    ours = found["rows"]["mpiter"]
    for one in ours["words"]:
        print(one["chain"], *one["words"], sep="\n")
    return {name: ours["problems"][name] for name in names if ours["problems"][name]}


def cells(matrix: Found) -> Iterator[tuple[str, str, str]]:
    """Yield signal, place, and by how many was resumed, of each interruption.

    They are those of two and of three ranks.
    """
    for ranks in ("2 ranks", "3 ranks"):
        for signal, places in matrix[ranks].items():
            for place, resumed in places.items():
                for by in resumed:
                    yield signal, place, by


def test_all_signals_come_at_all_places(found: Found) -> None:
    ours = found["rows"]["mpiter"]
    signals, places, resumed = map(set, zip(*cells(ours["matrix"]), strict=True))
    assert (len(signals), len(places), len(resumed)) == (5, 7, 3)
    assert ours["interruptions"] >= 14
    assert ours["missed"] == 0


def test_ranks_begin_and_end_alike(found: Found) -> None:
    assert not problems_of(found, "unequal_starts", "unequal_ends")


def test_each_sample_is_learnt_once_an_epoch_and_each_validation_counts_once(
    found: Found,
) -> None:
    assert not problems_of(found, "lost", "twice", "tails")


def test_as_many_ranks_end_to_the_last_bit_as_if_nobody_had_interrupted_them(
    found: Found,
) -> None:
    assert not problems_of(found, "bits")


def test_a_signal_that_can_be_heard_loses_no_step_and_a_kill_few(found: Found) -> None:
    assert not problems_of(found, "lost_steps")
    every = found["settings"]["every_steps"]
    for steps in found["rows"]["mpiter"]["redone"].values():
        assert steps["most"] <= 2 * every


def test_no_rank_hangs_or_aborts_or_is_refused(found: Found) -> None:
    assert not problems_of(found, "raised", "hung", "forced", "aborted")


def test_all_this_holds_under_torchs_launcher(found: Found) -> None:
    under = found["torchrun"]
    assert under["sound"] == under["interruptions"] == 1, under["words"]
