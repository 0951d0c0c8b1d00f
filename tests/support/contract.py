"""The contract of iterators for one more backend than `tests/iterators/test_contract.py` names: its tests."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FIXTURES = {"default", "any_way", "any_start"}  # how the tests get the options of a backend
MANY = {"test_samples_come_back_as_they_were"}  # of all kinds; some of them come in a test for any way as well


def contract() -> dict[str, Callable[..., Any]]:
    """The tests of the contract that run on any backend, by name; who takes them has fixtures of the same names."""
    folder = str(Path(__file__).resolve().parents[1] / "iterators")
    if folder not in sys.path:
        sys.path.append(folder)
    pytest.register_assert_rewrite("test_contract")
    import test_contract

    found = {name: test for name, test in vars(test_contract).items() if name.startswith("test_")}
    ours = {name for name, test in found.items() if FIXTURES & inspect.signature(test).parameters.keys()}
    return {name: found[name] for name in found if name in ours - MANY}
