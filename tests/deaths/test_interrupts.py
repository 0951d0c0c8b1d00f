"""On Ctrl-C, or if another thread closes, a waiting ``next()`` raises.

No batch is lost.
"""

import contextlib
import threading
import time

import pytest
from scripts import Script, interrupt_once_waiting, once_waiting, run, wait_until
from ways import iterator

import mpiter
from mpiter.engine.communicator import _Communicator

BACKENDS = ("process", "thread", "serial")
BATCH = 4
LENGTH = 24
WAITS_S = 60  # seconds until a gate must be open


class Gated:
    """Samples from ``first_gated`` on wait until a file lies in the folder."""

    def __init__(self, folder, first_gated):
        self.gate = folder / "open"
        self.first_gated = first_gated

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        end = time.monotonic() + WAITS_S
        while i >= self.first_gated and not self.gate.exists():
            assert time.monotonic() < end, "the gate wasn't opened"
            time.sleep(0.002)
        return i


def gated(folder, backend, first_gated=BATCH):
    """Return an iterator over ``Gated`` that fetches strictly batch by batch.

    So the samples behind the gate hold up no batch before them.
    """
    return iterator(
        Gated(folder, first_gated),
        BATCH,
        repeat=False,
        shuffle=False,
        n_processes=2,
        backend=backend,
        run_ahead=0,
    )


def whole_epoch():
    return [list(range(at, at + BATCH)) for at in range(0, LENGTH, BATCH)]


def test_an_iterator_interrupted_before_its_first_batch_goes_on_with_no_batch_lost(
    tmp_path,
):
    with gated(tmp_path, "process", first_gated=0) as it:
        interrupt(it)
        (tmp_path / "open").touch()
        assert [*map(list, it)] == whole_epoch()


@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupts_may_come_again_and_again_and_leave_the_state_as_it_was(
    tmp_path, backend
):
    with gated(tmp_path, backend, first_gated=BATCH + 2) as it:
        next(it)
        before = it.state_dict()
        for _ in range(3):
            interrupt(it)
            assert it.state_dict() == before
        (tmp_path / "open").touch()
        assert list(map(list, it)) == whole_epoch()[1:]


def interrupt(it):
    with pytest.raises(KeyboardInterrupt):
        waiter = interrupt_once_waiting()
        next(it)
    waiter.join()


@contextlib.contextmanager
def released_by_ctrl_c():
    """Stand in for the lock that ``next()`` holds, and interrupt as it is released."""
    yield
    raise KeyboardInterrupt


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "broken", [(), range(2 * BATCH)], ids=["all good", "two batches left out"]
)
def test_ctrl_c_when_next_is_about_to_return_its_batch_loses_nothing(
    monkeypatch, backend, broken
):
    options = {
        "repeat": False,
        "shuffle": False,
        "n_processes": 1,
        "backend": backend,
        "on_error": "skip",
    }
    with (
        iterator(Failing(broken), BATCH, **options) as it,
        monkeypatch.context() as patch,
    ):
        patch.setattr(it._pump, "_one_at_a_time", released_by_ctrl_c())
        with pytest.raises(KeyboardInterrupt):
            next(it)
        patch.undo()
        assert list(map(list, it)) == whole_epoch()[len(broken) // BATCH :]
        assert it.stats().skipped == len(broken)


class Failing:
    """A dataset of which the samples in ``broken`` fail."""

    def __init__(self, broken):
        self.broken = broken

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        if i in self.broken:
            raise ValueError(i)
        return i


def test_ctrl_c_as_the_wait_for_a_batch_begins_is_raised_as_itself(monkeypatch):
    communicator = _Communicator(1, lambda delivery: None)

    # threading.Condition leaves the lock like this if it is interrupted before it has
    # begun to wait.
    def wait_for(*_):
        communicator._lock.release()
        raise KeyboardInterrupt

    monkeypatch.setattr(communicator._not_empty, "wait_for", wait_for)
    with pytest.raises(KeyboardInterrupt):
        communicator.get(lambda waited: None)


def test_a_wait_that_was_interrupted_keeps_no_other_thread_waiting():
    communicator = _Communicator(1, lambda delivery: None)
    left_behind = threading.Lock()
    left_behind.acquire()
    # An interrupt leaves the lock of a waiter that is gone.
    communicator._not_empty._waiters.append(left_behind)
    taking = threading.Thread(
        target=communicator.get, args=(lambda waited: None, WAITS_S), daemon=True
    )
    taking.start()
    wait_until(lambda: len(communicator._not_empty._waiters) == 2, "the consumer waits")
    communicator.put([object()], 0)
    taking.join(WAITS_S / 2)
    assert not taking.is_alive()


def test_an_interrupted_iterator_closes(tmp_path):
    it = gated(tmp_path, "process")
    next(it)
    interrupt(it)
    it.close()


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_closing_from_another_thread_wakes_next(tmp_path, backend):
    it = gated(tmp_path, backend)
    next(it)
    closer = once_waiting(it.close)
    with pytest.raises(mpiter.errors.IteratorClosed, match="while next"):
        next(it)
    (tmp_path / "open").touch()
    closer.join()


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_closing_within_the_loop_ends_it(backend):
    it = iterator(range(20), 3, n_processes=2, backend=backend)
    with pytest.raises(mpiter.errors.IteratorClosed):
        for _ in it:
            it.close()


def test_a_forked_child_goes_on_though_another_thread_was_in_next(tmp_path):
    script = """
    import os, signal, sys, threading, time
    import mpiter

    class Gated:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            while not os.path.exists("open"):
                time.sleep(0.002)
            return index

    it = mpiter.batches(Gated(), 4, n_processes=0, shuffle=False)
    waiting = threading.Thread(target=next, args=(it,))
    waiting.start()
    while it.stats().wait_s == 0:
        time.sleep(0.002)
    child = os.fork()
    open("open", "w").close()
    if child == 0:
        signal.alarm(30)
        print(next(it), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    waiting.join()
    """
    assert run(tmp_path, script).ended_well().lines == ["[0 1 2 3]"]


def test_ctrl_c_while_the_fork_server_imports_is_the_programs_alone(tmp_path):
    (tmp_path / "takes_long.py").write_text(
        "import sys, time\nprint('imports', flush=True)\ntime.sleep(1)\n"
    )
    script = Script(
        tmp_path,
        """
        import multiprocessing
        import mpiter

        multiprocessing.set_forkserver_preload(["takes_long"])
        for batch in mpiter.batches(range(8), 4, n_processes=1):
            pass
        """,
    )
    script.reads("imports")
    script.ctrl_c()
    outcome = script.ends()
    assert outcome.code in (-2, 130)
    assert outcome.err.count("Traceback (most recent call last)") == 1, outcome.err
    assert "takes_long" not in outcome.err
