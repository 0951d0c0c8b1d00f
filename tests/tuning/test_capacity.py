"""What busy processes do together, and work of a known amount."""

from __future__ import annotations

import pytest

from mpiter import machine
from mpiter.tuning import capacity


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({1: [100, 90, 80], 2: [130, 120, 110], 4: [250, 260, 200]}, (1.0, 1.3, 1.95, 2.6)),
        ({1: [80, 90, 100], 2: [230, 100, 100], 4: [900, 100, 100]}, (1.0, 2.0, 3.0, 4.0)),  # a core was slow first
        ({1: [100, 100, 100], 2: [90, 90, 90], 4: [150, 150, 150]}, (1.0, 1.0, 1.2, 1.5)),
    ],
    ids=["threads of a core", "noise", "neighbours"],
)
def test_so_many_processes_do_no_more_than_so_many_cores_and_no_less_than_fewer(counts, found, monkeypatch):
    left = {count: iter(each) for count, each in counts.items()}
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(capacity, "_counted", lambda processes: next(left[processes]))
    assert capacity.measured.__wrapped__() == pytest.approx(found)


def test_work_is_a_number_of_rounds_and_not_of_seconds(monkeypatch):
    rounds = []
    monkeypatch.setattr(capacity, "sum", rounds.append, raising=False)
    capacity.work(2.6)
    assert len(rounds) == 3
    monkeypatch.undo()
    assert capacity.rounds_per_s() > 0
