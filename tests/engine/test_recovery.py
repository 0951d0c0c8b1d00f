"""After a worker's end, its rows are fetched again, and a sample may be blamed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mpiter.engine.delivery import OBJECTS
from mpiter.engine.ledger import Ledger
from mpiter.engine.recovery import Recovery
from mpiter.errors import WorkerCrashed
from mpiter.order.cursor import Plan, Stretch
from mpiter.pool.endings import START_S, End, Patience, ended, in_hand
from mpiter.rules import Rules
from mpiter.worker.block import Block
from mpiter.worker.board import Line

ROWS = 4


def empty(**options: Any) -> Ledger:
    return Ledger(Rules(1, **options))


def entered(ledger: Ledger, number: int) -> None:
    """Enter a batch of ``ROWS`` rows, whose samples are 100 × the batch + the row."""
    indices = np.arange(ROWS, dtype=np.int64) + 100 * number
    plan = Plan(number, ROWS, (Stretch(0, 0, ROWS * number, indices),), None, None)  # type: ignore[arg-type]
    ledger.enter(plan, OBJECTS)


def cut(ledger: Ledger, number: int, rows: int = ROWS) -> Block:
    return ledger.cut(number, ROWS // rows, dataset=0, seed=0, sent=0.0)


def died(worker: int = 0, row: int = 1, **more: Any) -> End:
    """Return the end of a worker that was fetching this row of its block.

    By default its block has the worker's number.
    """
    cells = {name: more.pop(name) for name in Line._fields if name in more}
    cells = {
        "pid": 7 + worker,
        "ready": 1,
        "active": 1,
        "block": worker,
        "row": row,
        **cells,
    }
    more = {"blocks": (cells["block"],), "stack": "its stack", **more}
    return End(
        worker,
        Line(**{**dict.fromkeys(Line._fields, 0), **cells}),
        "was killed by SIGSEGV",
        **more,
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ledger() -> Ledger:
    """A ledger of two batches, which workers have as blocks 0 and 1."""
    ledger = empty()
    for number in range(2):
        entered(ledger, number)
        cut(ledger, number)
    return ledger


def faults_in(ledger: Ledger) -> list[Any]:
    return [fault for batch in ledger.batches.values() for fault in batch.faults]


def test_the_suspect_that_a_worker_elsewhere_had_to_itself_names_what_was_in_hand() -> (
    None
):
    ledger = empty(shares_memory=False)
    told = Line(**dict.fromkeys(Line._fields, 0))
    entered(ledger, 3)
    blocks = [cut(ledger, 5, 1), cut(ledger, 6)]
    assert in_hand(blocks, told, stood_still=False).active == 2, (
        "it may have been answered, and the answer lost"
    )
    assert in_hand(blocks[1:], told, stood_still=False).active == 2, (
        "it may be any of them"
    )
    stood = told._replace(block=6, row=2, active=1)
    assert in_hand(blocks[1:], stood, stood_still=True) == stood
    assert in_hand([], told, stood_still=False) == told
    assert ledger.recall([5, 6]) == ROWS
    alone = [cut(ledger, number) for number in range(7, 7 + ROWS)]
    assert [(block.row, block.rows, block.singly) for block in alone] == [
        (row, 1, True) for row in range(ROWS)
    ]
    line = in_hand(alone[2:], told, stood_still=False)
    assert (line.block, line.row, line.active) == (9, 0, 1)
    assert ledger.in_hand(line)[1] == 302  # type: ignore[index]


def test_a_row_in_hand_at_two_deaths_is_to_blame_and_is_not_asked_for_again(
    ledger: Ledger,
) -> None:
    recovery = Recovery()
    recovery.recover(died(), ledger)
    assert cut(ledger, 2).singly
    recovery.recover(died(block=2), ledger)
    (fault,) = faults_in(ledger)
    assert (fault.batch, fault.row, fault.index, fault.position) == (0, 1, 1, 1)
    assert [cut(ledger, number).row for number in range(3, 2 + ROWS)] == [0, 2, 3]
    assert not ledger.uncut


def test_a_sample_that_ends_its_worker_when_sent_is_blamed_once_sent_alone() -> None:
    ledger = empty()
    recovery = Recovery()
    entered(ledger, 0)
    for number in range(2):
        assert cut(ledger, number).rows == ROWS
        recovery.recover(died(block=number, row=ROWS - 1, active=0), ledger)
    assert [cut(ledger, number).row for number in range(2, 2 + ROWS)] == [0, 1, 2, 3]
    recovery.recover(died(block=3, row=0, active=0), ledger)
    assert cut(ledger, 6).row == 1
    recovery.recover(died(block=6, row=0, active=0), ledger)
    assert [(fault.row, fault.index) for fault in faults_in(ledger)] == [(1, 1)]


def stacks_in(caplog: pytest.LogCaptureFixture) -> int:
    """Count the stacks in the log."""
    return caplog.text.count("its stack")


@pytest.mark.parametrize("skips", [False, True])
def test_the_stack_of_a_sample_that_ends_two_workers_is_told_once(
    ledger: Ledger, skips: bool, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = Recovery(skips=skips)
    recovery.recover(died(), ledger)
    cut(ledger, 2)
    recovery.recover(died(block=2), ledger)
    recovery.begin_anew()
    (fault,) = faults_in(ledger)
    assert fault.trace == "its stack"
    assert stacks_in(caplog) == skips, "unless samples are skipped, the error has it"


@pytest.mark.parametrize("how", ["the batch is finished", "the batch is dropped"])
def test_the_stack_of_a_worker_that_ended_by_chance_is_told_once(
    ledger: Ledger, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    recovery = Recovery()
    recovery.recover(died(), ledger)
    one, other = ledger.batches.values()
    recovery.finished([other])
    assert stacks_in(caplog) == 0, "the sample may end another worker"
    for _ in range(2):
        if how == "the batch is finished":
            recovery.finished([one])
        else:
            recovery.begin_anew()
        assert stacks_in(caplog) == 1
    assert "the stack of worker 0 (pid 7) when it ended" in caplog.text


def test_what_is_dropped_is_suspected_no_more(ledger: Ledger) -> None:
    recovery = Recovery()
    recovery.recover(died(), ledger)
    recovery.begin_anew()
    cut(ledger, 2)
    recovery.recover(died(block=2), ledger)
    assert faults_in(ledger) == []


@pytest.mark.parametrize(
    "line", [{"block": 9}, {"row": ROWS}, {"active": 0}, {"active": 2}]
)
def test_a_line_that_does_not_fit_its_block_blames_no_sample(
    ledger: Ledger, line: dict[str, int]
) -> None:
    """The line of a dead worker may be torn."""
    recovery = Recovery()
    for _ in range(3):
        recovery.recover(died(**{"blocks": (0,), **line}), ledger)
        assert cut(ledger, 0).batch == 0
        recovery.setbacks.clear()
    assert faults_in(ledger) == []


def test_a_death_without_a_block_blames_no_row_that_another_worker_has_alone() -> None:
    ledger = empty()
    recovery = Recovery()
    entered(ledger, 0)
    cut(ledger, 0, rows=1)
    for _ in range(2):
        recovery.recover(died(row=0, active=0, blocks=()), ledger)
        recovery.setbacks.clear()
    assert faults_in(ledger) == []


def bury(recovery: Recovery, times: int, workers: int = 1) -> None:
    for _ in range(times):
        for worker in range(workers):
            recovery.recover(died(worker, active=0), empty())


@pytest.mark.parametrize("workers", [1, 5])
def test_more_than_three_setbacks_within_a_minute_are_too_many(workers: int) -> None:
    """A setback is as many deaths as there are workers, not two deaths of one."""
    recovery = Recovery(Clock())
    bury(recovery, 3, workers)
    with pytest.raises(
        WorkerCrashed, match="the workers keep dying, and no batch is finished"
    ) as caught:
        bury(recovery, 1)
    assert str(caught.value).count("worker 0 (pid 7) was killed by SIGSEGV") == 4
    assert "its stack" in str(caught.value.__cause__)
    assert recovery.restarts == 3 * workers + 1
    # After an error, another three setbacks are allowed.
    bury(recovery, 3, workers)


def test_a_finished_batch_or_a_minute_makes_up_for_them() -> None:
    clock = Clock()
    recovery = Recovery(clock)
    for _ in range(10):
        bury(recovery, 3)
        recovery.setbacks.clear()
    for _ in range(10):
        bury(recovery, 1)
        clock.now += 21


@pytest.mark.parametrize("later", [1, 61])
def test_another_worker_that_dies_long_after_is_another_blow(later: float) -> None:
    clock = Clock()
    recovery = Recovery(clock)
    for worker in range(20):
        recovery.recover(died(worker, active=0), empty())
        clock.now += later
    assert recovery.restarts == 20


def test_only_starts_that_fail_one_after_the_other_count() -> None:
    recovery = Recovery(Clock())
    for _ in range(10):
        for proven in (True, False, False, False):
            recovery.recover(
                died(ready=0, active=0, blocks=(), is_proven=proven), empty()
            )
            recovery.setbacks.clear()


def test_exit_codes_in_words() -> None:
    assert (
        ended(-11)
        == "was killed by SIGSEGV (a crash in native code, a decoder for example)"
    )
    assert ended(-64) == "was killed by SIGRTMAX"
    assert ended(-63) == "was killed by signal 63"
    assert ended(3).startswith(
        "exited with code 3 (code or a library that called os._exit"
    )
    assert "fork server" in ended(255)


# -- a consumer's patience -------------------------------------------------------------


def test_patience_does_not_count_the_start_unless_that_takes_very_long() -> None:
    patience = Patience(10)
    assert [patience.ends(waited, starting=True) for waited in (15, 50)] == [
        False,
        False,
    ]
    assert [patience.ends(waited, starting=False) for waited in (60, 61)] == [
        False,
        True,
    ]
    patience = Patience(10)
    assert [
        patience.ends(waited, starting=True) for waited in (START_S, START_S + 1)
    ] == [False, True]
