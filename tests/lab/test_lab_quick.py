"""The quick look: what it tries, for how long, and what it advises."""

from __future__ import annotations

import argparse
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab_results import result_of

from mpiter import machine
from mpiter.lab import quick
from mpiter.lab.experiments import ALL, EXPERIMENTS
from mpiter.lab.text import drawn
from mpiter.lab.turns import Absent, Turn

# -- the plan --------------------------------------------------------------------------------------------------------


def planned(monkeypatch, batch_ms, cpu_ms=None, cores=2, **settings):
    """What is going to be measured, where a first batch takes so long."""
    figures = {"batch_ms": batch_ms, "cpu_ms": batch_ms if cpu_ms is None else cpu_ms, "batch_size": 32.0}
    monkeypatch.setattr(quick, "ask", lambda turn, timeout: {"figures": figures})
    monkeypatch.setattr(machine, "cores", lambda: cores)
    common = {"rounds": 5, "seed": 0, "seconds": quick.SECONDS, "warmup": quick.WARMUP_S, "small": False}
    options = argparse.Namespace(**(quick.FULL | {"dataset": "mine:Own"} | common | settings))
    with quick.preparing(options):
        return options, list(quick.turns(options))


@pytest.mark.parametrize(
    ("cores", "tried"), [(1, [1, 2, 4]), (2, [1, 2, 4]), (4, [1, 2, 4]), (8, [1, 2, 4, 8]), (64, [1, 2, 32, 64])]
)
def test_a_handful_of_numbers_is_tried_up_to_the_cores(monkeypatch, cores, tried):
    options, turns = planned(monkeypatch, 10.0, cores=cores)
    assert (options.workers, options.rounds) == (tried, 5)
    assert [(turn.row, turn.workers) for turn in turns[:2]] == [(quick.LOOP, 0), (quick.OURS, 0)]


@pytest.mark.parametrize(
    ("batch_ms", "cores", "tried", "rounds"),
    [(2_000, 2, [1, 2, 4], 3), (5_000, 2, [2, 4], 2), (5_000, 16, [2, 8, 16], 2), (6_500, 2, [2], 2)],
)
def test_the_dearer_a_batch_the_less_is_tried_and_the_cores_to_the_last(monkeypatch, batch_ms, cores, tried, rounds):
    options, _ = planned(monkeypatch, batch_ms, cores=cores)
    assert (options.workers, options.rounds) == (tried, rounds)


@given(st.floats(0.01, 1e5), st.floats(0, 1), st.integers(1, 64), st.floats(0.5, 10))
def test_what_is_planned_has_room_or_it_is_said_that_nothing_has(batch_ms, share, cores, minutes):
    with pytest.MonkeyPatch.context() as patch:
        try:
            options, turns = planned(patch, batch_ms, share * batch_ms, cores, minutes=minutes)
        except Absent:
            with pytest.raises(Absent, match=r"min have no room for 2 rounds. Make batches smaller \(--batch-size\)"):
                planned(patch, batch_ms, share * batch_ms, cores, minutes=minutes)
            return
    assert options.rounds >= 2
    least_s = sum(turn.seconds + turn.warmup_s for turn in turns)
    assert options.rounds * least_s < 60 * minutes


def test_numbers_that_were_asked_for_are_tried_or_nothing_is(monkeypatch):
    assert planned(monkeypatch, 10.0, workers=[3, 7])[0].workers == [3, 7]
    with pytest.raises(Absent, match="no room"):
        planned(monkeypatch, 5_000.0, workers=[1, 2])


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"absent": "mine:Own cannot be imported"}, "^mine:Own cannot be imported$"),
        ({"error": "ValueError: no"}, "^mine:Own, in one process: ValueError: no$"),
        ({"error": "gave no answer within 60 s"}, "within 60 s: two batches take longer. Make batches smaller"),
    ],
)
def test_a_dataset_that_gives_no_batch_is_told_of_at_once(monkeypatch, answer, why):
    monkeypatch.setattr(quick, "ask", lambda turn, timeout: answer)
    options = argparse.Namespace(**(quick.FULL | {"dataset": "mine:Own", "seed": 0, "small": False}))
    with pytest.raises(Absent, match=why), quick.preparing(options):
        pass


def test_where_starting_takes_the_time_more_minutes_are_advised_that_suffice(monkeypatch):
    with pytest.raises(Absent, match=r"0.25 min have no room for 2 rounds.* Give it --minutes 0.\d\.$") as said:
        planned(monkeypatch, 0.2, minutes=0.25)
    assert "smaller" not in str(said.value)
    enough = float(str(said.value).removesuffix(".").rpartition(" ")[2])
    assert planned(monkeypatch, 0.2, minutes=enough)[0].rounds == 2


def test_an_empty_dataset_is_said_to_be_empty(monkeypatch):
    monkeypatch.setattr(quick, "subject", lambda *_: [])
    turn = Turn(quick.NAME, quick.PROBE, "mine:Own", {"workers": 0}, 0.3, 0, 0, {"batch_size": 32, "paths": []})
    with pytest.raises(Absent, match=r"^mine:Own: the dataset is empty"):
        quick.take(turn)


def test_a_row_has_one_name_in_the_table_the_warnings_and_the_bar():
    found = looked([10.0] * 3, [11.0] * 3, w1=[5.0, 9.0, 5.0])
    (table,) = quick.views(found)
    turn = Turn(quick.NAME, quick.OURS, "mine:Own", {"workers": 1}, 0.3, 0, 0)
    assert table.rows[-1][0] == "mpiter, 1 worker"
    assert "of mpiter, 1 worker by" in found.warnings()[-1]
    assert str(turn) == "mpiter, mine:Own, 1 worker"


def test_everything_does_not_include_a_quick_look():
    assert next(iter(EXPERIMENTS)) == quick.NAME
    assert set(EXPERIMENTS) - set(ALL) == {quick.NAME}


def test_batches_are_made_of_as_many_dear_samples_as_fit_into_a_second_unless_one_has_said_how_many(monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

        def __getattr__(self, name):
            return getattr(time, name)

    class Dear(list):
        def __getitem__(self, index):
            clock.now += 0.3
            return super().__getitem__(index)

    clock = Clock()
    monkeypatch.setattr(quick, "time", clock)
    monkeypatch.setattr(quick, "subject", lambda *_: Dear(range(40)))
    for most_s, batch_size in ((1.0, 3), (0.1, 1), (None, 32)):
        about = {"batch_size": 32, "most_s": most_s, "paths": []}
        answer = quick.take(Turn(quick.NAME, quick.PROBE, "dear", {"workers": 0}, 0.0, 0, 0, about))
        assert answer["figures"]["batch_size"] == batch_size


# -- the advice ------------------------------------------------------------------------------------------------------


def looked(loop, none, dataset="mine:Own", **workers):
    """A result with so many milliseconds a batch, round by round: of the loop, without workers, with w1, w2, …"""
    rows = [(quick.LOOP, 0, loop), (quick.OURS, 0, none)]
    rows += [(quick.OURS, int(name[1:]), found) for name, found in workers.items()]
    return result_of(
        [
            (row, dataset, {"workers": count}, {"batch_ms": found, "samples_per_s": [32e3 / ms for ms in found]})
            for row, count, found in rows
            if found
        ],
        "quick",
        batch_size=32,
    )


@pytest.mark.parametrize(
    ("found", "advice"),
    [
        (
            looked([10.0] * 3, [10.0] * 3, w1=[9.9] * 3, w2=[5.0] * 3, w4=[4.9] * 3),
            "Use n_processes=2: 2 times as many batches a second as without workers; 4 gains 2.04%, and only "
            "more than 5% counts.",
        ),
        (
            looked([10.0] * 3, [10.0] * 3, w1=[9.9] * 3, w2=[5.0] * 3),
            "Use n_processes=2: 2 times as many batches a second as without workers; it is the most that was tried "
            "(--workers tries others).",
        ),
        (
            looked([0.2] * 3, [0.3] * 3, w1=[0.5] * 3, w2=[0.4] * 3),
            "Don't use workers: a batch takes 0.200 ms without; workers only cost.",
        ),
        (
            looked([10.0] * 3, [11.0] * 3, w2=[5.0, 12.0, 5.0], w4=[6.0, 13.0, 9.9]),
            "Stay without workers until the machine is quieter: a batch takes 10 ms without; 2 workers "
            "ranged from 16.7% slower to 100% faster than none: noise, so none are taken.",
        ),
        (
            looked([10.0, 30.0], [11.0, 20.0], w2=[8.0, 10.0], w4=[6.0, 11.0]),
            "Use n_processes=2: 1.25 to 2 times as many batches a second as without workers; 4 workers ranged "
            "from 9.09% slower to 33.3% faster than 2: noise, so 2 are taken.",
        ),
        (
            looked([10.0] * 3, [10.0] * 3, w1=[5.0] * 3, w2=[4.9, 4.9, 4.0]),
            "Use n_processes=1: 2 times as many batches a second as without workers; 2 workers ranged from 2.04% "
            "faster to 25% faster than 1: in the median 2.04%, and only more than 5% counts, so 1 is taken.",
        ),
        (looked([10.0] * 2, [10.0] * 2, w2=[5.0]), "No advice: it takes 2 whole rounds, and there was one."),
        (looked([10.0], [], w2=[]), "No advice: it could not be measured both with workers and without."),
    ],
)
def test_the_advice_is_one_sentence_that_rests_on_every_round(found, advice):
    telling = quick.tell(found)
    assert telling.says == [advice]
    assert telling.warnings == []


times = st.lists(st.floats(0.1, 1e4), min_size=3, max_size=3)


@given(times, times, times, times)
def test_workers_are_only_advised_if_no_round_speaks_against_them(loop, none, two, four):
    (advice,) = quick.tell(looked(loop, none, w2=two, w4=four)).says
    without = list(map(min, loop, none))
    for count, taken in ((2, two), (4, four)):
        if advice.startswith(f"Use n_processes={count}:"):
            found = [base / ms - 1 for base, ms in zip(without, taken, strict=True)]
            assert min(found) >= 0
            assert statistics.median(found) > quick.GAIN
    if not advice.startswith("Use"):
        assert advice.startswith(("Don't use workers: ", "Stay without workers until "))


def test_the_table_has_the_faster_of_those_without_workers_as_one():
    (table,) = quick.views(looked([10.0, 30.0], [20.0, 20.0], w2=[5.0, 5.0]))
    rows = {name: cells for name, *cells in table.rows}
    assert list(rows) == ["plain loop, no workers", "mpiter, no workers", "mpiter, 2 workers"]
    assert rows["mpiter, 2 workers"][2:] == ["~3×", "2 to 4"]
    assert rows["plain loop, no workers"][2:] == ["~0.833×", "0.667 to 1"]
    assert len(list(drawn(table))) < 10


def test_who_has_named_no_dataset_is_told_how():
    (theirs,), (ours,) = (quick.views(looked([10.0], [20.0], dataset=name)) for name in ("mine:Own", "cifar"))
    assert "--dataset module:name looks at yours" in ours.note
    assert "--dataset" not in theirs.note
