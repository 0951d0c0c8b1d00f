"""The programs of the README and the tutorial are interrupted and go on, as their pages say."""

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
ROOT = Path(__file__).resolve().parents[2]
STEPS = {  # where a program's step begins, in its page
    "README.md": "            error = model",
    "docs/tutorial.md": "                right, seen = right + train_step(",
}
PLACES = {"README.md": 150, "docs/tutorial.md": 17}


def program(page: str, interrupted_at: int | None = None, workers: int = 2) -> str:
    """The program of a page, without torch; with ``interrupted_at``, Ctrl-C comes within that step."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    if page == "docs/tutorial.md":
        blocks = blocks[: 1 + next(at for at, block in enumerate(blocks) if "\ntrain(epochs=4)\n" in block)]
    text, step = "\n".join(blocks), STEPS[page]
    assert text.count(step) == 1
    text = text.replace("workers=2", f"workers={workers}").replace("time.sleep(0.03)", "time.sleep(0)")
    indent = step[: len(step) - len(step.lstrip())]
    ctrl_c = f"{indent}if c.finished == {interrupted_at}:\n{indent}    signal.raise_signal(signal.SIGINT)\n"
    return "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n" + text.replace(
        step, ctrl_c + step
    )


def ran(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-W", "error", "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)


def model_in(folder: Path) -> Any:
    return mpiter.Checkpoint.read(folder / "run.npz")["model"]


@pytest.mark.slow
@pytest.mark.parametrize("page", STEPS)
def test_an_interrupted_training_ends_with_the_model_of_one_that_was_not(tmp_path: Path, page: str) -> None:
    done = ran(program(page), tmp_path / "whole")
    assert (done.returncode, done.stderr) == (0, "")
    broken_off = ran(program(page, interrupted_at=PLACES[page]), tmp_path / "broken")
    assert broken_off.returncode != 0
    assert broken_off.stderr.rstrip().endswith("KeyboardInterrupt")
    rest = ran(program(page, workers=1), tmp_path / "broken")
    assert (rest.returncode, rest.stderr) == (0, "")
    found, wanted = model_in(tmp_path / "broken"), model_in(tmp_path / "whole")
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
