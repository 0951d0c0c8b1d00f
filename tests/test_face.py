"""What one meets first: the names of `mpiter`, what things say of themselves, arguments under other names."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from typing import Any

import pytest
from datasets import Squares

import mpiter
import mpiter.__main__ as command
from mpiter.engine.arguments import OF_ITERATORS, OF_LOADERS


def test_the_public_names_are_what_one_is_shown() -> None:
    assert sorted(dir(mpiter)) == sorted([*mpiter.__all__, "__version__"])


def test_a_door_that_has_not_been_imported_says_what_to_import() -> None:
    script = """
import mpiter
for door in ("torch", "chainer", "device"):
    try: getattr(mpiter, door)
    except AttributeError as error: print(error)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for door, line in zip(("torch", "chainer", "device"), ran.stdout.splitlines(), strict=True):
        assert f"`import mpiter.{door}` makes it known" in line


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "no attribute 'nothing'$"),
        ("Dataloader", "no attribute 'Dataloader'; did you mean 'DataLoader'"),
        ("Batches", "no attribute 'Batches'; did you mean 'batches'"),
        ("Receipts", r"it lies in mpiter\.receipts \(`from mpiter\.receipts import Receipts`\)"),
        ("Echo", r"it lies in mpiter\.echo \(`from mpiter\.echo import Echo`\)"),
    ],
)
def test_a_name_that_is_nearly_one_of_ours_or_lies_elsewhere_is_told(name: str, told: str) -> None:
    with pytest.raises(AttributeError, match=told):
        getattr(mpiter, name)


def test_every_place_that_is_told_is_right() -> None:
    wings = {place: names for names, place in mpiter._ELSEWHERE.items() if place not in ("torch", "chainer")}
    for name, place in mpiter._ELSEWHERE.items():
        if place in wings:
            assert hasattr(importlib.import_module(f"mpiter.{place}"), name), name


def test_a_class_in_the_place_of_a_dataset_is_told() -> None:
    for make in (mpiter.DataLoader, lambda one: mpiter.batches(one, 2)):
        with pytest.raises(
            mpiter.OptionError, match=r"dataset=Squares is a class; pass one of its objects, Squares\(…\)"
        ):
            make(Squares)


@pytest.mark.parametrize(("words", "told"), [("tun", "'tune'"), ("tune --batchsize 3 module:x", "--batchsize")])
def test_a_word_that_the_command_does_not_know_is_told(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words.split())
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("door", "name", "says"),
    [
        (mpiter.batches, "num_workers", "use n_processes"),
        (mpiter.batches, "n_worker", "use n_processes"),
        (mpiter.batches, "suffle", "use shuffle"),
        (mpiter.batches, "echo", "no argument 'echo'.$"),
        (mpiter.MultiprocessIterator, "epochs", r"use mpiter.batches\(\)"),
        (mpiter.MultithreadIterator, "n_processes", "use n_threads"),
        (mpiter.SerialIterator, "n_processes", "use MultiprocessIterator"),
        (mpiter.DataLoader, "n_processes", "use num_workers"),
        (mpiter.DataLoader, "shufle", "use shuffle"),
        (mpiter.DataLoader, "epochs", "use a `for` over the loader for each epoch"),
    ],
)
def test_an_argument_under_another_name_is_told_ours(door: Any, name: str, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        door([1, 2], 2, **{name: 1})


@pytest.mark.parametrize("name", ["copy", "in_order"])
def test_a_word_is_no_flag(name: str) -> None:
    given: Any = {name: "no"}
    for door in (mpiter.batches, mpiter.DataLoader):
        with pytest.raises(mpiter.OptionError, match=f"{name}='no' must be True or False"):
            door([1, 2], 2, **given)


@pytest.mark.parametrize(
    ("door", "elsewhere"),
    [
        (mpiter.batches, OF_ITERATORS),
        (mpiter.MultiprocessIterator, OF_ITERATORS),
        (mpiter.DataLoader, OF_LOADERS),
    ],
)
def test_what_is_meant_by_other_names_is_there(door: Any, elsewhere: dict[str, str]) -> None:
    mine = inspect.signature(door).parameters
    assert [meant for meant in elsewhere.values() if meant.isidentifier() and meant not in mine] == []


def test_the_command_alone_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    assert "tune" in shown
    assert "doctor" in shown
