"""The crash matrix: workers fail in every manner, in every phase, however started.

``CELLS`` has each manner in one phase, and each phase with the manners that differ
there, most of them in workers of the usual kind.  The classes above it say what the
outcomes mean.  Tests further down have samples that are fatal again and again, and
check what the user reads.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from datasets import Squares, plain_batch
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
    Safe,
    Trap,
    Trapped,
    in_mid_message,
    on_arrival,
    on_sending,
    release,
)
from scripts import METHODS, lives_still, wait_until

import mpiter
from mpiter import SampleError, WorkerCrashed
from mpiter.errors import SampleNotSendable, WorkerStartError
from mpiter.pool import endings, starting

pytestmark = [
    pytest.mark.death,
    # A cell that hangs fails.  On an idle machine none takes more than 5 s.
    pytest.mark.timeout(40),
    # Some workers are forked from a process that has threads.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

WORKERS = 2
SEED = 5
PATIENCE_S = 1.0

PHASES: dict[str, Callable[[Trap], dict[str, Any]]] = {
    "loading": lambda trap: {"dataset": Loaded(trap)},
    "worker_init": lambda trap: {
        "dataset": Safe(),
        "worker_init": partial(on_arrival, trap),
    },
    "getitem": lambda trap: {"dataset": Trapped(trap)},
    "packing": lambda trap: {"dataset": Burdened(trap)},
    "sending": lambda trap: {
        "dataset": Safe(),
        "worker_init": partial(on_sending, trap),
    },
    "half sent": lambda trap: {
        "dataset": Squares(LENGTH, (99, 99)),
        "worker_init": partial(in_mid_message, trap),
    },
    "closing": lambda trap: {
        "dataset": Blocked(trap),
        "shuffle": False,
        "run_ahead": 0,
    },
}

# The user reads these words of each manner, in an error or in the log.
TELLTALES = {
    "raise": "on purpose",
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
    """An iterator whose workers come to a trap."""

    def __init__(self, trap: Trap, phase: str, **options: Any) -> None:
        self.trap = trap
        self.manner = trap.manner
        self.phase = phase
        usual = {
            "n_processes": WORKERS,
            "sample_timeout": PATIENCE_S,
            "repeat": False,
            "seed": SEED,
        }
        self.is_under_way = "concurrency" in options
        self.is_threaded = options.get("backend") == "thread"
        self.it = mpiter.MultiprocessIterator(
            batch_size=BATCH, **{**usual, **PHASES[phase](trap), **options}
        )

    def everything(self) -> list[Any]:
        """Return what each ``next()`` gave up to the end: a batch, or an error."""
        seen: list[Any] = []
        while len(seen) < 2 * LENGTH:
            try:
                seen.append(plain_batch(next(self.it)))
            except StopIteration:
                break
            except Exception as error:
                seen.append(error)
        return seen

    def quiet(self) -> list[Any]:
        """Return what a run without the trap gives."""
        self.trap.remove()
        it = mpiter.SerialIterator(self.it.dataset, BATCH, repeat=False, seed=SEED)
        return [plain_batch(batch) for batch in it]


def order() -> list[list[int]]:
    """Return the indices of each batch."""
    it = mpiter.SerialIterator(range(LENGTH), BATCH, repeat=False, seed=SEED)
    return [list(batch) for batch in it]


def batch_of(index: int) -> int:
    """Return the number of the batch that has the sample."""
    return next(at for at, indices in enumerate(order()) if index in indices)


def full_text(error: BaseException) -> str:
    """Return what Python prints if the error isn't caught."""
    return "".join(traceback.format_exception(error))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "mpiter"]


# -- outcomes --------------------------------------------------------------------------


@dataclass(frozen=True)
class GoesOn:
    """The same batches come in the same order, to the last bit.

    Only the workers that were hit are replaced, with a line in the log for each.
    """

    telltale: str | None = None

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        seen = stage.everything()
        victims = sorted(stage.trap.victims)
        assert victims, "the trap has not sprung at all"
        assert seen == stage.quiet()
        assert stage.it.stats().restarts == len(victims)
        stacks = [record for record in caplog.records if record.exc_info]
        said = [
            line for line in warnings_in(caplog) if not line.endswith("when it ended:")
        ]
        named = [re.match(r"worker (\d) \(pid (\d+)\) ", line) for line in said]
        if not stage.is_threaded:
            assert sorted(int(found[2]) for found in named if found) == victims
        assert len(said) == len(victims)
        if stage.phase == "getitem" and stage.manner in ("SIGSEGV", "hold the GIL"):
            # In these manners Python can still write a stack, which shows the place.
            (record,) = stacks
            shown = str(record.exc_info)
            if stage.is_under_way:
                # It isn't known which of those under way has ended the worker, and the
                # signal may have come to any thread.
                assert "in _run_readings" in shown
            else:
                assert shown.count("in __getitem__") == 1
                assert all(f"while fetching sample {FATAL};" in line for line in said)
        for line in said:
            assert (self.telltale or TELLTALES[stage.manner]) in line
            assert re.search(
                r"; replacing it and fetching (1 sample|\d+ samples) again$", line
            )
            assert "\n" not in line


@dataclass(frozen=True)
class Error:
    """The ``next()`` of the sample's batch raises this error, with its cause.

    The one after that goes on.
    """

    kind: type[Exception]

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        seen = stage.everything()
        quiet = stage.quiet()
        at = batch_of(FATAL)
        error = seen[at]
        assert type(error) is self.kind
        assert TELLTALES[stage.manner] in full_text(error)
        assert PLACES[stage.phase] in full_text(error)
        assert f"sample {FATAL} (" in full_text(error)
        assert seen == [*quiet[:at], error, *quiet[at + 1 :]]
        assert stage.it.stats().restarts == 0


@dataclass(frozen=True)
class Told:
    """Some ``next()`` raises this error once, and no batch is lost.

    The one after that goes on with the batch that was due.
    """

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
    """``next()`` raises ``WorkerStartError`` at once, with what ended the worker.

    The one after that tries again.
    """

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(WorkerStartError) as caught, little_patience_with(stage):
            next(stage.it)
        text = full_text(caught.value)
        assert TELLTALES[stage.manner] in text
        assert PLACES[stage.phase] in text or stage.manner not in ERRORS
        assert len(stage.trap.victims) <= WORKERS, (
            "no worker is started in place of one that cannot start"
        )
        stage.trap.remove()
        assert stage.everything() == stage.quiet()


@contextlib.contextmanager
def little_patience_with(stage: Stage) -> Iterator[None]:
    """Let workers that stop or hang while they start count as stuck at once."""

    def lose_patience() -> None:
        wait_until(lambda: len(stage.trap.victims) == WORKERS, "all workers are stuck")
        endings.START_S = 0.0

    if stage.manner not in ("SIGSTOP", "hold the GIL", "wait for ever"):
        yield
        return
    usual = endings.START_S
    impatient = threading.Thread(target=lose_patience)
    impatient.start()
    try:
        yield
    finally:
        impatient.join()
        endings.START_S = usual


@dataclass(frozen=True)
class Closes:
    """``close()`` returns.  A fixture checks after each test that nothing is left."""

    def check(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        next(stage.it)
        wait_until(lambda: stage.trap.has_visitors, "a worker is at the gate")
        stage.trap.open_the_gate()
        stage.it.close()


GOES_ON = GoesOn()
START_ERROR = StartError()
CLOSES = Closes()
# -- the matrix ------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    **{method: {"backend": mpiter.Process(method)} for method in METHODS},
    # Packed batches travel through pipes, without shared memory.
    "packed": {"serializer": "packed"},
    # Threads pack and send nothing: they hand over what the dataset has returned.
    "threads": {"backend": "thread"},
    # Several samples are under way in a worker.
    "under way": {"concurrency": 4},
    "threads, under way": {"backend": "thread", "concurrency": 4},
}

CELLS: list[tuple[str, str, str, Any]] = [
    ("loading", "raise", "forkserver", START_ERROR),
    ("loading", "SIGKILL", "spawn", START_ERROR),

    ("worker_init", "raise", "threads", START_ERROR),
    ("worker_init", "sys.exit", "fork", START_ERROR),
    ("worker_init", "SIGSTOP", "forkserver", START_ERROR),
    ("worker_init", "wait for ever", "threads", START_ERROR),

    # SystemExit itself would end the caller.
    ("getitem", "sys.exit", "forkserver", Error(SampleError)),
    ("getitem", "MemoryError", "forkserver", Error(MemoryError)),
    ("getitem", "os._exit", "fork", GOES_ON),
    ("getitem", "SIGKILL", "spawn", GOES_ON),
    ("getitem", "SIGSEGV", "forkserver", GOES_ON),
    ("getitem", "SIGSTOP", "fork", GOES_ON),
    ("getitem", "hold the GIL", "forkserver", GOES_ON),
    ("getitem", "wait for ever", "threads", GOES_ON),

    ("getitem", "sys.exit", "under way", Error(SampleError)),
    ("getitem", "SIGKILL", "under way", GOES_ON),
    ("getitem", "SIGSEGV", "under way", GOES_ON),
    ("getitem", "hold the GIL", "under way", GOES_ON),
    ("getitem", "SIGSTOP", "under way", GOES_ON),
    ("getitem", "wait for ever", "threads, under way", GOES_ON),
    ("sending", "SIGKILL", "under way", GOES_ON),

    ("packing", "sys.exit", "packed", Error(SampleError)),
    ("packing", "SIGSEGV", "forkserver", GOES_ON),

    ("sending", "raise", "forkserver", Told(SampleNotSendable)),
    # The loop of a worker doesn't catch SystemExit.
    ("sending", "sys.exit", "fork", GoesOn(telltale="exited with code 0")),
    ("sending", "SIGKILL", "forkserver", GOES_ON),

    ("half sent", "SIGSTOP", "fork", GOES_ON),
    ("half sent", "SIGKILL", "packed", GOES_ON),

    ("closing", "SIGSTOP", "forkserver", CLOSES),
    ("closing", "wait for ever", "threads", CLOSES),
]  # fmt: skip


def test_every_manner_and_every_phase_is_tried() -> None:
    assert {manner for _, manner, _, _ in CELLS} == {*ERRORS, *DEADLY, *STUCK}
    assert {phase for phase, _, _, _ in CELLS} == {*PHASES}
    assert {way for _, _, way, _ in CELLS} == {*WAYS}


@pytest.fixture
def staged(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[..., Stage]]:
    """Return a function that makes stages, which are closed in the end."""
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
    """Return how often the trap springs, or None for always.

    A trap that ends the worker of a sample springs once, so that the sample's next
    fetch succeeds.
    """
    is_once = phase in ("sending", "half sent") or (
        phase in ("getitem", "packing") and manner not in ERRORS
    )
    return 1 if is_once else None


@pytest.mark.parametrize(
    ("phase", "manner", "way", "outcome"),
    CELLS,
    ids=["-".join(cell[:3]) for cell in CELLS],
)
def test_each_cell_ends_as_documented(
    staged: Any,
    caplog: pytest.LogCaptureFixture,
    phase: str,
    manner: str,
    way: str,
    outcome: Any,
) -> None:
    outcome.check(staged(phase, manner, times(phase, manner), **WAYS[way]), caplog)


# -- again and again -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "way"), [("SIGSEGV", "forkserver"), ("wait for ever", "threads")]
)
def test_a_sample_that_ends_its_worker_twice_is_an_error_that_shows_where(
    staged: Any, manner: str, way: str
) -> None:
    stage = staged("getitem", manner, times=2, **WAYS[way])
    seen = stage.everything()
    quiet = stage.quiet()
    at = batch_of(FATAL)
    error = seen[at]
    assert type(error) is WorkerCrashed
    assert f"sample {FATAL} has ended its worker twice" in str(error)
    assert TELLTALES[manner] in str(error)
    assert ("sample_timeout= says how long" in str(error)) == (manner != "SIGSEGV")
    assert "in __getitem__" in full_text(error)
    assert seen == [*quiet[:at], error, *quiet[at + 1 :]]
    assert stage.it.stats().restarts == 2


def test_workers_that_die_whatever_they_send_come_to_an_end_which_tells_it_all(
    staged: Any,
) -> None:
    stage = staged("sending", "SIGKILL", times=None)
    with pytest.raises(WorkerCrashed, match="has ended its worker twice") as caught:
        next(stage.it)
    assert TELLTALES["SIGKILL"] in str(caught.value)
    stage.trap.remove()
    seen = stage.everything()
    quiet = stage.quiet()[1:]
    assert all(
        type(one) is WorkerCrashed or one == wanted
        for one, wanted in zip(seen, quiet, strict=True)
    )


# -- other places ----------------------------------------------------------------------


def test_the_end_of_the_fork_server_ends_no_worker_and_the_next_comes_from_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with undisturbed() as it:
        seen = [plain_batch(next(it))]
        once_all_are_ready(it)
        before = it.worker_pids
        server = starting._server._forkserver_pid
        assert {psutil.Process(pid).ppid() for pid in before} == {server}
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not lives_still(server), "the server is dead")
        seen += [plain_batch(next(it)) for _ in range(LENGTH)]
        assert it.worker_pids == before
        assert it.stats().restarts == 0
        os.kill(before[0], signal.SIGKILL)
        seen += until_replaced(it)
        assert seen == quiet_for_ever(len(seen))
        new, old = it.worker_pids
        assert old == before[1]
        assert psutil.Process(new).ppid() == starting._server._forkserver_pid != server
        assert it.stats().restarts == 1
        (said,) = warnings_in(caplog)
        assert said.startswith(
            f"worker 0 (pid {before[0]}) vanished, perhaps with the fork server"
        )
    assert not any(map(lives_still, (new, old)))


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_an_idle_worker_is_replaced_and_the_other_works_on(
    caplog: pytest.LogCaptureFixture, number: str
) -> None:
    with undisturbed() as it:
        assert it.worker_pids == ()
        seen = [plain_batch(next(it))]
        before = it.worker_pids
        assert len(set(before)) == WORKERS
        once_all_are_ready(it)
        wait_until(
            lambda: it.stats().ready_batches == 1, "the workers have nothing to do"
        )
        os.kill(before[0], signal.Signals[number])
        seen += until_replaced(it)
        assert seen == quiet_for_ever(len(seen))
        assert len(set(it.worker_pids)) == WORKERS
        assert before[0] not in it.worker_pids
        assert it.worker_pids[1] == before[1]
        assert [lives_still(pid) for pid in before] == [False, True]
        (said,) = warnings_in(caplog)
        assert said.startswith(f"worker 0 (pid {before[0]})")
        assert TELLTALES[number] in said
    assert it.worker_pids == ()


def test_a_replacement_that_dies_while_it_starts_is_replaced_as_well(
    staged: Any,
) -> None:
    stage = staged("worker_init", "SIGKILL", times=2, repeat=True)
    stage.trap.remove()
    seen = [plain_batch(next(stage.it))]
    once_all_are_ready(stage.it)
    stage.trap.lay_again()
    before = stage.it.worker_pids
    os.kill(before[0], signal.SIGKILL)
    seen += until_replaced(stage.it, times=3)
    assert seen == quiet_for_ever(len(seen))
    assert stage.it.stats().restarts == 3
    assert stage.it.worker_pids[1] == before[1]


def test_close_comes_back_while_the_workers_are_being_replaced(staged: Any) -> None:
    stage = staged("closing", "SIGKILL", times=None)
    next(stage.it)
    wait_until(lambda: stage.trap.has_visitors, "a worker is at the gate")
    stage.trap.open_the_gate()
    wait_until(lambda: stage.trap.victims, "the trap has sprung")
    stage.it.close()


def undisturbed() -> mpiter.MultiprocessIterator[Any]:
    """Return an endless iterator without a trap, whose workers are soon idle."""
    return mpiter.MultiprocessIterator(
        Safe(),
        BATCH,
        n_processes=WORKERS,
        seed=SEED,
        sample_timeout=PATIENCE_S,
        run_ahead=0,
    )


def once_all_are_ready(it: Any) -> None:
    wait_until(
        lambda: all(line.ready for line in it._pump.loop.lines), "all workers are ready"
    )


def until_replaced(it: Any, times: int = 1) -> list[Any]:
    """Return the batches until so many workers have been replaced, and some more."""
    seen = []
    while it.stats().restarts < times or len(it.worker_pids) < WORKERS:
        seen.append(plain_batch(next(it)))
    return seen + [plain_batch(next(it)) for _ in range(LENGTH)]


def quiet_for_ever(batches: int) -> list[Any]:
    quiet = mpiter.SerialIterator(Safe(), BATCH, seed=SEED)
    return [plain_batch(next(quiet)) for _ in range(batches)]


# -- what one gets to see --------------------------------------------------------------


def test_an_answer_that_cannot_be_sent_is_not_read_out_in_full(staged: Any) -> None:
    stage = staged("sending", "MemoryError", dataset=Squares(LENGTH, shape=(100, 100)))
    (error,) = [one for one in stage.everything() if isinstance(one, Exception)]
    assert len(full_text(error)) < 5000


def test_a_place_in_which_no_worker_can_start_any_more_is_not_tried_for_ever(
    tmp_path: Path,
) -> None:
    """The other worker goes on meanwhile, so batches are finished all the time.

    If none were, the loop would give up anyway.
    """

    def worker_init(info: Any) -> None:
        (tmp_path / f"{info.id}-{os.getpid()}").touch()
        if info.id == 0 and len(list(tmp_path.glob("0-*"))) > 1:
            os._exit(3)

    with mpiter.MultiprocessIterator(
        list(range(100)), 2, n_processes=2, worker_init=worker_init
    ) as it:
        next(it)
        while 0 not in {int(path.name[0]) for path in tmp_path.iterdir()}:
            next(it)
        os.kill(int(next(tmp_path.glob("0-*")).name[2:]), signal.SIGKILL)
        with pytest.raises(mpiter.errors.WorkerStartError, match="exited with code 3"):
            for _ in range(10**6):
                next(it)
    assert len(list(tmp_path.glob("0-*"))) < 10
