"""A recorded run in the lab's report."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import mpiter
from mpiter.lab import laboratory, traced
from mpiter.lab.results import ResultError
from mpiter.lab.text import drawn
from mpiter.lab.views import Table, Timeline


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a trace and other JSON."""
    monkeypatch.setattr(traced, "measured", lambda: (1.0, 2.0))
    (tmp_path / "other.json").write_text("{}")
    with mpiter.batches([np.full(8, i) for i in range(200)], 4, n_processes=2, trace=tmp_path / "run.json") as stream:
        assert len(list(stream)) == 50
    return tmp_path


def test_a_recorded_run_is_drawn_and_told(folder):
    (section,) = traced.sections(folder)
    assert section.name == "trace run"
    assert section.says[0].startswith("The trainer waited ")
    timeline, table = section.views
    assert isinstance(timeline, Timeline)
    names = [name for name, _ in timeline.lanes]
    assert names[0] == "consumer"
    assert set(names[1:]) <= {"worker 0", "worker 1"}
    assert len(names) >= 2
    for _, spans in timeline.lanes:
        assert all(0 <= span.begin <= span.end for span in spans)
        assert all(one.end <= other.begin + 1e-6 for one, other in itertools.pairwise(spans))
    assert isinstance(table, Table)
    assert max(map(len, drawn(table))) <= 80


def test_a_report_may_be_of_traces_alone(folder):
    (folder / "other.json").unlink()
    page = laboratory.write_report(folder).read_text()
    assert "A recorded run: run.json" in page
    assert "24 steps" in page


def test_a_trace_that_is_too_short_is_told_of(tmp_path):
    with mpiter.batches(np.zeros((8, 2)), 4, n_processes=1, trace=tmp_path / "run.json") as stream:
        list(stream)
    (section,) = traced.sections(tmp_path)
    assert "steps of the trainer" in section.absent[0]
    assert section.views == ()


def test_a_folder_without_results_and_traces_is_refused(tmp_path):
    with pytest.raises(ResultError, match="holds no results"):
        laboratory.write_report(tmp_path)
