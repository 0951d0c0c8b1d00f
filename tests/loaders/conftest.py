"""Fixtures that make loaders of each kind, with workers and without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loader_kinds import KINDS, Maker, makers


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=(0, 2))
def loader(request: pytest.FixtureRequest, kind: str) -> Iterator[Maker]:
    with makers(kind, request.param) as maker:
        yield maker


@pytest.fixture
def with_workers(kind: str) -> Iterator[Maker]:
    with makers(kind, 2) as maker:
        yield maker


@pytest.fixture
def without_workers(kind: str) -> Iterator[Maker]:
    with makers(kind, 0) as maker:
        yield maker
