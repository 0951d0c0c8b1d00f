"""``mpiter.tune()`` and `mpiter tune`: real trials, short ones; what is kept; what is said."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pairs import slow_but

import mpiter
from mpiter.__main__ import main
from mpiter.engine.pilot import Setting
from mpiter.tuning.cache import key_of
from mpiter.tuning.chart import bars
from mpiter.tuning.measuring import Loading, apart
from mpiter.tuning.trials import Row
from mpiter.tuning.tune import Tuned

QUICK: dict[str, Any] = {"max_workers": 1, "budget_s": 1.0}
DATA = np.zeros((64, 8), np.float32)


class Opened:
    """Opens its file on first use, as is recommended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if self.file is None:
            self.file = open(self.path)  # noqa: SIM115  # for as long as the dataset lives
        self.file.seek(0)
        return len(self.file.read())

    def __del__(self) -> None:
        if self.file is not None:
            self.file.close()


class Part:
    """A dataset over another one."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def __len__(self) -> int:
        return len(self.whole) // 2

    def __getitem__(self, index: int) -> Any:
        return self.whole[index]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mpiter"


def test_the_result_is_a_table_and_a_choice_from_it() -> None:
    found = mpiter.tune(DATA, 8, max_workers=2, budget_s=3)
    rows = {row.workers: row for row in found.table}
    assert {0, 1} <= rows.keys() <= {0, 1, 2}
    assert found.n_processes in rows
    assert found.n_prefetch == 2
    assert all(row.seconds > 0 and row.trials >= 1 for row in found.table)
    if sys.platform == "linux":
        assert rows[1].bytes > rows[0].bytes > 0
    lines = str(found).splitlines()
    assert len(lines) == len(found.table) + 2
    assert [line for line in lines if line.endswith("← chosen")] == [lines[1 + sorted(rows).index(found.n_processes)]]
    assert lines[-1].startswith(f"n_processes={found.n_processes}, n_prefetch=2: ")


def test_the_tuners_seconds_are_of_all_its_batches() -> None:
    found = mpiter.tune(DATA, 8, method="nwt", max_workers=1, iterations=7, cache=False)
    assert [row.workers for row in found.table] == [0, 1]
    assert found.batches == 7
    assert "seconds for 7 batches" in str(found)
    assert found.n_processes == 0  # there is no half second to save


def test_each_batch_goes_through_the_users_step() -> None:
    seen = []
    found = mpiter.tune(DATA, 8, step=lambda batch: seen.append(batch.shape), max_workers=0, budget_s=1, cache=False)
    assert set(seen) == {(8, 8)}
    assert found.n_processes == 0


@pytest.mark.torch
@pytest.mark.parametrize("method", ["bracket", "nwt"])
def test_batches_go_to_the_device_before_the_step(method: Any) -> None:
    torch = pytest.importorskip("torch")
    seen = []
    options = {"method": method, "max_workers": 0, "budget_s": 1, "iterations": 2, "cache": False}
    mpiter.tune(DATA, 8, step=lambda batch: seen.append(batch), device="cpu", **options)
    assert {(type(batch), batch.device) for batch in seen} == {(torch.Tensor, torch.device("cpu"))}


def test_without_torch_imported_nothing_is_copied_to_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert Loading(DATA, 8, {}).device is None


@pytest.mark.parametrize(("is_there", "device"), [(True, "cuda"), (False, None)])
def test_where_torch_sees_a_gpu_batches_are_copied_there(
    monkeypatch: pytest.MonkeyPatch, is_there: bool, device: str | None
) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: is_there))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert Loading(DATA, 8, {}).device == device
    assert Loading(DATA, 8, {}, device=None).device is None


def test_other_arguments_are_those_of_batches() -> None:
    calls = []
    mpiter.tune(DATA, 8, **QUICK, cache=False, backend="thread", worker_init=lambda info: calls.append(info.id))
    assert set(calls) == {0}
    with pytest.raises(TypeError, match="there is no argument 'colour'"):
        mpiter.tune(DATA, 8, **QUICK, cache=False, colour=1)


def test_what_0_workers_open_is_opened_in_a_copy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("four")
    dataset = Part(Opened(tmp_path / "file"))
    found = mpiter.tune(dataset, 4, **QUICK)
    assert [row.workers for row in found.table] == [0, 1]
    assert dataset.whole.file is None


def test_copies_share_the_arrays() -> None:
    dataset = Part(Part(DATA))
    twin = apart(dataset)
    assert twin is not dataset
    assert twin.whole is not dataset.whole
    assert twin.whole.whole is DATA


# -- what is kept ----------------------------------------------------------------------------------------------------


def tuned(dataset: Any = DATA, **options: Any) -> tuple[Tuned, int]:
    """The result, and how many trials it took."""
    seen: list[Setting] = []
    found = mpiter.tune(dataset, 8, **QUICK | {"progress": lambda s, t: t and seen.append(s)} | options)
    return found, len(seen)


def test_a_second_time_nothing_is_tried_and_the_result_says_when_it_was_measured(kept: Path) -> None:
    first, tried = tuned()
    again, tried_again = tuned()
    assert tried >= 2
    assert tried_again == 0
    assert (again.table, again.n_processes, again.reason) == (first.table, first.n_processes, first.reason)
    assert f"from the cache, measured on {first.date}" in str(again)
    assert not list(kept.glob(".*"))


@pytest.mark.slow
def test_other_arguments_or_another_dataset_are_another_question() -> None:
    tuned()
    assert tuned(n_prefetch=3)[1] > 0
    assert tuned(shuffle=False)[1] > 0
    assert tuned(Part(DATA))[1] > 0


@pytest.mark.slow
def test_a_cache_of_ones_own_or_none(tmp_path: Path, kept: Path) -> None:
    tuned(cache=False)
    assert not kept.exists()
    assert tuned(cache=tmp_path / "mine")[1] > 0
    assert tuned(cache=str(tmp_path / "mine"))[1] == 0
    assert not kept.exists()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"KEY": 1}', '{"KEY": {"table": [{"workers": 1}]}}', "\x00\xff"])
def test_a_damaged_file_is_as_none(kept: Path, damage: str) -> None:
    tuned()
    (file,) = kept.iterdir()
    (key,) = json.loads(file.read_text())
    file.write_bytes(damage.replace("KEY", key).encode("latin1"))
    assert tuned()[1] > 0
    assert tuned()[1] == 0


@pytest.mark.slow
def test_where_nothing_can_be_kept_it_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert tuned(cache=tmp_path / "file")[1] > 0
    assert tuned(cache=tmp_path / "file")[1] > 0


def test_the_num_worker_tuners_result_is_taken_for_other_samples_as_large() -> None:
    options = {"method": "nwt", "iterations": 3, "budget_s": None}
    first, _ = tuned(**options)
    other, tried = tuned(Part(DATA), **options)
    assert tried == 0
    assert other.table == first.table
    assert "from the cache, of other data with samples as large" in str(other)
    assert tuned(np.zeros((64, 9)), **options)[1] > 0


def test_the_fingerprint_is_of_code_length_and_plain_values() -> None:
    def made(add: str, length: int = 3) -> Any:
        space: dict[str, Any] = {}
        exec(f"class Own:\n def __len__(self): return {length}\n def __getitem__(self, i): return i + {add}", space)
        return space["Own"]()

    def changed(dataset: Any, **values: Any) -> Any:
        vars(dataset).update(values)
        return dataset

    one = key_of({}, made("1"))
    assert key_of({}, made("1")) == one
    others = [made("2"), made("1", 4), changed(made("1"), size=3), changed(made("1"), data=np.zeros(3))]
    keys = {one, *(key_of({}, other) for other in others), key_of({"batch_size": 2}, made("1"))}
    assert len(keys) == 6
    assert key_of({}, changed(made("1"), data=np.ones(3))) == key_of({}, changed(made("1"), data=np.zeros(3)))


class Dear:
    """A batch of 32 would take 3.2 seconds."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        time.sleep(0.1)
        return index


@pytest.mark.slow
def test_batches_that_would_use_up_the_budget_are_smaller_and_their_time_is_that_of_whole_ones() -> None:
    found = mpiter.tune(Dear(), 32, budget_s=4.0, max_workers=2, cache=False, backend="thread")
    times = {row.workers: row.seconds for row in found.table}
    assert times[0] >= 3.2
    assert {0, 1} <= set(times)
    assert found.n_processes > 0


@dataclass(slots=True)
class Slotted:
    milliseconds: float

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


def _waits(seconds: float) -> Callable[[Any], None]:
    def step(batch: Any, seconds: float = seconds) -> None: ...

    return step


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Slotted(1.0), Slotted(50.0)),
        (partial(max, 1), partial(max, 2)),
        (partial(max, 1), partial(min, 1)),
        (max, min),
        (_waits(0.001), _waits(1.0)),
        (itertools.count(1), itertools.count(2)),
    ],
)
def test_what_differs_inside_has_another_fingerprint(one: Any, other: Any) -> None:
    assert key_of({"step": one}, DATA) != key_of({"step": other}, DATA)


def test_what_is_equal_inside_has_one_fingerprint() -> None:
    assert key_of({"lock": threading.Lock()}, Slotted(1.0)) == key_of({"lock": threading.Lock()}, Slotted(1.0))
    assert key_of({"step": partial(max, 1)}, DATA) == key_of({"step": partial(max, 1)}, DATA)


@pytest.mark.slow
def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert tuned()[1] > 0
    assert tuned()[1] > 0


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    code = """if True:
        from mpiter.tuning.cache import key_of
        class Own:
            kinds = {"a", "b"}
            def __len__(self): return 3
            def __getitem__(self, i): return i in {"red", "green", "blue"}, (lambda: i)
        print(key_of({"step": lambda batch: batch in {"x", "y"}}, Own()))"""
    runs = [
        subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_a_dataset_that_holds_itself_has_a_fingerprint() -> None:
    dataset = Part(DATA)
    dataset.whole = Part(dataset)
    dataset.whole.whole = [1, 2]
    dataset.me = dataset  # type: ignore[attr-defined]
    assert key_of({}, dataset) == key_of({}, dataset)


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "best"}, "method='best' is unknown; use 'bracket' or 'nwt'"),
        ({"n_processes": 2}, "n_processes is what tune() finds; pass max_workers="),
        ({"budget_s": 0}, "budget_s=0 must be a number above 0, or None"),
        ({"max_workers": -1}, "max_workers=-1 must be at least 0"),
        ({"iterations": 0}, "iterations=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"dataset": []}, "the dataset is empty"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_tried(options: dict[str, Any], says: str) -> None:
    with pytest.raises(mpiter.OptionError) as raised:
        mpiter.tune(**{"dataset": DATA, "batch_size": 8, "cache": False} | options)
    assert says in str(raised.value)


# -- the command -----------------------------------------------------------------------------------------------------

MINE = """
class Own:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return index

class Bad(Own):
    def __getitem__(self, index):
        raise ValueError("no such image")

import mpiter

class BadInWorkers(Own):
    def __getitem__(self, index):
        if mpiter.get_worker_info() is not None:
            raise ValueError("no such image")
        return index

ready = [1, 2, 3] * 20
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_to_tune.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mine_to_tune", raising=False)


def tuned_by_command(*words: str) -> int:
    return main(["tune", *words, "--max-workers", "1", "--budget", "1", "--batch-size", "8"])


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("name", slow_but(["Own", "ready"], "Own"))
def test_the_command_shows_the_table_bars_and_the_choice(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert tuned_by_command(f"mine_to_tune:{name}") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("workers  seconds a batch")
    assert any("█" in line for line in lines)
    assert lines[-1].startswith("n_processes=")
    assert max(map(len, lines[:-1])) <= 80


@pytest.mark.slow
def test_what_the_dataset_prints_is_no_part_of_the_json(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(
        "class Own:\n"
        "    def __len__(self): return 64\n"
        "    def __getitem__(self, index):\n"
        "        print('sample', index, flush=True)\n"
        "        return index\n"
    )
    command = [sys.executable, "-m", "mpiter", "tune", "prints:Own", "--json", "--budget", "1", "--max-workers", "1"]
    done = subprocess.run([*command, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["table"]
    assert "sample" in done.stderr


@pytest.mark.usefixtures("mine")
def test_the_command_speaks_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuned_by_command("mine_to_tune:Own", "--json", "--method", "nwt", "--iterations", "5") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["workers"] for row in found["table"]] == [0, 1]
    assert found["method"] == "nwt"


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("kind", slow_but(["svg", "png"], "svg"))
def test_the_command_draws(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    assert tuned_by_command("mine_to_tune:Own", "--plot", f"sub/out.{kind}") == 0
    assert (tmp_path / "sub" / f"out.{kind}").stat().st_size > 1000


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["elephants"], "write module:name"),
        (["nowhere:Own"], "No module named 'nowhere'"),
        (["mine_to_tune:Onw"], "did you mean mine_to_tune:Own?"),
        (["mine_to_tune:Own", "--plot", "out.txt"], "end its name in .svg"),
    ],
)
def test_what_is_asked_wrongly_is_told_with_status_2(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert tuned_by_command(*words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("name", ["Bad", "BadInWorkers"])
def test_what_the_dataset_raises_is_told_with_its_line_and_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    assert tuned_by_command(f"mine_to_tune:{name}") == 1
    line = 10 if name == "Bad" else 17
    said = capsys.readouterr().err
    assert f"mine_to_tune:{name} raised ValueError: no such image\n" in said
    assert f"{tmp_path / 'mine_to_tune.py'}, line {line}, in __getitem__" in said


def test_bars_are_in_proportion_and_the_choice_is_marked() -> None:
    table = [Row(0, 1.0, 100, None, 1, 2), Row(1, 0.5, 300, None, 1, 2)]
    lines = [line for line in bars(table, Setting(1, 2)) if "█" in line]
    assert [part.count("█") for line in lines for part in line.rsplit("   ", 1)] == [30, 10, 15, 30]
    assert [line.startswith("→") for line in lines] == [False, True]


def test_tuning_is_imported_when_it_is_asked_for() -> None:
    code = "import sys, mpiter; print('mpiter.tuning.tune' in sys.modules, mpiter.tune is mpiter.tune)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "True"]
