"""Fixtures: one Ray for all tests, and a check that nothing of ours is left."""

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
    """Return the engine's threads, and the descriptors of memory and bells."""
    found = {
        f"{thread.name} {thread.ident}"
        for thread in threading.enumerate()
        if thread.name.startswith("mpiter")
    }
    memory = set(map(our_memory, Path("/proc/self/fd").iterdir())) - {""}
    return {"threads": found, "memory": memory}


@pytest.fixture(autouse=True)
def clean_house(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that all of ours that a test has started is gone when it ends.

    This replaces the check of all other tests, which compares everything.  Ray is
    started by the first test that needs it and ends after the last, since it takes
    seconds; while it runs, its threads, sockets, processes and handlers of signals come
    and go in this process at any time, also in the tests of MPI between.  What MPI's
    programs leave is found by ``launched``.
    """
    before = _ours()
    yield
    request.node.funcargs.clear()
    deadline = time.monotonic() + _PATIENCE
    while True:
        gc.collect()
        left = {what: now - before[what] for what, now in _ours().items()}
        if not any(left.values()) or time.monotonic() > deadline:
            break
        # Nothing announces the end of all, so poll until the deadline.
        time.sleep(0.02)
    assert not any(left.values()), f"left behind: {left}"
