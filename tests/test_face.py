"""`mpiter` shows its names and arguments, and says which of them a wrong one means."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from typing import Any

import pytest
import reference

import mpiter
import mpiter.__main__ as command
from mpiter.engine.arguments import Rare
from mpiter.iterators.iterators import Batches


def test_the_public_names_are_what_one_is_shown() -> None:
    assert sorted(dir(mpiter)) == sorted([*mpiter.__all__, "__version__"])


def test_a_door_that_has_not_been_imported_says_what_to_import() -> None:
    script = """
import mpiter
for door in ("torch", "chainer", "testing", "audit"):
    try: getattr(mpiter, door)
    except AttributeError as error: print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    for door, line in zip(
        ("torch", "chainer", "testing", "audit"), ran.stdout.splitlines(), strict=True
    ):
        assert f"`import mpiter.{door}` makes it known" in line


def test_a_name_that_lies_in_another_module_says_in_which() -> None:
    others = [
        module
        for module in reference.PUBLIC
        if module not in ("mpiter", "mpiter.engine.arguments")
    ]
    names = [name for module in others for name in reference.public(module)]
    assert {
        "mpiter.images.ImageFolder",
        "mpiter.echo.Echo",
        "mpiter.staging.Staging",
    } <= set(names)
    for module, _, name in (name.rpartition(".") for name in names):
        if name not in (*mpiter.__all__, "audit"):
            with pytest.raises(
                AttributeError,
                match=f"'{name}'; it is in {module}: `from {module} import {name}`$",
            ):
                getattr(mpiter, name)
    with pytest.raises(AttributeError, match="NumPy arrays"):
        mpiter.jax  # noqa: B018


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nothing", "no attribute 'nothing'\n"),
        ("Dataloader", "no attribute 'Dataloader'. Did you mean: 'DataLoader'?"),
        ("Batches", "no attribute 'Batches'. Did you mean: 'batches'?"),
    ],
)
def test_python_says_which_name_may_be_meant(name: str, told: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"import mpiter; mpiter.{name}"],
        capture_output=True,
        text=True,
    )
    assert told in ran.stderr


DOORS = [
    mpiter.batches,
    mpiter.MultiprocessIterator,
    mpiter.MultithreadIterator,
    mpiter.SerialIterator,
    mpiter.DataLoader,
]


@pytest.mark.parametrize(
    ("door", "name", "says"),
    [
        (mpiter.batches, "num_workers", "; use n_processes"),
        (mpiter.batches, "n_worker", "; use n_processes"),
        (mpiter.batches, "suffle", "; use shuffle"),
        (mpiter.batches, "taken_for", ""),
        (mpiter.MultiprocessIterator, "ragged", ""),
        (mpiter.MultithreadIterator, "n_processes", "; use n_threads"),
        (mpiter.SerialIterator, "n_prefetch", ""),
        (mpiter.DataLoader, "n_processes", "; use num_workers"),
        (mpiter.DataLoader, "shufle", "; use shuffle"),
    ],
)
def test_an_argument_that_there_is_not_is_named_and_so_is_the_one_that_is_meant(
    door: Any, name: str, says: str
) -> None:
    with pytest.raises(TypeError, match=f"no argument '{name}'{says}.$"):
        door([1, 2], 2, **{name: 1})


@pytest.mark.parametrize("door", DOORS)
def test_what_a_hook_does_is_no_argument_and_the_hook_is_named(door: Any) -> None:
    with pytest.raises(TypeError, match=r'; use hooks=mpiter.tuning.Trace\("run.json'):
        door([1, 2], 2, trace="x.json")
    with pytest.raises(
        TypeError, match=r'; use hooks=mpiter.receipts.Receipts\("folder"\)\.$'
    ):
        door([1, 2], 2, receipts="folder")


@pytest.mark.parametrize(
    ("door", "arguments", "says"),
    [
        (
            mpiter.batches,
            ([1, 2], 2, 0),
            "^0 is one .* too many: pass dataset, batch_size in .* n_processes=…$",
        ),
        (
            mpiter.DataLoader,
            ([1], 1, *[None] * 6),
            "pass dataset, batch_size, shuffle, .* such as drop_last=…$",
        ),
    ],
)
def test_what_can_only_be_passed_by_name_is_told(
    door: Any, arguments: Any, says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        door(*arguments)


@pytest.mark.parametrize("door", DOORS)
def test_named_arguments_are_few_and_the_rare_ones_are_listed_too(door: Any) -> None:
    listed = inspect.signature(door).parameters
    function = door.__init__ if isinstance(door, type) else door
    own = inspect.signature(inspect.unwrap(function))
    named = [
        name
        for name, one in own.parameters.items()
        if name != "self" and one.kind is not one.VAR_KEYWORD
    ]
    assert len(named) <= 17
    assert {"seed", "on_error", "shard"} <= set(own.parameters)
    assert "copy" in listed


def _described(door: Any) -> set[str]:
    """Return the arguments that help() describes in a line of their own."""
    return set(re.findall(r"^ +(\w+): \S", inspect.getdoc(door) or "", re.MULTILINE))


def test_help_says_of_every_argument_what_it_does() -> None:
    of_batches = set(inspect.signature(mpiter.batches).parameters)
    assert _described(mpiter.batches) == of_batches
    # Their other arguments are those of batches(), or Chainer's.
    for door in DOORS[1:4]:
        assert _described(door) == of_batches & set(Rare.__annotations__)
    assert _described(mpiter.DataLoader) == set(
        inspect.signature(mpiter.DataLoader).parameters
    )


@pytest.mark.torch
def test_help_of_torchs_door_says_what_it_takes_beside_torchs_arguments() -> None:
    torch_loader = pytest.importorskip(
        "mpiter.torch", reason="torch is not installed: run `python3 tests --all`"
    )
    own = inspect.signature(inspect.unwrap(torch_loader.DataLoader.__init__)).parameters
    listed = set(inspect.signature(torch_loader.DataLoader).parameters)
    assert _described(torch_loader.DataLoader) == listed - set(own)
    assert {"seed", "shard", "on_error", "backend"} <= listed - set(own)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tun", "module:name"], "there is no command tun; did you mean tune?"),
        (
            ["tune", "module:name", "--batchsize", "8"],
            "there is no option --batchsize; did you mean --batch-size?",
        ),
        (
            ["tune", "--batchsize=8"],
            "there is no option --batchsize; did you mean --batch-size?",
        ),
        (["elsewhere"], "invalid choice: 'elsewhere'"),
        (["tune", "module:name", "--elsewhere"], "unrecognized arguments: --elsewhere"),
    ],
)
def test_the_command_says_which_word_may_be_meant(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_beginning_of_an_option_is_enough(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["tune", "nowhere:nothing", "--batch", "8"]) == 2
    assert "nowhere:nothing cannot be found" in capsys.readouterr().err


def test_a_type_may_say_less_than_a_checker_knows() -> None:
    for kind in (mpiter.DataLoader, mpiter.SerialIterator, Batches):
        assert typing.get_origin(kind[int]) is kind


def test_the_command_alone_shows_what_there_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    assert "tune" in shown
    assert "doctor" in shown
