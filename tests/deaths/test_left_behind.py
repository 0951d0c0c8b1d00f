"""However a program ends, it leaves no process, name in /dev/shm or temporary file.

Each script runs in a session of its own, with a folder of its own for temporary files.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import Script, lives_still, run, wait_until

import mpiter

pytestmark = pytest.mark.death

SCRIPT = """
import os, re, signal, sys, time
import mpiter

mode, method = sys.argv[1:3]

class Dataset:
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        if index < 8:
            return index
        if mode == "holding the GIL":
            while True:
                re.fullmatch("(a|aa)+$", "a" * 100 + "b")
        return index

it = mpiter.MultiprocessIterator(
    Dataset(), 4, shuffle=False, n_processes=2, run_ahead=0,
    backend=mpiter.Process(method),
)
next(it)
next(it)
while not all(line.ready for line in it._pump.loop.lines):
    time.sleep(0.001)
if mode == "stopped":
    for pid in it.worker_pids:
        os.kill(pid, signal.SIGSTOP)
print("ready", *it.worker_pids, flush=True)
"""
ENDS = {
    "the end of the script": "",
    "an exception": "\nraise ValueError\n",
    "SIGTERM": "\ntime.sleep(60)\n",
    "SIGKILL": "\ntime.sleep(60)\n",
    "SIGKILL to the group": "\ntime.sleep(60)\n",
}


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Path]:
    """A folder for temporary files, which must be empty in the end.

    Its path is longer than the address of a socket may be.
    """
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    yield folder
    assert sorted(folder.rglob("*")) == []


@pytest.mark.parametrize(
    ("end", "mode", "method"),
    [
        ("the end of the script", "holding the GIL", "forkserver"),
        ("an exception", "stopped", "fork"),
        ("SIGTERM", "holding the GIL", "spawn"),
        ("SIGKILL", "stopped", "forkserver"),
        ("SIGKILL to the group", "holding the GIL", "fork"),
    ],
)
def test_however_a_program_ends_nothing_is_left(
    end: str, mode: str, method: str, tmp_path: Path, places: Path
) -> None:
    script = Script(tmp_path, SCRIPT + ENDS[end], mode, method, TMPDIR=str(places))
    workers = script.says().split()[1:]
    if end.startswith("SIG"):
        send = os.killpg if "group" in end else os.kill
        send(script.process.pid, signal.Signals[end.split()[0]])
    outcome = script.ends()
    assert outcome.left_running == []
    assert not any(lives_still(int(pid)) for pid in workers)


LATE = """
import os, time
import mpiter

main = os.getpid()

def begins():
    print("begun", flush=True)
    while os.getppid() == main:
        time.sleep(0.001)

os.register_at_fork(after_in_child=begins)
mpiter.batches(
    range(9), 3, n_processes=1, backend=mpiter.Process("fork"),
    worker_init=lambda info: time.sleep(1000),
).__next__()
"""


def test_a_worker_that_begins_after_the_program_was_killed_ends(
    tmp_path: Path, places: Path
) -> None:
    script = Script(tmp_path, LATE, TMPDIR=str(places))
    script.reads("begun")
    os.kill(script.process.pid, signal.SIGKILL)
    assert script.ends().left_running == []


NAMES = """
import multiprocessing.synchronize, os, tempfile
import mpiter

semaphores = []
folders = []
genuine_name = multiprocessing.synchronize.SemLock._make_name
genuine_mkdtemp = tempfile.mkdtemp

def name():
    semaphores.append(genuine_name())
    return semaphores[-1]

def mkdtemp(**where):  # for the fork server's socket
    folders.append(genuine_mkdtemp(**where))
    return folders[-1]

multiprocessing.synchronize.SemLock._make_name = staticmethod(name)
tempfile.mkdtemp = mkdtemp
with mpiter.MultiprocessIterator(list(range(100)), 4, n_processes=2) as it:
    next(it)
    left = []
    for place in [tempfile.gettempdir(), *folders]:
        for *_, files in os.walk(place):
            left += files
    print(len(folders), semaphores, left)
"""


def test_nothing_has_a_name_even_while_workers_run(
    tmp_path: Path, places: Path
) -> None:
    """There is no semaphore, socket or file, so a killed process leaves none."""
    assert run(tmp_path, NAMES, TMPDIR=str(places)).ended_well().lines == ["1 [] []"]


def test_workers_offer_themselves_to_the_out_of_memory_killer() -> None:
    own = Path("/proc/self/oom_score_adj")
    before = own.read_text()
    with mpiter.MultiprocessIterator(list(range(10)), 2, n_processes=2) as it:
        next(it)
        wait_until(
            lambda: all(line.ready for line in it._pump.loop.lines), "both are ready"
        )
        scores = [
            Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
            for pid in it.worker_pids
        ]
    assert scores == ["1000", "1000"]
    assert own.read_text() == before
