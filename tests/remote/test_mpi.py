"""With ``backend="mpi"`` a trainer's workers are the other ranks of its program.

The program runs under ``mpi4py.futures``.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launched import (
    LIMIT_S,
    TELL,
    Launched,
    by_futures,
    by_mpiexec,
    clear_away,
    launch,
    segments,
    told,
    with_mpi4py,
)

import mpiter
from mpiter.remote import mpi

pytestmark = with_mpi4py
CONTRACT = Path(__file__).with_name("contract_on_mpi.py")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ranks_keep_the_contract_of_iterators() -> None:
    root = Path(mpiter.__file__).parents[1]
    command = [
        *by_futures(3),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        str(CONTRACT),
    ]
    ran = subprocess.run(
        command,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=3 * LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_ranks_that_do_not_wait_for_work_are_no_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = SimpleNamespace(Get_size=lambda: 4)
    # So it is in ``mpiexec -n 4 python train.py``, once something has imported it.
    imported = SimpleNamespace(SharedPool=None, MPI=SimpleNamespace(COMM_WORLD=world))
    monkeypatch.setitem(sys.modules, "mpi4py.futures._core", imported)  # type: ignore[arg-type]
    with pytest.raises(mpiter.OptionError, match="ranks that wait for work"):
        mpi.MPI().count_workers()


# A newcomer writes a script like this, without a guard.  It has classes and lambdas of
# its own, and a module beside it.
NEWCOMER = (
    TELL
    + """
import gc
import os
import mpiter
import beside
from mpi4py import MPI

class Told:
    def __init__(self, length, change):
        self.length, self.change = length, change

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        info = mpiter.get_worker_info()
        worker = info.id, info.num_workers, MPI.COMM_WORLD.Get_rank(), os.getpid()
        return self.change(beside.twice(index)), *worker

def all_of(**options):
    told = Told(60, lambda value: value + 1)
    with mpiter.batches(told, 4, shuffle=False, backend="mpi", **options) as stream:
        batches = [[part.tolist() for part in batch] for batch in stream]
        workers = stream.stats().workers
    return batches, workers

batches, workers = all_of()
_, one = all_of(n_processes=1)
with mpiter.batches(Told(8, str), 4, backend="mpi") as stream:
    first = next(stream)
    first[1][:] = 7  # a batch is the consumer's own
    with mpiter.batches(range(100, 108), 4, shuffle=False, backend="mpi") as other:
        both = [first[0], *(batch.tolist() for batch in other), next(stream)[0]]
class Heavy:  # whose ranks let go of it when the next iterator begins
    def __len__(self):
        return 8

    def __getitem__(self, index):
        gc.collect()
        return sum(type(one).__name__ == "Heavy" for one in gc.get_objects())

counts = []
for _ in range(4):
    with mpiter.batches(Heavy(), 8, backend="mpi") as stream:
        counts.append(max(next(stream).tolist()))
tell("newcomer", 0, counts=counts, batches=batches, workers=workers, one=one, both=both,
     pid=os.getpid(), segments=segments())
"""
)


def test_a_plain_script_has_its_samples_from_the_other_ranks(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def twice(value):\n    return 2 * value\n")
    script = Launched(tmp_path, by_futures(3), NEWCOMER)
    code, _, err = script.ends()
    assert (code, err) == (0, "")
    (facts,) = told(tmp_path, "newcomer", 1)
    assert facts["segments"]
    assert script.left_in_shm.isdisjoint(facts["segments"])
    values, ids, counts, ranks, pids = (
        [*chain.from_iterable(part)] for part in zip(*facts["batches"], strict=True)
    )
    assert values == [2 * index + 1 for index in range(60)]
    assert facts["workers"] == 2
    assert set(ids) == {0, 1}
    assert [number + 1 for number in ids] == ranks
    assert set(counts) == {2}
    assert len(set(pids)) == 2
    assert facts["pid"] not in pids
    assert facts["one"] == 1
    one, first, second, last = facts["both"]
    assert [first, second] == [[100, 101, 102, 103], [104, 105, 106, 107]]
    assert sorted(map(int, one + last)) == list(range(0, 16, 2))
    assert facts["counts"] == [1] * 4


IMPATIENT = (
    TELL
    + """
import threading
import time
import mpiter

class Slow:
    def __len__(self):
        return 2

    def __getitem__(self, index):
        time.sleep(1.5)  # three times as long as the other one waits
        return index

is_over = threading.Event()
found = []

def read_on():
    with mpiter.batches(
        range(8), 4, epochs=None, backend="mpi", sample_timeout=0.5
    ) as stream:
        for batch in stream:
            found.append(len(batch))
            if is_over.is_set():
                return

other = threading.Thread(target=read_on)
other.start()
with mpiter.batches(
    Slow(), 1, shuffle=False, backend="mpi", sample_timeout=60
) as stream:
    slow = [batch.tolist() for batch in stream]
is_over.set()
other.join()
tell("impatient", 0, slow=slow, found=sorted(set(found)))
"""
)


def test_an_impatient_iterator_waits_for_the_slow_samples_of_another(
    tmp_path: Path,
) -> None:
    code, _, err = Launched(tmp_path, by_futures(3), IMPATIENT).ends()
    assert (code, err) == (0, "")
    (facts,) = told(tmp_path, "impatient", 1)
    assert facts["slow"] == [[0], [1]]
    assert facts["found"] == [4]


LARGE = (
    TELL
    + """
import numpy as np
import mpiter
from mpi4py import MPI

class Pictures:
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return np.full((100, 100), index, np.uint8), np.arange(100 * index), index

with mpiter.MultiprocessIterator(
    Pictures(), 7, repeat=False, shuffle=False, backend="mpi"
) as it:
    rows = [row for batch in it for row in batch]
right = 0
for x, y, index in rows:
    is_equal = np.all(x == index) and np.array_equal(y, np.arange(100 * index))
    is_writeable = x.flags.writeable and y.flags.writeable
    right += bool(is_equal and x.shape == (100, 100) and is_writeable)
level = MPI.Query_thread() == MPI.THREAD_MULTIPLE
tell("large", 0, right=right, count=len(rows), level=level)
"""
)


def test_what_a_program_that_is_starting_shares_is_not_cleared_away() -> None:
    """Its ranks would not find it, and would wait for each other for ever."""
    before = segments()
    name = f"mpich_shm_test_{os.getpid()}"
    with open(f"/dev/shm/{name}", "w+b") as opened:
        opened.truncate(mmap.PAGESIZE)
        assert name not in clear_away(before)
        shared = mmap.mmap(opened.fileno(), mmap.PAGESIZE)
    with shared:
        assert name not in clear_away(before)
    assert name in clear_away(before)
    assert name not in segments()


@pytest.mark.parametrize("level", ["multiple", "serialized"])
def test_large_samples_arrive_whatever_threads_may_talk_to_mpi(
    tmp_path: Path, level: str
) -> None:
    code, _, err = launch(tmp_path, by_futures(3), LARGE, MPI4PY_RC_THREAD_LEVEL=level)
    assert (code, err) == (0, "")
    assert told(tmp_path, "large", 1) == [
        {"right": 30, "count": 30, "level": level == "multiple"}
    ]


STARTED_OTHERWISE = """
    import mpiter
    mpiter.batches(range(8), 4, backend="mpi")
"""


@pytest.mark.parametrize(
    ("by", "says"),
    [
        (
            [sys.executable],
            "there is none: run `mpiexec -n 9 python -m mpi4py.futures train.py`",
        ),
        (by_futures(1), "there is none: run `mpiexec"),
    ],
)
def test_a_program_without_ranks_to_load_is_told_how_to_be_started(
    tmp_path: Path, by: Any, says: str
) -> None:
    code, _, err = launch(tmp_path, by, STARTED_OTHERWISE)
    assert code != 0
    assert "OptionError" in err
    assert says in err


class Stream:
    def __iter__(self) -> Any:
        return iter(range(8))


def test_what_mpi_cannot_serve_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi.MPI, "count_workers", lambda self: 3)
    for refused, says in (
        (
            lambda **k: mpiter.batches(range(8), 4, n_processes=4, **k),
            "mpiexec -n 5 python -m mpi4py.futures train.py",
        ),
        (
            lambda **k: mpiter.batches(range(8), 4, shard="auto", **k),
            "mpiexec -n 4 python train.py",
        ),
        (
            lambda **k: iter(mpiter.DataLoader(Stream(), 4, num_workers=2, **k)),
            "reads no streams",
        ),
    ):
        with pytest.raises(mpiter.OptionError, match=says):
            refused(backend="mpi")


def test_without_mpi4py_one_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi, "find_spec", lambda name: None)
    with pytest.raises(mpiter.OptionError, match=r"pip install 'mpiter\[mpi\]'"):
        mpiter.batches(range(8), 4, backend="mpi")


# -- ends ------------------------------------------------------------------------------

TRAINER = (
    TELL
    + """
import os
import signal
import sys
import mpiter

HOW = sys.argv[1]

class Deadly:
    def __len__(self):
        return 200

    def __getitem__(self, index):
        if index == 90 and HOW == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if index == 90 and HOW == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        return index

model = {"seen": []}
it = mpiter.MultiprocessIterator(
    Deadly(), 5, repeat=False, seed=1, backend="mpi", n_prefetch=1, run_ahead=0,
    sample_timeout=1
)
with it, mpiter.Checkpoint("run.npz", it, model=model, every_s=1e-9) as checkpoint:
    for batch in it:
        model["seen"] = [*model["seen"], *batch]
        checkpoint.step()
tell("trainer", 0, seen=model["seen"])
"""
)


def test_a_lost_rank_ends_the_run_in_words_and_a_checkpoint_goes_on_with_it(
    tmp_path: Path,
) -> None:
    for how in ("killed", "stopped"):
        code, _, err = launch(tmp_path, by_futures(3), TRAINER, how)
        assert code != 0
        assert "MPI replaces no rank, so the run ends here" in err
        assert "what mpiter.Checkpoint or your own state_dict() saved" in err
        stopped = "WorkerCrashed: no MPI rank has answered for 1 s (sample_timeout)"
        assert (stopped in err) == (how == "stopped")
        assert not list(tmp_path.glob("trainer*"))
        assert mpiter.Checkpoint.read(tmp_path / "run.npz")["model"]["seen"]
    code, _, err = launch(tmp_path, by_futures(3), TRAINER, "well")
    assert code == 0
    assert err.startswith("mpiter: continues from ")
    assert err.count("\n") == 1
    (facts,) = told(tmp_path, "trainer", 1)
    assert Counter(facts["seen"]) == Counter(range(200))


INTERRUPTED = """
    import time
    import mpiter

    class Slow:
        def __len__(self):
            return 10_000

        def __getitem__(self, index):
            time.sleep(0.01)
            return index

    for number, batch in enumerate(mpiter.batches(Slow(), 4, backend="mpi")):
        if number == 1:
            print("at work", flush=True)
"""


def test_ctrl_c_ends_all_ranks(tmp_path: Path) -> None:
    script = Launched(tmp_path, by_futures(3), INTERRUPTED)
    assert script.process.stdout is not None
    assert script.process.stdout.readline() == "at work\n"
    script.process.send_signal(signal.SIGINT)
    code, _, _ = script.ends()
    assert code != 0


LEFT_OPEN = """
    import mpiter

    endless = [
        mpiter.MultiprocessIterator(range(1000), 4, backend="mpi", n_prefetch=8)
        for _ in range(2)
    ]
    for _ in range(5):
        for it in endless:
            next(it)
"""


def test_a_program_ends_as_it_would_without_workers(tmp_path: Path) -> None:
    code, _, err = launch(tmp_path, by_futures(3), LEFT_OPEN)
    # If mpiexec had killed a rank, it would have printed that.
    assert (code, err) == (0, "")


STUCK_AT_THE_END = """
    import atexit
    import sys
    import time
    from pathlib import Path
    import mpiter

    is_left_open, how = sys.argv[1] == "open", sys.argv[2]
    stuck = Path(__file__).with_name("stuck")
    atexit.register(Path(__file__).with_name("exit functions have run").touch)

    class Stuck:
        def __len__(self):
            return 100

        def __getitem__(self, index):
            if index == 17:  # of the batch that is prefetched then
                stuck.touch()
                time.sleep(600)
            return index

    it = mpiter.MultiprocessIterator(Stuck(), 4, shuffle=False, backend="mpi")
    for number, batch in enumerate(it):
        if number == 3:
            break
    while not stuck.exists():
        time.sleep(0.01)  # polling: the test ends this in the end
    if not is_left_open:
        it.close()
    if how == "raises":
        raise ValueError("mine")
    if how == "exits":
        sys.exit(3)
"""


@pytest.mark.parametrize(
    ("is_left", "how", "ends", "says"),
    [("closed", "raises", 1, "mine"), ("open", "exits", 3, "")],
)
def test_a_program_ends_though_a_rank_is_stuck(
    tmp_path: Path, is_left: str, how: str, ends: int, says: str
) -> None:
    """mpi4py would wait for the stuck rank for ever."""
    script = Launched(tmp_path, by_futures(3), STUCK_AT_THE_END, is_left, how)
    code, _, err = script.ends()
    assert code == ends
    assert (tmp_path / "exit functions have run").exists()
    assert "mpiter: an MPI rank has not come back from its sample" in err
    assert says in err


# -- ordinary workers under mpiexec ----------------------------------------------------

AMONG_RANKS = (
    TELL
    + """
import os
import sys
from mpi4py import MPI
import mpiter

class Looks:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        from mpi4py import MPI  # begins MPI, in a worker that has not inherited it
        numbers = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        places = [os.readlink(link) for link in numbers if os.path.islink(link)]
        found = places.count(launcher)
        return MPI.COMM_WORLD.Get_size(), os.environ.get("PMI_RANK"), found, os.getpid()

rank = MPI.COMM_WORLD.Get_rank()
launcher = os.readlink(f"/proc/self/fd/{os.environ['PMI_FD']}")  # a socket
with mpiter.MultiprocessIterator(
    Looks(), 4, repeat=False, n_processes=1, shard="auto", seed=0
) as it:
    rows = [list(row) for batch in it for row in batch]
    restarts = it.stats().restarts
ranks = MPI.COMM_WORLD.allreduce(1)
tell("among", rank, rows=rows, restarts=restarts, pid=os.getpid(), ranks=ranks)
"""
)


def test_workers_of_a_rank_know_the_way_to_its_launcher_no_more(tmp_path: Path) -> None:
    """MPI would write to that descriptor.

    In a worker it is something else, perhaps the fork server's end of a pipe.
    """
    code, out, err = launch(tmp_path, by_mpiexec(2), AMONG_RANKS)
    assert (code, out, err) == (0, "", "")
    for rank, facts in enumerate(told(tmp_path, "among", 2)):
        assert len(facts["rows"]) == 4
        assert (facts["restarts"], facts["ranks"]) == (0, 2)
        for size, variable, sockets, pid in facts["rows"]:
            assert (size, variable, sockets) == (1, str(rank), 0)
            assert pid != facts["pid"]
