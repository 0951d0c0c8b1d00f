"""What a worker's end means for the batches on their way: whose fault, what is fetched again, whether to go on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpiter.engine.ledger import Ledger
from mpiter.engine.recovery import Recovery
from mpiter.errors import WorkerCrashed
from mpiter.order.cursor import Plan, Stretch
from mpiter.pool.endings import End, cause, ended, in_hand
from mpiter.pool.watch import START_S, Patience
from mpiter.worker.board import Line
from mpiter.worker.task import Task

ROWS = 4


def entered(ledger: Ledger, number: int) -> None:
    """A batch of ``ROWS`` rows, whose samples are 100 × the batch + the row."""
    indices = np.arange(ROWS, dtype=np.int64) + 100 * number
    plan = Plan(number, ROWS, (Stretch(0, 0, ROWS * number, indices),), None, None)  # type: ignore[arg-type]
    room: Any = SimpleNamespace(brief=b"plan", address=(number,))
    ledger.enter(plan, room)


def died(worker: int = 0, row: int = 1, tasks: tuple[int, ...] | None = None, **more: Any) -> End:
    """The end of a worker, which had this row of a batch in hand when it had the task of the same number."""
    cells = {name: more.pop(name) for name in Line._fields if name in more}
    batch = cells.setdefault("batch", worker)
    cells = {"pid": 7 + worker, "ready": 1, "active": 1, "task": batch, "row": row, **cells}
    return End(
        worker=worker,
        line=Line(**{**dict.fromkeys(Line._fields, 0), **cells}),
        how="was killed by SIGSEGV",
        cause="a decoder",
        stack="its stack",
        tasks=(cells["task"],) if tasks is None else tasks,
        **more,
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ledger() -> Ledger:
    """Two batches, both with workers: tasks 0 and 1."""
    ledger = Ledger()
    for number in range(2):
        entered(ledger, number)
        ledger.cut(number, ROWS)
    return ledger


def faults_in(ledger: Ledger) -> list[Any]:
    return [fault for assembly in ledger._assemblies.values() for fault in assembly.faults]


def test_the_suspect_that_a_worker_elsewhere_had_to_itself_names_what_was_in_hand() -> None:
    ledger, told = Ledger(is_blind=True), Line(**dict.fromkeys(Line._fields, 0))
    entered(ledger, 3)
    tasks = [Task(0, 0, number, 0, 1, *ledger.cut(number, rows)) for number, rows in ((5, 1), (6, ROWS))]
    assert in_hand(tasks, told, stood_still=False).active == 2, "it may have been answered, and the answer lost"
    line = in_hand([tasks[0]._replace(singly=True)], told, stood_still=False)
    assert (line.task, line.batch, line.row, line.active) == (5, 3, 0, 1)
    assert in_hand(tasks[1:], told, stood_still=False).active == 2, "it may be any of them"
    stood = told._replace(task=6, batch=3, row=2, active=1)
    assert in_hand(tasks[1:], stood, stood_still=True) == stood
    assert in_hand([], told, stood_still=False) == told


def test_what_is_dropped_is_suspected_no_more(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(died(), ledger)
    recovery.forget()
    ledger.cut(2, ROWS)
    recovery.recover(died(task=2, batch=0), ledger)
    assert faults_in(ledger) == []


@pytest.mark.parametrize("line", [{"task": 9}, {"batch": 1}, {"row": ROWS}, {"active": 0}])
def test_a_line_that_does_not_fit_its_task_blames_nobody(ledger: Ledger, line: dict[str, int]) -> None:
    """The line of a dead worker may be torn."""
    recovery = Recovery()
    for _ in range(3):
        recovery.recover(died(**{"tasks": (0,), "task": 0, "batch": 0, **line}), ledger)
        assert [piece.batch for piece in ledger.cut(0, ROWS)[1]] == [0]
        recovery.progress()
    assert faults_in(ledger) == []


def bury(recovery: Recovery, times: int, workers: int = 1) -> None:
    for _ in range(times):
        for worker in range(workers):
            recovery.recover(died(worker, active=0), Ledger())


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_more_than_three_setbacks_within_a_minute_are_too_many(workers: int) -> None:
    """A setback is a blow to as many workers as there are, not to one of them twice."""
    recovery = Recovery(Clock())
    bury(recovery, 3, workers)
    with pytest.raises(WorkerCrashed, match="the workers keep dying, and no batch is finished") as caught:
        bury(recovery, 1)
    assert str(caught.value).count("worker 0 (pid 7) was killed by SIGSEGV") == 4
    assert "its stack" in str(caught.value.__cause__)
    assert recovery.restarts == 3 * workers + 1
    bury(recovery, 3, workers)  # whoever tries again gets another three


def test_a_finished_batch_or_a_minute_makes_up_for_them() -> None:
    clock = Clock()
    recovery = Recovery(clock)
    for _ in range(10):
        bury(recovery, 3)
        recovery.progress()
    for _ in range(10):
        bury(recovery, 1)
        clock.now += 21


@pytest.mark.parametrize("later", [1, 59, 61, 1000])
def test_another_worker_that_dies_long_after_is_another_blow(later: float) -> None:
    clock = Clock()
    recovery = Recovery(clock)
    for worker in range(20):
        recovery.recover(died(worker, active=0), Ledger())
        clock.now += later
    assert recovery.restarts == 20


def test_only_starts_that_fail_one_after_the_other_count() -> None:
    recovery = Recovery(Clock())
    for _ in range(10):
        for proven in (True, False, False, False):
            recovery.recover(died(ready=0, active=0, tasks=(), is_proven=proven), Ledger())
            recovery.progress()


def test_exit_codes_in_words() -> None:
    assert ended(-9) == "was killed by SIGKILL"
    assert ended(-64) == "was killed by SIGRTMAX"
    assert ended(-63) == "was killed by signal 63"
    assert ended(3) == "exited with code 3"
    assert "fork server" in ended(255)
    assert cause(-9, out_of_memory=True).startswith("the out-of-memory killer: use fewer workers")
    assert cause(-9, out_of_memory=False) == "the out-of-memory killer, or somebody's kill -9"
    assert cause(-63, False) == ""


# -- a consumer's patience ---------------------------------------------------------------------------------------


def test_patience_does_not_count_the_start_unless_that_takes_very_long() -> None:
    patience = Patience(10)
    assert [patience.ends(waited, starting=True) for waited in (15, 50)] == [False, False]
    assert [patience.ends(waited, starting=False) for waited in (60, 61)] == [False, True]
    patience.begin()
    assert [patience.ends(waited, starting=True) for waited in (START_S, START_S + 1)] == [False, True]
