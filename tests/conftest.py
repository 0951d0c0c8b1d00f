"""A clean house after each test: threads, processes, descriptors, handlers of signals
and names are compared.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
from ours import our_memory

from mpiter.pool import starting

# While its own warnings are no errors yet; unaided where that is possible.
if importlib.util.find_spec("chainer"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if int(np.__version__.partition(".")[0]) >= 2 or sys.version_info >= (3, 12):
            import mpiter.chainer_compat  # noqa: F401
        import chainer  # noqa: F401

# What test modules import: workers, which open the data sets defined there, then
# needn't.
_CHAINER = [
    name for name in ("mpiter.chainer_compat", "chainer") if name in sys.modules
]
multiprocessing.set_forkserver_preload(
    ["pytest", "hypothesis.extra.numpy", "psutil", *_CHAINER]
)

# A background job ignores Ctrl-C, and so would all that its tests start.
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where the machine is busy, nothing is said by an example's duration, nor by how long
# it takes to draw one.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# Programs, which other tests run.
collect_ignore = ["programs/clients"]


# Before those that are not asked for are left out.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One start method, the usual one, will do where tests are to be quick."""
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if any(
            value in ("fork", "spawn") for value in values if isinstance(value, str)
        ):
            item.add_marker(pytest.mark.slow)
        group = item.get_closest_marker("xdist_group")
        if group and item.config.getoption("loadgroup", False) and hasattr(item, "_id"):
            # pytest 9.2 doesn't see what xdist 3.8 writes into an item to keep groups
            # together.
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")


# A generous deadline for what ends in the background (a dropped iterator's workers)
_PATIENCE = 10.0
_NAMELESS = {f"anon_inode:[{kind}]" for kind in ("eventfd", "eventpoll", "pidfd")}
# Multiprocessing's own, kept until the end.
_STANDING_STAFF = ("resource_tracker", "forkserver import main")


def _workers() -> set[str]:
    """Our processes, and the fork server's, by pid and command; without
    multiprocessing's standing staff.
    """
    found = set()
    for pid, command in _children(os.getpid()):
        if not any(staff in command for staff in _STANDING_STAFF):
            found.add(f"{pid} {command}")
        elif "forkserver" in command:
            found |= {f"{grandchild} {name}" for grandchild, name in _children(pid)}
    return found


def _children(pid: int) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(OSError):  # it has just ended
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in _read(f"/proc/{pid}/task/{task}/children").split():
                if command := _read(f"/proc/{child}/cmdline"):
                    yield int(child), command.replace("\0", " ")


def _read(file: str) -> str:
    """A file of /proc, empty when what it tells of has just ended.  Not by pathlib:
    this runs twice a test.
    """
    try:
        with open(file, "rb", buffering=0) as opened:
            return opened.readall().decode(errors="replace")
    except OSError:
        return ""


def _threads() -> set[str]:
    return {
        f"{t.name} {t.ident}"
        for t in threading.enumerate()
        if t is not threading.main_thread()
    }


def _descriptors() -> set[str]:
    """What is open, by what it is: numbers are used again.  Without the pipes by which
    fork servers know of us.
    """
    found: set[str] = set()
    nameless: Counter[str] = Counter()
    servers = [
        server for server in (starting._server, starting._coming) if server is not None
    ]
    pipes_to_servers = {
        os.readlink(f"/proc/self/fd/{server._forkserver_alive_fd}")
        for server in servers
    }
    for fd in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{fd}"
        try:
            target = os.readlink(link)
        except OSError:
            continue
        # All alike: they are counted.
        if target in _NAMELESS:
            nameless[target] += 1
            found.add(f"{target} {nameless[target]}")
        elif memory := our_memory(link):
            found.add(memory)
        elif target.startswith(("pipe:", "socket:")) and target not in pipes_to_servers:
            found.add(target)
    return found


def _shared_names() -> set[str]:
    """Names in /dev/shm that this process has mapped; others' are none of our
    business.
    """
    maps = _read("/proc/self/maps")
    lines = maps.splitlines() if "/dev/shm/" in maps else ()
    return {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}


# Those that the last test left, rightly or wrongly: to look takes longest of all.
_names_before: set[str] = set()


def _handlers() -> set[str]:
    """What signals do here, and would in a process that a later test forks."""
    return {
        f"{number.name}: {signal.getsignal(number)}"
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }


def _house() -> dict[str, set[str]]:
    return {
        "worker processes": _workers(),
        "threads": _threads(),
        "descriptors": _descriptors(),
        "handlers of signals": _handlers(),
    }


@pytest.fixture(scope="session", autouse=True)
def _staff() -> None:
    """Start multiprocessing's standing staff before anything is compared."""
    from multiprocessing import forkserver, resource_tracker

    import mpiter

    with mpiter.MultiprocessIterator([1, 2], 1, n_processes=1, repeat=False) as it:
        list(it)
    resource_tracker.ensure_running()
    forkserver.ensure_running()


@pytest.fixture(autouse=True)
def clean_house(request: pytest.FixtureRequest, _staff: None) -> Iterator[None]:
    """Whatever a test starts is gone when it ends."""
    # What is alive by now is none of this test's: looking through it again and again
    # takes half the time.
    gc.freeze()
    global _names_before
    before = {**_house(), "names in /dev/shm": _names_before}
    yield
    request.node.funcargs.clear()  # what the test was given
    deadline = time.monotonic() + _PATIENCE
    while True:
        gc.collect()
        _names_before = _shared_names()
        house = {**_house(), "names in /dev/shm": _names_before}
        left = {what: now - before[what] for what, now in house.items()}
        if not any(left.values()) or time.monotonic() > deadline:
            break
        # Polling with a deadline: ends as soon as the house is clean.
        time.sleep(0.02)
    assert not any(left.values()), (
        f"left behind: { {k: v for k, v in left.items() if v} }"
    )
