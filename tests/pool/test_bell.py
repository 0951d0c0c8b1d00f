"""Any thread may ring the bell that wakes the loop, and the garbage collector too."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import weakref
from collections.abc import Iterator
from multiprocessing import connection
from typing import Any

import pytest

from mpiter.bell import Bell


@pytest.fixture(params=["eventfd", "pipe"])
def bell(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bell]:
    if request.param == "pipe" and hasattr(os, "eventfd"):
        monkeypatch.delattr(os, "eventfd")
    bell = Bell()
    yield bell
    bell.close()


def is_heard(bell: Bell) -> bool:
    return bool(connection.wait([bell], 0))


def test_ringing_often_is_ringing_once_and_does_not_block(bell: Bell) -> None:
    # A pipe holds fewer bytes than this.
    for _ in range(100_000):
        bell.ring()
    while is_heard(bell):
        bell.hush()
    bell.ring()
    assert is_heard(bell)


def test_ringing_while_a_bell_is_closed_rings_no_other(bell: Bell) -> None:
    number = bell.fileno()
    ring = bell.ring
    bell.close()
    bell.close()
    bell.ring()
    with contextlib.ExitStack() as others:
        reused = [Bell() for _ in range(3)]
        for other in reused:
            others.callback(other.close)
        ring()
        assert number not in [other.fileno() for other in reused]
        assert not any(map(is_heard, reused))
    del ring
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_the_garbage_collector_may_ring(bell: Bell) -> None:
    class Thing:
        pass

    thing: Any = Thing()
    thing.itself = thing
    weakref.finalize(thing, bell.ring)
    del thing
    gc.collect()
    assert is_heard(bell)


def test_no_ctrl_c_is_lost_in_a_bell(bell: Bell) -> None:
    """No Python code runs within ``ring()``, so Ctrl-C is raised only after it."""
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT) or bell.ring()
    bell.ring()
    assert is_heard(bell)
