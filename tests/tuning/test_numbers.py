"""The numbers of ``stats()`` as a dict for loggers and as text for Prometheus; events go to Python's logging."""

from __future__ import annotations

import json
import re

import pytest

from mpiter import Stats
from mpiter.errors import OptionError
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


def test_prometheus_gets_counters_and_gauges_with_what_they_mean() -> None:
    text = MADE_UP.as_prometheus()
    block = r"# HELP (\w+) \S.*\n# TYPE \1 (counter|gauge)\n\1 (\S+)\n"
    assert re.fullmatch(f"({block.replace('1', '2')})+", text), "the exposition format, and nothing else"
    blocks = re.findall(block, text)
    found = {name: (kind, float(value)) for name, kind, value in blocks}
    assert len(found) == len([name for name in NUMBERS if not name.startswith("recent_")])
    assert found["mpiter_batches_total"] == ("counter", 4.0)
    assert found["mpiter_wait_seconds_total"] == ("counter", 0.5)
    assert found["mpiter_in_flight_batches"] == ("gauge", 0.0)
    assert all(kind == "counter" for name, (kind, _) in found.items() if name.endswith("_total"))
    assert "# HELP mpiter_wait_seconds_total seconds that next() has waited, up to now.\n" in text


def test_labels_are_escaped() -> None:
    text = MADE_UP.as_prometheus({"path": 'C:\\data\n"new"', "rank": 0})
    assert 'mpiter_batches_total{path="C:\\\\data\\n\\"new\\"",rank="0"} 4\n' in text


@pytest.mark.parametrize("name", ["", "1st", "a-b", "__name__", 'x"'])
def test_a_label_that_prometheus_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="is no name that a label may have"):
        MADE_UP.as_prometheus({name: 1})
