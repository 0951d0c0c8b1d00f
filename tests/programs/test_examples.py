"""The examples run, and say what they should."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
has_torch = bool(importlib.util.find_spec("torch"))
SAID = {
    "echo.py": "twice: 720 fresh samples, 90 steps",
    "image_folder.py": "108 in batches, 12 left out; the first of these:",
    "numpy_training.py": r": w = [-0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], waited",
    "resume_after_kill.py": "50 steps, identical to those of a trainer that nobody killed",
    "slow_store.py": "epoch 3: 100% of 120 samples were local",
    "stream.py": "resumed with 3 workers: 22 batches, identical",
    "torch_training.py": "the loader's place is in torch_training.json",
}


def cases():
    for name in SAID:
        yield pytest.param(
            name, marks=[pytest.mark.torch] if name in ("torch_training.py", "numpy_training.py") else []
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", list(cases()))
def test_an_example_runs(name, tmp_path):
    if name == "torch_training.py":
        pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert SAID[name] in ran.stdout.replace("[0.0", "[-0.0")


def test_every_example_is_run():
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"__main__.py", "demo.py", "meters.py", "pictures.py"}
    assert scripts == set(SAID)
