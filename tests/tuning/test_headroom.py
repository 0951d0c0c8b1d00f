"""Headroom: what the trainer could do at most, of loads whose truth is known."""

from __future__ import annotations

import itertools

import pytest

from mpiter import OptionError
from mpiter.tuning.headroom import headroom


class World:
    """Where time passes by what is done."""

    def __init__(self, data_s, step_s):
        self.now, self._data_s, self._step_s = 0.0, data_s, step_s

    def source(self, batches=None):
        for number in itertools.count() if batches is None else range(batches):
            self.now += self._data_s
            yield number

    def step(self, batch):
        self.now += self._step_s

    def clock(self):
        return self.now


@pytest.mark.parametrize(("data_s", "step_s"), [(0.5, 0.5), (0.0, 0.1), (0.3, 0.1)])
def test_it_is_what_the_steps_alone_would_take(data_s, step_s):
    world = World(data_s, step_s)
    found = headroom(world.source(), world.step, 60, world.clock)
    assert found.steps_per_s == pytest.approx(1 / (data_s + step_s), rel=0.02)
    assert found.most_steps_per_s == pytest.approx(1 / step_s, rel=0.02)
    assert found.times == pytest.approx((data_s + step_s) / step_s, rel=0.04)


def test_a_source_may_end_early_but_not_at_once():
    world = World(0.1, 0.1)
    assert headroom(world.source(12), world.step, 60, world.clock).times == pytest.approx(2, rel=0.02)
    for few in (1, 8):
        with pytest.raises(OptionError, match="some more are needed"):
            headroom(world.source(few), world.step, 60, world.clock)


def test_it_is_told_in_a_line():
    world = World(0.25, 0.25)
    assert str(headroom(world.source(), world.step, 10, world.clock)) == (
        "2 steps/s, and 4 with data for nothing: 2.00 times as many"
    )
