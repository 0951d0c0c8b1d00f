"""Every public name has an entry in `docs/reference/`, with an example that runs."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections import Counter
from typing import Any

import pytest
import reference

NEEDS = {
    "mpiter.torch": "torch",
    "mpiter.chainer": "chainer",
    "mpiter.chainer_compat": "chainer",
}
# tests/remote/test_ray.py runs the example of this name.
RAYS = "mpiter.remote.Ray"
NAMES = [
    name
    for module in (*reference.PUBLIC, *reference.WHOLE)
    for name in reference.public(module)
]


def _marked(name: str) -> Any:
    needed = NEEDS.get(name, NEEDS.get(name.rpartition(".")[0], ""))
    return pytest.param(
        name, needed, marks=[getattr(pytest.mark, needed)] if needed else []
    )


def test_every_public_name_has_one_entry_and_nothing_else_has():
    assert Counter(reference.entries()) == Counter([*NAMES, *reference.BESIDE])


def test_what_public_functions_return_has_an_entry():
    described = {name.rpartition(".")[2] for name in reference.entries()}
    names = [
        name.rpartition(".")
        for name in NAMES
        if name not in reference.WHOLE and not _marked(name).marks
    ]
    functions = [
        getattr(importlib.import_module(module), name) for module, _, name in names
    ]
    returned = [
        typing.get_type_hints(each)["return"]
        for each in functions
        if inspect.isfunction(each)
    ]
    ours = [
        kind
        for kind in returned
        if getattr(kind, "__module__", "").startswith("mpiter.")
    ]
    assert len(ours) >= 3
    assert [
        kind
        for kind in ours
        if (typing.get_origin(kind) or kind).__name__ not in described
    ] == []


@pytest.mark.parametrize(
    ("name", "needed"), [_marked(name) for name in NAMES if name != RAYS]
)
def test_the_example_of_a_public_name_runs_as_it_stands(name: str, needed: str) -> None:
    if needed:
        pytest.importorskip(
            needed, reason=f"{needed} is not installed: run `python3 tests --all`"
        )
    reference.run(name)
