"""The examples run, and say what they should."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mpiter
from mpiter import echo, images, staging
from mpiter.images import pack
from mpiter.images.dataset import Pictures

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
has_torch = bool(importlib.util.find_spec("torch"))
SAID = {
    "echo.py": "twice, augmented anew: 480 samples fetched, 60 steps",
    "image_folder.py": "108 in batches, 12 left out; the first of these:",
    "many_trainers.py": "8 trainers, … 2000 samples of 2000, each exactly once",
    "packed_folder.py": "2000 pictures, the same pixels in the same order",
    "numpy_training.py": r": w = [-0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], waited",
    "resume_after_kill.py": "50 steps, identical to those of a trainer that nobody killed",
    "resume_training.py": "interrupted in step 24, 16 steps after that: identical to",
    "slow_store.py": "epoch 3: 100% of 120 samples were local … half of it: 120 samples in an order that has 8",
    "stream.py": "resumed with 3 workers: 22 batches, identical",
    "torch_training.py": "the loader's place is in torch_training.json",
}


OF_TORCH = ("resume_training.py", "torch_training.py")


def cases():
    for name in SAID:
        yield pytest.param(name, marks=[pytest.mark.torch] if name in (*OF_TORCH, "numpy_training.py") else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(cases()))
def test_an_example_runs(name, tmp_path):
    if name in OF_TORCH:
        pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (ran.returncode, [line for line in ran.stderr.splitlines() if not line.startswith("mpiter: ")]) == (0, [])
    said = ran.stdout.replace("[0.0", "[-0.0")
    assert all(words in said for words in SAID[name].split(" … "))


@pytest.mark.slow
def test_many_trainers_have_four_workers_each(tmp_path):
    """The scene of the article that the design comes from: eight trainers, four workers each."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / "many_trainers.py"), "--workers=4"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "8 trainers, 4 workers each" in ran.stdout
    assert "2000 samples of 2000, each exactly once" in ran.stdout


def test_every_example_is_run():
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"__main__.py", "demo.py", "meters.py", "pictures.py"}
    assert scripts == set(SAID)


# -- options ---------------------------------------------------------------------------------------------------------

NOT_OPTIONS = {images.BadArchive, images.BrokenImage, images.Region, staging.StagingStats}  # nobody makes these
WITH_OPTIONS = [
    cls
    for cls in (mpiter.Skip, *(getattr(wing, name) for wing in (echo, images, staging) for name in wing.__all__))
    if cls not in NOT_OPTIONS
]


def calls(name: str) -> list[ast.Call]:
    """Of a class, in the programs that run."""
    trees = (ast.walk(ast.parse((EXAMPLES / file).read_text())) for file in SAID)
    found = [node for nodes in trees for node in nodes if isinstance(node, ast.Call)]
    return [call for call in found if getattr(call.func, "id", getattr(call.func, "attr", "")) == name]


def options_of(cls: Any) -> list[str]:
    """What may be said at construction, in order; what ``**options`` stands for among it."""
    own = list(inspect.signature(cls).parameters.values())
    if own[-1].kind is own[-1].VAR_KEYWORD:
        more = inspect.signature(Pictures).parameters.values()
        own[-1:] = [one for one in more if one.kind is one.KEYWORD_ONLY]
    return [one.name for one in own]


def said_in(call: ast.Call, options: list[str]) -> set[str]:
    return {*options[: len(call.args)], *(keyword.arg or "" for keyword in call.keywords)}


@pytest.mark.parametrize("cls", WITH_OPTIONS, ids=lambda cls: cls.__name__)
def test_every_option_is_in_an_example(cls):
    options = options_of(cls)
    shared = (images.ImageFolder, images.ImageList, images.PackedFolder)  # which pass theirs on to the same place
    names = [each.__name__ for each in (shared if cls in shared else (cls,))]
    said = [said_in(call, options if name == cls.__name__ else []) for name in names for call in calls(name)]
    assert set(options) <= set().union(*said)


def test_every_option_of_packing_is_in_an_example():
    parser = argparse.ArgumentParser()
    pack.add_to(parser.add_subparsers())
    (packing,) = parser._subparsers._group_actions[0].choices.values()
    options = {string for action in packing._actions for string in action.option_strings} - {"-h", "--help"}
    program = ast.walk(ast.parse((EXAMPLES / "packed_folder.py").read_text()))
    assert {"pack", *options} <= {node.value for node in program if isinstance(node, ast.Constant)}
