"""The numbers of ``stats()`` as a dict for loggers."""

from __future__ import annotations

import json

from mpiter import Stats
from mpiter.stats import NUMBERS

MADE_UP = Stats(batches=4, samples=32, restarts=1, wait_s=0.5, recent_s=2.0, recent_wait_s=0.5, recent_batches=3)


def test_a_dict_has_every_number_under_a_prefix() -> None:
    numbers = MADE_UP.as_dict()
    assert numbers["mpiter/batches"] == 4
    assert (numbers["mpiter/recent_share"], numbers["mpiter/batches_per_s"]) == (0.25, 1.5)
    assert numbers["mpiter/samples_per_s"] == 12.0
    assert {f"mpiter/{name}" for name in NUMBERS} < set(numbers)
    assert json.loads(json.dumps(numbers)) == numbers
    assert set(Stats().as_dict("train.")) == {name.replace("mpiter/", "train.") for name in numbers}
    assert all(type(value) in (int, float) for value in numbers.values())
