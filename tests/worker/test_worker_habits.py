"""A worker's output reaches the terminal, and ``worker_init`` runs before it fetches.

A worker has as many threads as it is allowed.
"""

import collections
import mmap
import multiprocessing
import os
import platform
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
from scripts import run
from ways import iterator

import mpiter
from mpiter.worker import home

WORKERS = 2


class Samples:
    """Samples are what ``say(i)`` returns, which is called in the worker."""

    def __init__(self, say, length=8):
        self.say = say
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        return self.say(i)


def fetched(dataset, batch_size=2, **options):
    options = {"n_processes": WORKERS, "shuffle": False, "repeat": False, **options}
    with iterator(dataset, batch_size, **options) as it:
        return [sample for batch in it for sample in batch]


SAYS = """
import logging, sys, warnings
import mpiter

def say(samples):
    print("printed", flush=True)
    print("noted", file=sys.stderr)
    logging.getLogger("my.dataset").warning("logged")
    warnings.warn("warned")
    return samples

if __name__ == "__main__":
    backend = mpiter.Process({!r})
    print(*mpiter.DataLoader(
        range(2), 2, num_workers=1, collate_fn=say, backend=backend
    ))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_what_a_worker_says_reaches_the_programs_output(tmp_path, method):
    said = run(tmp_path, SAYS.format(method))
    assert (said.code, sorted(said.lines)) == (0, ["[0, 1]", "printed"])
    for word in ("noted", "logged", "UserWarning: warned"):
        assert said.err.count(word) == 1


def infos(folder):
    """Return what the hooks below have noted, a line for each call."""
    return sorted(path.read_text() for path in folder.iterdir())


def once_all_are_there(folder, workers):
    """Wait until each worker has left a file.

    A quick one could fetch everything before another has begun.
    """
    # A file exists before its text is written.
    while sum(path.stat().st_size > 0 for path in folder.iterdir()) < workers:
        time.sleep(0.001)


class Hooked:
    """Writes a file at each call of its ``worker_init``."""

    def __init__(self, folder):
        self.folder = folder
        self.greeting = None

    def worker_init(self, info):
        assert info.dataset is self
        assert mpiter.get_worker_info() is info
        self.greeting = f"worker {info.id} of {info.num_workers}, seed {info.seed}"
        name = f"{os.getpid()}-{len(list(self.folder.iterdir()))}"
        (self.folder / name).write_text(self.greeting)

    def __len__(self):
        return 40

    def __getitem__(self, i):
        assert mpiter.get_worker_info().dataset is self
        once_all_are_there(self.folder, WORKERS)
        return self.greeting


def test_the_datasets_worker_init_is_called_once_in_each_worker(tmp_path):
    greetings = set(fetched(Hooked(tmp_path), seed=5))
    expected = [f"worker {i} of {WORKERS}, seed 5" for i in range(WORKERS)]
    assert infos(tmp_path) == expected
    assert greetings <= set(expected)


@pytest.mark.parametrize("backend", ["process", "thread", "serial"])
def test_the_worker_init_argument_is_called_with_the_workers_info(tmp_path, backend):
    def greet(info):
        (tmp_path / f"{os.getpid()}-{info.id}").write_text(
            f"{info.id} {info.num_workers} {info.backend}"
        )

    workers = 1 if backend == "serial" else WORKERS
    fetched(
        Samples(lambda i: once_all_are_there(tmp_path, workers)),
        worker_init=greet,
        backend=backend,
    )
    assert infos(tmp_path) == [f"{i} {workers} {backend}" for i in range(workers)]


VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def test_a_worker_has_one_thread_for_numerical_libraries_unless_told_otherwise(
    monkeypatch,
):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")

    def say(i):
        return tuple(os.environ[name] for name in VARIABLES)

    assert set(fetched(Samples(say))) == {("1", "1", "3", "1")}
    assert "OMP_NUM_THREADS" not in os.environ


def test_numpys_blas_has_one_thread_in_a_worker():
    def say(i):
        import threadpoolctl

        return [
            pool["num_threads"]
            for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "blas"
        ]

    for threads in fetched(Samples(say, length=4)):
        assert set(threads) <= {1}


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(),
    reason="only Linux's /proc lists the threads of a process",
)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_limiting_libraries_leaves_no_threads_that_spin(method):
    """OpenBLAS starts threads in a forked process when it is limited to one thread."""
    if method == "fork" and not all(
        hasattr(lib.dynlib, "blas_thread_shutdown_") for lib in loaded_openblas()
    ):
        pytest.skip(
            "this OpenBLAS keeps to itself how its threads are ended: NumPy before "
            "2.5 has one that doesn't"
        )

    def count(i):
        return len(list(Path("/proc/self/task").iterdir()))

    assert min(fetched(Samples(count, length=4), backend=mpiter.Process(method))) == 1


class Forking:
    """Forks in each sample, which holds the exit code of its child.

    The child ends in the way that belongs to the sample.
    """

    manners = ("sys.exit", "raise", "return", "return late", "Process", "os._exit")

    def __len__(self):
        return 4 * len(self.manners)

    def __getitem__(self, i):
        manner = self.manners[i % len(self.manners)]
        if manner == "Process":
            code = self.code_of_a_process()
        else:
            code = self.code_of_a_fork(manner)
        return self.sample(i, code)

    @staticmethod
    def sample(i, code):
        return np.full((40, 40), i), code

    def code_of_a_process(self):
        # A daemonic process may not have children.
        multiprocessing.current_process()._config["daemon"] = False
        child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(5,))
        child.start()
        child.join()
        return child.exitcode

    def code_of_a_fork(self, manner):
        parent_has_gone_on, go_on = os.pipe()
        child = os.fork()
        if child:
            if manner == "return late":
                os.write(go_on, b".")
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.close(parent_has_gone_on)
            os.close(go_on)
            return code
        if manner == "sys.exit":
            sys.exit(3)
        if manner == "os._exit":
            os._exit(4)
        if manner == "raise":
            raise ValueError("of the child")
        if manner == "return late":
            os.read(parent_has_gone_on, 1)
        return self.sample(-1, -1)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("shape", ["columns", "objects"])
def test_a_dataset_may_fork_and_no_child_answers_for_its_worker(capfd, method, shape):
    dataset = Forking()
    backend = mpiter.Process(method)
    codes = {
        "sys.exit": 3,
        "raise": 1,
        "return": 1,
        "return late": 1,
        "Process": 5,
        "os._exit": 4,
    }
    expected = [
        (i, codes[dataset.manners[i % len(codes)]]) for i in range(len(dataset))
    ]
    collate = None if shape == "columns" else list
    with mpiter.DataLoader(
        dataset, 6, num_workers=1, backend=backend, collate_fn=collate
    ) as loader:
        for _epoch in range(2):
            found = []
            for batch in loader:
                pairs = batch if collate else zip(*batch, strict=True)
                found += [
                    (int(image[0, 0]), int(code))
                    for image, code in pairs
                    if image.min() == image.max()
                ]
            assert found == expected
    # A fork server writes to the standard error that it was started with.
    if method == "fork":
        told = capfd.readouterr().err
        assert "ValueError: of the child" in told
        assert "RuntimeError: Forking forked this process" in told


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_a_worker_thread_forks_ends_and_waits_for_no_more_blocks():
    # If filelock is imported (by Chainer or torch), a fork fails while another thread
    # forks.
    one_at_a_time = threading.Lock()

    def fork(i):
        with one_at_a_time:
            child = os.fork()
        if not child:
            sys.exit(i)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert fetched(Samples(fork, length=4), backend="thread") == [0, 1, 2, 3]


def loaded_openblas():
    return home._loaded_libraries(0).select(internal_api="openblas").lib_controllers


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="the C library is not glibc: workers leave it alone",
)
def test_memory_that_a_sample_took_serves_the_next(monkeypatch):
    for name in ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)

    def count(i):
        import resource

        def faults():
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

        # Makes large arrays, and keeps nothing of them.
        def decode():
            size = 12 << 17  # numbers of 8 bytes
            return (np.ones(size) + np.ones(size)).sum()

        decode()
        before = faults()
        for _ in range(10):
            decode()
        return faults() - before

    pages = 10 * 3 * (12 << 20) // mmap.PAGESIZE
    assert max(fetched(Samples(count, length=4))) < pages / 10


def test_opencv_and_torch_are_told_where_they_are_loaded():
    calls = collections.Counter()

    # ``worker_init`` runs before the limits are set.
    def load(info):
        for name, method in [("cv2", "setNumThreads"), ("torch", "set_num_threads")]:
            module = types.ModuleType(name)
            setattr(
                module, method, lambda number, name=name: calls.update([(name, number)])
            )
            sys.modules[name] = module
        info.dataset.calls = calls

    class Callbacks(Samples):
        def __getitem__(self, i):
            return str(sorted(self.calls))

    found = fetched(Callbacks(None, 1), worker_init=load, n_processes=1)
    assert found == ["[('cv2', 0), ('torch', 1)]"]
