"""Workers that go because there should be fewer: who stays all the same, and how many are at work."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from datasets import Squares
from scripts import lives_still

import mpiter
from mpiter.engine.pilot import Pilot, Wings


class Wanted(Pilot):
    """Asks for one worker, and for two again when the other is gone."""

    def __init__(self, *widths: int) -> None:
        self.widths = iter(widths)

    def look(self, batches: int, now: int, stats: Any) -> int | None:
        return next(self.widths, None)


def test_a_leaver_that_stays_is_killed_and_its_place_filled_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "begun"

    def stays(info: mpiter.WorkerInfo) -> None:
        if info.id == 1 and not marker.exists():
            marker.touch()
            threading.Thread(target=time.sleep, args=(600,)).start()  # for which a process waits before it ends

    monkeypatch.setattr(Wings, "pilot", lambda *_: Wanted(1, 2))
    workers = mpiter.Auto(least=2, most=2)
    with mpiter.MultiprocessIterator(range(100), 2, n_processes=workers, worker_init=stays) as it:
        next(it)
        before = it.worker_pids
        while before[1] in it.worker_pids or len(it.worker_pids) < 2:
            next(it)
        assert not lives_still(before[1])
        assert it.worker_pids[0] == before[0]
        assert it.stats().restarts == 0, "who was asked to go has not died"
    assert marker.exists()


@pytest.mark.parametrize("width", [1, 2])
def test_of_threads_which_all_stay_so_many_are_at_work_as_there_should_be(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counts(Squares):
        lock, now, most = threading.Lock(), 0, 0

        def __getitem__(self, index: int) -> int:
            with self.lock:
                self.now += 1
                self.most = max(self.most, self.now)
            time.sleep(0.002)
            with self.lock:
                self.now -= 1
            return index

    monkeypatch.setattr(Wings, "pilot", lambda *_: Wanted())
    dataset, workers = Counts(200), mpiter.Auto(least=width, most=3)
    with mpiter.MultiprocessIterator(dataset, 2, repeat=False, n_processes=workers, backend="thread") as it:
        assert len(list(it)) == 100
    assert dataset.most == width
