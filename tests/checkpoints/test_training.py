"""Whatever interrupts a loop in a Checkpoint, each batch is learnt once, in order."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections import namedtuple
from itertools import count

import numpy as np
import pytest
from scripts import interrupt_once_waiting
from support import scripts

import mpiter
from mpiter.checkpoint import checkpoint, ending, progress, saving
from mpiter.checkpoint.kept import Keeping
from mpiter.checkpoint.ranks import OneRank
from mpiter.echo import Echo

EPOCHS = 2
LENGTH = 10
BATCH = 2
OURS = (os.path.dirname(mpiter.__file__), __file__)
LOADERS = {
    "loader": lambda: mpiter.DataLoader(range(LENGTH), BATCH, shuffle=True, seed=3),
    "batches": lambda: mpiter.batches(range(LENGTH), BATCH, seed=3, n_processes=0),
    "sampler": lambda: mpiter.DataLoader(
        range(LENGTH), BATCH, sampler=range(LENGTH)[::-1]
    ),
}

# An interrupt between the opening of a file and the beginning of its `with` leaves it
# to the garbage collector to close the file.
left_to_the_collector = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed file:ResourceWarning",
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


def learn(folder, loader, model):
    """Train: the model notes what it learns, and each epoch that it was evaluated."""
    with mpiter.Checkpoint(folder, loader, model=model) as c:
        for epoch in c.epochs(EPOCHS):
            for x in loader:
                model["learnt"].append(x.tolist())
                c.step()
            model["evaluated"].append(epoch)


def anew():
    return {"learnt": [], "evaluated": []}


def learnt(folder, make):
    """Return what a model has learnt in the end."""
    model = anew()
    with make() as loader:
        learn(folder, loader, model)
    return model


def interrupted_at(line, function, *arguments, within=OURS):
    """Call ``function`` with Ctrl-C at the ``line``-th line of ours.

    Return how many lines there have been.
    """
    lines = count()
    came = []
    handlers = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]

    unheard = 0

    def tracer(frame, event, arg):
        nonlocal unheard
        # Python forgets what is raised in a __del__, and in what that calls.
        if frame.f_code.co_name == "__del__":
            unheard += (event == "call") - (event == "return")
            return tracer
        if event == "line" and not unheard and next(lines) == line:
            came.append(line)
            signal.raise_signal(signal.SIGINT)
        if frame.f_code.co_filename.startswith(within):
            return tracer
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        function(*arguments)
    except KeyboardInterrupt:
        was_raised = True
    else:
        was_raised = False
    finally:
        sys.settrace(before)
    assert was_raised == bool(came), "Ctrl-C was swallowed"
    after = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    assert after == handlers
    return next(lines)


@left_to_the_collector
@pytest.mark.slow
# If it hangs, it must end; it takes some seconds alone, and many beside other tests.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", LOADERS)
def test_many_interrupts_lose_no_batch_and_repeat_none(tmp_path, kind):
    make = LOADERS[kind]

    def is_interrupted_at(line, folder):
        # The loader is made and closed out of reach: only the training is interrupted.
        with make() as loader:
            return interrupted_at(line, learn, folder, loader, anew())

    lines = is_interrupted_at(-1, tmp_path / "counted")
    expected = learnt(tmp_path / "whole", make)
    assert len(expected["learnt"]) == EPOCHS * LENGTH / BATCH
    for at in range(0, lines, lines // 12):  # of each of three loaders
        folder = tmp_path / str(at)
        is_interrupted_at(at, folder)
        # Every second training is interrupted once more, further on.
        if at % 2:
            is_interrupted_at(min(at // 3, 700), folder)
        assert learnt(folder, make) == expected, at


@left_to_the_collector
def test_an_interrupt_at_any_second_line_leaves_the_handlers_as_they_were(path):
    def hold():
        with mpiter.Checkpoint(path, {"a": 1}):
            pass

    modules = [checkpoint, ending, saving, progress]
    within = tuple(module.__file__ for module in modules)
    for line in range(0, interrupted_at(-1, hold, within=within), 2):
        path.unlink(missing_ok=True)
        interrupted_at(line, hold, within=within)


def test_an_interrupt_waits_for_the_step_and_a_second_one_does_not(path, capfd):
    model = {"steps": 0}
    with pytest.raises(KeyboardInterrupt), mpiter.Checkpoint(path, model=model) as c:
        c.step()
        signal.raise_signal(signal.SIGINT)
        model["steps"] += 1
        c.step()
    assert "once more, and it ends at once" in capfd.readouterr().err
    assert mpiter.Checkpoint.read(path) == {"model": {"steps": 1}}
    with pytest.raises(KeyboardInterrupt), mpiter.Checkpoint(path, model=model) as c:
        c.step()
        signal.raise_signal(signal.SIGINT)
        model["steps"] = 1.5
        signal.raise_signal(signal.SIGINT)
    assert mpiter.Checkpoint.read(path) == {"model": {"steps": 1}}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_a_launcher_passes_on_counts_once_but_not_for_ever(
    path, monkeypatch
):
    class Ranks(OneRank):
        def gathered(self, text):
            return [text] * self.size

    now = itertools.count()
    model = {"at": 0}
    came = []
    monkeypatch.setattr(ending.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(checkpoint, "ranks_of_training", lambda *_: Ranks(0, 2))
    with (
        pytest.raises(KeyboardInterrupt),
        mpiter.Checkpoint(path, model=model, every_s=None) as c,
    ):
        c.step()
        for _ in range(9):  # a second after the other
            came.append(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    assert len(came) == 3


def test_ctrl_c_for_the_whole_group_leaves_the_workers_at_work_until_the_step(tmp_path):
    program = """
        import os, signal, mpiter
        if __name__ == "__main__":
            heard, told = os.pipe()
            os.set_blocking(told, False)
            signal.set_wakeup_fd(told)
            model = {"learnt": []}
            with mpiter.batches(range(60), 2, n_processes=2, seed=1) as stream:
                with mpiter.Checkpoint("run", stream, model=model) as c:
                    for x in stream:
                        if c.finished == 11:
                            print("now", flush=True)
                            os.read(heard, 1)  # until a signal has come
                        model["learnt"].append(x.tolist())
                        c.step()
    """
    script = scripts.Script(tmp_path, program)
    script.reads("now")
    script.ctrl_c()
    outcome = script.ends()
    assert "KeyboardInterrupt" in outcome.err
    assert outcome.left_running == []
    with mpiter.batches(range(60), 2, n_processes=0, seed=1) as stream:
        expected = [x.tolist() for x in stream]
    model = {"learnt": []}
    with (
        mpiter.batches(range(60), 2, n_processes=0, seed=1) as stream,
        mpiter.Checkpoint(tmp_path / "run", stream, model=model),
    ):
        assert model["learnt"] == expected[:12]
        assert [x.tolist() for x in stream] == expected[12:]


def test_a_validation_without_an_end_is_left_at_once_and_done_again(tmp_path):
    program = """
        import sys, time, mpiter
        if __name__ == "__main__":
            model = {"learnt": [], "validated": 0}
            with mpiter.DataLoader(range(8), 2, num_workers=1) as loader:
                with mpiter.Checkpoint("run", loader, model=model) as c:
                    for epoch in c.epochs(2):
                        for x in c.steps(loader):
                            model["learnt"].append(x.tolist())
                        model["validated"] += 0.5
                        if epoch and "--hang" in sys.argv:
                            print("now", flush=True)
                            time.sleep(1000)
                        model["validated"] += 0.5
    """
    script = scripts.Script(tmp_path, program, "--hang")
    script.reads("now")
    script.ctrl_c()
    outcome = script.ends()
    assert "saved: " in outcome.err
    assert "waits for the end" not in outcome.err
    epoch = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mpiter.Checkpoint.read(tmp_path / "run")["model"] == {
        "learnt": epoch * 2,
        "validated": 1.0,
    }
    outcome = scripts.run(tmp_path, program)
    assert (outcome.code, outcome.left_running) == (0, [])
    goes_on = f"continues from {tmp_path / 'run'}: epoch 1, 8 steps finished"
    assert outcome.err == f"mpiter: {goes_on}\n"
    assert mpiter.Checkpoint.read(tmp_path / "run")["model"] == {
        "learnt": epoch * 2,
        "validated": 2.0,
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("within", ["a step", "a tail"])
def test_a_planned_stop_ends_as_the_shell_expects_and_tells_of_the_users_lines_only(
    tmp_path, number, within
):
    program = """
        import signal, sys, mpiter
        if __name__ == "__main__":
            loader = mpiter.DataLoader(range(8), 2)
            with mpiter.Checkpoint("run", loader) as c:
                for epoch in c.epochs(2):
                    for x in c.steps(loader):
                        if c.finished == 1 and sys.argv[2] == "a step":
                            signal.raise_signal(int(sys.argv[1]))
                    signal.raise_signal(int(sys.argv[1]))
    """
    outcome = scripts.run(tmp_path, program, int(number), within)
    # After KeyboardInterrupt Python ends itself by SIGINT; SystemExit has a code.
    expected = -number if number == signal.SIGINT else 128 + number
    assert outcome.code == expected
    assert f"mpiter: saved: {tmp_path / 'run'}" in outcome.err
    assert os.path.dirname(checkpoint.__file__) not in outcome.err
    lines = []
    for line in outcome.err.splitlines():
        if line.startswith("    ") and "^" not in line:
            lines.append(line.strip())
    shown = {
        "a step": "for x in c.steps(loader):",
        "a tail": "signal.raise_signal(int(sys.argv[1]))",
    }[within]
    # SystemExit has no traceback.
    assert lines == ([shown] if number == signal.SIGINT else [])


def test_an_error_saves_nothing_of_the_step_in_whose_midst_it_comes(path):
    model = {"half": 0}
    with (
        pytest.raises(ZeroDivisionError),
        mpiter.Checkpoint(path, model, every_steps=1) as c,
    ):
        for number in range(4):
            model["half"] = number + 0.5
            if number == 3:
                raise ZeroDivisionError
            model["half"] = number
            c.step()
    assert mpiter.Checkpoint.read(path) == {"0": {"half": 2}}


def test_it_is_saved_every_so_many_seconds(path, monkeypatch):
    now = [0.0]
    model = {"at": 0}
    saved = []
    monkeypatch.setattr(saving.time, "monotonic", lambda: now[0])
    monkeypatch.chdir(path.parent)
    with mpiter.Checkpoint(path.name, model, every_s=10, background=False) as c:
        monkeypatch.chdir("/")
        for seconds in (4, 8, 12, 16, 24, 25):
            now[0] = model["at"] = seconds
            c.step()
            saved.append(mpiter.Checkpoint.read(path)["0"]["at"])
    assert saved == [0, 0, 12, 12, 24, 24]
    assert mpiter.Checkpoint.read(path)["0"]["at"] == 25


def test_epochs_go_on_from_the_one_that_was_under_way(path):
    loader = mpiter.DataLoader(range(4), 2)
    with mpiter.Checkpoint(path, loader) as c:
        epochs = []
        for epoch in c.epochs(2):
            for _ in loader:
                c.step()
                epochs.append(epoch)
        assert epochs == [0, 0, 1, 1]
    again = mpiter.DataLoader(range(4), 2)
    with mpiter.Checkpoint(path, again) as c:
        assert (c.finished, c.epoch, list(c.epochs(2))) == (4, 2, [])
        assert [epoch for epoch in c.epochs(3) for _ in again] == [2, 2]


AT = ["in the last step", "in its tail", "in the tail's tail"]


@pytest.mark.filterwarnings("ignore:the stream has no state")
@pytest.mark.parametrize("source", ["loader", "batches", "stream"])
@pytest.mark.parametrize("at", AT)
def test_what_follows_an_epochs_last_step_is_done_again_from_what_that_step_left(
    tmp_path, source, at
):
    class Stream:
        def __iter__(self):
            return iter(range(LENGTH))

    make = LOADERS.get(source, lambda: mpiter.DataLoader(Stream(), BATCH))

    def train(path, interrupted_in=None):
        model = {"learnt": [], "evaluated": 0.0, "schedule": 1.0}
        with make() as loader, mpiter.Checkpoint(path, loader, model=model) as c:
            for epoch in c.epochs(3):
                for number, x in enumerate(c.steps(loader), 1):
                    if (at, epoch, number) == (AT[0], interrupted_in, LENGTH // BATCH):
                        signal.raise_signal(signal.SIGTERM)
                    model["learnt"].append(x.tolist())
                model["schedule"] /= 2
                if (at, epoch) == (AT[1], interrupted_in):
                    signal.raise_signal(signal.SIGTERM)
                model["evaluated"] += random.random()
                if (at, epoch) == (AT[2], interrupted_in):
                    signal.raise_signal(signal.SIGTERM)
        return model

    random.seed(5)
    expected = train(tmp_path / "whole")
    random.seed(5)
    for epoch in range(3):
        with pytest.raises(SystemExit):
            train(tmp_path / "again", interrupted_in=epoch)
        saved = mpiter.Checkpoint.read(tmp_path / "again")["model"]
        assert len(saved["learnt"]) == (epoch + 1) * LENGTH // BATCH
        assert saved["schedule"] == 0.5**epoch
    assert train(tmp_path / "again") == expected


@pytest.mark.parametrize("is_at_end", [False, True])
def test_a_signal_between_an_epochs_tail_and_the_next_step_comes_at_once(
    path, is_at_end
):
    def train(interrupted):
        model = {"learnt": [], "tails": np.zeros(1)}
        loader = mpiter.DataLoader(range(6), 2, shuffle=True, seed=3)
        with mpiter.Checkpoint(path, loader, model=model) as c:
            for epoch in c.epochs(2):
                if interrupted and epoch and not is_at_end:
                    signal.raise_signal(signal.SIGTERM)  # as while workers start
                for x in c.steps(loader):
                    model["learnt"].append(x.tolist())
                model["tails"] += 1
            if interrupted:
                signal.raise_signal(signal.SIGTERM)  # as in a last evaluation
        return model

    with pytest.raises(SystemExit):
        train(interrupted=True)
    saved = mpiter.Checkpoint.read(path)["model"]
    assert len(saved["learnt"]) == (6 if is_at_end else 3)
    assert saved["tails"] == is_at_end
    model = train(interrupted=False)
    assert model["tails"] == 2
    assert len(model["learnt"]) == 6


def test_what_follows_an_epochs_last_step_and_is_left_by_break_is_done_again(path):
    def train(stops, epochs=3):
        model = {"seen": [], "tails": np.zeros(1)}
        loader = mpiter.DataLoader(range(6), 2, shuffle=True, seed=3)
        with mpiter.Checkpoint(path, loader, model=model) as c:
            for epoch in c.epochs(epochs):
                for x in c.steps(loader):
                    model["seen"].append(x.tolist())
                model["tails"] += 1
                if stops and epoch == 1:
                    break
        return model

    for _ in range(2):
        assert train(stops=True)["tails"] == 2
        assert mpiter.Checkpoint.read(path)["model"]["tails"] == 1
    # Nothing is done, and the file stays as it is.
    assert train(stops=False, epochs=0)["tails"] == 1
    model = train(stops=False)
    assert model["tails"] == 3
    assert len(model["seen"]) == 9


def test_an_endless_iterators_epoch_has_what_follows_it_done_before_a_signal_comes(
    tmp_path,
):
    def train(path, until=None):
        done = []
        endless = mpiter.batches(range(6), 2, n_processes=0, epochs=None, seed=1)
        with (
            contextlib.suppress(KeyboardInterrupt),
            mpiter.Checkpoint(path, endless) as c,
        ):
            for epoch in c.epochs(3):
                for x in c.steps(endless):
                    done.append(x.tolist())
                    if len(done) == until:
                        signal.raise_signal(signal.SIGINT)
                    if endless.is_new_epoch:
                        break
                done.append(epoch)
        return done

    whole = train(tmp_path / "whole")
    assert [one for one in whole if type(one) is int] == [0, 1, 2]
    for until in (2, 3, 7):
        path = tmp_path / str(until)
        assert train(path, until) + train(path) == whole


def test_a_signal_before_the_first_step_comes_at_once(path):
    loader = mpiter.DataLoader(range(6), 2)
    with pytest.raises(KeyboardInterrupt), mpiter.Checkpoint(path, loader):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it is held back")
    for done in range(1, 4):
        with pytest.raises(SystemExit), mpiter.Checkpoint(path, loader) as c:
            next(c.steps(loader))
            c.step()
            # A validation, say, may follow, for which nothing need be held back.
            c.save()
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("it is held back")
        assert c.finished == done
    assert mpiter.Checkpoint.read(path)["0"]["position"] == 6


def test_the_global_generators_go_on_where_they_were(path):
    def draw():
        return random.random(), np.random.standard_normal(), np.random.random()

    np.random.standard_normal()  # one is kept in reserve
    with mpiter.Checkpoint(path, {}) as c:
        c.step()
    expected = draw()
    random.seed(1)
    np.random.seed(1)
    with mpiter.Checkpoint(path, {}):
        assert draw() == expected


def test_a_sampler_that_draws_from_a_global_generator_goes_on_in_the_next_epoch_too(
    tmp_path,
):
    class Drawing:
        def __len__(self):
            return 8

        def __iter__(self):
            return (random.randrange(100) for _ in range(8))

    def trained(path, steps=None):
        random.seed(1)
        seen = []
        loader = mpiter.DataLoader(range(100), 2, sampler=Drawing())
        with mpiter.Checkpoint(path, loader) as c:
            for _ in c.epochs(2):
                for x in c.steps(loader):
                    seen.append(x.tolist())
                    if len(seen) == steps:
                        return seen
        return seen

    whole = trained(tmp_path / "whole")
    for steps in range(1, 8):
        path = tmp_path / str(steps)
        assert trained(path, steps) + trained(path) == whole, steps


def test_named_tuples_and_dicts_are_filled_as_they_are(path):
    Moments = namedtuple("Moments", "mean var")
    params = {
        "layers": [{"w": np.ones((2, 3), np.float32)}],
        "opt": (Moments(np.zeros(2), 1), ()),
    }
    with mpiter.Checkpoint(path, params) as c:
        c.step()
    other = {"layers": [{"w": None}], "opt": (Moments(None, None), ())}
    with mpiter.Checkpoint(path, other):
        assert other["opt"][0]._fields == ("mean", "var")
        assert other["opt"][0].mean.tolist() == [0, 0]
        assert other["layers"][0]["w"].dtype == np.float32
        other["layers"][0]["w"] += 1  # writable


def test_a_loader_for_validation_holds_nothing_back_for_longer_than_a_step(path):
    training = mpiter.DataLoader(range(10), 2)
    validation = mpiter.DataLoader(range(4), 2)
    model = {"steps": 0}
    unsaved = []
    always = {"every_s": 1e-9, "background": False}
    with mpiter.Checkpoint(path, training, validation, model=model, **always) as c:
        for _ in c.epochs(3):
            for _ in c.steps(training):
                saved = mpiter.Checkpoint.read(path)["model"]["steps"]
                unsaved.append(c.finished - saved)
                model["steps"] += 1
                if c.finished == 7:
                    list(validation)
            list(validation)
    assert unsaved == [0] * 15


def test_nothing_works_outside_of_the_block(path):
    c = mpiter.Checkpoint(path, {"a": 1})
    for use in (c.step, lambda: list(c.epochs(1)), lambda: list(c.steps([1]))):
        with pytest.raises(mpiter.StateError, match="steps belong into the block"):
            use()
    with c, pytest.raises(mpiter.StateError, match="in use already"):
        c.__enter__()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_end_the_saving_that_the_first_one_has_begun(
    path, monkeypatch, second
):
    """A launcher that has heard SIGTERM with its whole group passes it on as well."""
    loader = mpiter.DataLoader(range(6), 2)
    model = {"sum": 0}
    synced = os.fsync

    def interrupted(descriptor):
        monkeypatch.setattr(os, "fsync", synced)
        signal.raise_signal(second)
        synced(descriptor)

    with (
        pytest.raises((SystemExit, KeyboardInterrupt)),
        mpiter.Checkpoint(path, loader, model=model) as c,
    ):
        for _ in c.epochs(2):
            for x in c.steps(loader):
                model["sum"] += int(x.sum())
            monkeypatch.setattr(os, "fsync", interrupted)
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("it is held back")
    assert mpiter.Checkpoint.read(path)["model"] == {"sum": 15}


class Interrupting(dict):
    """A part which, once it is armed, gets a signal while its state is taken."""

    is_armed = False

    def state_dict(self):
        if self.is_armed:
            self.is_armed = False
            signal.raise_signal(signal.SIGINT)
        return dict(self)

    def load_state_dict(self, state):
        self.update(state)


def test_a_signal_while_an_epochs_end_is_copied_does_not_wait_for_what_follows(path):
    loader = mpiter.DataLoader(range(6), 2)
    model = Interrupting(sum=0)
    followed = []
    with (
        pytest.raises(KeyboardInterrupt),
        mpiter.Checkpoint(path, loader, model=model) as c,
    ):
        for _ in c.epochs(2):
            for x in c.steps(loader):
                model["sum"] += int(x.sum())
                model.is_armed = loader.is_new_epoch
            followed.append(c.finished)
    assert not followed
    assert mpiter.Checkpoint.read(path)["model"] == {"sum": 15}


def test_a_signal_while_save_makes_its_copy_does_not_wait_for_the_next_step(path):
    loader = mpiter.DataLoader(range(6), 2)
    model = Interrupting(sum=0)
    followed = []
    with (
        pytest.raises(KeyboardInterrupt),
        mpiter.Checkpoint(path, loader, model=model) as c,
    ):
        for x in loader:
            model["sum"] += int(x.sum())
            c.step()
            model.is_armed = True
            c.save()
            followed.append(c.finished)
    assert not followed
    assert mpiter.Checkpoint.read(path)["model"] == {"sum": 1}


@pytest.fixture
def hangs_up():
    """Have SIGHUP end this process, as in a terminal.

    A program that nohup has started ignores it.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("signals", "expected", "fails"),
    [
        ((signal.SIGTERM, signal.SIGINT), KeyboardInterrupt(), False),
        ((signal.SIGINT, signal.SIGHUP), SystemExit(129), True),
    ],
)
def test_the_last_signal_comes_when_all_is_saved_though_the_step_fails(
    path, hangs_up, signals, expected, fails
):
    with (
        pytest.raises(type(expected)) as raised,
        mpiter.Checkpoint(path, {"a": 1}) as c,
    ):
        c.step()
        for number in signals:
            signal.raise_signal(number)
        if fails:
            raise ValueError
    assert raised.value.args == expected.args
    assert isinstance(raised.value.__context__, ValueError) == fails
    assert mpiter.Checkpoint.read(path) == {"0": {"a": 1}}


@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_process_that_is_forked_in_the_block_ends_by_sigterm_and_saves_nothing(
    path, is_in_step
):
    loader = mpiter.DataLoader(range(4), 2)
    with mpiter.Checkpoint(path, loader, every_s=None) as c:
        steps = c.steps(loader)
        if is_in_step:
            next(steps)
        saved = path.stat().st_ino
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            # Python drops signals that come before the fork is complete.
            os.write(writer, b"!")
            time.sleep(20)
            os._exit(0)
        os.read(reader, 1)
        os.close(reader)
        os.close(writer)
        # A terminal sends Ctrl-C to both, and the step may need the child until its
        # end.
        os.kill(child, signal.SIGINT)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
        assert path.stat().st_ino == saved


def test_a_process_that_is_forked_in_the_block_and_leaves_it_saves_nothing(path):
    model = {"at": 0}
    parent = os.getpid()
    with mpiter.Checkpoint(path, model=model) as c:
        c.step()
        model["at"] = 1
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            saved = mpiter.Checkpoint.read(path)
    if os.getpid() != parent:
        os._exit(0)
    assert saved == {"model": {"at": 0}}
    assert mpiter.Checkpoint.read(path) == {"model": {"at": 1}}


def test_a_program_that_ignores_a_signal_goes_on_ignoring_it(path, hangs_up):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with mpiter.Checkpoint(path, {"a": 1}) as c:
        signal.raise_signal(signal.SIGHUP)
        c.step()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_arrays_stay_where_they_are_and_others_are_refused(path):
    model = {"w": np.ones(3), "deep": [{"v": np.ones(2)}], "best": 1}
    with mpiter.Checkpoint(path, model=model) as c:
        c.step()
    w = np.zeros(3)
    mine = {"w": w, "deep": [{"v": np.zeros(2)}], "best": 0, "new": 5}
    with mpiter.Checkpoint(path, model=mine):
        assert mine["w"] is w
        assert w.tolist() == [1, 1, 1]
        assert mine["deep"][0]["v"].tolist() == [1, 1]
        assert (mine["best"], mine["new"]) == (1, 5)
    for other in (np.zeros((2, 2)), np.zeros(3, np.float32)):
        with pytest.raises(
            mpiter.StateError, match=r"model\['w'\] was array.* when it was saved"
        ):
            mpiter.Checkpoint(path, model={"w": other}).__enter__()


def test_a_renamed_value_is_refused_and_one_that_is_new_or_gone_is_not(path):
    with mpiter.Checkpoint(path, model={"w": 1, "deep": {"a": 1}}) as c:
        c.step()
    for model in ({"weight": 0, "deep": {}}, {"w": 0, "deep": {"b": 0}}):
        with pytest.raises(mpiter.StateError, match="when it was saved, and has"):
            mpiter.Checkpoint(path, model=model).__enter__()
    for model in ({"w": 0, "deep": {}, "new": 5}, {}):
        with mpiter.Checkpoint(path, model=model):
            assert model["w"] == 1
            assert model["deep"] == {"a": 1}


def test_steps_of_a_loader_that_is_not_saved_are_refused(path):
    saved = mpiter.DataLoader(range(4), 2)
    other = mpiter.DataLoader(range(4), 2)
    with mpiter.Checkpoint(path, saved) as c:
        with pytest.raises(
            mpiter.OptionError, match="not among the checkpoint's parts"
        ):
            next(c.steps(other))
        for batches in (list(other), map(len, other)):
            with pytest.raises(
                mpiter.OptionError,
                match=r"no part .* write  for x in c\.steps\(loader\): …",
            ):
                next(c.steps(batches))
    assert c.finished == 0


@pytest.mark.torch
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: python3 tests --all",
)
def test_steps_of_torchs_own_loader_are_refused(path):
    import torch

    import mpiter.torch

    # Both draw from one generator, which is in the state of the first.
    saved = mpiter.torch.DataLoader([1, 2, 3, 4], 2, shuffle=True)
    other = torch.utils.data.DataLoader([1, 2, 3, 4], 2, shuffle=True)
    with (
        mpiter.Checkpoint(path, saved, model=torch.nn.Sequential()) as c,
        pytest.raises(
            mpiter.OptionError,
            match=r"c\.steps\(DataLoader\).*mpiter\.torch\.DataLoader for torch's",
        ),
    ):
        next(c.steps(other))


class Foreign:
    """Another library's loader with a state."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 4:
            self.at += 1
            yield self.at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("wrapped", [iter, lambda loader: loader])
def test_steps_of_another_librarys_loader_with_a_state_are_resumed(path, wrapped):
    seen = []
    for most in (2, 99):
        loader = Foreign()
        with mpiter.Checkpoint(path, loader, model={}) as c:
            for x in c.steps(wrapped(loader)):
                seen.append(x)
                if len(seen) == most:
                    break
    assert seen == [1, 2, 3, 4]


def test_other_parts_and_another_dataset_are_refused_before_anything_changes(path):
    with mpiter.Checkpoint(path, mpiter.DataLoader(range(4), 2), model={"a": 1}) as c:
        c.step()
    with pytest.raises(
        mpiter.StateError, match=r"holds 0, model, but was given model: pass 0 too"
    ):
        mpiter.Checkpoint(path, model={}).__enter__()
    model = {"a": 2}
    with pytest.raises(mpiter.StateError, match="dataset_length"):
        mpiter.Checkpoint(path, mpiter.DataLoader(range(5), 2), model=model).__enter__()
    assert model == {"a": 2}


def test_what_makes_no_sense_is_refused_at_once(path):
    for part, options, message in (
        ([1, 2], {}, r"part 0 is of type list, which has no state_dict\(\)"),
        ({}, {"every_s": 0}, "every_s=0"),
        ({}, {"every_s": "5"}, "every_s='5'"),
        ({}, {"every": 5}, "part every is of type int"),
        ({}, {"every_steps": 0}, "every_steps=0"),
        ({}, {"keep": -1}, "keep=-1"),
        ({}, {"keep_every": 1.5}, "keep_every=1.5"),
        ({}, {"background": "no"}, "background='no'"),
    ):
        with pytest.raises(mpiter.OptionError, match=message):
            mpiter.Checkpoint(path, part, **options)
    with pytest.raises(
        mpiter.OptionError,
        match="part model is the class DataLoader: pass an object of it",
    ):
        mpiter.Checkpoint(path, model=mpiter.DataLoader)
    with pytest.raises(
        mpiter.OptionError,
        match=r"the path of the file comes first, not a DataLoader: Checkpoint\('",
    ):
        mpiter.Checkpoint(mpiter.DataLoader([1, 2]))


# -- steps as the unit -----------------------------------------------------------------


def kept(path):
    return sorted(other.name for other in path.parent.iterdir())


def test_files_are_kept_by_their_steps(path):
    model = {"at": 0}
    options = {"every_steps": 2, "keep": 2, "keep_every": 6}
    for until, steps in ((9, (6, 8, 9)), (13, (6, 10, 12, 13))):
        with mpiter.Checkpoint(path, model=model, **options) as c:
            while c.finished < until:
                model["at"] += 1
                c.step()
        assert kept(path) == [*(f"run-{step:09d}.npz" for step in steps), "run.npz"]
    assert mpiter.Checkpoint.read(path.with_name("run-000000006.npz")) == {
        "model": {"at": 6}
    }
    assert mpiter.Checkpoint.read(path) == {"model": {"at": 13}}


def test_a_training_that_begins_again_at_a_kept_file_leaves_later_ones_alone(path):
    model = {"at": 0}

    def train(until):
        with mpiter.Checkpoint(path, model=model, every_steps=1, keep=2) as c:
            while c.finished < until:
                model["at"] = c.finished + 1
                c.step()

    train(9)
    path.write_bytes(path.with_name("run-000000008.npz").read_bytes())
    path.with_name("run-000000003.npz").write_bytes(path.read_bytes())
    train(8)
    assert kept(path) == [f"run-00000000{step}.npz" for step in (3, 8, 9)] + ["run.npz"]


def test_files_of_later_steps_do_not_count_among_those_that_are_kept(path):
    path.write_bytes(b"the file of step 9")
    for step in (3, 8, 20):
        path.with_name(f"run-{step:09d}.npz").write_bytes(b"its own")
    Keeping(path, last=2).keep(9)
    steps = [f"run-{step:09d}.npz" for step in (8, 9, 20)]
    assert kept(path) == [*steps, "run.npz"]


def test_the_file_before_the_first_step_is_not_kept_for_ever(path):
    path.write_bytes(b"the file of step 0")
    Keeping(path, every=5).keep(0)
    assert kept(path) == ["run.npz"]


def test_a_name_that_a_kill_has_left_is_used_again_and_none_is_left_over(path):
    path.write_bytes(b"the file of step 3")
    os.link(path, path.with_name(".run.npz-kept"))
    for _ in range(2):
        Keeping(path, last=1).keep(3)
        assert kept(path) == ["run-000000003.npz", "run.npz"]


@pytest.mark.parametrize("links", [True, False])
def test_a_kept_file_stays_as_it_was_also_where_files_have_one_name(
    path, monkeypatch, links
):
    if not links:

        def refused(*_):
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(os, "link", refused)
    model = {"at": 0}
    with mpiter.Checkpoint(path, model=model, keep=5) as c:
        for _ in range(3):
            model["at"] += 1
            c.step()
            c.save()
    assert kept(path) == [f"run-00000000{step}.npz" for step in (1, 2, 3)] + ["run.npz"]
    for step in (1, 2, 3):
        assert mpiter.Checkpoint.read(path.with_name(f"run-00000000{step}.npz")) == {
            "model": {"at": step}
        }


@pytest.mark.parametrize("source", ["loader", "sampler", "endless"])
@pytest.mark.parametrize("first", [3, 5, 7, 10])
def test_a_number_of_steps_goes_over_epochs_and_on_with_a_larger_number(
    tmp_path, source, first
):
    def make():
        if source == "endless":
            return mpiter.batches(
                range(LENGTH), BATCH, seed=3, n_processes=0, epochs=None
            )
        return LOADERS[source]()

    def train(path, until):
        model = {"learnt": []}
        with make() as loader, mpiter.Checkpoint(path, loader, model=model) as c:
            for x in c.steps(loader, until=until):
                model["learnt"].append(x.tolist())
            assert c.finished == until
            assert list(c.steps(loader, until=until)) == []
        return model["learnt"]

    whole = train(tmp_path / "whole", 17)
    assert len(whole) == 17
    assert train(tmp_path / "parts", first) == whole[:first]
    assert train(tmp_path / "parts", 17) == whole


def test_steps_that_cannot_be_reached_are_an_error(path):
    loader = mpiter.DataLoader(range(6), 2)
    with (
        mpiter.Checkpoint(path, loader) as c,
        pytest.raises(mpiter.StateError, match="no more batches after 3 steps"),
    ):
        list(c.steps(iter(loader), until=9))
    with mpiter.Checkpoint(path.with_name("other"), loader) as c:
        for _ in c.epochs(1):
            with pytest.raises(mpiter.StateError, match=r"leave out c\.epochs"):
                next(c.steps(loader, until=9))


def test_a_part_that_is_new_is_taken_as_it_is_and_one_that_is_missing_is_named(path):
    with mpiter.Checkpoint(path, model={"a": 1}, average={"b": 1}) as c:
        c.step()
    average = {"b": 2}
    parts = {"model": {}, "average": average, "schedule": {"c": 3}}
    with (
        pytest.warns(
            RuntimeWarning, match="doesn't hold schedule: taken as it is"
        ) as warned,
        mpiter.Checkpoint(path, **parts) as c,
    ):
        c.step()
    assert len(warned) == 1
    assert mpiter.Checkpoint.read(path) == {
        "model": {"a": 1},
        "average": {"b": 1},
        "schedule": {"c": 3},
    }
    with pytest.raises(
        mpiter.StateError,
        match="pass average, schedule too, or another path, or strict=False",
    ):
        mpiter.Checkpoint(path, model={}).__enter__()
    with mpiter.Checkpoint(path, model={}, strict=False) as c:
        assert c.finished == 2
    assert mpiter.Checkpoint.read(path) == {"model": {"a": 1}}


def test_in_another_thread_nothing_is_held_back_and_all_else_works(path):
    def train():
        with mpiter.Checkpoint(path, {"a": 1}) as c:
            c.step()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert mpiter.Checkpoint.read(path) == {"0": {"a": 1}}


# -- where a step ends -----------------------------------------------------------------

PLACES = ["step", "steps"]


def train(folder, place, signal_at=None, loader=None, validation=None):
    """Train in steps that learn, note and follow; steps() finishes them, or step()."""
    loader = loader or mpiter.DataLoader(range(LENGTH), BATCH, shuffle=True, seed=3)
    model = {"learnt": [], "noted": [], "followed": []}
    parts = {"model": model}
    if validation:
        parts["validation"] = validation
    with mpiter.Checkpoint(folder, loader, **parts) as c:
        for _ in c.epochs(EPOCHS):
            batches = c.steps(loader) if place == "steps" else loader
            for x in batches:
                for part in ("learnt", "noted", "followed"):
                    if signal_at == (len(model["followed"]), part):
                        signal.raise_signal(signal.SIGTERM)
                    if validation is not None:
                        for _ in validation:
                            if part != "noted" or len(model["noted"]) != 6:
                                break
                    model[part].append(x.tolist())
                if place == "step":
                    c.step()
    return model


@pytest.mark.parametrize("place", PLACES)
def test_wherever_a_signal_comes_all_of_the_step_is_done_before_it_is_delivered(
    tmp_path, place
):
    def validation():
        if place == "steps":
            return mpiter.DataLoader(range(4), 2)
        return None

    expected = train(tmp_path / "whole", place, validation=validation())
    for step in range(EPOCHS * LENGTH // BATCH):
        folder = tmp_path / str(step)
        signal_at = (step, ("learnt", "noted", "followed")[step % 3])
        with pytest.raises(SystemExit):
            train(folder, place, signal_at, validation=validation())
        saved = mpiter.Checkpoint.read(folder)["model"]
        # A plain loop doesn't tell that its first step has begun, so the signal comes
        # at once there; no finished step is lost.
        done = 0 if place == "step" and step == 0 else step + 1
        assert len(saved["learnt"]) == len(saved["followed"]) == done
        assert train(folder, place, validation=validation()) == expected


def test_a_step_of_several_batches_ends_where_step_is_called(path):
    def accumulate(signal_at=None):
        loader = mpiter.DataLoader(range(18), 2)
        model = {"sums": []}
        with mpiter.Checkpoint(path, loader, model=model) as c:
            total = 0
            for number, x in enumerate(loader, c.finished * 3):
                if number == signal_at:
                    signal.raise_signal(signal.SIGINT)
                total += int(x.sum())
                if number % 3 == 2:
                    model["sums"].append(total)
                    total = 0
                    c.step()
        return model["sums"]

    with pytest.raises(KeyboardInterrupt):
        accumulate(4)
    assert mpiter.Checkpoint.read(path)["0"]["position"] == 12
    assert accumulate() == [15, 51, 87]


def test_steps_goes_through_whatever_wraps_a_loader(tmp_path):
    wraps = [iter, enumerate, lambda loader: zip(loader, loader.dataset, strict=False)]
    for number, wrapped in enumerate(wraps):
        path = tmp_path / str(number)
        loader = mpiter.DataLoader(range(6), 2)
        with pytest.raises(KeyboardInterrupt), mpiter.Checkpoint(path, loader) as c:
            for _ in c.steps(wrapped(loader)):
                signal.raise_signal(signal.SIGINT)
        assert mpiter.Checkpoint.read(path)["0"]["position"] == 2


def test_a_step_that_is_left_by_break_is_finished(path):
    seen = []
    for most in (2, 99):
        loader = mpiter.DataLoader(range(10), 2)
        with mpiter.Checkpoint(path, loader) as c:
            for x in c.steps(loader):
                seen.append(x.tolist())
                if len(seen) == most:
                    break
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert c.finished == 5


def test_what_follows_a_loop_that_was_left_is_done_before_the_signal_is_delivered(path):
    loader = mpiter.DataLoader(range(10), 2)
    validation = mpiter.DataLoader(range(4), 2)
    model = {"evaluated": 0}
    with (
        pytest.raises(SystemExit),
        mpiter.Checkpoint(path, loader, validation, model=model) as c,
    ):
        for _ in c.epochs(3):
            for number, _ in enumerate(c.steps(loader)):
                if number == 2:
                    signal.raise_signal(signal.SIGTERM)
                    break
            list(validation)
            model["evaluated"] += 1
    assert mpiter.Checkpoint.read(path)["model"] == {"evaluated": 1}


@pytest.mark.torch
@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: python3 tests --all",
)
def test_a_torch_training_is_the_same_to_the_bit_after_an_interrupt(tmp_path):
    import torch

    import mpiter.torch

    data = torch.utils.data.TensorDataset(
        torch.arange(30.0).reshape(10, 3), torch.arange(10.0)
    )
    total = 15

    def train(folder, until=None):
        torch.manual_seed(7)
        model = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn()
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        # This one counts its milestones in a Counter.
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])
        scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        loader = mpiter.torch.DataLoader(data, 2, shuffle=True)
        # Like torch's own, it draws from the global generator at each epoch.
        valid = mpiter.torch.DataLoader(data, 5)
        parts = {
            "average": average,
            "optimizer": optimizer,
            "schedule": schedule,
            "scaler": scaler,
        }
        done = 0
        with mpiter.Checkpoint(folder, loader, valid, model, **parts) as c:
            begun = c.finished
            for _ in c.epochs(3):
                for x, y in c.steps(loader):
                    optimizer.zero_grad()
                    loss = torch.nn.functional.mse_loss(model(x)[:, 0], y)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    done += 1
                    if begun + done == until:
                        signal.raise_signal(signal.SIGINT)
                    scaler.update()
                    schedule.step()
                    average.update_parameters(model)
                list(valid)
        weights = []
        for part in (model, average):
            for value in part.state_dict().values():
                weights.append(value.tolist())
        return (
            weights,
            scaler.state_dict(),
            schedule.state_dict(),
            optimizer.state_dict()["param_groups"],
        )

    expected = train(tmp_path / "uninterrupted")
    # The interrupts come one after the other, in one training.
    for step in range(1, total + 1, 2):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "again", until=step)
    assert train(tmp_path / "again") == expected


@pytest.mark.parametrize(
    "pairs",
    [
        lambda c, a, b: zip(c.steps(a), b, strict=False),
        lambda c, a, b: c.steps(zip(a, b, strict=False)),
    ],
    ids=["steps of one", "steps of both"],
)
@pytest.mark.parametrize(
    "other",
    [
        lambda: mpiter.DataLoader(range(6), 2, shuffle=True, seed=2),
        lambda: Echo(mpiter.DataLoader(range(2), 2), 3),
    ],
    ids=["loader", "echo"],
)
def test_loaders_that_are_zipped_go_on_with_the_next_epoch_after_the_last_step_of_one(
    tmp_path, pairs, other
):
    def train(path, until=None):
        done = []
        loaders = [mpiter.DataLoader(range(6), 2, shuffle=True, seed=1), other()]
        with (
            contextlib.suppress(KeyboardInterrupt),
            mpiter.Checkpoint(path, *loaders) as c,
        ):
            for epoch in c.epochs(3):
                for x, y in pairs(c, *loaders):
                    done.append((epoch, x.tolist(), y.tolist()))
                    if len(done) == until:
                        signal.raise_signal(signal.SIGINT)
        return done

    expected = train(tmp_path / "whole")
    assert len(expected) == 9
    for step in (2, 3, 4):
        path = tmp_path / f"after {step}"
        assert train(path, step) + train(path) == expected


# -- loops that can't be resumed -------------------------------------------------------


SOURCES = {
    "loader": lambda: mpiter.DataLoader(range(LENGTH), BATCH),
    "batches": lambda: mpiter.batches(range(LENGTH), BATCH, n_processes=0, seed=1),
    "echo": lambda: Echo(mpiter.DataLoader(range(LENGTH), BATCH), 1),
}
ANOTHER = (
    r"another pass .* outside of c\.epochs.*"
    r"Write  for epoch in c\.epochs\(n\):  around  for x in c\.steps"
)


def passes_by_range(path, source, calls_step, until=None):
    """Train for three passes without epochs(), and validate after each step and pass.

    A signal comes in step ``until``.
    """
    loader = source()
    valid = mpiter.DataLoader(range(4), 2)
    with mpiter.Checkpoint(path, loader, valid) as c:
        for _ in range(3):
            batches = loader if calls_step else c.steps(loader)
            for _ in batches:
                list(valid)
                if until == c.finished + 1:
                    signal.raise_signal(signal.SIGTERM)
                if calls_step:
                    c.step()
            list(valid)
            yield c.finished


@pytest.mark.parametrize("calls_step", [False, True])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_second_pass_without_epochs_is_warned_of_also_when_it_is_resumed(
    path, source, calls_step
):
    first = passes_by_range(path, source, calls_step, until=8)
    again = passes_by_range(path, source, calls_step)
    # The first pass is silent, since a program of one pass is right.
    assert next(first) == 5
    with pytest.warns(RuntimeWarning, match=ANOTHER), pytest.raises(SystemExit):
        next(first)
    with pytest.warns(RuntimeWarning, match=ANOTHER) as warned:
        assert next(again) == 10
    assert len(warned) == 1
    again.close()


@pytest.mark.parametrize(
    "source", [SOURCES["loader"], SOURCES["echo"]], ids=["loader", "echo"]
)
@pytest.mark.parametrize("first", [1, None], ids=["left", "whole"])
def test_another_loop_within_an_epoch_is_warned_of_at_its_first_step(
    path, source, first
):
    loader = source()
    with mpiter.Checkpoint(path, loader) as c:
        for _ in c.epochs(1):
            list(itertools.islice(c.steps(loader), first))
            with pytest.warns(RuntimeWarning, match=r"within one epoch of c\.epochs"):
                next(c.steps(loader))


def test_a_loop_that_is_left_within_each_epoch_is_warned_of_at_the_first_ones_end(path):
    loader = mpiter.DataLoader(range(8), 2)
    with mpiter.Checkpoint(path, loader) as c:
        epochs = c.epochs(3)
        next(epochs)
        list(itertools.islice(c.steps(loader), 2))
        with pytest.warns(
            RuntimeWarning, match="was left before its end.*look at c.finished"
        ):
            next(epochs)


def test_a_loop_that_is_left_with_the_last_epoch_is_not(path):
    loader = mpiter.DataLoader(range(8), 2)
    with mpiter.Checkpoint(path, loader) as c:
        for epoch in c.epochs(2):
            for _ in c.steps(loader):
                if epoch == 1:
                    break


def test_loops_that_can_be_resumed_are_silent(tmp_path):
    loader = mpiter.DataLoader(range(6), 2)
    valid = mpiter.DataLoader(range(4), 2)
    labelled = mpiter.DataLoader(range(4), 2)
    unlabelled = mpiter.DataLoader(range(12), 2)
    stream = mpiter.batches(range(6), 2, epochs=3, n_processes=0)
    endless = mpiter.SerialIterator(range(6), 2)
    with mpiter.Checkpoint(tmp_path / "epochs", loader, valid) as c:
        for _ in c.epochs(3):
            for _ in loader:
                for _ in valid:
                    break
                c.step()
    with mpiter.Checkpoint(tmp_path / "one after the other", loader, labelled) as c:
        for part in (loader, labelled):
            list(c.steps(part))
    with mpiter.Checkpoint(tmp_path / "beside each other", labelled, unlabelled) as c:
        small = (x for _ in range(3) for x in labelled)
        list(c.steps(zip(small, unlabelled, strict=True)))
    for until in (2, 9):
        with mpiter.Checkpoint(tmp_path / "epochs of a stream", stream) as c:
            for _ in c.steps(stream):
                if c.finished == until:
                    break
        with mpiter.Checkpoint(tmp_path / "steps", endless, valid) as c:
            while c.finished < until:
                next(endless)
                list(valid)
                c.step()
        with mpiter.Checkpoint(tmp_path / "validation only", valid) as c:
            while c.finished < until:
                if c.finished % 2:
                    list(valid)
                c.step()
    assert c.finished == 9


def test_a_plain_loop_within_epochs_is_told_once_and_goes_on_at_an_epochs_begin(
    path, capfd
):
    loader = mpiter.DataLoader(range(LENGTH), BATCH)
    done = []

    def train(until=None):
        with mpiter.Checkpoint(path, loader) as c:
            for epoch in c.epochs(3):
                for _ in loader:
                    done.append(epoch)
                    if len(done) == until:
                        signal.raise_signal(signal.SIGTERM)

    told = r"no step .* write  for x in c\.steps\(loader\)"
    with pytest.warns(RuntimeWarning, match=told), pytest.raises(SystemExit):
        train(until=8)
    said = capfd.readouterr().err
    assert "only c.steps(loader) or c.step() tell where a step ends" in said
    with pytest.warns(RuntimeWarning, match=told) as warned:
        train()
    assert done == [0] * 5 + [1] * 5 + [2] * 5
    assert len(warned) == 1


def test_a_loop_without_steps_is_told_and_nothing_of_it_is_saved(path):
    loader = mpiter.DataLoader(range(8), 2)
    with (
        pytest.warns(
            RuntimeWarning,
            match=r"no step has been finished, .* write  for x in c\.steps",
        ),
        mpiter.Checkpoint(path, loader),
    ):
        list(loader)
    assert mpiter.Checkpoint.read(path)["0"]["position"] == 0


class Gated:
    """Four samples that come, and others that never do."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        # One long sleep would have a signal that comes just before it wait for its end.
        while index >= 4:
            time.sleep(0.01)
        return index


def test_a_signal_that_comes_while_a_batch_is_waited_for_is_delivered_at_once(path):
    model = {"sum": 0}
    loader = mpiter.DataLoader(Gated(), 4, num_workers=1)
    with (
        loader,
        pytest.raises(KeyboardInterrupt),
        mpiter.Checkpoint(path, loader, model=model) as c,
    ):
        for _ in c.epochs(1):
            for x in c.steps(loader):
                model["sum"] += int(x.sum())
                waiter = interrupt_once_waiting()
    waiter.join()
    saved = mpiter.Checkpoint.read(path)
    assert (saved["0"]["position"], saved["model"]["sum"]) == (4, 6)


class GatedLater:
    """Samples that come in the first pass, and never in the next."""

    def __init__(self):
        self.given = 0

    def __len__(self):
        return 4

    def __getitem__(self, index):
        while self.given == len(self):
            time.sleep(0.01)
        self.given += 1
        return index


def test_a_signal_that_comes_while_the_next_pass_begins_is_delivered_at_once(path):
    def train(dataset, interrupts):
        model = {"sum": 0}
        loader = mpiter.DataLoader(dataset, 4, num_workers=int(interrupts))
        with loader, mpiter.Checkpoint(path, loader, model=model) as c:
            for x in c.steps(loader, until=3):
                model["sum"] += int(x.sum())
                if interrupts:
                    interrupt_once_waiting()
        return model["sum"]

    with pytest.raises(KeyboardInterrupt):
        train(GatedLater(), interrupts=True)
    assert mpiter.Checkpoint.read(path)["model"]["sum"] == 6
    assert train(range(4), interrupts=False) == 18


class Signals:
    """Sends SIGTERM to its own process while the sixth sample is fetched."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 5:
            signal.raise_signal(signal.SIGTERM)
        return index


def test_a_signal_within_a_fetch_of_the_loop_itself_waits_for_the_step(path):
    loader = mpiter.DataLoader(Signals(), 4, on_error="skip")
    model = {"sum": 0}
    with pytest.raises(SystemExit), mpiter.Checkpoint(path, loader, model=model) as c:
        for x in c.steps(loader):
            model["sum"] += int(x.sum())
    assert mpiter.Checkpoint.read(path)["model"]["sum"] == sum(range(8))
