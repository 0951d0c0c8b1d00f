"""The prefetch loop with nothing real around it: every order of answers, deaths, restarts, takes and slots returned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated import Case, Choices, World, explore, wander

from mpiter.engine.run import Run
from mpiter.order.cursor import Cursor, Pace

pytestmark = pytest.mark.slow  # this Python shows it; the further ones are spared

FEW = 250  # paths of each kind that are gone; more of them have been, and found nothing else

CASES = {
    "cheap rows": Case(),
    "dear rows": Case(row_s=60e-3),
    "partial answers": Case(batches=2, batch_size=3, shortfalls=2),
    "a death": Case(batches=2, deaths=1),
    "deaths": Case(deaths=2, shortfalls=1, row_s=60e-3),
    "one who would not die": Case(deaths=1, stuck=1),
    "errors": Case(faults=1),
    "errors, left out": Case(faults=2, skips_errors=True),
    "the first sample fails": Case(fails_first=True),
    "the first sample fails, and is left out": Case(fails_first=True, skips_errors=True),
    "restarts": Case(restarts=2),
    "restarts and deaths": Case(restarts=1, deaths=1, shortfalls=1, batch_size=3),
    "a user who keeps batches": Case(batches=4, keeps=True, rooms=5),
    "as they finish": Case(batches=4, in_order=False, shortfalls=1),
    "far ahead": Case(batches=6, n_prefetch=2, run_ahead=4, deaths=1, rooms=20),
    "strictly bounded": Case(batches=4, run_ahead=0, deaths=1),
    "three workers": Case(batches=4, workers=3, deaths=1, restarts=1, row_s=60e-3),
    "rows one by one": Case(batches=4, batch_size=1, deaths=1),
}


def run_of(case: Case) -> Any:
    return lambda choices: World(case, choices).run()


@pytest.mark.parametrize("name", CASES)
def test_every_batch_comes_once_and_in_order_whatever_happens_when(name: str) -> None:
    explore(run_of(CASES[name]), most=FEW)
    wander(run_of(CASES[name]), FEW)


def test_a_small_case_is_gone_through_entirely() -> None:
    assert 100 < explore(run_of(Case(batches=2, deaths=2, shortfalls=1, restarts=1))) < 50_000


class HeldUp(World):
    """One row is slow, and what comes after a while isn't known yet."""

    known, slow = 8, 1

    def _new_run(self, run: int) -> Run:
        known = self.known

        class Known(Pace):
            def knows(self, cursor: Cursor) -> bool:
                return cursor.position < known

        run = super()._new_run(run)
        return replace(run, plans=Known(self.case.batch_size, wrap=False, epochs=1))

    def something_happens(self) -> None:
        out = next((out for out in self.crew.out if out.task.pieces[0].keys[0] != self.slow), None)
        if out is not None:
            self._answer(out, 1)
        self.crew.callbacks.bell.hush()


@pytest.mark.parametrize("known", [4, 8])
def test_who_idles_behind_a_slow_row_would_fetch_more_if_it_were_known(known: int) -> None:
    """However many wait for their turn: so a sampler is asked further ahead, and the next slow row holds up fewer."""
    world = HeldUp(Case(batches=30, batch_size=1, run_ahead=20, rooms=40, row_s=60e-3), Choices())
    world.known = known
    try:
        for _ in range(3 * known):
            world.loop._turn()
        assert len(world.crew.out) == 1, "everybody else idles"
        assert world.loop.stats().in_flight_batches >= known - 1
        assert world.loop.was_hungry()
        assert not world.loop.was_hungry(), "it is told once"
    finally:
        world.loop.stop()
        world.loop._dispose()


def test_all_branches_of_a_tree_are_explored() -> None:
    paths = []

    def run(choices: Choices) -> None:
        paths.append((choices.among(2), choices.among(3)))

    assert explore(run) == 6
    assert sorted(paths) == [(first, second) for first in range(2) for second in range(3)]
