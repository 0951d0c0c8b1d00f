"""The numbers of ``stats()`` as a dict for loggers and as text for Prometheus; events go to Python's logging."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mpiter import Stats
from mpiter.errors import OptionError
from mpiter.stats import NUMBERS

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\n"])*",?)*\})? (\S+)')
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


def metrics(text: str) -> dict[str, tuple[str, str, float]]:
    """Labels, type and value by name, of a text that keeps the rules of the exposition format."""
    assert text.endswith("\n")
    found: dict[str, Any] = {}
    told: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _, _, name, said = line.split(" ", 3)
            assert said
            assert name not in found
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge")
            told[name] = kind
        else:
            matched = SAMPLE.fullmatch(line)
            assert matched, line
            name, labels, value = matched.groups()
            assert name not in found
            found[name] = labels or "", told[name], float(value)
    return found


def test_prometheus_gets_counters_and_gauges_with_what_they_mean() -> None:
    text = MADE_UP.as_prometheus()
    found = metrics(text)
    assert found["mpiter_batches_total"] == ("", "counter", 4.0)
    assert found["mpiter_wait_seconds_total"] == ("", "counter", 0.5)
    assert found["mpiter_in_flight_batches"] == ("", "gauge", 0.0)
    assert "# HELP mpiter_wait_seconds_total seconds that next() has waited, up to now.\n" in text
    assert len(found) == len([name for name in NUMBERS if not name.startswith("recent_")])
    assert all(kind == "counter" for name, (_, kind, _) in found.items() if name.endswith("_total"))
    assert len(re.findall("^# HELP", text, re.M)) == len(found), "each has a line in the docstring"


def test_labels_are_escaped() -> None:
    text = MADE_UP.as_prometheus({"path": 'C:\\data\n"new"', "rank": 0})
    labels, _, _ = metrics(text)["mpiter_batches_total"]
    assert labels == '{path="C:\\\\data\\n\\"new\\"",rank="0"}'


@pytest.mark.parametrize("name", ["", "1st", "a-b", "__name__", 'x"'])
def test_a_label_that_prometheus_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="is no name that a label may have"):
        MADE_UP.as_prometheus({name: 1})
