"""Whole programs run under every start method, and end whichever way they end.

They need no `__main__` guard and no other ceremony.
"""

import os
import re

import pytest
from scripts import METHODS, Script, run, wait_until

import mpiter

# One Python shows all this; the quick part, which runs on the others, leaves it out.
pytestmark = pytest.mark.slow

PLAIN = """
    from collections import namedtuple
    from dataclasses import dataclass
    import numpy as np
    import mpiter

    Pair = namedtuple("Pair", "image label")

    @dataclass
    class Item:
        image: np.ndarray
        label: int

    class Numbers:
        def __init__(self, kind, transform):
            self.kind = kind
            self.transform = transform
        def __len__(self):
            return 23
        def __getitem__(self, i):
            return self.kind(self.transform(np.full((2, 3), i, np.float32)), i)

    for method in ("serial", "spawn", "forkserver", "fork"):
        for kind in (Pair, Item):
            dataset = Numbers(kind, lambda x: x * 2)
            if method == "serial":
                it = mpiter.SerialIterator(dataset, 5, repeat=False, seed=3)
            else:
                it = mpiter.MultiprocessIterator(
                    dataset,
                    5,
                    repeat=False,
                    n_processes=1,
                    seed=3,
                    backend=mpiter.Process(method),
                )
            of_columns = Pair if kind is Pair else list
            with it:
                for batch in it:
                    columns = batch.columns
                    assert all(isinstance(item, kind) for item in batch), type(batch[0])
                    assert isinstance(columns, of_columns), type(columns)
                    rows = [(item.image.sum().item(), item.label) for item in batch]
                    print(rows, batch[0].image.shape)
"""


def test_a_script_with_classes_and_a_lambda_gives_the_same_under_every_start_method(
    tmp_path,
):
    lines = run(tmp_path, PLAIN).ended_well().lines
    serial = lines[:10]
    assert len(lines) == 40
    assert lines == serial * 4


LOCKED = """
    import sys, threading, mpiter
    print("the script runs", flush=True)
    # The dataset's code uses this global, which can't travel by value.
    lock = threading.Lock()
    class Numbers:
        def __len__(self):
            return 4
        def __getitem__(self, i):
            with lock:
                return i
    method = sys.argv[1] if sys.argv[1:] else None
    loader = mpiter.DataLoader(
        Numbers(), 2, num_workers=1, multiprocessing_context=method
    )
    for batch in loader:
        print(batch.tolist())
"""


def test_what_cannot_travel_by_value_is_forked_with_a_warning_that_names_it(tmp_path):
    outcome = run(tmp_path, LOCKED)
    assert outcome.lines == ["the script runs", "[0, 1]", "[2, 3]"]
    assert "Numbers.__getitem__:lock (lock) cannot be pickled" in outcome.err
    assert "Forking the workers instead" in outcome.err


def test_under_another_start_method_the_error_names_it_and_the_script_is_not_run_again(
    tmp_path,
):
    outcome = run(tmp_path, LOCKED, "spawn")
    assert outcome.lines == ["the script runs"]
    assert (
        "DatasetNotPicklable: Numbers.__getitem__:lock (lock) cannot be pickled"
        in outcome.err
    )


class Environment:
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return os.environ.get("GREETING", ""), os.environ.get("GONE", "")


def test_workers_see_later_changes_of_the_environment(monkeypatch):
    monkeypatch.setenv("GONE", "still here")
    for seen in (("", "still here"), ("good evening", "")):
        with mpiter.MultiprocessIterator(
            Environment(), 1, repeat=False, n_processes=1
        ) as it:
            assert it.next() == [seen]
        monkeypatch.setenv("GREETING", "good evening")
        monkeypatch.delenv("GONE", raising=False)


OPEN = """
    import gc, os, sys, threading, time
    import mpiter

    class Numbers:
        def __len__(self):
            return 1000
        def __getitem__(self, i):
            return i

    backend = mpiter.Process(sys.argv[1])
    it = mpiter.MultiprocessIterator(
        Numbers(), 5, shuffle=False, n_processes=2, backend=backend
    )
"""


@pytest.mark.parametrize(
    ("left_by", "method", "code", "said"),
    [
        ("print(batch); break", "spawn", 0, []),
        ("raise ValueError('mine')", "forkserver", 1, ["ValueError: mine"]),
        ("sys.exit(7)", "fork", 7, []),
    ],
    ids=["break", "exception", "exit"],
)
def test_a_loop_that_is_left_ends_the_script_with_its_own_traceback_alone(
    tmp_path, left_by, method, code, said
):
    outcome = run(tmp_path, f"{OPEN}    for batch in it:\n        {left_by}\n", method)
    assert (outcome.code, outcome.left_running) == (code, [])
    assert outcome.lines == (["[0, 1, 2, 3, 4]"] if "print" in left_by else [])
    assert outcome.err.splitlines()[-1:] == said
    assert outcome.err.count("Traceback (most recent call last)") == len(said)
    assert re.findall(r'File ".*/(\w+\.py)"', outcome.err) == ["script.py"] * len(said)


IN_A_DAEMON = """first = threading.Event()
    threading.Thread(target=lambda: [first.set() for batch in it], daemon=True).start()
    first.wait()"""


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        ("forkserver", IN_A_DAEMON),
        ("spawn", "pass"),
        ("forkserver", "next(it)"),
        ("fork", "next(it); it.close(); it.close()"),
        ("forkserver", "del it; gc.collect()"),
        ("spawn", "next(it); threading.Thread(target=it.close).start()"),
        ("fork", "kept = [next(it) for _ in range(20)]; columns = next(it).columns"),
    ],
)
def test_a_script_ends_cleanly_with_an_iterator_in_any_state(tmp_path, method, ending):
    run(tmp_path, f"{OPEN}    {ending}\n", method).ended_well()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessings_ends_cleanly_with_workers_that_are_not_closed(
    tmp_path, method
):
    text = """
    import multiprocessing, sys
    import mpiter

    def train():
        global loader, under_way
        loader = mpiter.DataLoader(range(100), 4, num_workers=2)
        for _ in loader:
            pass
        under_way = iter(loader)
        next(under_way)

    if __name__ == "__main__":
        child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
        child.start()
        child.join()
        print(child.exitcode)
    """
    assert run(tmp_path, text, method).ended_well().lines == ["0"]


LIBRARY = """
    import multiprocessing, sys, time
    import mpiter

    class Locking:
        def __len__(self):
            return 40
        def worker_init(self, info):
            passing = multiprocessing.get_context("spawn").RLock()
            del passing
            self.lock = multiprocessing.get_context("spawn").Lock()
            if info.id == 1:
                # This worker is still starting when the other has fetched all.
                time.sleep(0.2)
        def __getitem__(self, index):
            with self.lock:
                return index

    backend = mpiter.Process(sys.argv[1])
    it = mpiter.MultiprocessIterator(
        Locking(), 4, repeat=False, n_processes=2, backend=backend
    )
    print(sum(len(batch) for batch in it))
    if sys.argv[2] == "renew and close":
        it.reset()
        print(sum(len(batch) for batch in it))
        it.close()
"""


@pytest.mark.parametrize(
    ("ending", "method"), [("renew and close", "forkserver"), ("leave", "spawn")]
)
def test_workers_give_back_what_libraries_have_made_in_them(tmp_path, method, ending):
    lines = run(tmp_path, LIBRARY, method, ending).ended_well().lines
    assert lines == (["40"] if ending == "leave" else ["40"] * 2)


DAEMONIC = """
    import multiprocessing
    import mpiter

    def in_a_daemon():
        for method in (None, "spawn"):
            options = {"backend": mpiter.Process(method)} if method else {}
            for loader in (
                mpiter.DataLoader(
                    [1, 2, 3], 2, num_workers=1, multiprocessing_context=method
                ),
                mpiter.batches([1, 2, 3], 2, n_processes=1, epochs=1, **options),
            ):
                try:
                    next(iter(loader))
                except mpiter.errors.WorkerStartError as error:
                    said = str(error)
                    print("num_workers=0" in said and "daemonic" in said, flush=True)
        batches = mpiter.batches([1, 2, 3], 2, n_processes=0, shuffle=False)
        print(next(iter(batches)), flush=True)

    if __name__ == "__main__":
        spawn = multiprocessing.get_context("spawn")
        child = spawn.Process(target=in_a_daemon, daemon=True)
        child.start()
        child.join()
"""


def test_a_daemonic_process_is_told_why_it_can_have_no_workers(tmp_path):
    assert run(tmp_path, DAEMONIC).ended_well().lines == ["True"] * 4 + ["[1 2]"]


def test_a_deleted_working_directory_is_named_as_the_cause(tmp_path):
    script = """
    import os
    import mpiter

    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir(os.getcwd())
    for method in ("forkserver", "spawn"):
        try:
            backend = mpiter.Process(method)
            next(mpiter.MultiprocessIterator([1, 2], 2, n_processes=1, backend=backend))
        except mpiter.errors.WorkerStartError as error:
            print("the working directory" in str(error))
    """
    assert run(tmp_path, script).ended_well().lines == ["True"] * 2


def test_a_finalizer_may_close_the_iterator(tmp_path):
    script = (
        OPEN
        + """
    class Trainer:
        def __init__(self, iterator):
            self.iterator = iterator
            self.me = self
        def __del__(self):
            self.iterator.finalize()
            print("closed")
    next(it)
    trainer = Trainer(it)
    del trainer, it
    gc.collect()
    """
    )
    assert run(tmp_path, script, "forkserver").ended_well().lines == ["closed"]


CHILDREN = (
    "os._exit(0)",
    "sys.exit(0)",
    "it.close(); sys.exit(0)",
    "del it, first; gc.collect(); sys.exit(0)",
    "print(next(it)); sys.exit(0)",
    "print(next(mpiter.SerialIterator(Numbers(), 3, shuffle=False))); sys.exit(0)",
    "it = mpiter.MultiprocessIterator(Numbers(), 3, shuffle=False, n_processes=1); "
    "print(next(it)); sys.exit(0)",
)
FORKING = f"""{OPEN}
    first = next(it)
    for text in {CHILDREN}:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            exec(text)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print([next(it)[0] for _ in range(100)] == [5 * (1 + i) for i in range(100)])
    print(first)
"""


@pytest.mark.parametrize("method", METHODS[:2])
def test_a_forked_copy_of_the_consumer_does_not_disturb_it(tmp_path, method):
    lines = (
        ["child 0"] * 4 + ["[5, 6, 7, 8, 9]", "child 0"] + ["[0, 1, 2]", "child 0"] * 2
    )
    assert run(tmp_path, FORKING, method).ended_well().lines == [
        *lines,
        "True",
        "[0, 1, 2, 3, 4]",
    ]


@pytest.mark.parametrize("method", METHODS[:2])
def test_ctrl_c_gives_one_keyboard_interrupt_and_no_noise(tmp_path, method):
    script = """
    import sys, time
    import mpiter

    class Slow:
        def __len__(self):
            return 100
        def __getitem__(self, i):
            if i >= 5:
                open("blocked", "w").close()
                time.sleep(600)
            return i

    backend = mpiter.Process(sys.argv[1])
    it = mpiter.MultiprocessIterator(
        Slow(), 5, shuffle=False, n_processes=2, backend=backend, run_ahead=0
    )
    for batch in it:
        print(batch, flush=True)
    """
    script = Script(tmp_path, script, method)
    script.reads("[0, 1, 2, 3, 4]")
    wait_until((tmp_path / "blocked").exists, "a worker is in the slow sample")
    script.ctrl_c()
    outcome = script.ends()
    assert outcome.left_running == []
    assert outcome.code in (-2, 130)
    assert outcome.err.count("Traceback (most recent call last)") == 1, outcome.err
    assert outcome.err.splitlines()[-1] == "KeyboardInterrupt"
    assert "mpiter-worker" not in outcome.err
