"""The contract of iterators on Ray, unchanged, as far as workers have a part in it."""

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
    # Starting an actor takes longer than the test.
    return {"n_processes": 1, "backend": "ray"}


any_way = any_start = default
