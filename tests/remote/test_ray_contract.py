"""The contract of iterators is checked unchanged on Ray, where it concerns workers."""

from __future__ import annotations

from typing import Any

import pytest
from contract import CONSUMERS, contract

pytestmark = [
    pytest.mark.ray,
    pytest.mark.xdist_group("ray"),
    pytest.mark.usefixtures("ray"),
]

globals().update(contract(without=CONSUMERS))


@pytest.fixture
def default() -> dict[str, Any]:
    # One worker must do, since starting an actor takes longer than a test.
    return {"n_processes": 1, "backend": "ray"}


any_way = any_start = default
