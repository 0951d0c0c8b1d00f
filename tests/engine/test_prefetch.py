"""The prefetch loop with fakes around it, in every order of the events around it.

These are answers, deaths, restarts, batches taken, and slots returned.
"""

from __future__ import annotations

from typing import Any

import pytest
from simulated import Case, Choices, World, explore, wander

from mpiter.errors import SampleNotSendable, WorkerCrashed

# The loop is the same on every Python, so the full run on one of them is enough.
pytestmark = pytest.mark.slow

# This is the number of random paths.  Many more were tried, and found nothing else.
FEW = 50

CASES = {
    "rather dear rows": Case(row_s=6e-3, deaths=1),
    "rows that travel": Case(travels=True, deaths=1, restarts=1, row_s=60e-3),
    "deaths": Case(deaths=2, row_s=60e-3),
    "deaths and answers at once": Case(deaths=2, at_once=True),
    "workers that can't be killed": Case(
        batches=4, deaths=3, stuck=2, restarts=1, keeps=True, row_s=60e-3
    ),
    "errors": Case(faults=1, deaths=1),
    "errors, left out": Case(faults=2, skips_errors=True, row_s=60e-3),
    "the first sample fails": Case(fails_first=True),
    "the first sample fails, and is left out": Case(
        fails_first=True, skips_errors=True
    ),
    "a leaf refuses samples": Case(refused=(0, 1, 3), deaths=1, restarts=1),
    "a leaf refuses samples, which are left out": Case(
        refused=(0, 2, 3), skips_errors=True, batch_size=4
    ),
    "answers that are lost": Case(losses=1, restarts=1, deaths=1, at_once=True),
    "restarts and deaths": Case(
        restarts=1, deaths=1, stuck=1, batch_size=3, at_once=True
    ),
    "closed": Case(closes=1, deaths=1, restarts=1),
    "batches are kept": Case(batches=5, keeps=True, rooms=2, restarts=1, deaths=1),
    "as they finish": Case(batches=4, in_order=False, deaths=1),
    "far ahead": Case(batches=6, n_prefetch=2, run_ahead=4, deaths=1, rooms=20),
    "three workers": Case(batches=4, workers=3, deaths=1, restarts=1, row_s=60e-3),
    "many cheap batches": Case(batches=9, batch_size=1, workers=1),
    "many blocks in a worker": Case(batches=40, deaths=3, restarts=1, rooms=60),
}


@pytest.fixture(autouse=True)
def silent(caplog: pytest.LogCaptureFixture) -> None:
    # Thousands of workers die here, with a warning each.
    caplog.set_level("CRITICAL", "mpiter")


def run_of(case: Case) -> Any:
    return lambda choices: World(case, choices).run()


@pytest.mark.parametrize("name", CASES)
def test_every_batch_comes_once_and_in_order_whatever_happens_when(name: str) -> None:
    wander(run_of(CASES[name]), FEW)


def test_small_cases_are_gone_through_entirely() -> None:
    for case in (
        Case(batches=2, restarts=1, run_ahead=0),
        Case(batches=1, deaths=1, restarts=1, run_ahead=0),
    ):
        assert 100 < explore(run_of(case)) < 500


class Doomed(World):
    """Once a batch has come, both workers end at once, again and again.

    In the end one of them can't be killed.
    """

    rounds = 0

    def something_happens(self) -> list[Any]:
        self.bell.hush()
        if not self.got:
            if len(self.loop.communicator.queue):
                self._take()
                return []
            return [self._answer(*self.crew.out[0])]
        self.rounds += 1
        return [
            self._kill(0, active=2),
            self._kill(1, is_gone=self.rounds < 4, active=2),
        ]


def test_an_unkillable_worker_keeps_its_rooms_when_another_death_ends_the_run() -> None:
    world = Doomed(Case(batches=20), Choices())
    try:
        while world.rounds < 4:
            world.loop.turn()
        world._take()
        assert type(world.got[-1].error) is WorkerCrashed
        assert world.stuck
        # The worker that can't be killed writes after the run has ended.  Its rooms
        # must not have been given to other batches.
        while world.stuck:
            world._write_late()
        assert world.loop.stats().restarts == 8
    finally:
        world.loop.stop()
        world.loop._dispose()


class Idle(World):
    """The consumer takes nothing; workers answer, and the last answer may be lost."""

    def something_happens(self) -> list[Any]:
        self.bell.hush()
        worker, block = self.crew.out[0]
        if self.left["losses"] and len(self.loop.communicator.queue):
            return [self._lose(worker, block)]
        return [self._answer(worker, block)]


@pytest.mark.parametrize("losses", [0, 1])
def test_the_end_of_a_run_waits_for_no_room_among_the_finished_batches(
    losses: int,
) -> None:
    world = Idle(Case(batches=1 + losses, losses=losses), Choices())
    queue = world.loop.communicator.queue
    try:
        while not any(delivery.is_end for delivery in queue):
            world.loop.turn()
        assert world.got == [], "the loop has waited for the consumer"
        batch, end = queue
        assert batch.contents is not None
        assert isinstance(end.error, SampleNotSendable if losses else type(None))
        assert world.loop.stats().ready_batches == 1
    finally:
        world.loop.stop()
        world.loop._dispose()


def test_all_branches_of_a_tree_are_explored() -> None:
    paths = []

    def run(choices: Choices) -> None:
        paths.append((choices.among(2), choices.among(3)))

    assert explore(run) == 6
    assert sorted(paths) == [
        (first, second) for first in range(2) for second in range(3)
    ]


class Deep(World):
    """The consumer takes what there is, and a block is answered at a time."""

    def something_happens(self) -> list[Any]:
        self.bell.hush()
        self.peak = max(len(self.crew.of(worker)) for worker in range(2))
        while len(self.loop.communicator.queue):
            self._take()
        return [self._answer(*self.crew.out[0])]


@pytest.mark.parametrize(
    ("row_s", "run_ahead", "wanted"),
    [
        (1e-6, None, 64),
        (0.4e-3, None, 6),
        (1e-3, None, 2),
        (20e-3, None, 1),
        (1e-6, 4, 2),
    ],
)
def test_a_worker_has_the_more_blocks_the_less_they_take(
    row_s: float, run_ahead: int | None, wanted: int
) -> None:
    case = Case(batches=400, row_s=row_s, run_ahead=run_ahead, rooms=200)
    world = Deep(case, Choices())
    try:
        while len(world.got) < 50:
            world.loop.turn()
        assert world.peak == wanted
    finally:
        world.loop.stop()
        world.loop._dispose()
