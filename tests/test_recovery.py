"""What a death means for the batches on their way: whose fault, what is fetched again, whether to go on."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest

from mpiter.board import Line
from mpiter.breakage import Breakage, Casualty, Report, cause, ended
from mpiter.cursor import Plan, Stretch
from mpiter.errors import SampleNotSendable, SharedMemoryFull, WorkerCrashed, WorkerStartError
from mpiter.faults import raised
from mpiter.ledger import Ledger
from mpiter.recovery import Recovery
from mpiter.task import Ticket
from mpiter.watch import START_S, Patience

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


class Crew:
    """Says what it is told to say."""

    def __init__(self, *casualties: Casualty, **more: Any) -> None:
        self.report: Report | None = Report(
            casualties, **{"is_clean": True, "has_answered": True, "is_proven": True, **more}
        )

    def autopsy(self, broken: Breakage) -> Report | None:
        return self.report


def died(task: int = 0, batch: int = 0, row: int = 1, **cells: int) -> Casualty:
    line = Line(**{**dict.fromkeys(Line._fields, 0), "pid": 7, "ready": 1, "active": 1, **cells})
    return Casualty(
        0, line._replace(task=task, batch=batch, row=row), "was killed by SIGSEGV", "a decoder", "its stack"
    )


def nothing() -> None: ...


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


def test_what_was_out_is_asked_for_again_row_by_row(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(Breakage(1), Crew(died()), ledger, nothing)  # type: ignore[arg-type]
    assert (ledger.tasks, ledger.uncut_rows, recovery.restarts) == (0, 2 * ROWS, 1)
    _, pieces, singly = ledger.cut(2, 2 * ROWS)
    assert [(piece.batch, piece.row, piece.rows) for piece in pieces] == [(0, 0, ROWS), (1, 0, ROWS)]
    assert singly


def test_an_answer_that_came_before_the_end_counts(ledger: Ledger) -> None:
    def take_in() -> None:
        ledger.settle(ticket(0, ROWS))

    recovery = Recovery()
    for _ in range(5):  # so nobody is to blame for task 0 either
        recovery.recover(Breakage(1), Crew(died()), ledger, take_in)  # type: ignore[arg-type]
        recovery.progress()
    assert ledger.uncut_rows == ROWS
    assert [assembly.plan.number for assembly in ledger.completed()] == [0]


def test_a_late_answer_to_what_was_recalled_is_dropped(ledger: Ledger) -> None:
    Recovery().recover(Breakage(1), Crew(died()), ledger, nothing)  # type: ignore[arg-type]
    assert ledger.settle(ticket(0, ROWS)) is False
    assert ledger.uncut_rows == 2 * ROWS


def test_news_of_a_shift_that_is_buried_already_changes_nothing(ledger: Ledger) -> None:
    crew = Crew(died())
    crew.report = None
    recovery = Recovery()
    recovery.recover(Breakage(1), crew, ledger, nothing)  # type: ignore[arg-type]
    assert (ledger.tasks, recovery.restarts) == (2, 0)


def test_the_second_death_convicts(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(Breakage(1), Crew(died()), ledger, nothing)  # type: ignore[arg-type]
    ledger.cut(2, 2 * ROWS)
    recovery.recover(Breakage(2), Crew(died(task=2)), ledger, nothing)  # type: ignore[arg-type]
    assert ledger.uncut_rows == 2 * ROWS - 1
    assembly = next(iter(ledger._assemblies.values()))
    (fault,) = assembly.faults
    assert assembly.room.failed == [1]  # type: ignore[union-attr]
    error = raised(fault)
    assert isinstance(error, WorkerCrashed)
    assert str(error).startswith(
        "sample 1 has ended its worker twice: worker 0 (pid 7) was killed by SIGSEGV (a decoder)"
    )
    assert "its stack" in str(error.__cause__)
    assert [piece.rows for piece in ledger.cut(3, 100)[1]] == [1, 2, ROWS]


@pytest.mark.parametrize("line", [{"task": 9}, {"batch": 1}, {"row": ROWS}, {"active": 0}])
def test_a_line_that_does_not_fit_its_task_blames_nobody(ledger: Ledger, line: dict[str, int]) -> None:
    """The line of a dead worker may be torn."""
    recovery = Recovery()
    for _ in range(3):
        recovery.recover(Breakage(1), Crew(died(**line)), ledger, nothing)  # type: ignore[arg-type]
        ledger.cut(0, ROWS)
        ledger.cut(1, ROWS)
        recovery.progress()
    assert not any(assembly.faults for assembly in ledger._assemblies.values())


def bury(recovery: Recovery, times: int) -> None:
    for _ in range(times):
        recovery.recover(Breakage(1), Crew(died(active=0)), Ledger(), nothing)  # type: ignore[arg-type]


def test_more_than_three_setbacks_within_a_minute_are_too_many() -> None:
    recovery = Recovery(Clock())
    bury(recovery, 3)
    with pytest.raises(WorkerCrashed, match="the workers keep dying, and no batch is finished") as caught:
        bury(recovery, 1)
    assert str(caught.value).count("worker 0 (pid 7) was killed by SIGSEGV") == 4
    bury(recovery, 3)  # whoever tries again gets another three


def test_a_finished_batch_or_a_minute_makes_up_for_them() -> None:
    clock = Clock()
    recovery = Recovery(clock)
    for _ in range(10):
        bury(recovery, 3)
        recovery.progress()
    for _ in range(10):
        bury(recovery, 1)
        clock.now += 21


@pytest.mark.parametrize("answered", [True, False])
def test_deaths_while_starting(answered: bool) -> None:
    """At once an error if nothing has ever worked; after three if others have."""
    recovery = Recovery(Clock())
    crew = Crew(died(ready=0, active=0), is_proven=False, has_answered=answered)
    for _ in range(3 if answered else 0):
        recovery.recover(Breakage(1), crew, Ledger(), nothing)  # type: ignore[arg-type]
        recovery.progress()
    with pytest.raises(WorkerStartError, match=r"was killed by SIGSEGV \(a decoder\), while starting"):
        recovery.recover(Breakage(1), crew, Ledger(), nothing)  # type: ignore[arg-type]


def test_a_start_that_has_worked_before_is_an_accident() -> None:
    recovery = Recovery(Clock())
    for _ in range(10):
        recovery.recover(Breakage(1), Crew(died(ready=0, active=0)), Ledger(), nothing)  # type: ignore[arg-type]
        recovery.progress()


@pytest.mark.parametrize(("error", "kind"), [(MemoryError(), SharedMemoryFull), (ValueError("x"), SampleNotSendable)])
def test_an_answer_that_cannot_be_read_is_an_error_and_nothing_is_lost(ledger: Ledger, error: Any, kind: Any) -> None:
    with pytest.raises(kind) as caught:
        Recovery().recover(Breakage(1, error=error), Crew(), ledger, nothing)  # type: ignore[arg-type]
    assert caught.value.__cause__ is error
    assert ledger.uncut_rows == 2 * ROWS


def test_rooms_that_somebody_may_still_write_into_are_quarantined(ledger: Ledger) -> None:
    Recovery().recover(Breakage(1), Crew(died(), is_clean=False), ledger, nothing)  # type: ignore[arg-type]
    assert [assembly.room.quarantined for assembly in ledger._assemblies.values()] == [1, 1]  # type: ignore[union-attr]


def test_one_line_says_it_all(ledger: Ledger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mpiter"):
        Recovery().recover(Breakage(1), Crew(died()), ledger, nothing)  # type: ignore[arg-type]
    assert caplog.messages == [
        "worker 0 (pid 7) was killed by SIGSEGV (a decoder) while fetching sample 1; "
        "replacing the workers and fetching 8 samples again"
    ]


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
            ledger.settle(ticket(number, count))
        elif action == "recall" and out and dice.random() < 0.2:
            number = dice.choice(list(out))
            del out[number]
            ledger.recall(number)
        elif action == "recall all" and dice.random() < 0.1:
            out.clear()
            ledger.recall_all(quarantined=False)
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
    ledger.recall_all(quarantined=False)
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
