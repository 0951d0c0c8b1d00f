"""``mpiter.tune()`` and `mpiter tune` make real but short trials, and report them."""

from __future__ import annotations

import re
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.__main__ import main

QUICK: dict[str, Any] = {"max_workers": 1, "budget_s": 1.0}
DATA = np.zeros((64, 8), np.float32)


def test_the_result_is_a_table_and_a_choice_from_it() -> None:
    found = mpiter.tune(DATA, 8, max_workers=2, budget_s=2)
    rows = found.table
    assert {0, 1} <= rows.keys() <= {0, 1, 2}
    assert found.n_processes in rows
    assert all(row.batch_s > 0 for row in rows.values())
    assert rows[1].bytes > rows[0].bytes > 0
    lines = str(found).splitlines()
    assert len(lines) == len(found.table) + 2
    assert [line for line in lines if line.endswith("← chosen")] == [
        lines[1 + sorted(rows).index(found.n_processes)]
    ]
    assert lines[-1].startswith(f"n_processes={found.n_processes}: ")


def test_each_batch_goes_through_the_users_step() -> None:
    seen = []
    found = mpiter.tune(
        DATA,
        8,
        step=lambda batch: seen.append(batch.shape),
        max_workers=0,
        budget_s=0.2,
    )
    assert set(seen) == {(8, 8)}
    assert found.n_processes == 0
    assert [*mpiter.tune(DATA, 8, max_workers=0, budget_s=None).table] == [0]


def test_other_arguments_are_those_of_batches() -> None:
    calls = []
    mpiter.tune(
        DATA,
        8,
        **QUICK,
        backend="thread",
        worker_init=lambda info: calls.append(info.id),
    )
    assert set(calls) == {0}
    with pytest.raises(TypeError, match="no argument 'colour'"):
        mpiter.tune(DATA, 8, **QUICK, colour=1)


# -- what is refused -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:there is no batch in an epoch")
def test_what_makes_no_sense_is_refused() -> None:
    for options, says in (
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"dataset": []}, "is empty or has no len"),
        ({"dataset": iter(DATA)}, "is empty or has no len"),
        ({"batch_size": 65, "drop_last": True}, "no batch comes: drop_last"),
        ({"n_processes": 3}, "n_processes is set by tune"),
        ({"epochs": 3}, "epochs is set by tune"),
    ):
        with pytest.raises(mpiter.OptionError, match=says):
            mpiter.tune(**{"dataset": DATA, "batch_size": 8} | options)


# -- the command -----------------------------------------------------------------------

MINE = """
class Own:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return index

import mpiter

class BadInWorkers(Own):
    def __getitem__(self, index):
        if mpiter.get_worker_info() is not None:
            raise ValueError("no such image")
        return index

class Broken:
    def __init__(self, root=""):
        len(3)

class Needs(Own):
    def __init__(self, root): ...
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_tune.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mine_to_tune", raising=False)


def tuned_by_command(*words: str) -> int:
    return main(
        ["tune", *words, "--max-workers", "1", "--budget", "1", "--batch-size", "8"]
    )


@pytest.mark.usefixtures("mine")
def test_the_command_shows_the_trials_the_table_and_the_choice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tuned_by_command("mine_to_tune:Own") == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "1 workers: " in err
    assert lines[0].startswith("workers  seconds a batch")
    assert lines[-1].startswith("n_processes=")
    assert max(map(len, lines[:-1])) <= 80


@pytest.mark.usefixtures("mine")
def test_what_is_asked_wrongly_is_told_with_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, says in (
        ("elephants", "write module:name"),
        ("mine_to_tune", "mine_to_tune is a module: write mine_to_tune:NAME"),
        ("mine_to_tune.py", "is a file: write mine_to_tune:dataset"),
        ("./data/mine_to_tune.py:Own", "is a file: write data.mine_to_tune:Own"),
        ("nowhere:Own", "No module named 'nowhere'"),
        ("mine_to_tune:Onw", "has no attribute 'Onw'"),
        ("mine_to_tune:Needs", "name a function of no arguments"),
    ):
        assert tuned_by_command(name) == 2
        assert says in capsys.readouterr().err


@pytest.mark.usefixtures("mine")
def test_what_the_dataset_raises_is_told_with_its_line() -> None:
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        tuned_by_command("mine_to_tune:Broken")
    with pytest.raises(ValueError, match="no such image") as raised:
        tuned_by_command("mine_to_tune:BadInWorkers")
    assert re.search(
        r"mine_to_tune.py\W+line 13, in __getitem__",
        "".join(traceback.format_exception(raised.value)),
    )
