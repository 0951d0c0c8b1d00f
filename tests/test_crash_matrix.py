"""Whatever becomes of a worker, wherever it happens, however it was started: each cell ends as documented.

The matrix is {manner} x {phase} x {start method}; TABLE has a line for each manner and a column for each phase,
NO_SENSE what cannot be.  The harm is done once, unless it is an error: then whenever that place is come by.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from datasets import plain
from sabotage import LENGTH, MANNERS, SPOT, HalfSent, Harm, Start, Victim
from scripts import METHODS, wait_until

import mpiter
from mpiter import watch

PHASES = (
    "loading the dataset",
    "worker_init",
    "__getitem__",
    "packing",
    "sending the result",
    "idle",
    "during close()",
)
BATCH = 4
PATIENT, ALWAYS = 1.5, 1000  # sample_timeout in seconds; how often an error is raised

GOES_ON = "the same batches; one restart"
UNHARMED = "the same batches; no restart needed"
NO_START = "WorkerStartError, at once"
CLOSES = "close() comes back, nothing is left"
NOT_SENDABLE = mpiter.SampleNotSendable  # in place of the batch; the next one follows
SAMPLE_ERROR = mpiter.SampleError
TRY_AGAIN = "SampleNotSendable, then the same batches"

TABLE = {
    #                                    loading   init      getitem       packing       sending    idle      close
    "raise":                             (NO_START, NO_START, ValueError,   NOT_SENDABLE, TRY_AGAIN, UNHARMED, CLOSES),
    "unpicklable exception":             (NO_START, NO_START, SAMPLE_ERROR, NOT_SENDABLE, TRY_AGAIN, UNHARMED, CLOSES),
    "exception that unpickles wrongly":  (NO_START, NO_START, SAMPLE_ERROR, NOT_SENDABLE, TRY_AGAIN, UNHARMED, CLOSES),
    "sys.exit":                          (NO_START, NO_START, SAMPLE_ERROR, NOT_SENDABLE, GOES_ON,   UNHARMED, CLOSES),
    "MemoryError":                       (NO_START, NO_START, MemoryError,  NOT_SENDABLE, TRY_AGAIN, UNHARMED, CLOSES),
    "os._exit(0)":                       (NO_START, NO_START, GOES_ON,      GOES_ON,      GOES_ON,   GOES_ON,  CLOSES),
    "SIGKILL":                           (NO_START, NO_START, GOES_ON,      GOES_ON,      GOES_ON,   GOES_ON,  CLOSES),
    "SIGSEGV":                           (NO_START, NO_START, GOES_ON,      GOES_ON,      GOES_ON,   GOES_ON,  CLOSES),
    "SIGSTOP":                           (NO_START, NO_START, GOES_ON,      GOES_ON,      GOES_ON,   GOES_ON,  CLOSES),
    "endless loop holding the GIL":      (NO_START, NO_START, GOES_ON,      GOES_ON,      GOES_ON,   GOES_ON,  CLOSES),
}  # fmt: skip

NO_SENSE = {
    **{("fork", "loading the dataset", manner): "forked workers have the dataset already" for manner in MANNERS},
}

IS_ERROR = {manner for manner, line in TABLE.items() if line[2] is not GOES_ON}


def outcome(manner: str, phase: str) -> Any:
    return TABLE[manner][PHASES.index(phase)]


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(MANNERS)
    assert all(len(line) == len(PHASES) for line in TABLE.values())
    assert {(method, phase) for method, phase, _ in NO_SENSE} == {("fork", "loading the dataset")}


CELLS = [
    pytest.param(method, phase, manner, marks=[pytest.mark.slow] if method != "forkserver" else [])
    for method in METHODS
    for phase in PHASES
    for manner in MANNERS
    if (method, phase, manner) not in NO_SENSE
]


@pytest.fixture(autouse=True)
def _little_patience_with_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "START_S", 4.0)


def quiet() -> list[Any]:
    """All batches, as they should be."""
    samples = [(array, number) for array, number in map(Victim(None, "never").__getitem__, range(LENGTH))]  # type: ignore[arg-type]
    return [plain(samples[start : start + BATCH]) for start in range(0, LENGTH, BATCH)]


class Case:
    """One cell about to be tried."""

    def __init__(self, folder: Path, manner: str, phase: str, times: int | None = None, **options: Any) -> None:
        self.flag = folder / "flag"
        self.phase = phase
        is_error = manner in IS_ERROR and phase != "sending the result"
        self.harm = Harm(manner, folder, times or (ALWAYS if is_error or phase in PHASES[:2] else 1))
        self.iterator = mpiter.MultiprocessIterator(
            Victim(self.harm, phase, self.flag),
            BATCH,
            shuffle=False,
            repeat=False,
            **{
                "n_processes": 1 if phase == "idle" else 2,
                "sample_timeout": PATIENT,
                "run_ahead": 0,
                "worker_init": Start(self.harm, phase, self.flag),
                **options,
            },
        )

    def rest(self) -> list[Any]:
        """The batches that follow, errors among them."""
        found: list[Any] = []
        while True:
            try:
                found.append(plain(list(next(self.iterator))))
            except StopIteration:
                return found
            except Exception as error:
                found.append(error)


def check(case: Case, expected: Any) -> None:
    """Does the case end as it should?"""
    with case.iterator as it:
        if expected is CLOSES:
            next(it)
            case.flag.touch()
            it.close()
            return
        if expected is NO_START:
            with pytest.raises(mpiter.WorkerStartError) as caught:
                next(it)
            assert "on purpose" in str(caught.value) or case.harm.manner != "raise"
            assert case.harm.done <= 2, "no worker was started twice"
            return
        begun = [plain(list(next(it)))] if case.phase == "idle" else []
        if begun:
            case.flag.touch()
            wait_until(lambda: case.harm.done, "the harm is done")
        batches = begun + case.rest()
        compare(batches, expected)
        assert it.stats().restarts == (expected is GOES_ON)


def compare(batches: list[Any], expected: Any) -> None:
    should = quiet()
    if expected is TRY_AGAIN:
        error = next(batch for batch in batches if isinstance(batch, Exception))
        assert isinstance(error, mpiter.SampleNotSendable)
        batches = [batch for batch in batches if batch is not error]
    elif isinstance(expected, type):
        at = SPOT // BATCH
        assert type(batches[at]) is expected
        should[at] = batches[at]
    assert batches == should


@pytest.mark.parametrize(("method", "phase", "manner"), CELLS)
def test_each_cell_ends_as_documented(method: str, phase: str, manner: str, tmp_path: Path) -> None:
    check(Case(tmp_path, manner, phase, backend=mpiter.Process(method)), outcome(manner, phase))


@pytest.mark.parametrize("phase", ["__getitem__", "packing", "sending the result", "during close()"])
@pytest.mark.parametrize("manner", MANNERS)
def test_packed_rows_survive_as_well(phase: str, manner: str, tmp_path: Path) -> None:
    check(Case(tmp_path, manner, phase, serializer="packed"), outcome(manner, phase))


THREAD_TABLE = {
    #                                    worker_init  __getitem__   packing      close
    "raise":                            (NO_START,    ValueError,   UNHARMED,    CLOSES),
    "unpicklable exception":            (NO_START,    SAMPLE_ERROR, UNHARMED,    CLOSES),
    "exception that unpickles wrongly": (NO_START,    SAMPLE_ERROR, UNHARMED,    CLOSES),
    "sys.exit":                         (NO_START,    SAMPLE_ERROR, UNHARMED,    CLOSES),
    "MemoryError":                      (NO_START,    MemoryError,  UNHARMED,    CLOSES),
}  # fmt: skip  # nothing is pickled, so nothing happens in packing; the other manners end or hold the whole program


@pytest.mark.parametrize("phase", ["worker_init", "__getitem__", "during close()"])
@pytest.mark.parametrize("manner", THREAD_TABLE)
def test_threads_end_as_documented(phase: str, manner: str, tmp_path: Path) -> None:
    columns = ("worker_init", "__getitem__", "packing", "during close()")
    check(Case(tmp_path, manner, phase, backend="thread"), THREAD_TABLE[manner][columns.index(phase)])


DEADLY = [manner for manner in MANNERS if manner not in IS_ERROR]


@pytest.mark.parametrize("manner", DEADLY)
def test_a_sample_that_ends_its_worker_twice_is_an_error_that_names_it(manner: str, tmp_path: Path) -> None:
    case = Case(tmp_path, manner, "__getitem__", times=2)
    with case.iterator as it:
        batches = case.rest()
        assert it.stats().restarts == 2
    (error,) = [batch for batch in batches if isinstance(batch, Exception)]
    assert isinstance(error, mpiter.WorkerCrashed)
    assert f"sample {SPOT} has ended its worker twice" in str(error)
    assert {"os._exit(0)": "exited with code 0", "endless loop holding the GIL": "made no progress"}.get(
        manner, manner
    ) in str(error)
    at = batches.index(error)
    assert batches[:at] + batches[at + 1 :] == [
        batch for number, batch in enumerate(quiet()) if number != SPOT // BATCH
    ]


@pytest.mark.parametrize("phase", ["__getitem__", "packing"])
@pytest.mark.parametrize("manner", ["SIGKILL", "os._exit(0)"])
@pytest.mark.parametrize("run_ahead", [0, None])
def test_it_is_skipped_and_counted_if_asked_for(manner: str, phase: str, run_ahead: Any, tmp_path: Path) -> None:
    """Also with many rows in one task, where a crash in packing could be any of them."""
    case = Case(tmp_path, manner, phase, times=ALWAYS, on_error="skip", run_ahead=run_ahead)
    with case.iterator as it:
        seen = [number for batch in it for _, number in batch]
        assert it.stats().skipped == 1
    assert seen == [number for number in range(LENGTH) if number != SPOT]


def test_half_an_answer_in_the_pipe_hurts_nobody(tmp_path: Path) -> None:
    case = Case(tmp_path, "SIGKILL", "never", worker_init=HalfSent(Harm("SIGKILL", tmp_path)))
    with case.iterator as it:
        assert case.rest() == quiet()
        assert it.stats().restarts == 1


def test_a_restart_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = Case(tmp_path, "SIGSEGV", "__getitem__")
    with case.iterator, caplog.at_level(logging.WARNING, "mpiter"):
        case.rest()
    (record,) = caplog.records
    assert "was killed by SIGSEGV (a crash in native code, a decoder for example)" in record.message
    assert f"while fetching sample {SPOT}; replacing the workers and fetching" in record.message


@pytest.mark.parametrize("manner", ["SIGSEGV", "endless loop holding the GIL"])
def test_the_python_stack_of_the_worker_is_shown(manner: str, tmp_path: Path) -> None:
    case = Case(tmp_path, manner, "__getitem__", times=2)
    with case.iterator:
        (error,) = [batch for batch in case.rest() if isinstance(batch, Exception)]
    assert "sabotage.py" in str(error.__cause__)
    assert "in __getitem__" in str(error.__cause__)


def test_a_stuck_start_shows_where_it_is_stuck(tmp_path: Path) -> None:
    case = Case(tmp_path, "endless loop holding the GIL", "worker_init")
    with case.iterator as it, pytest.raises(mpiter.WorkerStartError) as caught:
        case.harm.times = ALWAYS
        next(it)
    assert "was not ready to work for 4 s" in str(caught.value)
    assert "_hold_the_gil" in str(caught.value.__cause__)


class Doomed:
    """Lets its process die at the first answer, always."""

    def __call__(self, info: mpiter.WorkerInfo) -> None:
        import sabotage

        sabotage.before_sending(lambda connection, message: os._exit(7))


def test_workers_that_keep_dying_come_to_an_end(tmp_path: Path) -> None:
    case = Case(tmp_path, "raise", "never", worker_init=Doomed(), n_processes=1)
    with case.iterator as it:
        with pytest.raises(mpiter.WorkerCrashed, match="the workers keep dying, and no batch is finished") as caught:
            next(it)
        assert str(caught.value).count("exited with code 7") == 4
        with pytest.raises(mpiter.WorkerCrashed):
            next(it)


@pytest.mark.parametrize("method", METHODS)
def test_worker_pids_are_those_of_the_moment(method: str) -> None:
    dataset = Victim(None, "never", length=100_000)  # type: ignore[arg-type]
    with mpiter.MultiprocessIterator(dataset, 4, n_processes=2, backend=mpiter.Process(method)) as it:
        assert it.worker_pids == ()
        next(it)
        before = it.worker_pids
        assert len(before) == 2
        wait_until(lambda: all(line.ready for line in it._loop._crew.board()), "both are ready")
        assert all(psutil.pid_exists(pid) for pid in before)
        os.kill(before[0], signal.SIGKILL)
        while it.stats().restarts == 0:
            next(it)
        wait_until(lambda: len(it.worker_pids) == 2, "there are new workers")
        assert not set(before) & set(it.worker_pids)
        assert not any(psutil.pid_exists(pid) for pid in before)
    assert it.worker_pids == ()


def test_the_death_of_the_fork_server_hurts_nobody() -> None:
    dataset = Victim(None, "never", length=100_000)  # type: ignore[arg-type]
    with mpiter.MultiprocessIterator(dataset, 4, n_processes=2, shuffle=False) as it:
        seen = [number for _, number in next(it)]
        before = it.worker_pids
        psutil.Process(before[0]).parent().kill()
        while it.stats().restarts == 0 or set(before) & set(it.worker_pids):
            seen += [number for _, number in next(it)]
        for _ in range(5):
            seen += [number for _, number in next(it)]
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in before), "the orphans are gone")
    assert seen == list(range(len(seen)))


def test_a_start_error_is_tried_afresh_by_the_next_next(tmp_path: Path) -> None:
    case = Case(tmp_path, "raise", "worker_init", times=1)
    with case.iterator as it:
        with pytest.raises(mpiter.WorkerStartError, match="ValueError: on purpose"):
            next(it)
        assert case.rest() == quiet()
