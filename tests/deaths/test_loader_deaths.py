"""Both loaders lose no batch when a worker dies or is late, or on Ctrl-C.

Nothing hangs, and no process is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brought_orders import Killing
from datasets import Gated, Squares
from loader_kinds import (
    IMPORTS,
    Maker,
    both_kinds,
    epoch,
    flat,
    makers,
    some,
    until_the_end,
)
from scripts import lives_still, run, wait_until

import mpiter

pytestmark = pytest.mark.death


@pytest.fixture
def with_workers() -> Iterator[Maker]:
    """Make ``mpiter.DataLoader`` only: torch's leaves deaths to the same engine."""
    with makers("numpy", 2) as maker:
        yield maker


def kill(pids: Any) -> None:
    """Kill workers, and wait until they are dead.

    On a busy machine the other workers might do all the work before they are.
    """
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(lives_still, pids)), "they are dead")


# -- workers that die ------------------------------------------------------------------


def test_a_killed_worker_is_replaced_nothing_is_lost_and_the_state_is_as_handed_out(
    with_workers: Maker,
) -> None:
    loader = with_workers(list(range(40)), 2, prefetch_factor=1, collate_fn=list)
    batches = iter(loader)
    given = some(batches, 3)
    for _ in range(2):
        kill(loader.worker_pids[:1])
        given += some(batches, 3)
    other = with_workers(list(range(40)), 2, num_workers=0)
    other.load_state_dict(loader.state_dict())
    rest = epoch(batches)
    assert flat(given + rest) == list(range(40))
    assert epoch(other) == rest


@both_kinds
def test_workers_killed_at_their_work_are_replaced_and_nothing_is_lost(
    kind: str, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    busy = tmp_path / "busy"

    class Waits(Squares):
        def __getitem__(self, index: int) -> int:
            if index >= 8:
                busy.touch()
                while not gate.exists():
                    pass
            return index

    with makers(kind, 2) as maker:
        loader = maker(Waits(40), 4, sampler=range(40))
        batches = iter(loader)
        given = some(batches, 2)
        wait_until(busy.exists, "a worker is at sample 8 or beyond")
        kill(loader.worker_pids)
        gate.touch()
        assert flat(given + epoch(batches)) == list(range(40))
        assert loader.stats().restarts == 2


def test_workers_killed_between_epochs_are_replaced(with_workers: Maker) -> None:
    loader = with_workers(list(range(40)), 4)
    first = epoch(loader)
    dead = loader.worker_pids
    kill(dead)
    assert epoch(loader) == first
    assert not set(dead) & set(loader.worker_pids)


def test_a_sample_that_ends_its_worker_is_an_error_and_the_others_come(
    with_workers: Maker,
) -> None:
    class Deadly(Squares):
        def __getitem__(self, index: int) -> int:
            if index == 5:
                os.kill(os.getpid(), signal.SIGSEGV)
            return index

    given, errors = until_the_end(iter(with_workers(Deadly(12), 4, collate_fn=list)))
    assert given == [[0, 1, 2, 3], [8, 9, 10, 11]]
    (told,) = errors
    assert isinstance(told, mpiter.WorkerCrashed)
    assert told.exitcode == -signal.SIGSEGV
    torchs = (
        f"DataLoader worker (pid {told.pid}) is killed by signal: Segmentation fault; "
    )
    assert str(told).startswith(
        f"{torchs}sample [4, 5, 6, 7] has ended its worker twice: "
    )
    assert "SIGSEGV" in str(told)


# -- patience --------------------------------------------------------------------------


def test_a_late_batch_is_an_error_and_may_still_come(
    with_workers: Maker, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    loader = with_workers(Gated(str(gate), free=4, length=12), 4, timeout=0.2)
    batches = iter(loader)
    first = None
    while first is None:
        # On a busy machine the workers may take longer than the timeout to start.
        with contextlib.suppress(mpiter.BatchTimeout):
            first = next(batches)
    before = loader.state_dict()
    for _ in range(2):
        with pytest.raises(
            mpiter.BatchTimeout, match=r"timed out after 0\.2 seconds"
        ) as caught:
            next(batches)
        assert isinstance(caught.value, TimeoutError)
    assert loader.state_dict() == before
    gate.touch()
    given, errors = until_the_end(batches)
    assert [label for _, label in given] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert all(isinstance(error, mpiter.BatchTimeout) for error in errors)


# -- programs that end -----------------------------------------------------------------

LOADER = """
import os, sys, time
{import_}

class Dataset:
    def __len__(self):
        return 200

    def __getitem__(self, index):
        while index >= 100 and "stuck" in sys.argv:
            pass
        return index

loader = DataLoader(Dataset(), 4, num_workers=2)
batches = iter(loader)
next(batches)
"""


def program(more: str, kind: str = "numpy") -> str:
    if kind == "torch":
        pytest.importorskip(
            "torch", reason="torch is not installed: run `python3 tests --all`"
        )
    return LOADER.format(import_=IMPORTS[kind]) + more


def test_a_program_that_raises_in_the_loop_ends_at_once(tmp_path: Path) -> None:
    """Its workers are stuck, and the blocks sent to them are more than a pipe holds."""
    more = """
def train(batches):
    for batch in batches:
        raise ZeroDivisionError

indices = [[0], *[list(range(100_000))] * 20]
train(DataLoader(Dataset(), batch_sampler=indices, num_workers=2, collate_fn=len))
"""
    outcome = run(tmp_path, program(more), "stuck")
    assert outcome.code == 1
    assert (
        outcome.err.count("Traceback")
        == outcome.err.count("ZeroDivisionError") - 1
        == 1
    )
    assert outcome.left_running == []


def test_a_program_with_many_loaders_and_few_descriptors_ends_well(
    tmp_path: Path,
) -> None:
    """All batches may be kept, and no epoch leaves descriptors behind.

    Epochs that are dropped before their end are ended by the garbage collector.
    """
    more = """
import resource
import numpy as np

class Images(Dataset):
    def __getitem__(self, index):
        label = {"label": index, "name": str(index)}
        return np.full((32, 32), index, np.float32), label

def opened():
    return len(os.listdir("/proc/self/fd"))

list(loader)
before = opened()
for _ in range(3):
    list(loader)
    next(iter(loader))
print(opened() - before)
loader.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
with DataLoader(Images(), 2, num_workers=2) as images:
    kept = list(images)
print(all(
    int(x[1][31, 31]) == y["label"][1] == int(y["name"][1]) == 2 * at + 1
    for at, (x, y) in enumerate(kept)
))
dropped = DataLoader(Dataset(), 4, num_workers=2)
dropped.itself, dropped.its = dropped, (iter(dropped), iter(dropped))
kept.append(next(dropped.its[0]))
"""
    assert run(tmp_path, program(more)).ended_well().lines == ["0", "True"]


@pytest.mark.torch
def test_a_parent_with_threads_may_fork(tmp_path: Path) -> None:
    """It has torch's threads, those of NumPy's BLAS, and one of its own."""
    more = """
import threading
import numpy as np
import torch

def compute(size):
    np.linalg.inv(np.random.rand(size, size))
    torch.nn.functional.conv2d(torch.rand(1, 3, 64, 64), torch.rand(8, 3, 3, 3))

class Computes(Dataset):
    def __getitem__(self, index):
        compute(100)
        return index

compute(300)
others = threading.Event()
thread = threading.Thread(target=others.wait)
thread.start()
with DataLoader(
    Computes(), 100, num_workers=2, multiprocessing_context="fork"
) as loader:
    print(sum(map(len, loader)))
others.set()
thread.join()
"""
    assert run(tmp_path, program(more, "torch")).ended_well().lines == ["200"]


@pytest.mark.parametrize("times", [1, 2])
def test_a_death_over_a_sample_of_a_brought_order_names_its_key(
    with_workers: Maker, tmp_path: Path, times: int
) -> None:
    dataset = Killing(tmp_path, times)
    loader = with_workers(dataset, 4, seed=0, on_error="skip")
    found = flat(batch[1].tolist() for batch in loader)
    skips = loader.stats().skips
    if times == 1:
        assert found == dataset.expected(1)
        assert not skips
        return
    assert found == [number for number in dataset.expected(1) if number != 4]
    ((key, text),) = skips
    assert key == ("code", 4)
    assert "sample ('code', 4) has ended its worker twice" in text
