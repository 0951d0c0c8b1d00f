"""A Ray cluster of one node, for the tests of a process; and what of it is in use."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

import mpiter.remote

REASON = "Ray is not installed: run `python3 tests --all`"
CPUS = 8  # claimed, so that several iterators have room
STORE_BYTES = 128 << 20
_PATIENCE = 20.0

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def started(**options: Any) -> AbstractContextManager[Any]:
    """A Ray of one node, for now; a new one, though another test's may be found on this machine."""
    ours = {"address": "local", "num_cpus": CPUS, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    return _quiet(**{**ours, **options})


def connected(address: str) -> AbstractContextManager[Any]:
    """The Ray at an address."""
    return _quiet(address=address)


@contextmanager
def _quiet(**options: Any) -> Iterator[Any]:
    """Nothing of it is printed."""
    ray = pytest.importorskip("ray", reason=REASON)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(log_to_driver=False, logging_level="ERROR", **options)
    try:
        yield ray
    finally:
        ray.shutdown()


def unhurried() -> mpiter.remote.Ray:
    """A backend whose batches are whole: none comes in pieces because the machine stood still for a moment."""
    backend = mpiter.remote.Ray()
    backend.dear_s = 1e6
    return backend


def free_cpus(ray: Any) -> float:
    return float(ray.available_resources().get("CPU", 0.0))


def is_free_again(ray: Any, cpus: float = CPUS) -> bool:
    """Is nothing of ours left in the cluster?  Ray takes a moment to count."""
    wait_until(lambda: free_cpus(ray) == cpus, "all processors are free")
    return True


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.05)
