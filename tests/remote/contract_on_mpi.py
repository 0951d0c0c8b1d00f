"""The contract of iterators is checked unchanged on MPI ranks.

``test_mpi.py`` runs this file under ``mpiexec``, as a program.
"""

from __future__ import annotations

from typing import Any

import pytest
from contract import CONSUMERS, contract

globals().update(contract(without=CONSUMERS))


@pytest.fixture
def default() -> dict[str, Any]:
    return {"n_processes": 2, "backend": "mpi"}


@pytest.fixture
def any_way() -> dict[str, Any]:
    return {"n_processes": 1, "backend": "mpi", "copy": True}


any_start = any_way
