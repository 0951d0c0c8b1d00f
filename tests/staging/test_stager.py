"""Who copies ahead: in which order, how far, and what comes after a place."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from stores import Watched

import mpiter
from mpiter.echo import Bundles
from mpiter.order.cursor import Cursor, Pace, step
from mpiter.order.order import Sampled, SamplerOfTheMoment, Sequential, Shuffled
from mpiter.staging import Staging
from mpiter.staging.stager import Stager


class Noting:
    """Takes the place of what copies: each sample waits for leave."""

    def __init__(self):
        self.copied = []
        self.may, self.has = threading.Semaphore(0), threading.Semaphore(0)

    def copy(self, index):
        self.may.acquire()
        self.copied.append(index)
        self.has.release()
        return True

    def let(self, samples):
        for _ in range(samples):
            self.may.release()
        for _ in range(samples):
            assert self.has.acquire(timeout=20)

    def end(self, stager):
        stager.close()
        self.may.release()


def plans_of(pace, cursor, count):
    for number in range(count):
        plan = step(cursor, pace, number)
        yield plan
        cursor = plan.after


def test_samples_are_copied_in_the_order_in_which_they_will_be_wanted():
    pace, order = Pace(4), Shuffled(100, 7)
    noting = Noting()
    stager = Stager(noting, 100, 1)
    first, *_ = plans_of(pace, Cursor(0, 0, False, order), 1)
    stager.planned(first, pace)
    noting.let(120 - 24)
    assert noting.copied[:96] == order.array()[4:].tolist(), "what is planned already is the workers' to fetch"
    noting.end(stager)


def test_no_more_than_so_many_are_copied_beyond_what_is_planned():
    pace, order = Pace(4), Sequential(1000)
    noting = Noting()
    stager = Stager(noting, 10, 1)
    first, second, *_ = plans_of(pace, Cursor(0, 0, False, order), 3)
    stager.planned(first, pace)
    noting.let(10)
    assert noting.copied == list(range(4, 14))
    stager.planned(second, pace)
    assert not noting.may.acquire(blocking=False)
    noting.end(stager)
    assert max(noting.copied) <= 17


def test_another_place_counts_from_the_next_plan_on():
    pace, order = Pace(4), Sequential(1000)
    noting = Noting()
    stager = Stager(noting, 10, 1)
    first, *_ = plans_of(pace, Cursor(0, 0, False, order), 1)
    stager.planned(first, pace)
    noting.let(2)
    there, *_ = plans_of(pace, Cursor(500, 0, False, order), 1)
    stager.planned(there, pace)
    noting.let(5)
    assert noting.copied[:2] == [4, 5]
    assert noting.copied[-4:] == [504, 505, 506, 507]
    noting.end(stager)


def taken_step_by_step(pace, cursor, count):
    found = []
    while len(found) < count and (plan := step(cursor, pace)) is not None:
        found += [index for stretch in plan.stretches for index in stretch.indices.tolist()]
        cursor = plan.after
    return found[:count]


@pytest.mark.parametrize("wrap", [True, False])
@pytest.mark.parametrize("order", [Sequential(10), Shuffled(10, 3)])
@pytest.mark.parametrize("position", [0, 4, 9])
def test_what_comes_after_a_place_is_what_will_be_planned(order, position, wrap):
    pace, cursor = Pace(3, wrap=wrap, epochs=None if wrap else 3), Cursor(position, 1, False, order)
    wanted = taken_step_by_step(pace, cursor, 15)
    found, start = [], 0
    while len(piece := pace.beyond(cursor, start, 15)):
        found += piece.tolist()
        start += len(piece)
    assert found == wanted


def test_what_a_sampler_will_say_is_not_asked_for():
    def never(order, position):
        raise AssertionError

    order = Sampled(np.arange(10)[::-1], SamplerOfTheMoment(never))
    cursor = Cursor(4, 0, False, order)
    assert Pace(3).beyond(cursor, 2, 100).tolist() == [3, 2, 1, 0]
    assert not len(Pace(3).beyond(cursor, 6, 100))


class Observed:
    """A dataset whose observer fails at its third batch."""

    def __init__(self):
        self.told, self.closed = [], 0

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return index

    def plan_observer(self):
        return self

    def planned(self, plan, plans):
        self.told.append(plan.number)
        if len(self.told) == 3:
            raise ValueError("no more")

    def close(self):
        self.closed += 1


def test_an_observer_that_fails_is_told_nothing_more_and_stops_nobody():
    dataset = Observed()
    with (
        pytest.warns(RuntimeWarning, match="plan_observer has failed and is told nothing more: ValueError: no more"),
        mpiter.batches(dataset, 2, n_processes=0) as stream,
    ):
        assert sum(len(batch) for batch in stream) == 20
    assert dataset.told == [0, 1, 2]
    assert dataset.closed == 1


def test_copies_run_ahead_of_bundles(tmp_path):
    store = Watched(tmp_path, 100)
    with mpiter.batches(
        Bundles(Staging(tmp_path / "tier", "1MB").of(store), 2), 4, n_processes=0, run_ahead=0
    ) as stream:
        next(stream)
        store.wait_until_copied(50)


def test_copies_run_ahead_of_a_range_that_is_the_sampler(tmp_path):
    store = Watched(tmp_path, 100)
    with mpiter.DataLoader(Staging(tmp_path / "tier", "1MB").of(store), 4, sampler=range(99, -1, -1)) as loader:
        next(iter(loader))
        store.wait_until_copied(50)
