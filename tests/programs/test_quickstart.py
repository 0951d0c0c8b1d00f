"""The quickstart's program is interrupted and goes on, as its page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiter

pytest.importorskip("PIL", reason="Pillow is not installed: run `python3 tests`")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
STEP = "                right, seen = right + train_step("
EPOCHS, STEPS = 4, 12


def program(interrupted_at: int | None = None, workers: int = 2) -> str:
    """That of the page, without torch; a Ctrl-C comes within a step."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    text = "\n".join(block for block in blocks if "import torch\n" not in block)
    assert text.count(STEP) == 1
    assert f"\ntrain(epochs={EPOCHS})\n" in text
    text = text.replace(f"\ntrain(epochs={EPOCHS})\n", f"\ntrain({EPOCHS}, workers={workers})\n")
    ctrl_c = (
        f"                if c.finished == {interrupted_at}:\n                    signal.raise_signal(signal.SIGINT)\n"
    )
    return "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + text.replace(
        STEP, ctrl_c + STEP
    )


def ran(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-W", "error", "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def model_in(folder: Path) -> Any:
    return mpiter.Checkpoint.read(folder / "run.npz")["model"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    done = ran(program(), folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[EPOCHS].startswith(f"epoch {EPOCHS}: ")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 17, EPOCHS * STEPS - 1])
def test_an_interrupted_training_ends_with_the_model_of_one_that_was_not(
    whole: Path, tmp_path: Path, step: int
) -> None:
    broken_off = ran(program(interrupted_at=step), tmp_path)
    assert broken_off.returncode != 0
    assert broken_off.stderr.rstrip().endswith("KeyboardInterrupt")
    rest = ran(program(workers=1), tmp_path)
    assert (rest.returncode, rest.stderr) == (0, "")
    wanted, found = model_in(whole), model_in(tmp_path)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
