"""The contract of iterators on Ray: unchanged, except that who writes into a batch asks for a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray_here
from contract import WRITING, contract

pytestmark = pytest.mark.xdist_group("ray")

globals().update(contract())


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    with ray_here.started() as ray:
        yield ray


@pytest.fixture
def default(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = {"n_processes": 2, "backend": "ray"}
    return {**options, "copy": True} if request.node.originalname in WRITING else options


any_way = any_start = default
