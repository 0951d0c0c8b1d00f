"""The programs of the README and the tutorial run as their pages say.

They are interrupted and go on.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mpiter

pytest.importorskip("PIL", reason="Pillow is not installed: run `python3 tests`")
ROOT = Path(__file__).resolve().parents[2]
# The line of each page with which a step of its program begins.
STEPS = {
    "README.md": "            error = model",
    "docs/tutorial.md": "                right, seen = right + train_step(",
}
# The step that is interrupted.
PLACES = {"README.md": 150, "docs/tutorial.md": 17}


def program(page: str, interrupted_at: int | None = None, goes_on: bool = False) -> str:
    """The program of a page; with ``interrupted_at``, Ctrl-C comes within that step.

    One that goes on has another number of workers, and nothing of what the page shows
    after the training.
    """
    step = STEPS[page]
    shown = (ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", shown, re.MULTILINE | re.DOTALL)
    workers = 2
    if goes_on:
        (at,) = (at for at, block in enumerate(blocks) if step in block)
        blocks = blocks[: at + 1]
        workers = 1
    text = "\n".join(blocks)
    text = text.replace("workers=2", f"workers={workers}")
    text = text.replace("time.sleep(0.03)", "time.sleep(0)")
    indent = step[: len(step) - len(step.lstrip())]
    ctrl_c = (
        f"{indent}if c.finished == {interrupted_at}:\n{indent}    "
        "signal.raise_signal(signal.SIGINT)\n"
    )
    before = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return before + text.replace(step, ctrl_c + step)


def ran(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-W", "error", "train.py"]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("page", STEPS)
def test_an_interrupted_training_ends_with_the_model_of_one_that_was_not(
    tmp_path: Path, page: str
) -> None:
    done = ran(program(page), tmp_path / "whole")
    assert (done.returncode, done.stderr) == (0, "")
    broken_off = ran(program(page, interrupted_at=PLACES[page]), tmp_path / "broken")
    assert broken_off.returncode != 0
    assert broken_off.stderr.rstrip().endswith("KeyboardInterrupt")
    rest = ran(program(page, goes_on=True), tmp_path / "broken")
    assert rest.returncode == 0
    assert re.fullmatch(
        r"mpiter: continues from .*run\.npz: epoch \d+, \d+ steps finished\n",
        rest.stderr,
    )
    found, wanted = (
        mpiter.Checkpoint.read(tmp_path / run / "run.npz")["model"]
        for run in ("broken", "whole")
    )
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
