"""Workers are started by a fork server, or without one, and end with the program."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import get_context, util
from pathlib import Path
from typing import Any

import pytest
from scripts import Script, lives_still, run, wait_until

import mpiter
from mpiter.bell import Bell
from mpiter.pool.pool import Pool
from mpiter.worker.board import BlackBox


@pytest.fixture
def box() -> Iterator[BlackBox]:
    box = BlackBox()
    yield box
    box.close()


def test_the_users_own_processes_are_left_in_peace(tmp_path: Path) -> None:
    """The user has a fork server with preloaded modules.

    One of the user's processes starts another one.
    """
    text = """
    import multiprocessing, os, sys
    import mpiter

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["colorsys"])

    def child(connection, depth):
        if depth:
            inner = context.Process(target=child, args=(connection, depth - 1))
            inner.start()
            inner.join()
        else:
            connection.send("colorsys" in sys.modules)

    if __name__ == "__main__":
        with mpiter.MultiprocessIterator(list(range(20)), 4, n_processes=2) as it:
            next(it)
            here, there = context.Pipe(duplex=False)
            outer = context.Process(target=child, args=(there, 1))
            outer.start()
            print(here.recv(), outer.join(), it.stats().restarts)
            next(it)
    """
    assert run(tmp_path, text).ended_well().lines == ["True None 0"]


def test_the_fork_server_imports_once_what_the_program_finds(tmp_path: Path) -> None:
    """It imports a library that is known, and the modules that are to be preloaded.

    It imports nothing that only lies in the working directory.
    """
    for path, source in {
        "elsewhere/mpiter.py": "print('another', flush=True)",
        "own/my_data.py": "print('data', flush=True)\nclass Data(list): pass",
        "own/torchvision/__init__.py": "",
        "own/torchvision/transforms.py": (
            "print('library', flush=True)\nfrom my_data import Data"
        ),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    text = """
    import multiprocessing, os, sys
    import mpiter
    sys.path.insert(0, os.path.abspath("own"))
    import my_data
    import torchvision.transforms as library

    class Numbers(my_data.Data):
        def __getitem__(self, index):
            return library.Data(range(20))[index]

    os.chdir("elsewhere")
    multiprocessing.set_forkserver_preload(["my_data"])
    with mpiter.MultiprocessIterator(Numbers(range(20)), 4, n_processes=3) as it:
        next(it)
    """
    by_program_and_server = run(tmp_path, text).ended_well().lines
    assert sorted(by_program_and_server) == ["data", "data", "library", "library"]


SURROUNDED = """
import errno, os, sys, tempfile
import mpiter

def full(suffix=None, prefix=None, dir=None):
    if (dir or tempfile.gettempdir()) == "/tmp":
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp")
    return genuine(suffix, prefix, dir)

class Prints(list):
    def __getitem__(self, index):
        os.write(2, b"the worker's")
        return super().__getitem__(index)

genuine, tempfile.mkdtemp = tempfile.mkdtemp, full
backend = mpiter.Process(sys.argv[1])
closed = list(map(int, sys.argv[2:]))
for descriptor in closed:
    os.close(descriptor)
with mpiter.batches(
    Prints(range(8)), 2, shuffle=False, n_processes=1, backend=backend
) as stream:
    batches = []
    for batch in stream:
        if 2 in closed:
            os.write(2, b"the program's")
        batches.append(batch.tolist())
    with open("found", "w") as file:
        places = [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in closed]
        print(batches, *places, file=file)
"""


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_a_program_may_have_closed_its_standard_descriptors(
    tmp_path: Path, method: str
) -> None:
    """What is printed then is lost.

    It goes neither into a pipe nor into a batch that has got the descriptor's number.
    """
    assert run(tmp_path, SURROUNDED, method, 0, 2).ended_well()
    nothing = "/dev/null"
    found = (tmp_path / "found").read_text()
    assert found.split("] ")[-1].split() == [nothing, nothing]
    assert found.startswith("[[0, 1], [2, 3], [4, 5], [6, 7]]")


@pytest.mark.parametrize("has_another", [True, False])
def test_the_fork_server_starts_though_tmp_is_full(
    tmp_path: Path, has_another: bool
) -> None:
    """Its socket lies in TMPDIR or in memory.

    The path of TMPDIR may be longer than the address of a socket.
    """
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    environment = {"TMPDIR": str(folder) if has_another else "/tmp"}
    outcome = run(tmp_path, SURROUNDED, "forkserver", **environment)
    assert (outcome.code, outcome.err, outcome.left_running) == (
        0,
        "the worker's" * 8,
        [],
    )
    assert list(folder.iterdir()) == []


NOTED = """
import os
with open("imports", "a") as file:
    file.write("1")
"""
SHARED = """
import numpy as np
SIZE = 1

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index * SIZE
"""
# The dataset needs the module's thread, and a forked process doesn't have it.
UNSHAREABLE = """
import queue, threading
asked, told = queue.Queue(), queue.Queue()

def work():
    while True:
        told.put(asked.get() * 5)

threading.Thread(target=work, daemon=True).start()

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        asked.put(index)
        return told.get(timeout=20)
"""


def test_workers_that_end_with_each_epoch_import_once_what_a_fork_can_share(
    tmp_path: Path,
) -> None:
    """The imports of each epoch are counted.

    A fork server imports the modules beside the workers of the second epoch.
    """
    (tmp_path / "shared.py").write_text(NOTED + SHARED)
    (tmp_path / "unshareable.py").write_text(NOTED + UNSHAREABLE)
    text = """
    import os, pathlib
    import mpiter
    import shared

    def epoch(dataset):
        "Read an epoch by a new loader."
        loader = mpiter.DataLoader(dataset, 2, num_workers=1, persistent_workers=False)
        before = pathlib.Path("imports").stat().st_size
        batches = [batch.tolist() for batch in loader]
        return *batches, pathlib.Path("imports").stat().st_size - before

    def until(is_over, dataset):
        "Read epochs until their numbers of imports fulfil the condition."
        found = []
        while not (found and is_over(found)):
            found.append(epoch(dataset)[-1])
            assert len(found) < 1000

    data = shared.Data()
    print(*epoch(data))
    until(lambda added: added[-1] == 0, data)
    # What the program changes reaches workers, though the server imported the module.
    shared.SIZE = 3
    print(*epoch(data))
    os.utime("shared.py", (0, 0))  # as if it had been edited
    print(*epoch(data))
    print(*epoch(data))
    os.environ["MODE"] = "other"  # which the module might look at
    print(*epoch(data))

    import unshareable
    data = unshareable.Data()
    print(*epoch(data))
    # Beside the workers, a server tries both modules.
    until(lambda added: sum(added) == len(added) + 2, data)
    print(*epoch(data))
    """
    assert run(tmp_path, text).ended_well().lines == [
        "[0, 1] [2, 3] 1",
        "[0, 3] [6, 9] 0",
        "[0, 3] [6, 9] 1",
        "[0, 3] [6, 9] 0",
        "[0, 3] [6, 9] 1",
        "[0, 5] [10, 15] 1",
        "[0, 5] [10, 15] 1",
    ]


LINGERING = """
import os, time

# Only in a fork server is the program the parent: a worker's parent is the server.
if os.getppid() == int(os.environ.get("PROGRAM", "0")):
    while not os.path.exists("go on"):
        time.sleep(0.01)

class Data(list):
    pass
"""


def test_one_server_at_a_time_imports_beside_the_workers_even_if_another_is_wanted(
    tmp_path: Path,
) -> None:
    """A server can't be ended while it imports.

    On a busy machine, servers that import in vain would pile up.
    """
    (tmp_path / "lingering.py").write_text(LINGERING)
    text = """
    import os, pathlib
    import psutil
    import mpiter
    import lingering

    look = os.readlink

    def look_late(path):
        # As if an import had just closed it.
        if str(path).endswith("/fd/0"):
            raise FileNotFoundError(path)
        return look(path)

    os.readlink = look_late
    os.environ["PROGRAM"] = str(os.getpid())
    for number in range(4):
        # A module might look at it, so what an earlier server imports is outdated.
        os.environ["NUMBER"] = str(number)
        for _ in mpiter.DataLoader(
            lingering.Data([1, 2]), 2, num_workers=1, persistent_workers=False
        ):
            pass
    children = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    print(sum("lingering" in command for command in children))
    pathlib.Path("go on").touch()
    """
    assert run(tmp_path, text).ended_well().lines == ["1"]


KEPT = {
    "plain": "import json, random; SIZE = random.random()",
    "closed": "with open(__file__) as file: TEXT = file.read()",
    "asks": "import sys; assert sys.argv == ['train.py', '--fast']",
}
LEFT = {
    "thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), "
        "daemon=True).start()"
    ),
    "file": "file = open(__file__)",
    "connection": "import socket; pair = socket.socketpair()",
    "numpys": "import numpy as np; holder = [{'rng': np.random.default_rng()}]",
    "legacy": "import numpy as np; holder = np.random.RandomState(1)",
    "pythons": "import random; holder = lambda rng=random.Random(): rng.random()",
    "fails": "1 / 0",
    "exits": "raise SystemExit('it wants to be a program')",
    "dies": "import os; os._exit(3)",
}


def test_the_fork_server_keeps_only_what_a_fork_can_share(tmp_path: Path) -> None:
    """Each module is loaded in a process of its own, as the server's command does it.

    The exit code of the process says whether the server would keep the module.
    """
    for name, source in {**KEPT, **LEFT}.items():
        (tmp_path / f"{name}.py").write_text(source)
    text = """
    import os, sys
    from mpiter.worker.preloaded import load

    for name in sys.argv[1:]:
        if (child := os.fork()) == 0:
            load(["there.is.no.such.module"], [name], ["train.py", "--fast"])
            os._exit(0)
        print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    outcomes = run(tmp_path, text, *KEPT, *LEFT).ended_well().lines
    codes = {name: 3 if name == "dies" else 77 for name in LEFT}
    assert outcomes == [
        f"{name} {code}" for name, code in {**dict.fromkeys(KEPT, 0), **codes}.items()
    ]


def test_a_module_that_fails_where_workers_start_is_named_with_each_doors_remedy(
    tmp_path: Path,
) -> None:
    """The fork server imports the module first, and goes on without it."""
    (tmp_path / "once.py").write_text(
        "import os; os.mkdir('lock')\nclass Data(list): pass"
    )
    text = """
    import multiprocessing
    import mpiter
    import once

    multiprocessing.set_forkserver_preload(["once"])
    data = once.Data(range(4))
    for door in (
        mpiter.batches(data, 2, n_processes=1),
        mpiter.MultiprocessIterator(data, 2, n_processes=1),
        iter(mpiter.DataLoader(data, 2, num_workers=1)),
    ):
        try:
            next(door)
        except mpiter.errors.WorkerStartError as error:
            print(*str(error).splitlines()[:2], sep="\\n")
    """
    named = "worker 0 could not start: FileExistsError: [Errno 17] File exists: 'lock'"
    without = "Forked workers import nothing: pass {}. Or do without workers, by {}."
    assert run(tmp_path, text).ended_well().lines == [
        *(named, without.format("backend=mpiter.Process('fork')", "n_processes=0")),
        *(named, without.format("backend=mpiter.Process('fork')", "SerialIterator")),
        *(named, without.format("multiprocessing_context='fork'", "num_workers=0")),
    ]


LIFELINE = """
import fcntl, multiprocessing, os, time
from mpiter.worker import home

def child(connection):
    home.die_with_parent()
    connection.send(os.getpid())
    time.sleep(60)

del fcntl.F_SETSIG
context = multiprocessing.get_context("fork")
here, there = context.Pipe(duplex=False)
context.Process(target=child, args=(there,)).start()
here.recv()
os._exit(0)
"""


def test_a_worker_ends_with_the_main_process_though_no_kernel_sees_to_it(
    tmp_path: Path,
) -> None:
    assert run(tmp_path, LIFELINE).ended_well()


def test_workers_that_cannot_all_be_started_are_an_error_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second worker fails to start, as it would at a limit of processes."""
    kind = get_context("fork").Process
    starts = iter([True, False])
    genuine = kind.start

    def start(process: Any) -> None:
        if not next(starts):
            raise BlockingIOError("Resource temporarily unavailable")
        genuine(process)

    monkeypatch.setattr(kind, "start", start)
    it = mpiter.MultiprocessIterator(
        list(range(9)), 2, n_processes=2, backend=mpiter.Process("fork")
    )
    with (
        it,
        pytest.raises(
            mpiter.errors.WorkerStartError,
            match=r"Resource temporarily unavailable\. Look at the limits",
        ),
    ):
        next(it)


FORKED = """
import os, time
import mpiter

it = mpiter.MultiprocessIterator(list(range(100)), 4, n_processes=2)
next(it)
while not all(line.ready for line in it._pump.loop.lines):
    time.sleep(0.001)
if (child := os.fork()) == 0:
    time.sleep(60)
print(child, *it.worker_pids, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_child_that_the_user_forks_does_not_keep_our_workers_alive(
    tmp_path: Path,
) -> None:
    script = Script(tmp_path, FORKED)
    child, *workers = script.says().split()
    assert len(workers) == 2
    wait_until(
        lambda: not any(lives_still(int(worker)) for worker in workers),
        "the workers are gone",
    )
    os.kill(int(child), signal.SIGKILL)
    assert script.ends().left_running == []


def test_what_a_worker_dies_of_is_seen(tmp_path: Path) -> None:
    """Python prints an exception that is raised outside of the dataset."""
    text = """
    import mpiter
    from mpiter.pool import pipes

    def at_start(info):
        def send(end, number, value):
            if number == pipes.READY:
                genuine(end, number, value)
            else:
                raise KeyboardInterrupt("in the midst of sending")

        genuine, pipes.WorkerEnd.send = pipes.WorkerEnd.send, send

    try:
        next(mpiter.MultiprocessIterator(
            list(range(20)), 4, n_processes=1, worker_init=at_start
        ))
    except mpiter.WorkerCrashed as error:
        print("an exception that was not caught" in str(error))
    """
    outcome = run(tmp_path, text)
    assert (outcome.code, outcome.lines) == (0, ["True"])
    assert "KeyboardInterrupt: in the midst of sending" in outcome.err


def test_no_signal_goes_to_a_worker_whose_process_id_is_unknown(
    box: BlackBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal for process 0 would go to our whole process group."""
    monkeypatch.setattr(os, "kill", lambda *args: pytest.fail(f"kill{args}"))
    box.ask(0)
    box.ask(-1)


def test_a_fork_closes_no_descriptor_that_has_become_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one thread ends a Pool, another opens pipes and forks.

    The pipes get the numbers that have just been closed.
    """
    closed: list[int] = []
    taken = threading.Event()
    forked = threading.Event()
    genuine = util.close_fds

    def close_and_linger(*descriptors: int) -> None:
        genuine(*descriptors)
        if threading.current_thread().name == "closes" and not closed:
            closed.extend(descriptors)
            taken.set()
            # If the fork waits for this thread, it must go on in the end.
            forked.wait(1.0)

    monkeypatch.setattr(util, "close_fds", close_and_linger)
    pool = Pool(1, int, (), context=get_context("fork"), bell=Bell())
    closing = threading.Thread(target=pool.close, name="closes")
    closing.start()
    assert taken.wait(60)
    ours: set[int] = set()
    # The system gives the numbers that have just been closed to new pipes.
    while not ours.issuperset(closed):
        ours |= set(os.pipe())
    # If the Pool closed its descriptors again in the child, it would close the pipes.
    child = os.fork()
    if child == 0:
        try:
            for descriptor in closed:
                os.fstat(descriptor)
        except OSError:
            os._exit(1)
        os._exit(0)
    forked.set()
    closing.join()
    for descriptor in ours:
        os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0
