"""What-ifs: replayed times are those of the run, and what is predicted is what comes."""

from __future__ import annotations

import argparse
import dataclasses
import time

import numpy as np
import pytest

import mpiter
from mpiter import OptionError, machine
from mpiter.engine.pilot import Setting
from mpiter.rules import Rules
from mpiter.tuning import explain_command
from mpiter.tuning.events import Fetched, Opened, Recorded, Resize, Span
from mpiter.tuning.explain import Case, explain, headroom, predicted, run_of
from mpiter.tuning.simulation import Load, Machine, Service, simulate
from mpiter.tuning.trace import Trace, read

EIGHT = [float(count) for count in range(1, 9)]


def recorded(cpu=0.0, io=0.1, delay=0.0, step=0.02, step_cpu=0.0, workers=2, batches=60, batch_size=4):
    """A run whose batches were one task each, one behind the other; the trainer waited for the workers."""
    takes = cpu + io + delay
    every = max(takes / workers, step)
    about_task = takes, batch_size, 0.0, cpu, delay, 0.0, 0.0, False
    fetched = [Fetched(1, at % workers, at * every, *about_task) for at in range(batches)]
    steps = [Span(1, at * every, step, step_cpu) for at in range(batches)]
    waits = [Span(1, at * every + step, every - step) for at in range(batches)]
    about = {"batch_size": batch_size, "workers": workers, "n_prefetch": 2}
    opens = [Opened(1, at * every, 0.0, batch_size, 1000) for at in range(batches)]
    return Recorded({1: about}, fetched, waits, opens, steps, [], [], 0, 8)


def test_a_run_is_taken_apart_into_what_samples_and_steps_took():
    run = run_of(recorded(cpu=0.04, io=0.06, delay=0.5, step=0.02, step_cpu=0.01))
    assert run.case.setting == Setting(2, 2)
    assert run.case.load.samples[0] == pytest.approx((0.01, 0.015))
    assert run.case.load.steps[0] == Service(0.01, 0.01)
    assert len(set(run.case.load.steps)) == 1
    assert run.batch_s == pytest.approx(0.3)
    assert run.waited == pytest.approx(0.28 / 0.3)
    assert headroom(run) == pytest.approx(15)


def test_processor_time_that_shared_a_core_counts_as_much_as_it_would_alone():
    alone, shared = run_of(recorded(cpu=0.1, io=0.0)), run_of(recorded(cpu=0.1, io=0.0), [1.0, 1.4])
    assert shared.case.load.samples[0].cpu_s == pytest.approx(0.7 * alone.case.load.samples[0].cpu_s, rel=0.02)


def test_the_replay_of_what_was_done_is_what_was_measured():
    found = explain(recorded(cpu=0.02, io=0.08), EIGHT)
    assert found.replayed.samples_per_s == pytest.approx(4 / found.run.batch_s, rel=0.02)
    assert found.replayed.waited == pytest.approx(found.run.waited, abs=0.03)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_a_trainer_that_shares_its_core_with_workers_does_not_wait_for_them(workers):
    """Its step takes longer then; who waits is who has no batch."""
    load = Load([Service(0.15 / 20)], [Service(0.1)], batch_size=20)
    waited = {0: 0.6, 1: 0.33}.get(workers, 0.0)
    assert predicted("", Case(load, Machine.of(2), Setting(workers, 2))).waited == pytest.approx(waited, abs=0.01)


def test_what_gains_most_stands_first_and_is_what_hides_the_loading():
    found = explain(recorded(io=0.1, step=0.02), EIGHT)
    assert found.best is not None
    assert found.best.name == "workers: 6"
    assert found.best.samples_per_s == pytest.approx(4 / 0.02, rel=0.05)
    gains = {one.name: one.gain for one in found.what_ifs}
    assert gains["nothing in dataset[i] waits"] == pytest.approx(1.5, abs=0.1)
    assert "computing in dataset[i] takes half" not in gains  # there is none
    assert gains["no workers"] == pytest.approx(50 / 120 - 1, abs=0.02)
    assert gains["workers: 3"] == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("workers", "most"), [(2, 16), (32, 32)])
def test_no_more_workers_are_advised_than_are_ever_tried_or_were_there(workers, most):
    found = explain(recorded(io=0.1, step=1e-5, workers=workers), EIGHT)
    counts = [one.case.setting.workers for one in found.what_ifs]
    assert max(counts) == most


def test_what_options_alone_can_change_is_told_apart_from_the_rest():
    found = explain(straggling(64 << 20, run_ahead=0), EIGHT)
    able = {one.name.split(":")[0] for one in found.what_ifs if one.can_be_carried_out}
    assert able == {"workers", "no workers", "n_prefetch", "run_ahead"}
    assert {one.name for one in found.what_ifs if not one.can_be_carried_out} >= {"nothing in dataset[i] waits"}
    assert found.best is None or found.best.can_be_carried_out


def test_where_the_trainer_is_the_slower_nothing_is_advised():
    found = explain(recorded(io=0.02, step=0.05), EIGHT)
    assert found.best is None
    assert {one.name: one.gain for one in found.what_ifs}["a trainer that takes 1.5 times as long"] < -0.3


def straggling(memory_bytes, **options):
    """Each twelfth task takes ten times as long, and batches are of a megabyte."""
    run = recorded(io=0.02, step=0.005, batches=120)
    fetched = [task._replace(seconds=0.2) if at % 12 == 0 else task for at, task in enumerate(run.fetched)]
    loops = {1: run.loops[1] | options}
    opens = [one._replace(bytes=1 << 20) for one in run.opens]
    return dataclasses.replace(run, fetched=fetched, loops=loops, memory_bytes=memory_bytes, opens=opens)


def test_memory_that_is_too_short_to_run_ahead_of_a_straggler_would_help():
    gains = {one.name: one.gain for one in explain(straggling(64 << 20), EIGHT).what_ifs}
    assert gains["four times the memory"] > 0.05
    assert "four times the memory" not in {one.name for one in explain(straggling(64 << 30), EIGHT).what_ifs}


def test_a_run_that_was_told_not_to_run_ahead_is_replayed_so_and_would_gain_by_it():
    told = explain(straggling(64 << 30, run_ahead=0), EIGHT)
    free = explain(straggling(64 << 30, run_ahead=None), EIGHT)
    assert told.replayed.samples_per_s < 0.95 * free.replayed.samples_per_s
    gains = {one.name: one.gain for one in told.what_ifs}
    assert gains["run_ahead: as far as memory allows"] == pytest.approx(
        free.replayed.samples_per_s / told.replayed.samples_per_s - 1
    )


def changing(backend="process", **options):
    """One worker for 40 batches, then four for 120, whose samples take twice as long."""
    slow, fast = recorded(io=0.1, workers=1, batches=40), recorded(io=0.2, workers=4, batches=120)
    after = 40 * 0.1
    loops = {1: fast.loops[1] | {"workers": 8, "workers_first": 1, "backend": backend} | options}
    several = {
        name: getattr(slow, name) + [one._replace(began=one.began + after) for one in getattr(fast, name)]
        for name in ("fetched", "waits", "opens", "steps")
    }
    return dataclasses.replace(fast, loops=loops, resizes=[Resize(1, after, 4, 3)], **several)


def test_a_run_whose_workers_changed_is_replayed_as_it_was_for_the_longest():
    run = run_of(changing())
    assert (run.case.setting, run.batches) == (Setting(4, 3), 120)
    assert set(run.case.load.samples) == {Service(0.0, 0.05)}
    assert run.batch_s == pytest.approx(0.05)
    found = explain(changing(), EIGHT)
    assert next(line for line in explain_command.lines(found) if line.startswith("measured: workers: 4, n_prefetch: 3"))
    assert found.replayed.samples_per_s == pytest.approx(run.samples_per_s, rel=0.03)


def test_changes_of_workers_are_read_from_the_file(tmp_path):
    path = tmp_path / "run.json"
    tracer = Trace(str(path)).tally(Rules(workers=8, workers_first=1), "process")
    tracer.lost(1, was_asked=True)
    tracer.resized(3, 5)
    tracer.close()
    assert [(one.loop, one.workers, one.n_prefetch) for one in read(path).resizes] == [(1, 3, 5)]


def test_a_run_without_workers_is_told_and_replayed_without(tmp_path, capsys):
    path = str(tmp_path / "run.json")
    with mpiter.batches([np.full(8, i) for i in range(200)], 4, n_processes=0, run_ahead=0, trace=path) as it:
        assert len(list(it)) == 50
    run = run_of(read(path))
    assert (run.case.setting.workers, run.backend) == (0, "serial")
    found = explain(read(path), EIGHT)
    assert next(line for line in explain_command.lines(found) if line.startswith("measured: no workers"))
    names = {one.name for one in found.what_ifs}
    assert {"workers: 1"} <= names
    assert not {name for name in names if name.startswith(("no workers", "n_prefetch", "run_ahead"))}


def test_of_threads_that_take_turns_nothing_is_predicted(monkeypatch):
    """They wait for each other, which looks like waiting for a disk."""
    monkeypatch.setattr(machine, "gil_is_in_use", lambda: True)
    with pytest.raises(OptionError, match="threads under a GIL: what they waited for, a disk or each other, can't"):
        explain(changing("thread"), EIGHT)
    monkeypatch.setattr(machine, "gil_is_in_use", lambda: False)
    assert explain(changing("thread"), EIGHT).replayed.samples_per_s > 0


def test_what_may_overtake_is_replayed_so():
    told = explain(straggling(64 << 30, run_ahead=2), EIGHT)
    free = explain(straggling(64 << 30, run_ahead=2, in_order=False), EIGHT)
    assert free.replayed.samples_per_s > 1.05 * told.replayed.samples_per_s


def test_what_is_not_replayed_is_said():
    assert run_of(changing()).not_replayed == ()
    lines = list(explain_command.lines(explain(changing(max_samples=100), EIGHT)))
    assert lines[-2] == "Not replayed: that workers are replaced (maxtasksperchild)."


@pytest.mark.parametrize(("recorded_with", "carried_out_with"), [("process", "process"), ("serial", "process")])
def test_the_backend_of_the_run_is_that_of_what_is_carried_out(recorded_with, carried_out_with, monkeypatch):
    seen = []
    monkeypatch.setattr(explain_command, "carried_out", lambda *args: seen.append(args[-1]) or 1.0)
    found = explain(changing(recorded_with), EIGHT)
    (line,) = explain_command.verified(found, [], 1.0)
    assert "measured" in line
    assert seen == [carried_out_with]


def test_a_backend_that_has_no_name_of_ours_is_not_carried_out():
    (line,) = explain_command.verified(explain(changing("ray"), EIGHT), [], 1.0)
    assert line == "Nothing is carried out: workers of the backend 'ray' can't be made by its name alone."


def test_where_workers_make_the_batches_samples_are_counted_and_nothing_is_carried_out(tmp_path):
    path = str(tmp_path / "run.json")
    with mpiter.DataLoader(Sleeping(200), 4, num_workers=1, collate_fn=np.stack, trace=path) as loader:
        assert len(list(loader)) == 50
    found = explain(read(path), EIGHT)
    assert found.run.case.samples == 4
    assert found.run.samples_per_s == pytest.approx(4 / found.run.batch_s)
    assert found.best is not None
    (said,) = explain_command.verified(found, Sleeping(200), 1.0)
    assert said.startswith("Nothing is carried out: workers made the batches")


class Sleeping:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.001)
        return np.zeros(2)


def test_iterators_that_hand_out_in_turn_are_not_replayed():
    run = recorded()
    in_turn = [one._replace(loop=1 + at % 2) for at, one in enumerate(run.opens)]
    with pytest.raises(OptionError, match="several iterators handed out batches in turn"):
        explain(dataclasses.replace(run, opens=in_turn), EIGHT)
    after = [one._replace(loop=1 + at // 50) for at, one in enumerate(run.opens)]
    assert explain(dataclasses.replace(run, opens=after), EIGHT).run.batches == 60


def test_a_replay_that_is_far_off_is_told_of():
    found = explain(recorded(), EIGHT)
    assert not any("The replay is far off" in line for line in explain_command.lines(found))
    off = dataclasses.replace(found, replayed=dataclasses.replace(found.replayed, samples_per_s=1e6))
    assert any("The replay is far off" in line for line in explain_command.lines(off))


def test_what_a_dataset_raises_is_told_in_a_line(tmp_path, capsys, monkeypatch):
    path = str(tmp_path / "run.json")
    with mpiter.batches(Sleeping(400), 4, n_processes=1, trace=path) as it:
        assert len(list(it)) == 100
    (tmp_path / "raises.py").write_text("class Own(list):\n    def __getitem__(self, i):\n        raise KeyError(i)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(explain_command, "measured", lambda: (1.0, 2.0))
    monkeypatch.setattr(explain_command, "named", lambda name: __import__("raises").Own([1] * 40))
    assert explain_command.run(argparse.Namespace(trace=path, verify="raises:Own", seconds=1.0)) == 1
    assert "raises.py, line 3, in __getitem__" in capsys.readouterr().err


DAMAGED = {
    "empty": b"",
    "a number": b"3",
    "a list": b"[]",
    "no events": b'{"otherData": {"mpiter": 1}}',
    "a torn line": b'{"loop"',
    "no more than a loop": b'{"loop": 1}\n',
    "no rows": b'{"loop": 1, "kind": "task", "bytes": 7, "zero": 0, "about": null}\n1234567',
    "events that are none": b'{"traceEvents": 5, "otherData": {"mpiter": 1, "loops": {}}}',
    "deep": b"[" * 100_000,
    "of others": b'[{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]',
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_file_is_refused(tmp_path, what):
    (tmp_path / "run.json").write_bytes(DAMAGED[what])
    with pytest.raises(OptionError, match=r"is no trace|has no task"):
        explain(read(tmp_path / "run.json"), EIGHT)


def test_too_short_a_run_is_refused():
    with pytest.raises(OptionError, match="the trace has 5 steps of the trainer; 20 are needed"):
        run_of(recorded(batches=5))
    with pytest.raises(OptionError, match="no task that a worker has answered"):
        run_of(Recorded({}, [], [], [], [], [], [], 0, 1))


def test_a_real_run_is_explained_in_lines_of_a_screen(tmp_path, capsys, monkeypatch):
    path = str(tmp_path / "run.json")
    dataset = [np.full(8, i) for i in range(400)]
    with mpiter.batches(dataset, 4, n_processes=2, trace=path) as it:
        assert len(list(it)) == 100
    case = run_of(read(path)).case
    assert len(case.load.steps) >= 90
    assert case.load.room_bytes >= 4 * 64
    assert case.machine.memory_bytes == machine.memory_total()
    monkeypatch.setattr(explain_command, "measured", lambda: (1.0, 2.0))
    assert explain_command.run(argparse.Namespace(trace=path, verify=None, seconds=1.0)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("measured: workers: 2, n_prefetch: 2")
    assert lines[-1].startswith("With data for nothing the trainer would be ")


def test_what_is_carried_out_is_the_dataset_under_other_options(monkeypatch):
    found = explain(recorded(io=0.004, step=0.001, batch_size=2), EIGHT)
    assert found.best is not None
    rate = explain_command.carried_out([np.zeros(2)] * 10, found.best, 0.3)
    assert 0 < rate < 2 / 0.001
    lines = list(explain_command.verified(explain(recorded(io=0.02, step=0.05), EIGHT), [], 1.0))
    assert lines == ["Nothing that options can change would gain more than 3%, so there is nothing to carry out."]


def test_the_trainer_of_what_is_carried_out_does_a_fixed_amount_of_work(monkeypatch):
    """Who shares its core is to be slowed by that."""
    done = []
    monkeypatch.setattr(explain_command, "work", lambda rounds: done.append(rounds))
    monkeypatch.setattr(explain_command, "rounds_per_s", lambda: 1000.0)
    case = Case(Load([Service(0.0)], [Service(0.5)], batch_size=2), Machine.of(2), Setting(0, 2))
    explain_command.carried_out([np.zeros(2)] * 10, predicted("", case), 0.01)
    assert set(done) == {500.0}


@pytest.mark.parametrize("seconds", ["-3", "0", "nan", "many"])
def test_seconds_that_are_none_are_refused(seconds, capsys):
    parser = argparse.ArgumentParser()
    explain_command.add_to(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["explain", "run.json", "--seconds", seconds])
    assert "--seconds" in capsys.readouterr().err


def test_a_simulated_run_of_many_workers_is_as_fast_as_its_trainer():
    run = run_of(recorded(io=0.1, step=0.02))
    outcome = simulate(run.case.load, Machine(tuple(EIGHT)), 8, 2, 100)
    assert outcome.batch_s(30) == pytest.approx(0.02, rel=0.02)
