"""The lab at work: every experiment in its small form, interrupts, turns that fail, a data set of the user's own."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import mpiter
from mpiter.lab.experiments import ALL, EXPERIMENTS
from mpiter.lab.turns import Turn, ask

ROOT = str(Path(mpiter.__file__).parents[1])
LAB = [sys.executable, "-m", "mpiter", "lab"]
pytestmark = pytest.mark.slow  # this Python shows it; the further ones are spared
LIMIT_S = 900  # against hanging: on two idle cores all takes less than five minutes


def environment(**more):
    """Where mpiter is found, and whatever else is to be different."""
    return os.environ | {"PYTHONPATH": ROOT, **more}


def lab(*words, folder, **options):
    return subprocess.run(
        [*LAB, *map(str, words)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        **options,
    )


@pytest.mark.timeout(LIMIT_S)
def test_all_experiments_run_in_their_small_form_and_are_told_in_a_report(tmp_path):
    ran = lab("all", "--small", "--rounds", "1", "--out", "results", "--seed", "5", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    found = {name: json.loads((tmp_path / "results" / f"{name}.json").read_text()) for name in ALL}
    for document in found.values():
        is_complete(document)
    every_row_is_measured_or_absent(found)
    pipes_are_used_by_those_who_use_them(found["overhead"]["rows"])
    the_csv_holds_the_same(tmp_path / "results" / "overhead.csv", found["overhead"]["rows"])
    report = (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in report for name in ALL)
    assert not (tmp_path / "results" / "quick.json").exists()  # `workers` answers its question
    results_are_not_measured_over(tmp_path)
    a_folder_equals_itself(tmp_path)


def is_complete(document):
    assert document["schema"] == "mpiter.lab/1"
    assert document["complete"]
    assert document["problems"] == []
    assert document["settings"]["seed"] == 5
    assert "--seed 5" in document["again"]
    assert {len(figure["values"]) for row in document["rows"] for figure in row["figures"].values()} == {1}


def every_row_is_measured_or_absent(found):
    peers = {row["row"] for row in found["peers"]["rows"]} | set(found["peers"]["absent"])
    assert peers == set(EXPERIMENTS["peers"].FULL["rows"])
    assert all("pip install" in why for why in found["peers"]["absent"].values())
    transports = {row["row"] for row in found["overhead"]["rows"]}
    assert transports == {"slots", "slots, copy", "packed", "pickle", "pickle5", "rawarray"}
    assert {row["row"] for row in found["workers"]["rows"]} == {"process", "thread"}


def pipes_are_used_by_those_who_use_them(rows):
    figures = {(row["row"], row["case"]): row["figures"] for row in rows}
    for payload in ("28x28", "3x64x64"):
        piped = {row: each["piped_mb"]["median"] for (row, case), each in figures.items() if case == payload}
        whole = figures["slots", payload]["payload_mb"]["median"]
        assert max(piped["slots"], piped["rawarray"]) < 0.1 * whole
        assert min(piped["pickle"], piped["pickle5"], piped["packed"]) > 0.5 * whole


def the_csv_holds_the_same(file, rows):
    medians = {(row["row"], row["case"]): row["figures"]["cpu_ms"]["median"] for row in rows}
    with file.open() as lines:
        told = {(e["row"], e["case"]): float(e["median"]) for e in csv.DictReader(lines) if e["figure"] == "cpu_ms"}
    assert told == medians


def results_are_not_measured_over(folder):
    before = (folder / "results" / "hide.json").read_bytes()
    again = lab("hide", "--small", "--out", "results", folder=folder)
    assert again.returncode == 1
    assert "--force" in again.stderr
    assert (folder / "results" / "hide.json").read_bytes() == before


def a_folder_equals_itself(folder):
    same = lab("compare", "results", "results", folder=folder)
    assert same.returncode == 0
    assert "\n0 of " in same.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_experiment_keeps_what_it_has_and_leaves_nobody_behind(tmp_path, number):
    command = [*LAB, "overhead", "--out", "r", "--payloads", "28x28", "--workers", "1", "--seconds", "0.2"]
    with subprocess.Popen(
        [*command, "--rounds", "99"],
        cwd=tmp_path,
        env=environment(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        turns = Turns(process.pid)
        wait_until(lambda: turns.has_begun(2))
        below = turns.below()
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    document = json.loads((tmp_path / "r" / "overhead.json").read_text())
    assert document["complete"] is False
    assert document["ended_by"] == "it was interrupted"
    assert document["rows"]
    assert "single round" in out
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


class Turns:
    """The turns that a driver has begun."""

    def __init__(self, pid):
        self._driver, self._seen = psutil.Process(pid), set()

    def below(self):
        try:
            return self._driver.children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def has_begun(self, count):
        """Have so many begun, and does the last have workers?"""
        found = self.below()
        for child in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.ppid() == self._driver.pid:
                    self._seen.add(child.pid)
        return len(self._seen) >= count and len(found) > 1


def wait_until(condition, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "nothing within a minute"
        time.sleep(0.01)


@pytest.mark.parametrize(("experiment", "turn"), [("overhead", 1), ("speedup", 2)])  # whose workers spin for ever
def test_a_driver_that_is_killed_takes_its_turn_along(tmp_path, experiment, turn):
    command = [*LAB, experiment, "--small", "--out", "r", "--workers", "2", "--seconds", "3", "--rounds", "1"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        turns = Turns(process.pid)
        wait_until(lambda: turns.has_begun(turn))
        below = turns.below()
        process.kill()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive


def test_where_nothing_can_be_kept_nothing_is_measured(tmp_path):
    (tmp_path / "file").write_text("mine")
    ran = lab("overhead", "--small", "--out", "file", folder=tmp_path)
    assert ran.returncode == 1
    assert "nothing can be kept in file" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_folder_where_a_result_should_be_is_found_before_anything_is_measured(tmp_path):
    (tmp_path / "r" / "hide.json").mkdir(parents=True)
    ran = lab("hide", "--small", "--force", "--out", "r", folder=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr == "mpiter: r/hide.json is a folder, where a result should be; name another folder with --out.\n"


@pytest.mark.parametrize("words", ["lab speedup --help", "doctor --help"])
def test_help_is_had_where_not_every_sign_can_be_shown(tmp_path, words):
    command, variables = [sys.executable, "-m", "mpiter", *words.split()], environment(PYTHONIOENCODING="ascii")
    assert b"usage" in subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, check=True).stdout


def test_without_a_place_for_progress_it_is_measured_all_the_same(tmp_path):
    command = [*LAB, "hide", "--small", "--rounds", "1", "--seconds", "0.1", "--most", "1", "--out", "r"]
    closed = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    ran = subprocess.run(closed, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0
    assert ran.stdout.startswith("\nA batch in one process")


def test_images_that_are_not_there_are_said_to_be_missing(tmp_path):
    ran = lab("speedup", "--small", "--images", "nowhere", "--out", "r", folder=tmp_path)
    assert ran.returncode == 1
    assert "nowhere holds no images" in ran.stderr
    assert not list((tmp_path / "r").iterdir())


def test_without_an_image_library_the_experiment_is_absent_and_says_what_to_install(tmp_path):
    for name in ("cv2", "PIL"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    ran = lab("speedup", "--small", "--out", "r", folder=tmp_path)
    assert ran.returncode == 1
    assert "pip install Pillow" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_budget_ends_an_experiment_early_and_says_so(tmp_path):
    ran = lab("overhead", "--out", "r", "--payloads", "28x28", "--minutes", "0.05", "--small", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    document = json.loads((tmp_path / "r" / "overhead.json").read_text())
    assert "budget" in document["ended_by"]
    assert 0 < len(document["turns"]) < 12
    assert "so it will end early" in ran.stderr


OWN = """
import time

class Own:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return self.transform(self.read(index))
    def read(self, index):
        time.sleep(0.001)
        print("a word from a worker", flush=True)
        return [index] * 3
    def transform(self, sample):
        return sum(sample)

class Closed:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return index
"""


def test_a_dataset_of_the_users_own_is_looked_into(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    ran = lab("hide", "--dataset", "mine:Own", "--most", "1", "--small", "--out", "r", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    rows = {row["row"]: row["figures"] for row in json.loads((tmp_path / "r" / "hide.json").read_text())["rows"]}
    assert rows["split"]["read_ms"]["median"] > 32  # 32 samples of a millisecond, and sleeping is never shorter
    assert set(rows) == {"split", "loading", "training"}


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        ("mine:Closed", "mine:Closed has no read"),
        ("mine:Nothing", "cannot be imported"),
        ("elephants", "module:function"),
    ],
)
def test_a_dataset_that_cannot_be_looked_into_is_absent_and_says_why(tmp_path, dataset, why):
    (tmp_path / "mine.py").write_text(OWN)
    ran = lab("hide", "--dataset", dataset, "--most", "1", "--small", "--out", "r", folder=tmp_path)
    assert why in " ".join(ran.stdout.split())
    assert ran.returncode == 1
    assert not list((tmp_path / "r").iterdir())  # what is measured next, with the name put right, has room


ASKS = """
class Own:
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return input("which one? ")
"""


QUICK = """
import time
import numpy as np

class Store:
    def __len__(self):
        return 50
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

class Stuck(Store):
    def __getitem__(self, index):
        time.sleep(600)

columns = np.zeros((50, 3)), np.arange(50)
"""


@pytest.mark.parametrize(
    ("dataset", "advice"), [("Store", "Use n_processes=2: "), ("columns", "says  "), ("Missing", "cannot be imported")]
)
def test_a_quick_look_ends_with_a_sentence_on_one_screen_and_keeps_nothing_unasked(tmp_path, dataset, advice):
    (tmp_path / "mine.py").write_text(QUICK)
    before = sorted(tmp_path.iterdir())
    ran = lab("quick", "--dataset", f"mine:{dataset}", "--small", "--rounds", "3", folder=tmp_path)
    assert advice in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    lines = (ran.stdout + ran.stderr).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert [path for path in tmp_path.iterdir() if path not in before and path.name != "__pycache__"] == []


def test_a_quick_look_is_kept_where_a_folder_is_named_and_names_what_it_has_settled(tmp_path):
    (tmp_path / "mine.py").write_text(QUICK)
    ran = lab("quick", "--dataset", "mine:Store", "--small", "--rounds", "2", "--out", "r", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    document = json.loads((tmp_path / "r" / "quick.json").read_text())
    rows = {(row["row"], row["at"]["workers"]) for row in document["rows"]}
    assert rows == {("plain loop", 0), ("mpiter", 0), ("mpiter", 2)}
    assert "--workers 2" in document["again"]
    assert "--batch-size 32" in document["again"]
    report = lab("report", "r", folder=tmp_path)
    assert report.returncode == 0, report.stderr


def test_a_batch_that_takes_for_ever_is_said_to_leave_no_room_for_advice(tmp_path):
    (tmp_path / "mine.py").write_text(QUICK)
    ran = lab("quick", "--dataset", "mine:Stuck", "--small", "--timeout", "3", folder=tmp_path)
    assert ran.returncode == 1
    assert "two batches take longer. Make batches smaller (--batch-size)" in " ".join(ran.stderr.split())


def test_a_dataset_that_asks_for_input_gets_none_at_once(tmp_path):
    (tmp_path / "mine.py").write_text(ASKS)
    ran = lab("workers", "--dataset", "mine:Own", "--most", "0", "--small", "--out", "r", folder=tmp_path)
    assert "EOFError" in ran.stdout
    assert "nothing is kept" in ran.stdout
    assert ran.returncode == 1


# -- turns -----------------------------------------------------------------------------------------------------------

LEAVES_A_WORKER = """
import os, sys, time
if os.fork() == 0:
    time.sleep(600)
print("a word")
print('{"figures": {"pid": 1.0}}')
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("script", "limit_s", "answer"),
    [
        (LEAVES_A_WORKER, 60, {"figures": {"pid": 1.0}}),
        ("import time; time.sleep(600)", 3, {"error": "gave no answer within 3 s"}),
        ("raise ValueError('no')", 60, {"error": "ended with status 1: ValueError: no"}),
        ("import os; os.kill(os.getpid(), 9)", 60, {"error": "ended with status -9: no message"}),
        ("print('not JSON')", 60, {"error": "ended with status 0: no message"}),
    ],
)
def test_whatever_becomes_of_a_turn_is_an_answer_and_its_session_is_gone(script, limit_s, answer):
    turn = Turn("overhead", "slots", "28x28", {"workers": 1}, 0.1, 0.1, 0)
    found = ask(turn, limit_s, [sys.executable, "-c", script])
    assert {key: found[key] for key in answer} == answer
    assert not [process for process in psutil.Process().children(recursive=True) if "sleep(600)" in str(process)]


def test_an_error_in_a_turn_is_an_answer_with_its_traceback():
    found = ask(Turn("overhead", "no such row", "28x28", {"workers": 1}, 0.1, 0.1, 0), 60)
    assert found["error"] == "KeyError: 'no such row'"
    assert "Traceback" in found["said"]


def test_a_peer_that_is_not_installed_is_absent_with_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "grain.py").write_text("raise ImportError('No module named grain')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = ask(Turn("peers", "grain", "28x28", {"workers": 1}, 0.1, 0.1, 0, {"prefetch": 2}), 60)
    assert found == {"absent": "not installed (No module named grain): pip install grain"}
