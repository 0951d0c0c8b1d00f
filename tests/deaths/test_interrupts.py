"""Ctrl-C, and close() from another thread, while next() waits: next() raises, and nothing is lost."""

import time

import pytest
from scripts import Script, interrupt_once_waiting, once_waiting
from ways import iterator

import mpiter

BACKENDS = ("process", "thread", "serial")
BATCH, LENGTH = 4, 24
WAITS_S = 60  # for the gate


class Gated:
    """Samples from ``first_gated`` on come only once a file lies in the folder."""

    def __init__(self, folder, first_gated):
        self.gate, self.first_gated = folder / "open", first_gated

    def __len__(self):
        return LENGTH

    def __getitem__(self, i):
        end = time.monotonic() + WAITS_S
        while i >= self.first_gated and not self.gate.exists():
            assert time.monotonic() < end, "the gate wasn't opened"
            time.sleep(0.002)
        return i


def gated(folder, backend, first_gated=BATCH):
    """Fetches strictly batch by batch, so that what is behind the gate holds nothing else up."""
    return iterator(
        Gated(folder, first_gated), BATCH, repeat=False, shuffle=False, n_processes=2, backend=backend, run_ahead=0
    )


def whole_epoch():
    return [list(range(at, at + BATCH)) for at in range(0, LENGTH, BATCH)]


def test_an_iterator_that_is_interrupted_before_its_first_batch_goes_on_with_no_batch_lost(tmp_path):
    with gated(tmp_path, "process", first_gated=0) as it:
        interrupt(it)
        (tmp_path / "open").touch()
        assert [*map(list, it)] == whole_epoch()


@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupts_may_come_again_and_again_and_leave_the_state_as_it_was(tmp_path, backend):
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


def test_ctrl_c_while_the_fork_server_imports_is_the_programs_alone(tmp_path):
    (tmp_path / "takes_long.py").write_text("import sys, time\nprint('imports', flush=True)\ntime.sleep(1)\n")
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
