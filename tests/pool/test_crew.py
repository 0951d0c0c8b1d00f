"""Workers that are replaced because they have fetched enough samples."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from scripts import lives_still

import mpiter


def test_a_leaver_that_stays_is_killed_and_its_place_filled_when_it_is_gone(tmp_path: Path) -> None:
    marker = tmp_path / "begun"

    def stays(info: mpiter.WorkerInfo) -> None:
        if info.id == 1 and not marker.exists():
            marker.touch()
            threading.Thread(target=time.sleep, args=(600,)).start()  # for which a process waits before it ends

    with mpiter.MultiprocessIterator(range(1000), 2, n_processes=2, worker_init=stays, maxtasksperchild=200) as it:
        next(it)
        before = it.worker_pids
        while before[1] in it.worker_pids or len(it.worker_pids) < 2:
            next(it)
        assert not lives_still(before[1])
        assert it.stats().restarts == 0, "a worker that was asked to end has not died"
    assert marker.exists()
