"""A Ray cluster of one node, which all tests of a process share."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

REASON = "Ray is not installed: run `python3 tests --all`"
# Ray is told of so many processors, so that several iterators have room.
CPUS = 4
_PATIENCE = 20.0

# Without this variable Ray warns of a change to come.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def ready() -> Any:
    """Return Ray, connected to the cluster of the tests.

    The first call starts a new one, even if there is another on this machine.
    """
    ray = pytest.importorskip("ray", reason=REASON)
    if not ray.is_initialized():
        connect(
            address="local",
            num_cpus=CPUS,
            object_store_memory=128 << 20,
            include_dashboard=False,
        )
    return ray


def connect(**options: Any) -> None:
    """Start or join a cluster, without printing anything of it."""
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(log_to_driver=False, logging_level="ERROR", **options)


def end() -> None:
    """Leave the cluster, if any test has used it."""
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()


def free_cpus(ray: Any) -> float:
    return float(ray.available_resources().get("CPU", 0.0))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.05)
