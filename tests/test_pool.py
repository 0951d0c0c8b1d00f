"""The Pool's privates that we rely on, checked on every Python: that they are there, and that they do what we say."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from datasets import Squares

import mpiter
from mpiter import pool as our_pool
from mpiter.pool import WatchedPool, WatchedThreads


def nothing() -> None: ...


def square(number: int) -> int:
    return number * number


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def everything(pool: Any, numbers: range) -> list[int]:
    arrived: Any = []
    done = threading.Event()

    def take(results: list[int]) -> None:
        arrived.extend(results)
        done.set()

    pool.map_async(square, numbers, 1, take)
    assert done.wait(60)
    return list(arrived)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_watched_pool_works_and_goes_without_a_trace(method: str) -> None:
    pool = WatchedPool(method, 2, nothing, (), print)
    assert everything(pool, range(10)) == [number * number for number in range(10)]
    processes = list(pool.processes)
    assert len(processes) == 2
    assert pool.dispose() is True


def test_the_worker_handler_sleeps_while_tasks_come_and_go() -> None:
    pool = WatchedPool("fork", 1, nothing, (), print)
    try:
        handler = pool._pool._worker_handler
        everything(pool, range(3))
        before = _switches(handler)
        for _ in range(50):
            everything(pool, range(2))
        assert _switches(handler) - before < 25  # the stock handler wakes at each of 100 results
    finally:
        pool.dispose()


def _switches(thread: threading.Thread) -> int:
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def test_a_pool_is_ended_in_the_midst_of_its_work() -> None:
    pool = WatchedPool("fork", 2, nothing, (), print)
    pool.map_async(sleep, [600] * 8, 1)
    assert pool.dispose() is True


def test_a_pool_is_ended_with_more_tasks_than_its_pipe_holds() -> None:
    pool = WatchedPool("fork", 1, nothing, (), print)
    pool.map_async(len, [b"x" * 100_000] * 100 + [bytes(1)], 1)
    pool.map_async(sleep, [600], 1)
    assert pool.dispose() is True


def test_privates_that_are_missing_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise AttributeError("_worker_handler")

    monkeypatch.setattr(our_pool, "_dispose", missing)
    pool = WatchedPool("fork", 2, nothing, (), print)
    everything(pool, range(4))
    assert pool.dispose(timeout=20) is True


def test_a_thread_that_is_stuck_is_left_to_itself() -> None:
    begun, release = threading.Event(), threading.Event()

    def stick(_: int) -> None:
        begun.set()
        release.wait(60)

    pool = WatchedThreads(2, nothing, (), print)
    pool.map_async(stick, [1], 1)
    try:
        assert begun.wait(60)
        assert pool.dispose(timeout=0.1) is False
    finally:
        release.set()
    for thread in pool._threads:
        thread.join(60)


class Named(Squares):
    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize("backend", ["process", mpiter.Process("fork"), "thread"])
def test_workers_are_replaced_after_maxtasksperchild_samples(backend: Any) -> None:
    with mpiter.MultiprocessIterator(
        Named(400), 5, repeat=False, n_processes=2, maxtasksperchild=20, run_ahead=4, backend=backend
    ) as it:
        workers = {pid for batch in it for pid in batch}
        assert it.stats().samples == 400
    if backend != "thread":
        assert len(workers) > 3


def test_nobody_is_told_when_the_last_task_is_done() -> None:
    assert our_pool._NobodyToNotify().put(None) is None
