"""Workers are replaced when they have fetched as many samples as they may."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scripts import lives_still

import mpiter
from mpiter.pool.crew import Crew, _Staff
from mpiter.worker.board import Board


def test_a_leaver_that_stays_is_killed_and_its_place_filled_when_it_is_gone(
    tmp_path: Path,
) -> None:
    marker = tmp_path / "begun"

    def stays(info: mpiter.WorkerInfo) -> None:
        if info.id == 1 and not marker.exists():
            marker.touch()
            # A process waits for its threads before it ends.
            threading.Thread(target=time.sleep, args=(600,)).start()

    with mpiter.MultiprocessIterator(
        range(1000), 2, n_processes=2, worker_init=stays, maxtasksperchild=200
    ) as it:
        next(it)
        before = it.worker_pids
        while before[1] in it.worker_pids or len(it.worker_pids) < 2:
            next(it)
        assert not lives_still(before[1])
        assert it.stats().restarts == 0, "a worker that was asked to end has not died"
    assert marker.exists()


def test_the_board_can_be_read_while_the_workers_are_dismissed() -> None:
    class Closing(Board):
        def cells(self, worker: int) -> memoryview:
            self.close()
            return super().cells(worker)

    pool: Any = SimpleNamespace(pids={0: 7})
    staff = _Staff(pool, Closing(2), box=None, watch=None)

    class Dismissed(Crew):
        looks = iter([staff])
        _staff = property(lambda self: next(self.looks, None))  # type: ignore[assignment]

    crew = object.__new__(Dismissed)
    assert [line.pid for line in crew.board()] == [7, 0]
