"""Workers that all wait, perhaps for each other: it is said so, with what gives each worker batches of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from datasets import Squares
from scripts import run

import mpiter
from mpiter.engine import pump
from mpiter.pool import standstill
from mpiter.pool.standstill import Standstill
from mpiter.worker.board import Line


class Until(Squares):
    """Waits, in the kernel, until somebody opens the other end of a pipe."""

    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate = gate

    def __getitem__(self, index: int) -> tuple[object, int]:
        os.close(os.open(self.gate, os.O_RDONLY))
        return super().__getitem__(index)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["iterator", "loader"])
def test_it_is_said_that_all_wait_and_what_helps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    gate, opened = str(tmp_path / "gate"), []
    os.mkfifo(gate)

    def advice(doings: str) -> str:
        opened.append(os.open(gate, os.O_RDWR))  # nobody waits any longer
        return standstill.advice(doings)

    monkeypatch.setattr(standstill, "LIMIT_S", 0.5)
    monkeypatch.setattr(pump, "advice", advice)
    with (
        (
            mpiter.DataLoader(Until(gate), 4, num_workers=2)
            if kind == "loader"
            else mpiter.MultiprocessIterator(Until(gate), 4, n_processes=2, dataset_timeout=None)
        ) as it,
        pytest.warns(RuntimeWarning, match=r"sample.*wait for each other.*collate_fn.*prefetch_factor=2"),
    ):
        next(iter(it))
    assert len(opened) == 1
    os.close(opened[0])


MEETING = """
    import multiprocessing
    import mpiter

    class Meeting:
        def __init__(self):
            self.barrier = multiprocessing.get_context("fork").Barrier(2)
        def __len__(self):
            return 32
        def __getitem__(self, index):
            self.barrier.wait()
            return index

    options = {"multiprocessing_context": "fork", "collate_fn": list, "prefetch_factor": 2}
    with mpiter.DataLoader(Meeting(), 2, num_workers=2, **options) as loader:
        for _ in range(2):
            print(sum(loader, []) == list(range(32)))
"""


def test_batches_of_their_own_let_workers_wait_for_each_other(tmp_path: Path) -> None:
    assert run(tmp_path, MEETING).ended_well().lines == ["True", "True"]


def line(**cells: int) -> Line:
    return Line(**{**dict.fromkeys(Line._fields, 0), "ready": 1, "active": 1, "pid": 1, **cells})


def told(*looks: tuple[float, list[Line], int]) -> list[bool]:
    used = [0]
    found, watch = [], Standstill(lambda pid: used[0])
    for waited, lines, used[0] in looks:
        found.append(watch.is_seen(lines, waited))
    return found


def test_whoever_gets_on_does_not_stand_still() -> None:
    still = [line(row=3), line(active=0)]
    assert told((0, still, 7), (5, still, 7), (10, still, 7), (20, still, 7)) == [False, False, True, False]
    assert told((0, still, 7), (5, still, 7), (10, still, 8), (19, still, 8)) == [False] * 4
    assert told((0, still, 7), (9, [line(row=4), line(active=0)], 7), (18, still, 7)) == [False] * 3
    assert told((0, still, 7), (9, still, 7), (1, still, 7), (10, still, 7), (11, still, 7)) == [*[False] * 4, True]


def test_whoever_starts_or_has_nothing_to_do_does_not_either() -> None:
    for lines in ([line(), line(ready=0)], [line(active=0)], []):
        assert told((0, lines, 7), (20, lines, 7)) == [False, False]


def test_of_workers_elsewhere_nobody_knows() -> None:
    elsewhere, here = Standstill(lambda pid: 7, is_here=False), Standstill(lambda pid: 7)
    assert not any(elsewhere.is_seen([line(row=3)], float(waited)) for waited in range(30))
    assert any(here.is_seen([line(row=3)], float(waited)) for waited in range(30))


def test_processor_time_is_that_of_a_process() -> None:
    before, end = standstill.processor_time(os.getpid()), time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert standstill.processor_time(os.getpid()) > before
    assert standstill.processor_time(1 << 30) == 0
