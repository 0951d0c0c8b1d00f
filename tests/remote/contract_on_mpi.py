"""The contract of iterators, unchanged, on MPI ranks; ``test_mpi.py`` runs it under ``mpiexec``, as a program."""

from __future__ import annotations

from typing import Any

import pytest
from contract import contract

globals().update(contract())

WAYS: dict[str, dict[str, Any]] = {
    "two at a time": {"n_processes": 2, "backend": "mpi"},
    "all ranks": {"backend": "mpi"},
    "copies": {"n_processes": 1, "backend": "mpi", "copy": True},
}


@pytest.fixture
def default() -> dict[str, Any]:
    return WAYS["two at a time"]


@pytest.fixture(params=list(WAYS))
def any_way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


any_start = any_way
