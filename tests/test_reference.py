"""The reference: every public name has an entry in `docs/reference/`, with an example that runs as it stands."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import reference

NEEDS = {"mpiter.torch": "torch", "mpiter.chainer": "chainer", "mpiter.chainer_compat": "chainer"}
RAYS = "mpiter.remote.Ray"  # tests/remote/test_ray.py runs its example
NAMES = [name for module in (*reference.PUBLIC, *reference.WHOLE) for name in reference.public(module)]


def _marked(name: str) -> Any:
    needed = NEEDS.get(name, NEEDS.get(name.rpartition(".")[0], ""))
    return pytest.param(name, needed, marks=[getattr(pytest.mark, needed)] if needed else [])


def test_every_public_name_has_one_entry_and_nothing_else_has():
    assert Counter(reference.entries()) == Counter(NAMES)


@pytest.mark.parametrize(("name", "needed"), [_marked(name) for name in NAMES if name != RAYS])
def test_the_example_of_a_public_name_runs_as_it_stands(name: str, needed: str) -> None:
    if needed:
        pytest.importorskip(needed, reason=f"{needed} is not installed: run `python3 tests --all`")
    reference.run(name)
