"""Batches come, or an error names the limit, where the machine lacks something.

Descriptors are few, /dev/shm is tiny, memory is short, or a worker can't be killed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from datasets import Gated, plain
from scripts import Script, lives, lives_still, run, wait_until

import mpiter

pytestmark = [pytest.mark.death, pytest.mark.slow]

SCARCE = """
import os, resource, signal, zlib
import numpy as np
import mpiter

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

class Dataset:
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return np.full((64, 64), index, np.float32), index, "x" * index

def total(it):
    found = 0
    for number, batch in enumerate(it):
        if number == 5 and isinstance(it, mpiter.MultiprocessIterator):
            os.kill(it.worker_pids[0], signal.SIGKILL)
        for image, index, text in batch:
            sample = image.tobytes() + bytes(text, "ascii") + bytes([index])
            found = zlib.crc32(sample, found)
    return found

options = {"repeat": False, "seed": 1}
expected = total(mpiter.SerialIterator(Dataset(), 16, **options))
with mpiter.MultiprocessIterator(Dataset(), 16, n_processes=2, **options) as it:
    print(total(it) == expected)
"""


def _can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    )


MOUNTED = """
import os, sys
if "MOUNTED" not in os.environ:
    os.environ["MOUNTED"] = "1"
    small = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    command = f'{small} && mount -t tmpfs none /proc && exec "$@"'
    this = [sys.executable, "-W", "ignore", *sys.argv]
    os.execvp("unshare", ["unshare", "-m", "sh", "-c", command, "sh", *this])
"""


def test_a_hundred_descriptors_will_do(tmp_path: Path) -> None:
    outcome = run(tmp_path, SCARCE)
    assert (outcome.code, outcome.left_running) == (0, []), outcome
    assert outcome.lines == ["True"], outcome


@pytest.mark.skipif(
    not _can_mount(),
    reason="needs a mount namespace: run as root, with util-linux's unshare",
)
def test_a_megabyte_of_dev_shm_and_no_proc_will_do(tmp_path: Path) -> None:
    outcome = run(tmp_path, MOUNTED + SCARCE)
    assert (outcome.code, outcome.lines) == (0, ["True"]), outcome


LIMITED = """
import resource
import numpy as np
import mpiter

class Dataset:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return np.full((4, 1 << 20), index, np.float32)   # 16 MB

now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = now + (100 << 20)
it = mpiter.MultiprocessIterator(
    Dataset(), 4, repeat=False, shuffle=False, n_processes=2, n_prefetch=4
)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    list(it)
except mpiter.MpiterError as error:
    print(type(error).__name__, error)
it.close()
"""


def test_a_limit_on_address_space_is_an_error(tmp_path: Path) -> None:
    outcome = run(tmp_path, LIMITED)
    assert (outcome.code, outcome.left_running) == (0, []), outcome
    assert outcome.lines[0].split()[0] in ("SharedMemoryFull", "WorkerStartError"), (
        outcome
    )


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A dataset that holds its worker up, and a function that makes it unkillable.

    The worker is held up until the test is over.
    """
    gate = tmp_path / "gate"
    left: list[psutil.Process] = []

    def spare(iterator: Any, number: int) -> int:
        worker = iterator._pump.loop._team.crew._staff.pool._workers[number]
        monkeypatch.setattr(worker, "kill", lambda: None)
        left.append(psutil.Process(worker.pid))
        return int(worker.pid)

    yield Gated(str(gate), free=12, length=60), spare
    gate.touch()
    for process in left:
        process.kill()
    wait_until(lambda: not any(map(lives, left)), "they are gone after all")


def test_the_slots_of_an_unkillable_worker_are_never_used_again(
    unkillable: Any,
) -> None:
    dataset, spare = unkillable
    with mpiter.MultiprocessIterator(
        dataset,
        4,
        shuffle=False,
        repeat=False,
        n_processes=1,
        run_ahead=0,
        sample_timeout=1.0,
    ) as it:
        seen = [plain(list(next(it))) for _ in range(3)]
        wait_until(lambda: it._pump.loop.lines[0].active, "the worker is held up")
        slots = it._pump.loop._team.rooms.slots
        lent = []
        in_danger = {batch.room.slot for batch in it._pump.loop.ledger.batches.values()}
        genuine = slots.lease
        slots.lease = lambda slot: lent.append(slot) or genuine(slot)
        pid = spare(it, 0)
        os.kill(pid, signal.SIGSTOP)
        # With the gate open, samples come at once from the worker's replacement.
        Path(dataset.gate).touch()
        seen += [plain(list(batch)) for batch in it]
        assert lives_still(pid)
        assert pid not in it.worker_pids
        assert it.stats().restarts == 1
        assert in_danger
        assert not in_danger & set(lent)
        assert not in_danger & set(slots._free)
    expected = [dataset[index] for index in range(60)]
    assert seen == [plain(expected[start : start + 4]) for start in range(0, 60, 4)]


UNKILLABLE = """
import sys, time
import mpiter
from mpiter.pool import pool


class Dataset:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index > 3:
            time.sleep(1000)
        return index

pool.Member.kill = lambda worker: None      # no worker can be killed
it = mpiter.MultiprocessIterator(
    Dataset(), 4, n_processes=2, shuffle=False, run_ahead=0
)
next(it)
print("ready", flush=True)
"""


def test_the_interpreter_does_not_wait_for_an_unkillable_worker(tmp_path: Path) -> None:
    """Once the main process is gone, the kernel's own signal ends these workers."""
    script = Script(tmp_path, UNKILLABLE)
    script.reads("ready")
    outcome = script.ends()
    assert (outcome.code, outcome.left_running) == (0, []), outcome


DEADLY_SERVER = """
import multiprocessing, pathlib
import mpiter

pathlib.Path("deadly.py").write_text("import os; os._exit(3)")
multiprocessing.set_forkserver_preload(["deadly"])
with mpiter.batches(range(8), 2, n_processes=2) as stream:
    try:
        next(stream)
    except mpiter.errors.WorkerStartError as error:
        print(error)
"""


def test_a_fork_server_that_dies_again_and_again_is_told(tmp_path: Path) -> None:
    (line,) = run(tmp_path, DEADLY_SERVER).ended_well().lines
    assert line.startswith("the fork server, which starts workers, has died twice")
    assert line.endswith(
        "pass backend=mpiter.Process('fork'). Or do without workers, by n_processes=0."
    )


FEWEST = """
import os, resource, sys
import mpiter
from mpiter import batches  # an import takes descriptors, which are still free here

out = os.dup(1)
most = max(map(int, os.listdir("/proc/self/fd"))) + 4
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

class Dataset:
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return index

backend = mpiter.Process(sys.argv[1])
try:
    with batches(Dataset(), 4, n_processes=2, backend=backend) as stream:
        said = str(next(stream))
except mpiter.MpiterError as error:
    said = f"{type(error).__name__}: {error}"
os.write(out, said.encode())
"""


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_with_hardly_a_descriptor_the_limit_is_named(
    tmp_path: Path, method: str
) -> None:
    said = run(tmp_path, FEWEST, method).ended_well().out
    assert re.match(r"(?s)WorkerStartError: .*(open files|ulimit -u, -n, -v)", said)
