"""The crash matrix: each manner in which a worker can come to grief, in each phase of its life, however it was started.

``TABLE`` has a line for each cell; the classes above it say what the outcomes mean.  Further down: samples that are
fatal again and again, and what the user gets to see of it all.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from datasets import Squares, plain_batch
from pairs import pairs_of, slow_but, slow_if
from sabotage import (
    BATCH,
    DEADLY,
    ERRORS,
    FATAL,
    LENGTH,
    STUCK,
    Blocked,
    Burdened,
    Loaded,
    Sabotaged,
    Safe,
    Trap,
    Trapped,
    in_a_thread,
    in_mid_message,
    on_arrival,
    on_packing,
    on_sending,
    release,
)
from scripts import METHODS, lives_still, wait_until

import mpiter
from mpiter import SampleError, WorkerCrashed
from mpiter.errors import SampleNotSendable, WorkerStartError
from mpiter.pool import starting, watch

pytestmark = [
    pytest.mark.death,
    pytest.mark.timeout(40),  # against hanging: on an idle machine no cell takes more than 5 s
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # fork from a process with threads
]

WORKERS, SEED, PATIENCE_S, CLOSE_S = 2, 5, 1.0, 30.0

PHASES: dict[str, Callable[[Trap], dict[str, Any]]] = {
    "loading": lambda trap: {"dataset": Loaded(trap)},
    "worker_init": lambda trap: {"dataset": Safe(), "worker_init": partial(on_arrival, trap)},
    "getitem": lambda trap: {"dataset": Trapped(trap)},
    "packing": lambda trap: {"dataset": Burdened(trap)},
    "sending": lambda trap: {"dataset": Safe(), "worker_init": partial(on_sending, trap)},
    "pickling": lambda trap: {"dataset": Safe(), "worker_init": partial(on_packing, trap)},
    "half sent": lambda trap: {"dataset": Safe(), "worker_init": partial(in_mid_message, trap)},
    "idle": lambda trap: {"dataset": Safe(), "worker_init": partial(in_a_thread, trap), "run_ahead": 0},
    "closing": lambda trap: {"dataset": Blocked(trap), "shuffle": False, "run_ahead": 0},
}

# What the user reads of it, in an error or in the log.
TELLTALES = {
    "raise": "on purpose",
    "raise unpicklable": "holds a lock",
    "raise unopenable": "1 and 2",
    "sys.exit": "SystemExit: 0",
    "MemoryError": "MemoryError",
    "os._exit": "exited with code 0",
    "SIGKILL": "was killed by SIGKILL",
    "SIGSEGV": "was killed by SIGSEGV",
    "SIGSTOP": "for 1 s (it is stopped, SIGSTOP)",
    "hold the GIL": "for 1 s",
    "wait for ever": "for 1 s",
}
PLACES = {
    "loading": "in __setstate__",
    "worker_init": "in on_arrival",
    "getitem": "in __getitem__",
    "packing": "in __reduce__",
}


class Stage:
    """A trap, and an iterator about to walk into it."""

    def __init__(self, trap: Trap, phase: str, **options: Any) -> None:
        self.trap, self.manner, self.phase = trap, trap.manner, phase
        usual = {"n_processes": WORKERS, "sample_timeout": PATIENCE_S, "repeat": False, "seed": SEED}
        self.is_threaded = options.get("backend") == "thread"
        self.it = mpiter.MultiprocessIterator(batch_size=BATCH, **{**usual, **PHASES[phase](trap), **options})

    def everything(self) -> list[Any]:
        """What each ``next()`` gave to the end: a batch, or an error."""
        seen: list[Any] = []
        while len(seen) < 2 * LENGTH:
            try:
                seen.append(plain_batch(next(self.it)))
            except StopIteration:
                break
            except Exception as error:
                seen.append(error)
            if self.phase == "idle" and len(seen) == 1:
                self._come_to_grief_while_idle()
        return seen

    def _come_to_grief_while_idle(self) -> None:
        wait_until(lambda: self.it.stats().ready_batches == 1, "the workers have nothing to do")
        named = self.it.worker_pids
        self.trap.name(named)
        wait_until(
            lambda: all(pid in self.trap.victims or not lives_still(pid) for pid in named), "the trap has sprung"
        )

    def quiet(self) -> list[Any]:
        """What a run without trouble gives."""
        self.trap.remove()
        return [plain_batch(batch) for batch in mpiter.SerialIterator(self.it.dataset, BATCH, repeat=False, seed=SEED)]


def order() -> list[list[int]]:
    """The indices of each batch."""
    return [list(batch) for batch in mpiter.SerialIterator(range(LENGTH), BATCH, repeat=False, seed=SEED)]


def batch_of(index: int) -> int:
    """Which batch has the sample."""
    return next(at for at, indices in enumerate(order()) if index in indices)


def full_text(error: BaseException) -> str:
    """What the user sees when nobody catches the error."""
    return "".join(traceback.format_exception(error))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "mpiter"]


# -- outcomes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GoesOn:
    """The same batches in the same order, to the last bit; each victim is replaced, and no one else, with a line in the
    log for each."""

    telltale: str | None = None

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        seen, victims = stage.everything(), sorted(stage.trap.victims)
        assert victims, "the trap has not sprung at all"
        assert seen == stage.quiet()
        assert stage.it.stats().restarts == len(victims)
        said = warnings_in(caplog)
        named = [re.match(r"worker (\d) \(pid (\d+)\) ", line) for line in said]
        if not stage.is_threaded:
            assert sorted(int(found[2]) for found in named if found) == victims
        assert len(said) == len(victims)
        for line in said:
            assert (self.telltale or TELLTALES[stage.manner]) in line
            assert re.search(r"; replacing it and fetching \d+ samples again$", line)
            assert "\n" not in line


@dataclass(frozen=True)
class Unharmed:
    """Nobody ends, and there is nothing to say."""

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        seen = stage.everything()
        assert stage.trap.victims, "the trap has not sprung at all"
        assert seen == stage.quiet()
        assert stage.it.stats().restarts == 0
        assert warnings_in(caplog) == []


@dataclass(frozen=True)
class Error:
    """This error in the ``next()`` of the sample's batch, with what was raised; the next one goes on."""

    kind: type[Exception]

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        seen, quiet, at = stage.everything(), stage.quiet(), batch_of(FATAL)
        error = seen[at]
        assert type(error) is self.kind
        assert TELLTALES[stage.manner] in full_text(error)
        assert PLACES[stage.phase] in full_text(error)
        assert f"sample {FATAL} (" in full_text(error)
        assert seen == [*quiet[:at], error, *quiet[at + 1 :]]
        assert stage.it.stats().restarts == 0


@dataclass(frozen=True)
class Told:
    """This error once, in some ``next()``; nothing is lost, the next one goes on with the batch that was due."""

    kind: type[Exception]

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        seen = stage.everything()
        errors = [one for one in seen if isinstance(one, Exception)]
        assert [type(error) for error in errors] == [self.kind]
        assert TELLTALES[stage.manner] in full_text(errors[0])
        assert [one for one in seen if one is not errors[0]] == stage.quiet()
        assert stage.it.stats().restarts == 0


@dataclass(frozen=True)
class StartError:
    """``WorkerStartError`` at once, with what was raised or what ended the worker; the next ``next()`` tries afresh."""

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(WorkerStartError) as caught, little_patience_with(stage):
            next(stage.it)
        assert TELLTALES[stage.manner] in full_text(caught.value)
        assert PLACES[stage.phase] in full_text(caught.value) or stage.manner not in ERRORS
        assert len(stage.trap.victims) <= WORKERS, "no worker is started in place of one that cannot start"
        stage.trap.remove()
        assert stage.everything() == stage.quiet()


@contextlib.contextmanager
def little_patience_with(stage: Stage) -> Iterator[None]:
    """Let workers that have been stopped or hang while they start count as stuck at once."""

    def lose_patience() -> None:
        wait_until(lambda: len(stage.trap.victims) == WORKERS, "all workers are stuck")
        watch.START_S = 0.0

    if stage.manner not in ("SIGSTOP", "hold the GIL", "wait for ever"):
        yield
        return
    usual, impatient = watch.START_S, threading.Thread(target=lose_patience)
    impatient.start()
    try:
        yield
    finally:
        impatient.join()
        watch.START_S = usual


@dataclass(frozen=True)
class Closes:
    """``close()`` comes back soon; that nothing is left is seen to after every test."""

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        next(stage.it)
        wait_until(lambda: stage.trap.has_visitors, "a worker is at the gate")
        stage.trap.open_the_gate()
        began = time.monotonic()
        stage.it.close()
        assert time.monotonic() - began < CLOSE_S


@dataclass(frozen=True)
class NoSense:
    """There is no such cell."""

    reason: str


GOES_ON = GoesOn()
UNHARMED = Unharmed()
START_ERROR = StartError()
CLOSES = Closes()
START_ERROR_IF_LOADED = {
    "fork": NoSense("a forked worker inherits the dataset: nothing is loaded"),
    "forkserver": START_ERROR,
    "spawn": START_ERROR,
}

# -- the matrix --------------------------------------------------------------------------------------------------

TABLE: dict[tuple[str, str], Any] = {
    ("loading", "raise"):                 START_ERROR_IF_LOADED,
    ("loading", "raise unpicklable"):     START_ERROR_IF_LOADED,
    ("loading", "raise unopenable"):      START_ERROR_IF_LOADED,
    ("loading", "sys.exit"):              START_ERROR_IF_LOADED,
    ("loading", "MemoryError"):           START_ERROR_IF_LOADED,
    ("loading", "os._exit"):              START_ERROR_IF_LOADED,
    ("loading", "SIGKILL"):               START_ERROR_IF_LOADED,
    ("loading", "SIGSEGV"):               START_ERROR_IF_LOADED,
    ("loading", "SIGSTOP"):               START_ERROR_IF_LOADED,
    ("loading", "hold the GIL"):          START_ERROR_IF_LOADED,

    ("worker_init", "raise"):             START_ERROR,
    ("worker_init", "raise unpicklable"): START_ERROR,
    ("worker_init", "raise unopenable"):  START_ERROR,
    ("worker_init", "sys.exit"):          START_ERROR,
    ("worker_init", "MemoryError"):       START_ERROR,
    ("worker_init", "os._exit"):          START_ERROR,
    ("worker_init", "SIGKILL"):           START_ERROR,
    ("worker_init", "SIGSEGV"):           START_ERROR,
    ("worker_init", "SIGSTOP"):           START_ERROR,
    ("worker_init", "hold the GIL"):      START_ERROR,

    ("getitem", "raise"):                 Error(Sabotaged),
    ("getitem", "raise unpicklable"):     Error(SampleError),  # as itself it cannot come
    ("getitem", "raise unopenable"):      Error(SampleError),
    ("getitem", "sys.exit"):              Error(SampleError),  # as itself it would end the caller
    ("getitem", "MemoryError"):           Error(MemoryError),
    ("getitem", "os._exit"):              GOES_ON,
    ("getitem", "SIGKILL"):               GOES_ON,
    ("getitem", "SIGSEGV"):               GOES_ON,
    ("getitem", "SIGSTOP"):               GOES_ON,
    ("getitem", "hold the GIL"):          GOES_ON,

    ("packing", "raise"):                 Error(SampleNotSendable),
    ("packing", "raise unpicklable"):     Error(SampleNotSendable),
    ("packing", "raise unopenable"):      Error(SampleNotSendable),
    ("packing", "sys.exit"):              Error(SampleNotSendable),
    ("packing", "MemoryError"):           Error(SampleNotSendable),
    ("packing", "os._exit"):              GOES_ON,
    ("packing", "SIGKILL"):               GOES_ON,
    ("packing", "SIGSEGV"):               GOES_ON,
    ("packing", "SIGSTOP"):               GOES_ON,
    ("packing", "hold the GIL"):          GOES_ON,

    ("sending", "raise"):                 Told(SampleNotSendable),
    ("sending", "raise unpicklable"):     Told(SampleNotSendable),
    ("sending", "raise unopenable"):      Told(SampleNotSendable),
    ("sending", "sys.exit"):              GoesOn(telltale="exited with code 0"),  # the Pool's loop does not catch it
    ("sending", "MemoryError"):           Told(SampleNotSendable),
    ("sending", "os._exit"):              GOES_ON,
    ("sending", "SIGKILL"):               GOES_ON,
    ("sending", "SIGSEGV"):               GOES_ON,
    ("sending", "SIGSTOP"):               GOES_ON,
    ("sending", "hold the GIL"):          GOES_ON,

    ("pickling", "raise"):                Told(SampleNotSendable),
    ("pickling", "raise unpicklable"):    Told(SampleNotSendable),
    ("pickling", "raise unopenable"):     Told(SampleNotSendable),
    ("pickling", "sys.exit"):             GoesOn(telltale="exited with code 0"),
    ("pickling", "MemoryError"):          Told(SampleNotSendable),
    ("pickling", "os._exit"):             GOES_ON,
    ("pickling", "SIGKILL"):              GOES_ON,
    ("pickling", "SIGSEGV"):              GOES_ON,
    ("pickling", "SIGSTOP"):              GOES_ON,
    ("pickling", "hold the GIL"):         GOES_ON,

    ("idle", "raise"):                    UNHARMED,  # a thread ends, the worker does not
    ("idle", "raise unpicklable"):        UNHARMED,
    ("idle", "raise unopenable"):         UNHARMED,
    ("idle", "sys.exit"):                 UNHARMED,
    ("idle", "MemoryError"):              UNHARMED,
    ("idle", "os._exit"):                 GOES_ON,
    ("idle", "SIGKILL"):                  GOES_ON,
    ("idle", "SIGSEGV"):                  GOES_ON,
    ("idle", "SIGSTOP"):                  GOES_ON,
    ("idle", "hold the GIL"):             GOES_ON,

    ("closing", "raise"):                 CLOSES,
    ("closing", "raise unpicklable"):     CLOSES,
    ("closing", "raise unopenable"):      CLOSES,
    ("closing", "sys.exit"):              CLOSES,
    ("closing", "MemoryError"):           CLOSES,
    ("closing", "os._exit"):              CLOSES,
    ("closing", "SIGKILL"):               CLOSES,
    ("closing", "SIGSEGV"):               CLOSES,
    ("closing", "SIGSTOP"):               CLOSES,
    ("closing", "hold the GIL"):          CLOSES,
}  # fmt: skip

# Threads: nothing is packed or sent, they hand over what the dataset has returned.
THREADS: dict[tuple[str, str], Any] = {
    ("worker_init", "raise"):             START_ERROR,
    ("worker_init", "raise unpicklable"): START_ERROR,
    ("worker_init", "raise unopenable"):  START_ERROR,
    ("worker_init", "sys.exit"):          START_ERROR,
    ("worker_init", "MemoryError"):       START_ERROR,
    ("worker_init", "wait for ever"):     START_ERROR,

    ("getitem", "raise"):                 Error(Sabotaged),
    ("getitem", "raise unpicklable"):     Error(SampleError),  # as with processes
    ("getitem", "raise unopenable"):      Error(SampleError),
    ("getitem", "sys.exit"):              Error(SampleError),
    ("getitem", "MemoryError"):           Error(MemoryError),
    ("getitem", "wait for ever"):         GOES_ON,

    ("closing", "raise"):                 CLOSES,
    ("closing", "raise unpicklable"):     CLOSES,
    ("closing", "raise unopenable"):      CLOSES,
    ("closing", "sys.exit"):              CLOSES,
    ("closing", "MemoryError"):           CLOSES,
    ("closing", "wait for ever"):         CLOSES,
}  # fmt: skip


def outcome(phase: str, manner: str, method: str) -> Any:
    found = TABLE[phase, manner]
    return found[method] if isinstance(found, dict) else found


_ALL = [(*cell, method) for cell in TABLE for method in METHODS if not isinstance(outcome(*cell, method), NoSense)]
CELLS = slow_if(lambda _, manner, __: manner == "SIGSTOP", pairs_of(_ALL))  # as slow as to hold the GIL


def test_every_cell_has_an_outcome_or_a_reason_why_not() -> None:
    phases = [phase for phase in PHASES if phase != "half sent"]
    assert set(TABLE) == set(itertools.product(phases, [*ERRORS, *DEADLY]))
    for (phase, manner), method in itertools.product(TABLE, METHODS):
        found = outcome(phase, manner, method)
        assert hasattr(found, "check") or found.reason
    assert set(THREADS) == set(itertools.product(("worker_init", "getitem", "closing"), [*ERRORS, *STUCK]))


@pytest.fixture
def staged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Makes a stage, and clears it in the end."""
    stages: list[Stage] = []

    def stage(phase: str, manner: str, times: int | None = 1, **options: Any) -> Stage:
        stages.append(Stage(Trap(tmp_path, manner, times), phase, **options))
        return stages[-1]

    release.clear()
    yield stage
    release.set()
    for one in stages:
        one.it.close()


def times(phase: str, manner: str) -> int | None:
    """How often: what is fatal to a sample happens once, so that its next fetch goes well."""
    return 1 if phase in ("sending", "pickling") or (phase in ("getitem", "packing") and manner not in ERRORS) else None


@pytest.mark.parametrize(("phase", "manner", "method"), CELLS)
def test_each_cell_ends_as_documented(
    staged: Any, caplog: pytest.LogCaptureFixture, phase: str, manner: str, method: str
) -> None:
    stage = staged(phase, manner, times(phase, manner), backend=mpiter.Process(method))
    outcome(phase, manner, method).check(stage, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("manner", [*ERRORS, *DEADLY])
@pytest.mark.parametrize("phase", ["getitem", "packing", "sending", "pickling"])
def test_each_cell_ends_likewise_without_shared_memory(
    staged: Any, caplog: pytest.LogCaptureFixture, phase: str, manner: str
) -> None:
    stage = staged(phase, manner, times(phase, manner), serializer="packed")
    outcome(phase, manner, "forkserver").check(stage, caplog)


@pytest.mark.parametrize(
    ("phase", "manner"), [pytest.param(*cell, marks=pytest.mark.slow if "wait" in cell[1] else []) for cell in THREADS]
)
def test_each_cell_of_threads_ends_as_documented(
    staged: Any, caplog: pytest.LogCaptureFixture, phase: str, manner: str
) -> None:
    THREADS[phase, manner].check(staged(phase, manner, times(phase, manner), backend="thread"), caplog)


# -- again and again ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manner", slow_but(DEADLY, "SIGSEGV", "SIGKILL", "os._exit"))
def test_a_sample_that_ends_its_worker_twice_is_an_error_in_place_of_its_batch(staged: Any, manner: str) -> None:
    stage = staged("getitem", manner, times=2)
    seen, quiet, at = stage.everything(), stage.quiet(), batch_of(FATAL)
    error = seen[at]
    assert type(error) is WorkerCrashed
    assert f"sample {FATAL} has ended its worker twice" in str(error)
    assert TELLTALES[manner] in str(error)
    assert seen == [*quiet[:at], error, *quiet[at + 1 :]]
    assert stage.it.stats().restarts == 2


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["getitem", "packing"])
@pytest.mark.parametrize("manner", DEADLY)
def test_a_sample_that_ends_its_worker_each_time_is_left_out_if_asked(staged: Any, manner: str, phase: str) -> None:
    stage = staged(phase, manner, times=None, on_error="skip")
    seen = stage.everything()
    assert stage.it.stats().skipped == 1
    stage.trap.remove()
    assert seen == [plain_batch(stage.it.dataset[index] for index in batch if index != FATAL) for batch in order()]


@pytest.mark.slow
@pytest.mark.parametrize("manner", DEADLY)
def test_workers_that_die_whatever_they_do_come_to_an_end_which_tells_it_all(staged: Any, manner: str) -> None:
    stage = staged("sending", manner, times=None)
    with pytest.raises(WorkerCrashed, match="no batch is finished") as caught:
        next(stage.it)
    deaths = str(caught.value).splitlines()[1:]
    assert len(deaths) == 4
    assert all(TELLTALES[manner] in death for death in deaths)
    victims = len(stage.trap.victims)
    assert victims - WORKERS < stage.it.stats().restarts <= victims, "those that die with the last end with all"
    stage.trap.remove()
    assert stage.everything() == stage.quiet()


# -- other places ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 4), (200, 200)], ids=["small", "in rooms"])
@pytest.mark.parametrize("serializer", ["slots", "packed"])
@pytest.mark.parametrize("manner", DEADLY)
def test_half_an_answer_in_the_pipe_hurts_nobody(
    staged: Any, caplog: pytest.LogCaptureFixture, manner: str, serializer: str, shape: tuple[int, ...]
) -> None:
    """Nor does half a buffer in the room of its batch."""
    stage = staged("half sent", manner, serializer=serializer, dataset=Squares(LENGTH, shape))
    GOES_ON.check(stage, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("worker", range(WORKERS))
@pytest.mark.parametrize("manner", DEADLY)
def test_one_idle_worker_is_replaced_and_the_other_works_on(
    staged: Any, caplog: pytest.LogCaptureFixture, manner: str, worker: int
) -> None:
    stage = staged("idle", manner, times=None, repeat=True, run_ahead=4)
    seen = [plain_batch(next(stage.it))]
    once_all_are_ready(stage.it)
    before = stage.it.worker_pids
    stage.trap.name(before[worker : worker + 1])
    wait_until(lambda: stage.trap.victims or not lives_still(before[worker]), "the trap has sprung")
    seen += until_replaced(stage.it)
    assert seen == quiet_for_ever(len(seen))
    assert stage.it.stats().restarts == 1
    assert [pid == old for pid, old in zip(stage.it.worker_pids, before, strict=True)].index(False) == worker
    assert len(set(before) & set(stage.it.worker_pids)) == WORKERS - 1
    (said,) = warnings_in(caplog)
    assert said.startswith(f"worker {worker} (pid {before[worker]}) ")
    assert TELLTALES[manner] in said


def test_the_end_of_the_fork_server_ends_no_worker_and_the_next_comes_from_another(
    staged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    stage = staged("idle", "SIGKILL", times=None, repeat=True)
    seen = [plain_batch(next(stage.it))]
    once_all_are_ready(stage.it)
    before, server = stage.it.worker_pids, starting._server._forkserver_pid
    assert {psutil.Process(pid).ppid() for pid in before} == {server}
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: not lives_still(server), "the server is dead")
    seen += [plain_batch(next(stage.it)) for _ in range(2 * LENGTH)]
    assert stage.it.worker_pids == before
    assert stage.it.stats().restarts == 0
    os.kill(before[0], signal.SIGKILL)
    seen += until_replaced(stage.it)
    assert seen == quiet_for_ever(len(seen))
    new, old = stage.it.worker_pids
    assert old == before[1]
    assert psutil.Process(new).ppid() == starting._server._forkserver_pid != server
    assert stage.it.stats().restarts == 1
    (said,) = warnings_in(caplog)
    assert said.startswith(f"worker 0 (pid {before[0]}) vanished, perhaps with the fork server")
    stage.it.close()
    assert not any(map(lives_still, (new, old)))


@pytest.mark.parametrize("manner", ["os._exit", "SIGKILL", "SIGSEGV"])
def test_a_replacement_that_dies_while_it_starts_is_replaced_as_well(staged: Any, manner: str) -> None:
    stage = staged("worker_init", manner, repeat=True)
    stage.trap.remove()
    seen = [plain_batch(next(stage.it))]
    once_all_are_ready(stage.it)
    stage.trap.lay_again()
    before = stage.it.worker_pids
    os.kill(before[0], signal.SIGKILL)
    seen += until_replaced(stage.it, times=2)
    assert seen == quiet_for_ever(len(seen))
    assert stage.it.stats().restarts == 2
    assert stage.it.worker_pids[1] == before[1]


@pytest.mark.parametrize("manner", DEADLY)
def test_close_comes_back_while_the_workers_are_being_replaced(staged: Any, manner: str) -> None:
    stage = staged("closing", manner, times=None)
    next(stage.it)
    wait_until(lambda: stage.trap.has_visitors, "a worker is at the gate")
    stage.trap.open_the_gate()
    wait_until(lambda: stage.trap.victims, "the trap has sprung")
    began = time.monotonic()
    stage.it.close()
    assert time.monotonic() - began < CLOSE_S


def once_all_are_ready(it: Any) -> None:
    wait_until(lambda: all(line.ready for line in it._pump.loop.lines), "all workers are ready")


def until_replaced(it: Any, times: int = 1) -> list[Any]:
    """The batches that come until so many workers have been replaced, and some more."""
    seen = []
    while it.stats().restarts < times or len(it.worker_pids) < WORKERS:
        seen.append(plain_batch(next(it)))
    return seen + [plain_batch(next(it)) for _ in range(LENGTH)]


def quiet_for_ever(batches: int) -> list[Any]:
    quiet = mpiter.SerialIterator(Safe(), BATCH, seed=SEED)
    return [plain_batch(next(quiet)) for _ in range(batches)]


# -- what one gets to see ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("manner", slow_but(["SIGSEGV", "hold the GIL"], "SIGSEGV"))
@pytest.mark.parametrize(("times", "on_error"), [(1, "raise"), (2, "skip")])
def test_the_log_shows_where_the_worker_crashed_or_is_stuck(
    staged: Any, caplog: pytest.LogCaptureFixture, manner: str, times: int, on_error: str
) -> None:
    """Each time, if there is to be no error that could show it."""
    staged("getitem", manner, times=times, on_error=on_error).everything()
    records = [record for record in caplog.records if record.name == "mpiter"]
    assert [record.levelno for record in records] == [logging.WARNING] * times
    for record in records:
        assert f"while fetching sample {FATAL}; replacing it and fetching" in record.getMessage()
        assert str(record.exc_info).count("in __getitem__") == 1


@pytest.mark.parametrize("manner", ["SIGSEGV", "hold the GIL"])
def test_the_error_shows_where_the_worker_crashed_or_is_stuck(staged: Any, manner: str) -> None:
    (error,) = [one for one in staged("getitem", manner, times=2).everything() if isinstance(one, Exception)]
    assert "in __getitem__" in full_text(error)


@pytest.mark.slow
def test_a_thread_that_is_stuck_shows_where(staged: Any) -> None:
    stage = staged("getitem", "wait for ever", times=2, backend="thread")
    (error,) = [one for one in stage.everything() if isinstance(one, Exception)]
    assert type(error) is WorkerCrashed
    assert "in __getitem__" in full_text(error)


def test_an_answer_that_cannot_be_sent_is_not_read_out_in_full(staged: Any) -> None:
    stage = staged("sending", "MemoryError", dataset=Squares(LENGTH, shape=(100, 100)))
    (error,) = [one for one in stage.everything() if isinstance(one, Exception)]
    assert len(full_text(error)) < 5000


@pytest.mark.parametrize("method", METHODS)
def test_the_pids_are_those_of_the_workers_of_the_moment(staged: Any, method: str) -> None:
    it = staged("idle", "SIGKILL", times=None, repeat=True, backend=mpiter.Process(method)).it
    assert it.worker_pids == ()
    next(it)
    before = it.worker_pids
    assert len(set(before)) == WORKERS
    assert all(map(lives_still, before))
    once_all_are_ready(it)
    os.kill(before[0], signal.SIGKILL)
    until_replaced(it)
    assert len(set(it.worker_pids)) == WORKERS
    assert before[0] not in it.worker_pids
    assert it.worker_pids[1] == before[1]
    assert [lives_still(pid) for pid in before] == [False, True]
    it.close()
    assert it.worker_pids == ()


def test_a_place_in_which_nobody_can_start_any_more_is_not_tried_for_ever(tmp_path: Path) -> None:
    """The other worker goes on meanwhile, so batches are finished all the time."""

    def worker_init(info: Any) -> None:
        (tmp_path / f"{info.id}-{os.getpid()}").touch()
        if info.id == 0 and len(list(tmp_path.glob("0-*"))) > 1:
            os._exit(3)

    with mpiter.MultiprocessIterator(list(range(100)), 2, n_processes=2, worker_init=worker_init) as it:
        next(it)
        while 0 not in {int(path.name[0]) for path in tmp_path.iterdir()}:
            next(it)
        os.kill(int(next(tmp_path.glob("0-*")).name[2:]), signal.SIGKILL)
        with pytest.raises(mpiter.errors.WorkerStartError, match="exited with code 3"):
            for _ in range(10**6):
                next(it)
    assert len(list(tmp_path.glob("0-*"))) < 10
