"""One Ray for all tests; and a clean house where others' libraries have threads: what
is ours is compared.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_here
from ours import our_memory

_PATIENCE = 10.0


@pytest.fixture
def ray() -> Any:
    return ray_here.ready()


@pytest.fixture(scope="package", autouse=True)
def no_ray_is_left() -> Iterator[None]:
    yield
    ray_here.end()


def _ours() -> dict[str, set[str]]:
    """Threads of the engine, memory and bells."""
    found = {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if thread.name.startswith("mpiter")
    }
    memory = set(map(our_memory, Path("/proc/self/fd").iterdir())) - {""}
    return {"threads": found, "memory": memory}


@pytest.fixture(autouse=True)
def clean_house(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test starts of ours is gone when it ends."""
    before = _ours()
    yield
    request.node.funcargs.clear()
    deadline = time.monotonic() + _PATIENCE
    while True:
        gc.collect()
        left = {what: now - before[what] for what, now in _ours().items()}
        if not any(left.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.02)  # polling with a deadline
    assert not any(left.values()), (
        f"left behind: { {k: v for k, v in left.items() if v} }"
    )
