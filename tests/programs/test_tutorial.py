"""The trainings of the README and of the tutorial are interrupted and resume, as their pages say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiter

ROOT = Path(__file__).resolve().parents[2]
SIGNALS = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
EPOCHS, STEPS = 4, 12  # of the tutorial
OF_TUTORIAL = "                right, seen = right + train_step("
OF_README = "            loss.backward()"


def with_ctrl_c(page: Path, before: str, interrupted_at: int | None) -> str:
    """The page's program, in which a Ctrl-C comes within a step, before the line that begins so."""
    text = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    assert text.count(before) == 1
    margin = " " * (len(before) - len(before.lstrip()))
    ctrl_c = f"{margin}if c.finished == {interrupted_at}:\n{margin}    signal.raise_signal(signal.SIGINT)\n"
    return SIGNALS + text.replace(before, ctrl_c + before)


def tutorial(interrupted_at: int | None = None, workers: int = 2) -> str:
    text = with_ctrl_c(ROOT / "docs" / "tutorial.md", OF_TUTORIAL, interrupted_at)
    assert f"\ntrain(epochs={EPOCHS})\n" in text
    return text.replace(f"\ntrain(epochs={EPOCHS})\n", f"\ntrain({EPOCHS}, workers={workers})\n")


def readme(interrupted_at: int | None = None, workers: int = 2) -> str:
    text = with_ctrl_c(ROOT / "README.md", OF_README, interrupted_at)
    return text.replace("num_workers=2", f"num_workers={workers}")


def ran(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-W", "error", "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def model_in(folder: Path) -> Any:
    return mpiter.Checkpoint.read(folder / "run.npz")["model"]


def interrupted_and_resumed(broken: str, whole: str, folder: Path) -> Any:
    """The model in the end."""
    broken_off = ran(broken, folder)
    assert broken_off.returncode != 0
    assert broken_off.stderr.rstrip().endswith("KeyboardInterrupt")
    rest = ran(whole, folder)
    assert (rest.returncode, rest.stderr) == (0, "")
    return model_in(folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model of the tutorial's training without an interruption."""
    pytest.importorskip("PIL", reason="Pillow is not installed: run `python3 tests`")
    folder = tmp_path_factory.mktemp("whole")
    done = ran(tutorial(), folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[EPOCHS].startswith(f"epoch {EPOCHS}: ")
    return model_in(folder)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 17, EPOCHS * STEPS - 1])
def test_the_interrupted_tutorial_ends_with_the_model_of_one_that_was_not(
    undisturbed: Any, tmp_path: Path, step: int
) -> None:
    found = interrupted_and_resumed(tutorial(step), tutorial(workers=1), tmp_path)
    assert all(np.array_equal(found[name], undisturbed[name]) for name in undisturbed)


@pytest.mark.torch
def test_the_interrupted_readme_ends_with_the_model_of_one_that_was_not(tmp_path: Path) -> None:
    if not importlib.util.find_spec("torch"):
        pytest.skip("torch is not installed: run `python3 tests --all`")
    done = ran(readme(), tmp_path / "whole")
    assert (done.returncode, done.stderr) == (0, "")
    wanted = model_in(tmp_path / "whole")
    found = interrupted_and_resumed(readme(237), readme(workers=1), tmp_path / "broken")
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
