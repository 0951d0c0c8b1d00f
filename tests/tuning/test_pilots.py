"""Pilots in the air: what they see of real workers, and what they do with it."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter import machine
from mpiter.engine.pilot import Auto, Setting, Wings
from mpiter.stats import Stats
from mpiter.tuning.auto import AutoPilot

_MUCH = 128 << 20
GB = 1 << 30


class Large:
    """Samples that take a look at each page of a large array."""

    def __init__(self, size: int = _MUCH) -> None:
        self.values = np.ones((64, size // 64), np.uint8)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        return int(self.values[index, :: mmap.PAGESIZE].sum())


def test_what_a_process_shares_is_not_its_own() -> None:
    before = machine.own_bytes(os.getpid())
    touched = bytes(_MUCH // mmap.PAGESIZE)
    with mmap.mmap(-1, _MUCH) as shared:
        shared[:: mmap.PAGESIZE] = touched
        assert abs(machine.own_bytes(os.getpid()) - before) < _MUCH // 4
    with mmap.mmap(-1, _MUCH, mmap.MAP_PRIVATE) as own:
        own[:: mmap.PAGESIZE] = touched
        assert machine.own_bytes(os.getpid()) - before > _MUCH * 3 // 4


def test_a_dataset_that_is_there_once_makes_no_worker_large() -> None:
    def worker_bytes(dataset: Large) -> int:
        with mpiter.batches(dataset, 4, n_processes=1, shuffle=False) as stream:
            for _ in stream:
                seen = stream.stats()
        return seen.worker_bytes

    without = worker_bytes(Large(64))  # which has what the fork server has imported, however much that is
    assert without > 0
    assert worker_bytes(Large()) < without + _MUCH // 4


# -- for real ----------------------------------------------------------------------------------------------------------

DEADLINE_S = 90.0


class Store:
    """Samples that wait for a disk, say: each for a while, every 80th for long."""

    def __init__(self, usual_s: float, rare_s: float = 0.0) -> None:
        self.usual_s, self.rare_s = usual_s, rare_s

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        time.sleep(self.rare_s if index % 80 == 79 else self.usual_s)
        return index, mpiter.get_rng().random(3)


def until(stream: Any, is_reached: Callable[[], bool], step_s: float = 0.0) -> list[tuple[np.ndarray, ...]]:
    """The batches until then, and ten more."""
    ends, found = time.monotonic() + DEADLINE_S, []

    def some() -> Iterator[Any]:
        while not is_reached():
            assert time.monotonic() < ends, f"nothing has changed in {len(found)} batches: {stream.stats()}"
            yield next(stream)
        yield from itertools.islice(stream, 10)

    for batch in some():
        found.append(tuple(np.array(column) for column in batch))
        time.sleep(step_s)
    return found


def check(found: list[tuple[np.ndarray, ...]]) -> None:
    """They are what one gets without workers."""
    with mpiter.batches(Store(0.0), 4, n_processes=0, seed=7, epochs=None) as alone:
        for batch, expected in zip(found, alone, strict=False):
            assert all(map(np.array_equal, batch, expected))


def test_workers_are_added_where_samples_wait_for_a_disk() -> None:
    with mpiter.batches(Store(0.005), 4, n_processes=mpiter.Auto(most=4), seed=7, epochs=None) as stream:
        found = until(stream, lambda: stream.stats().workers > 1 and len(stream.worker_pids) > 1)
        assert stream.stats().workers <= 4
    check(found)


def test_more_batches_wait_where_a_sample_takes_long_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = Wings.pilot

    def pilot(workers: Auto | None, n_prefetch: Auto | None) -> Any:
        made.append(make(workers, n_prefetch))
        return made[-1]

    monkeypatch.setattr(Wings, "pilot", pilot)
    with mpiter.batches(Store(0.0, 0.2), 4, n_processes=2, n_prefetch="auto", seed=7, epochs=None) as stream:
        found = until(stream, lambda: bool(made and made[0].changes), step_s=0.002)
    before, after = made[0].changes[0].before, made[0].changes[0].after
    assert after.workers == before.workers
    assert after.n_prefetch > before.n_prefetch
    check(found)


# -- memory ----------------------------------------------------------------------------------------------------------


def fly(
    batches: int, service_s: float, memory: Callable[[float], int], worker_bytes: Callable[[int], int]
) -> AutoPilot:
    """Of a steady load: ``memory`` that there is at a time, and what a worker takes after so many batches."""
    pilot = AutoPilot(Auto(most=64), None, memory=lambda stats: memory(stats.seconds))
    now, step_s, seconds, wait_s = Setting(1, 2), 0.02, 0.0, 0.0
    for batch in range(1, batches):
        took = max(step_s, service_s / now.workers)
        seconds, wait_s = seconds + took, wait_s + took - step_s
        used = worker_bytes(batch) * now.workers
        seen = Stats(batch, seconds=seconds, wait_s=wait_s, fetch_s=batch * service_s, room_bytes=1, worker_bytes=used)
        now = pilot.look(batch, now, lambda seen=seen: seen) or now  # type: ignore[misc]
    return pilot


def late(pilot: AutoPilot) -> list[int]:
    """To how many workers it has changed after 200 batches."""
    return [change.after.workers for change in pilot.changes if change.batches > 200]


def test_workers_that_grow_go_one_by_one_though_all_was_settled() -> None:
    grown = 20_000
    pilot = fly(grown, 0.15, lambda seconds: 64 * GB, lambda batch: GB // 2 + GB * max(0, batch - 500) // 500)
    assert pilot.changes[0].after.workers == 9
    assert late(pilot) == [8, 7, 6, 5, 4, 3, 2, 1]
    for change in pilot.changes[1:]:
        assert change.before.workers * (0.5 + (change.batches - 500) / 500) < 64, "before there is no memory left"
        assert change.reason == f"no more than {change.after.workers} workers fit"


@pytest.mark.parametrize("every_s", [1, 7, 20, 50])
def test_memory_that_comes_and_goes_is_not_followed_for_ever(every_s: int) -> None:
    def memory(seconds: float) -> int:
        return (20 if int(seconds / every_s) % 2 else 64) * GB

    pilot = fly(6000, 0.8, memory, lambda batch: GB)
    assert pilot.changes[0].after.workers == 46
    assert 18 in [change.after.workers for change in pilot.changes]
    assert len(late(pilot)) <= 3, pilot.changes


def test_workers_whom_memory_has_taken_come_back_when_there_is_some_again() -> None:
    pilot = fly(6000, 0.8, lambda seconds: (20 if 10 < seconds < 15 else 64) * GB, lambda batch: GB)
    assert late(pilot) == [18, 46]


def test_workers_stay_while_the_memory_they_take_varies_a_little() -> None:
    pilot = fly(6000, 3.0, lambda seconds: 41 * GB - int(seconds) % 2 * 3 * GB // 2, lambda batch: GB)
    assert [change.after.workers for change in pilot.changes][-1] == 36
    assert not late(pilot)
