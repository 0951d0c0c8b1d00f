"""The examples run, and say what they should."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAID = {
    "language_model.py": (
        "the same losses in 12 digits … each of 180,000 letters came once"
    ),
    "many_trainers.py": (
        "4 trainers, 0 workers each … 2000 samples of 2000, each exactly once"
    ),
    "resume_after_kill.py": (
        "50 steps, identical to those of a trainer that wasn't killed"
    ),
    "resume_training.py": "interrupted in step 24, 16 steps after that: identical to",
    "stream.py": "resumed with 3 workers: 22 batches, identical",
}
OF_TORCH = ("resume_training.py",)


def cases():
    for name in SAID:
        marks = [pytest.mark.torch] if name in OF_TORCH else []
        yield pytest.param(name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(cases()))
def test_an_example_runs(name, tmp_path):
    if name in OF_TORCH:
        pytest.importorskip(
            "torch", reason="torch is not installed: run `python3 tests --all`"
        )
    workers = ["--workers=0"] if name == "many_trainers.py" else []
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *workers]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    said = ran.stderr.splitlines()
    unexpected = [line for line in said if not line.startswith("mpiter: ")]
    assert (ran.returncode, unexpected) == (0, [])
    assert all(words in ran.stdout for words in SAID[name].split(" … "))


def test_every_example_is_run():
    of_demo = {
        "__main__.py",
        "demo.py",
        "interrupted.py",
        "meters.py",
        "pictures.py",
        "with_torch.py",
    }
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - of_demo
    assert scripts == set(SAID)


def callers_torch(
    folder: Path | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], str]:
    """Return what the demo finds where Python has no packages but ``folder``'s."""
    # The script puts a folder on sys.path. As monkeypatch has noted the path before,
    # it puts that back as well.
    monkeypatch.syspath_prepend(str(EXAMPLES))
    find = runpy.run_path(str(EXAMPLES / "__main__.py"))["callers_torch"]
    path = [place for place in sys.path if not place.endswith("-packages")]
    if folder:
        path.insert(0, str(folder))
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return find()


def with_a_torch(folder: Path, version: str) -> Path:
    """A folder of packages with a torch that mustn't be imported."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / f"torch-{version}.dist-info").mkdir()
    (folder / f"torch-{version}.dist-info" / "METADATA").write_text(
        f"Name: torch\nVersion: {version}\n"
    )
    return folder


def test_the_demo_takes_the_torch_of_the_python_that_runs_it_or_says_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = with_a_torch(tmp_path / "site-packages", "2.6.0+cpu")
    assert callers_torch(mine, monkeypatch) == ([str(mine)], "")
    old = with_a_torch(tmp_path / "old" / "site-packages", "1.13.1")
    folders, lacks = callers_torch(old, monkeypatch)
    assert folders == []
    remedy = "`python3 examples --torch` installs one"
    assert f"has torch 1.13.1, older than 2.6: {remedy}" in lacks
    folders, lacks = callers_torch(None, monkeypatch)
    assert folders == []
    assert f"has no torch: {remedy}" in lacks
