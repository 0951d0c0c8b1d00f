"""What a worker's end means for the batches on their way: whose fault, what is fetched again, whether to go on."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest

from mpiter.engine.ledger import Ledger
from mpiter.engine.recovery import Recovery
from mpiter.errors import WorkerCrashed, WorkerStartError
from mpiter.order.cursor import Plan, Stretch
from mpiter.pool.endings import End, cause, ended, in_hand
from mpiter.pool.watch import START_S, Patience
from mpiter.worker.board import Line
from mpiter.worker.faults import raised
from mpiter.worker.task import Task, Ticket

ROWS = 4


class Room:
    """Notes what becomes of it."""

    brief = b"plan"

    def __init__(self, number: int) -> None:
        self.address = (number,)
        self.received: list[Any] = []
        self.failed: list[int] = []
        self.discarded = self.quarantined = 0

    def receive(self, payload: Any) -> None:
        self.received.append(payload)

    def fail(self, row: int) -> None:
        self.failed.append(row)

    def discard(self) -> None:
        self.discarded += 1

    def quarantine(self) -> None:
        self.quarantined += 1


def entered(ledger: Ledger, number: int) -> Room:
    """A batch of ``ROWS`` rows, whose samples are 100 × the batch + the row."""
    room = Room(number)
    indices = np.arange(ROWS, dtype=np.int64) + 100 * number
    plan = Plan(number, ROWS, (Stretch(0, 0, ROWS * number, indices),), None, None)  # type: ignore[arg-type]
    ledger.enter(plan, room)  # type: ignore[arg-type]
    return room


def ticket(number: int, rows: int) -> Ticket:
    return Ticket(number, 0, 0, rows, 0.1, tuple(f"payload {number}" for _ in range(9)))


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


def test_what_the_dead_had_is_asked_for_again_row_by_row_and_nothing_else(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(died(), ledger)
    assert (ledger.tasks, ledger.uncut_rows, recovery.restarts) == (1, ROWS, 1)
    _, pieces, singly = ledger.cut(2, 2 * ROWS)
    assert [(piece.batch, piece.row, piece.rows) for piece in pieces] == [(0, 0, ROWS)]
    assert singly


def test_where_nobody_sees_what_is_in_hand_suspects_go_out_one_by_one() -> None:
    ledger = Ledger(is_blind=True)
    entered(ledger, 0)
    ledger.cut(0, ROWS)
    Recovery().recover(died(active=2), ledger)
    entered(ledger, 1)
    cut = [ledger.cut(number, ROWS)[1] for number in range(1, ROWS + 2)]
    assert [[(piece.batch, piece.row, piece.rows) for piece in pieces] for pieces in cut] == [
        *([(0, row, 1)] for row in range(ROWS)),
        [(1, 0, ROWS)],
    ]


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


def test_each_worker_that_ends_counts(ledger: Ledger) -> None:
    recovery = Recovery()
    for worker in range(2):
        recovery.recover(died(worker), ledger)
    assert (ledger.tasks, ledger.uncut_rows, recovery.restarts) == (0, 2 * ROWS, 2)
    _, pieces, singly = ledger.cut(2, 2 * ROWS)
    assert sorted((piece.batch, piece.row, piece.rows) for piece in pieces) == [(0, 0, ROWS), (1, 0, ROWS)]
    assert singly


def test_both_tasks_of_the_dead_come_again_in_the_order_of_their_batches(ledger: Ledger) -> None:
    Recovery().recover(died(tasks=(1, 0)), ledger)
    assert [piece.batch for piece in ledger.cut(2, 2 * ROWS)[1]] == [0, 1]


def test_an_answer_that_came_before_the_end_counts(ledger: Ledger) -> None:
    ledger.settle(ticket(0, ROWS))
    recovery = Recovery()
    for _ in range(5):  # so nobody is to blame for task 0 either
        recovery.recover(died(tasks=()), ledger)
        recovery.progress()
    assert ledger.uncut_rows == 0
    assert faults_in(ledger) == []
    assert [assembly.plan.number for assembly in ledger.completed()] == [0]


def test_a_late_answer_to_what_was_recalled_is_dropped(ledger: Ledger) -> None:
    Recovery().recover(died(), ledger)
    assert ledger.settle(ticket(0, ROWS)) is False
    assert ledger.uncut_rows == ROWS


def test_who_had_nothing_to_do_loses_nothing(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(died(tasks=(), active=0), ledger)
    assert (ledger.tasks, ledger.uncut_rows, recovery.restarts) == (2, 0, 1)


def test_the_second_death_convicts(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(died(), ledger)
    ledger.cut(2, ROWS)
    recovery.recover(died(1, batch=0, task=2), ledger)
    assert ledger.uncut_rows == ROWS - 1
    (fault,) = faults_in(ledger)
    assert next(iter(ledger._assemblies.values())).room.failed == [1]  # type: ignore[union-attr]
    error = raised(fault)
    assert isinstance(error, WorkerCrashed)
    assert str(error).startswith(
        "sample 1 has ended its worker twice: worker 1 (pid 8) was killed by SIGSEGV (a decoder)"
    )
    assert "its stack" in str(error.__cause__)
    assert [piece.rows for piece in ledger.cut(3, 100)[1]] == [1, 2]


def test_two_deaths_at_two_samples_convict_nobody(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(died(), ledger)
    ledger.cut(2, ROWS)
    recovery.recover(died(task=2, batch=0, row=2), ledger)
    assert faults_in(ledger) == []
    assert ledger.uncut_rows == ROWS


def test_of_several_samples_at_once_it_may_be_any(ledger: Ledger) -> None:
    recovery = Recovery()
    for task in (0, 2, 3):
        recovery.recover(died(task=task, batch=0, active=2), ledger)
        recovery.progress()
        ledger.cut(task + 1 if task else 2, ROWS)
    assert faults_in(ledger) == []


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


@pytest.mark.parametrize("others", [True, False])
def test_deaths_while_starting(others: bool) -> None:
    """At once an error if nothing has ever worked; after three if others have."""
    recovery = Recovery(Clock())
    end = died(ready=0, active=0, tasks=(), is_proven=False, others_work=others)
    assert end.was_starting
    for _ in range(3 if others else 0):
        recovery.recover(end, Ledger())
        recovery.progress()
    with pytest.raises(WorkerStartError, match=r"was killed by SIGSEGV \(a decoder\), while starting") as caught:
        recovery.recover(end, Ledger())
    assert "its stack" in str(caught.value.__cause__)


def test_a_start_that_has_worked_before_is_an_accident() -> None:
    recovery = Recovery(Clock())
    for _ in range(10):
        recovery.recover(died(ready=0, active=0, tasks=(), is_proven=True, others_work=False), Ledger())
        recovery.progress()


def test_only_starts_that_fail_one_after_the_other_count() -> None:
    recovery = Recovery(Clock())
    for _ in range(10):
        for proven in (True, False, False, False):
            recovery.recover(died(ready=0, active=0, tasks=(), is_proven=proven), Ledger())
            recovery.progress()


def test_rooms_that_somebody_may_still_write_into_are_quarantined(ledger: Ledger) -> None:
    Recovery().recover(died(is_gone=False), ledger)
    assert [assembly.room.quarantined for assembly in ledger._assemblies.values()] == [1, 0]  # type: ignore[union-attr]
    assert ledger.uncut_rows == ROWS


def said(caplog: pytest.LogCaptureFixture, *ends: End, ledger: Ledger, skips: bool = False) -> list[str]:
    recovery = Recovery(skips=skips)
    with caplog.at_level(logging.WARNING, "mpiter"):
        for end in ends:
            recovery.recover(end, ledger)
            ledger.cut(2, ROWS)
    return caplog.messages


def test_one_line_says_it_all(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, died(), died(task=2, batch=0), died(worker=1, active=0, tasks=(1,)), ledger=ledger) == [
        "worker 0 (pid 7) was killed by SIGSEGV (a decoder) while fetching sample 1; "
        "replacing it and fetching 4 samples again",
        "worker 0 (pid 7) was killed by SIGSEGV (a decoder) while fetching sample 1; "
        "replacing it and fetching 3 samples again, without sample 1",
        "worker 1 (pid 8) was killed by SIGSEGV (a decoder); replacing it and fetching 4 samples again",
    ]


@pytest.mark.parametrize(("skips", "told"), [(False, 1), (True, 2)])
def test_a_stack_is_told_in_the_log_or_by_the_error(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, skips: bool, told: int
) -> None:
    said(caplog, died(), died(task=2, batch=0), ledger=ledger, skips=skips)
    assert caplog.text.count("its stack") == told
    assert [fault.trace for fault in faults_in(ledger)] == ["its stack"]


def test_exit_codes_in_words() -> None:
    assert ended(-9) == "was killed by SIGKILL"
    assert ended(-64) == "was killed by SIGRTMAX"
    assert ended(-63) == "was killed by signal 63"
    assert ended(3) == "exited with code 3"
    assert "fork server" in ended(255)
    assert cause(-9, out_of_memory=True).startswith("the out-of-memory killer: use fewer workers")
    assert cause(-9, out_of_memory=False) == "the out-of-memory killer, or somebody's kill -9"
    assert cause(-63, False) == ""


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_row_is_settled_once_and_each_room_given_back_once(seed: int) -> None:
    """Tasks cut, answered in full or in part, recalled one by one or all at once, in any order."""
    dice, ledger = random.Random(seed), Ledger()
    rooms = [entered(ledger, number) for number in range(6)]
    out: dict[int, list[tuple[int, int]]] = {}
    settled: list[tuple[int, int]] = []
    done: list[int] = []
    for task in range(100_000):
        action = dice.choice(("cut", "cut", "settle", "settle", "recall", "recall all"))
        if action == "cut" and ledger.uncut_rows:
            _, pieces, _ = ledger.cut(task, dice.randint(1, 7))
            out[task] = [(piece.batch, piece.row + at) for piece in pieces for at in range(piece.rows)]
        elif action == "settle" and out:
            number = dice.choice(list(out))
            rows = out.pop(number)
            count = dice.randint(1, len(rows))
            settled += rows[:count]
            assert ledger.settle(ticket(number, count)) is (count < len(rows))
        elif action == "recall" and out and dice.random() < 0.2:
            number = dice.choice(list(out))
            del out[number]
            before = ledger.uncut_rows
            assert ledger.recall([number]) == ledger.uncut_rows - before
        elif action == "recall all" and dice.random() < 0.1:
            out.clear()
            ledger.recall_all()
        done += [assembly.plan.number for assembly in ledger.completed()]
        if len(done) == len(rooms):
            break
    assert sorted(settled) == [(batch, row) for batch in range(6) for row in range(ROWS)]
    assert done == list(range(6))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_abandoned_is_given_back_once_nobody_writes_there(seed: int) -> None:
    dice, ledger = random.Random(seed), Ledger()
    rooms = [entered(ledger, number) for number in range(6)]
    out = []
    while ledger.uncut_rows and dice.random() < 0.9:
        out.append(len(out))
        ledger.cut(out[-1], dice.randint(1, 7))
    ledger.abandon()
    for number in dice.sample(out, len(out) // 2):
        out.remove(number)
        ledger.settle(ticket(number, 1))
    ledger.recall_all()
    assert [room.discarded for room in rooms] == [1] * 6
    assert ledger.uncut_rows == 0


# -- a consumer's patience ---------------------------------------------------------------------------------------


def test_patience_ends_once_for_each_batch() -> None:
    patience = Patience(10)
    assert [patience.ends(waited, starting=False) for waited in (5, 10, 11, 12)] == [False, False, True, False]
    patience.begin()
    assert [patience.ends(waited, starting=False) for waited in (9, 11)] == [False, True]


def test_patience_does_not_count_the_start_unless_that_takes_very_long() -> None:
    patience = Patience(10)
    assert [patience.ends(waited, starting=True) for waited in (15, 50)] == [False, False]
    assert [patience.ends(waited, starting=False) for waited in (60, 61)] == [False, True]
    patience.begin()
    assert [patience.ends(waited, starting=True) for waited in (START_S, START_S + 1)] == [False, True]


def test_patience_without_limit_never_ends() -> None:
    assert not Patience(None).ends(1e9, starting=False)
