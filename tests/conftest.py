"""After each test nothing of it may be left.

Threads, processes, descriptors, handlers of signals and names in /dev/shm are compared.
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

# Chainer is imported while its own warnings are no errors yet, and without the shim
# where that is possible.
if importlib.util.find_spec("chainer"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if int(np.__version__.partition(".")[0]) >= 2 or sys.version_info >= (3, 12):
            import mpiter.chainer_compat  # noqa: F401
        import chainer  # noqa: F401

# The fork server imports what test modules import.  Otherwise each worker would have to
# do so, since it opens datasets that are defined there.
_CHAINER = [
    name for name in ("mpiter.chainer_compat", "chainer") if name in sys.modules
]
multiprocessing.set_forkserver_preload(
    ["pytest", "hypothesis.extra.numpy", "psutil", "mpiter.worker.fetch", *_CHAINER]
)

# A background job ignores Ctrl-C, and all processes that its tests start would, too.
with contextlib.suppress(ValueError):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine neither the time of an example nor that of drawing it says anything.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# These are programs that other tests run.
collect_ignore = ["programs/clients"]


# The marks must be there before pytest leaves out tests by their marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with another start method than the usual one as slow."""
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        # Values may be arrays, which ``in`` doesn't compare as a whole.
        words = [value for value in values if isinstance(value, str)]
        if "fork" in words or "spawn" in words:
            item.add_marker(pytest.mark.slow)
        group = item.get_closest_marker("xdist_group")
        if group and item.config.getoption("loadgroup", False) and hasattr(item, "_id"):
            # pytest 9.2 doesn't see what xdist 3.8 writes into an item to keep groups
            # together.
            item._id = type(item._id).parse(f"{item.nodeid}@{group.args[0]}")


# What ends in the background, such as workers of a dropped iterator, has so long.
_PATIENCE = 10.0
_NAMELESS = {f"anon_inode:[{kind}]" for kind in ("eventfd", "eventpoll", "pidfd")}
# These processes belong to multiprocessing, which keeps them until the end.
_STANDING_STAFF = ("resource_tracker", "forkserver import main")


def _workers() -> set[str]:
    """Return pid and command of our processes, and of those of fork servers.

    Processes that multiprocessing keeps aren't among them.
    """
    found = set()
    for pid, command in _children(os.getpid()):
        if not any(staff in command for staff in _STANDING_STAFF):
            found.add(f"{pid} {command}")
        elif "forkserver" in command:
            found |= {f"{grandchild} {name}" for grandchild, name in _children(pid)}
    return found


def _children(pid: int) -> Iterator[tuple[int, str]]:
    # A process that has just ended has no such folder.
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in _read(f"/proc/{pid}/task/{task}/children").split():
                if command := _read(f"/proc/{child}/cmdline"):
                    yield int(child), command.replace("\0", " ")


def _read(file: str) -> str:
    """Read a file of /proc, or return "" if its process has just ended.

    pathlib would be slow, and this runs twice a test.
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
    """Return what our descriptors lead to, since their numbers are used again.

    The pipes by which fork servers notice our end aren't among them.
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
        # Descriptors of these kinds can't be told apart, so they are counted.
        if target in _NAMELESS:
            nameless[target] += 1
            found.add(f"{target} {nameless[target]}")
        elif memory := our_memory(link):
            found.add(memory)
        elif target.startswith(("pipe:", "socket:")) and target not in pipes_to_servers:
            found.add(target)
    return found


def _shared_names() -> set[str]:
    """Return the names in /dev/shm that this process has mapped."""
    maps = _read("/proc/self/maps")
    lines = maps.splitlines() if "/dev/shm/" in maps else ()
    return {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}


# The names that the last test left are kept, because looking for them takes longest.
_names_before: set[str] = set()


def _handlers() -> set[str]:
    """Return what signals do here, and in processes that later tests fork."""
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
    """Check that all that a test has started is gone when it ends."""
    # Objects that are alive by now aren't this test's.  If the collector looked through
    # them again and again, that would take half of the time.
    gc.freeze()
    global _names_before
    before = {**_house(), "names in /dev/shm": _names_before}
    yield
    # The values of the test's fixtures may hold iterators.
    request.node.funcargs.clear()
    deadline = time.monotonic() + _PATIENCE
    while True:
        gc.collect()
        _names_before = _shared_names()
        house = {**_house(), "names in /dev/shm": _names_before}
        left = {what: now - before[what] for what, now in house.items()}
        if not any(left.values()) or time.monotonic() > deadline:
            break
        # Nothing announces the end of all, so poll until the deadline.
        time.sleep(0.02)
    assert not any(left.values()), (
        f"left behind: { {k: v for k, v in left.items() if v} }"
    )
