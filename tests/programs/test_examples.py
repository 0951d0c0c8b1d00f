"""The examples run, and say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAID = {
    "many_trainers.py": "4 trainers, 0 workers each … 2000 samples of 2000, each exactly once",
    "resume_after_kill.py": "50 steps, identical to those of a trainer that wasn't killed",
    "resume_training.py": "interrupted in step 24, 16 steps after that: identical to",
    "stream.py": "resumed with 3 workers: 22 batches, identical",
}
OF_TORCH = ("resume_training.py",)


def cases():
    for name in SAID:
        yield pytest.param(name, marks=[pytest.mark.torch] if name in OF_TORCH else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(cases()))
def test_an_example_runs(name, tmp_path):
    if name in OF_TORCH:
        pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    workers = ["--workers=0"] if name == "many_trainers.py" else []
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *workers]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, [line for line in ran.stderr.splitlines() if not line.startswith("mpiter: ")]) == (0, [])
    assert all(words in ran.stdout for words in SAID[name].split(" … "))


def test_every_example_is_run():
    of_demo = {"__main__.py", "demo.py", "interrupted.py", "meters.py", "pictures.py"}
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - of_demo
    assert scripts == set(SAID)
