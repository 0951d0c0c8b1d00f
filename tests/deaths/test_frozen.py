"""A program that was stopped for longer than every timeout takes no worker for dead.

It is stopped by Ctrl-Z and continued by ``fg``, or its container is suspended.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts import Script, session

from mpiter.pool.endings import START_S, Watch
from mpiter.worker.board import Line

pytestmark = pytest.mark.death

TIMEOUT_S = 0.6
FROZEN_S = 4 * TIMEOUT_S

SCRIPT = f"""
import time, warnings
import mpiter

warnings.simplefilter("error")

class Dataset:
    def __len__(self):
        return 400

    def __getitem__(self, index):
        time.sleep(0.01)
        return index

seen = []
with mpiter.MultiprocessIterator(
    Dataset(), 4, n_processes=2, shuffle=False, repeat=False, run_ahead=4,
    sample_timeout={TIMEOUT_S}, dataset_timeout={TIMEOUT_S},
) as it:
    for number, batch in enumerate(it):
        seen += batch
        if number == 3:
            print("under way", flush=True)
    print(seen == list(range(400)), it.stats().restarts)
"""


def _send(processes: list[psutil.Process], number: int) -> None:
    for process in processes:
        os.kill(process.pid, number)


@pytest.mark.slow
def test_stopped_for_longer_than_every_timeout(tmp_path: Path) -> None:
    script = Script(tmp_path, SCRIPT)
    script.reads("under way")
    # All processes are stopped twice: first the program before its workers, then the
    # other way round.
    for first in (session, lambda leader: session(leader)[::-1]):
        processes = first(script.process.pid)
        _send(processes, signal.SIGSTOP)
        # The test needs real time to pass for stopped processes.
        time.sleep(FROZEN_S)
        _send(processes, signal.SIGCONT)
    assert script.ends().ended_well().lines == ["True 0"]


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def line(**cells: int) -> Line:
    return Line(
        **{**dict.fromkeys(Line._fields, 0), "pid": 1, "ready": 1, "active": 1, **cells}
    )


def looks(
    watch: Watch, clock: Clock, seconds: float, lines: list[Line], busy: Any = ()
) -> list[int]:
    """Look regularly for so many seconds, and return what is found first."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += watch.interval
        if found := watch.look(dict(enumerate(lines)), busy):
            return found
    return []


def test_a_worker_that_does_not_move_is_stuck_and_named() -> None:
    clock = Clock()
    watch = Watch(10, clock)
    moving = (line(row=row) for row in range(1000))
    began = clock.now
    while not (found := watch.look({3: next(moving), 5: line()}, {3, 5})):
        clock.now += watch.interval
    assert found == [5]
    assert 10 < clock.now - began <= 10 + 2 * watch.interval


def test_an_idle_worker_may_stand_still_for_ever() -> None:
    clock = Clock()
    assert looks(Watch(10, clock), clock, 10_000, [line(active=0), line()]) == []


def test_a_worker_that_gets_a_block_has_the_whole_timeout_from_then_on() -> None:
    clock = Clock()
    watch = Watch(10, clock)
    assert looks(watch, clock, 1000, [line(active=0)]) == []
    began = clock.now
    assert looks(watch, clock, 20, [line(active=0)], busy={0}) == [0]
    assert clock.now - began > 10


@pytest.mark.parametrize(
    ("patience", "due"), [(1, START_S), (2 * START_S, 2 * START_S)]
)
@pytest.mark.parametrize("busy", [(), (0,)])
def test_a_start_has_a_minute_at_least(patience: float, due: float, busy: Any) -> None:
    clock = Clock()
    watch = Watch(patience, clock)
    starting = [line(ready=0, active=0)]
    assert watch.due(starting[0]) == due
    assert looks(watch, clock, due - 2 * watch.interval, starting, busy) == []
    assert looks(watch, clock, 5 * watch.interval, starting, busy) == [0]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
@settings(max_examples=25)
def test_only_time_counts_in_which_we_ran(gaps: list[float]) -> None:
    """The time between two looks counts as two intervals at most."""
    clock = Clock()
    watch = Watch(10, clock)
    counted = 0.0
    for gap in gaps:
        clock.now += gap
        counted += min(gap, 2 * watch.interval)
        if watch.look({0: line()}, {0}):
            assert counted > 10 - 2 * watch.interval
            return
    assert counted <= 10 + 4 * watch.interval
