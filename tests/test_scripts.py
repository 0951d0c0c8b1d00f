"""Whole programs: without ceremony, under every start method, and out again whichever way they end."""

import os
import re
import tempfile
from pathlib import Path

import pytest
from scripts import METHODS, Script, run, wait_until

pytestmark = pytest.mark.slow  # this Python shows it; the further ones are spared

every_method = pytest.mark.parametrize("method", METHODS)

PLAIN = """
    import sys
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
        def __init__(self, transform):
            self.transform = transform
        def __len__(self):
            return 23
        def __getitem__(self, i):
            kind = Pair if sys.argv[2] == "namedtuple" else Item
            return kind(self.transform(np.full((2, 3), i, np.float32)), i)

    backend = "serial" if sys.argv[1] == "serial" else mpiter.Process(sys.argv[1])
    it = mpiter.MultiprocessIterator(Numbers(lambda x: x * 2), 5, repeat=False, n_processes=2, seed=3, backend=backend)
    for batch in it:
        assert all(isinstance(item, (Pair, Item)) for item in batch), type(batch[0])
        assert isinstance(batch.columns, (Pair, Item)), type(batch.columns)
        print([(item.image.sum().item(), item.label) for item in batch], batch.columns.image.shape)
"""


@pytest.mark.parametrize("kind", ["namedtuple", "dataclass"])
def test_a_plain_script_with_classes_and_a_lambda_gives_the_same_under_every_start_method(tmp_path, kind):
    expected = run(tmp_path, PLAIN, "serial", kind).ended_well()
    assert len(expected.lines) == 5
    for method in METHODS:
        assert run(tmp_path, PLAIN, method, kind).ended_well().out == expected.out, method


GUARDED = """
    import sys, threading
    import mpiter

    lock = threading.Lock()  # a global that the dataset's code uses: by value it cannot travel

    class Numbers:
        def __len__(self):
            return 10
        def __getitem__(self, i):
            with lock:
                return i * i

    if __name__ == "__main__":
        with mpiter.MultiprocessIterator(
            Numbers(), 5, repeat=False, shuffle=False, n_processes=2, backend=mpiter.Process(sys.argv[1])
        ) as it:
            print([list(batch) for batch in it])
"""


@every_method
def test_what_cannot_travel_by_value_is_imported_from_a_guarded_script(tmp_path, method):
    outcome = run(tmp_path, GUARDED, method).ended_well()
    assert outcome.lines == ["[[0, 1, 4, 9, 16], [25, 36, 49, 64, 81]]"]


UNPICKLABLE = """
    import sys, threading
    import mpiter

    class Numbers:
        def __init__(self):
            self.held = threading.Lock() if sys.argv[1] == "lock" else (i for i in range(3))
        def __len__(self):
            return 10
        def __getitem__(self, i):
            return i

    backend = mpiter.Process(sys.argv[2]) if sys.argv[2:] else "process"
    it = mpiter.MultiprocessIterator(Numbers(), 5, repeat=False, shuffle=False, n_processes=2, backend=backend)
    print([list(batch) for batch in it])
"""


@pytest.mark.parametrize("held", ["lock", "generator"])
def test_a_dataset_that_cannot_travel_at_all_is_forked_with_one_warning(tmp_path, held):
    outcome = run(tmp_path, UNPICKLABLE, held)
    assert outcome.code == 0
    assert outcome.lines == ["[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]"]
    assert outcome.err.count("RuntimeWarning") == 1
    assert f"dataset.held ({held})" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_it_is_not_forked_where_another_start_method_was_asked_for(tmp_path, method):
    outcome = run(tmp_path, UNPICKLABLE, "lock", method)
    assert (outcome.code, outcome.out, outcome.left_running) == (1, "", [])
    assert "DatasetNotPicklable: dataset.held (lock) cannot be pickled" in outcome.err


@every_method
def test_workers_see_later_changes_of_the_environment(tmp_path, method):
    script = """
    import os, sys
    import mpiter

    class Environment:
        def __len__(self):
            return 1
        def __getitem__(self, i):
            return os.environ.get("GREETING", ""), os.environ.get("GONE", "")

    def look():
        backend = mpiter.Process(sys.argv[1])
        with mpiter.MultiprocessIterator(Environment(), 1, repeat=False, n_processes=1, backend=backend) as it:
            print(next(it)[0])

    os.environ["GONE"] = "still here"
    look()
    os.environ["GREETING"] = "good evening"
    del os.environ["GONE"]
    look()
    """
    assert run(tmp_path, script, method).ended_well().lines == ["('', 'still here')", "('good evening', '')"]


OPEN = """
    import gc, os, sys, threading, time
    import mpiter

    class Numbers:
        def __len__(self):
            return 1000
        def __getitem__(self, i):
            return i

    it = mpiter.MultiprocessIterator(Numbers(), 5, shuffle=False, n_processes=2, backend=mpiter.Process(sys.argv[1]))
"""


@every_method
def test_a_script_may_break_out_of_the_loop_and_end(tmp_path, method):
    script = OPEN + "    for batch in it:\n        break\n    print(batch)\n"
    assert run(tmp_path, script, method).ended_well().lines == ["[0, 1, 2, 3, 4]"]


@every_method
def test_an_uncaught_exception_ends_the_script_with_its_traceback_alone(tmp_path, method):
    script = OPEN + "    for batch in it:\n        raise ValueError('mine')\n"
    outcome = run(tmp_path, script, method)
    assert (outcome.code, outcome.left_running) == (1, [])
    assert outcome.err.count("Traceback (most recent call last)") == 1
    assert outcome.err.splitlines()[-1] == "ValueError: mine"
    assert "site-packages" not in outcome.err
    assert re.findall(r'File ".*/(\w+\.py)"', outcome.err) == ["script.py"]


@every_method
def test_sys_exit_within_the_loop_ends_the_script_with_its_code(tmp_path, method):
    outcome = run(tmp_path, OPEN + "    for batch in it:\n        sys.exit(7)\n", method)
    assert (outcome.code, outcome.err, outcome.left_running) == (7, "", [])


@every_method
@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "it.close()",
        "it.close(); it.close()",
        "del it; gc.collect()",
        "threading.Thread(target=it.close).start()",
    ],
)
def test_a_script_ends_cleanly_with_an_iterator_in_any_state(tmp_path, method, ending):
    for before in ("", "    next(it)\n"):
        run(tmp_path, f"{OPEN}{before}    {ending}\n", method).ended_well()


def test_batches_kept_in_globals_do_not_hinder_the_end(tmp_path):
    script = OPEN + "    kept = [next(it) for _ in range(20)]\n    columns = next(it).columns\n"
    run(tmp_path, script, "forkserver").ended_well()


def test_a_daemon_thread_that_iterates_does_not_hinder_the_end(tmp_path):
    script = (
        OPEN
        + """
    first = threading.Event()
    def iterate():
        try:
            for batch in it:
                first.set()
        except mpiter.IteratorClosed:
            pass
    threading.Thread(target=iterate, daemon=True).start()
    first.wait()
    """
    )
    run(tmp_path, script, "forkserver").ended_well()


def test_a_finalizer_may_close_the_iterator(tmp_path):
    script = (
        OPEN
        + """
    class Trainer:
        def __init__(self, iterator):
            self.iterator, self.me = iterator, self
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


@every_method
def test_nothing_named_is_left_behind(tmp_path, tmp_path_factory, method):
    """Names of this script's semaphores bear a mark, since other programs make and drop their own meanwhile."""
    script = (
        """
    import multiprocessing, os, sys
    multiprocessing.current_process()._config["semprefix"] = "/mp-" + sys.argv[2]
    """
        + OPEN
        + """
    next(it)
    """
    )
    mark = f"mark{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="t") as scratch:  # a short path: the fork server's socket lies in it
        run(tmp_path, script, method, mark, TMPDIR=scratch).ended_well()
        assert os.listdir(scratch) == []
    assert [path.name for path in Path("/dev/shm").iterdir() if mark in path.name] == []


FORKING = (
    OPEN
    + """
    first = next(it)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        {child}
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("child", code)
    print([next(it)[0] for _ in range(100)] == [5 * (1 + i) for i in range(100)])
    print(first)
"""
)


@every_method
@pytest.mark.parametrize(
    "child",
    [
        "os._exit(0)",
        "sys.exit(0)",
        "it.close(); sys.exit(0)",
        "del it, first; gc.collect(); sys.exit(0)",
        "print(next(it)); sys.exit(0)",
        "print(next(mpiter.SerialIterator(Numbers(), 3, shuffle=False))); sys.exit(0)",
        "it = mpiter.MultiprocessIterator(Numbers(), 3, shuffle=False, n_processes=1); print(next(it)); sys.exit(0)",
    ],
)
def test_a_forked_copy_of_the_consumer_does_not_disturb_it(tmp_path, method, child):
    outcome = run(tmp_path, FORKING.format(child=child), method).ended_well()
    assert outcome.lines[-3:] == ["child 0", "True", "[0, 1, 2, 3, 4]"]
    if "next(it)" in child:
        assert outcome.lines[0] == ("[0, 1, 2]" if "n_processes=1" in child else "[5, 6, 7, 8, 9]")


@every_method
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
    it = mpiter.MultiprocessIterator(Slow(), 5, shuffle=False, n_processes=2, backend=backend, run_ahead=0)
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
