"""``trace=``: the file keeps the published format, says what ``stats()`` says, and outlives what ends a program."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.errors import OptionError
from mpiter.rules import Rules
from mpiter.tuning import trace as tracing
from mpiter.tuning.events import CONSUMER, PREFETCH, WORKER, _thinned
from mpiter.tuning.trace import Trace, Tracer, read
from mpiter.worker.task import Ticket

_NAMES_OF_METADATA = {"process_name", "process_sort_index", "process_labels", "thread_name", "thread_sort_index"}


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def breaks_a_rule(event: dict[str, Any]) -> str:
    """What the Trace Event Format has against an event: the keys of each phase, and their types."""
    phase = event.get("ph")
    if phase not in ("X", "C", "i", "M"):
        return f"a phase that isn't used here: {phase}"
    if not isinstance(event.get("name"), str) or not isinstance(event.get("pid"), int):
        return "every event has a name and a pid"
    if not is_number(event.get("ts")) or not isinstance(event.get("tid"), int):
        return "every event has a time, of microseconds, and a tid"
    args = event.get("args")
    if not isinstance(args, dict):
        return "args is an object"
    if phase == "X" and not (is_number(event.get("dur")) and event["dur"] >= 0):
        return "a complete event has a duration"
    if phase == "C" and not (args and all(map(is_number, args.values()))):
        return "a counter has numbers"
    if phase == "i" and event.get("s") not in ("g", "p", "t"):
        return "an instant has a scope"
    if phase == "M":
        wanted = "sort_index" if event["name"].endswith("sort_index") else "name"
        if event["name"] not in _NAMES_OF_METADATA or wanted not in args:
            return "metadata has a known name and its argument"
    return ""


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a file that keeps all rules."""
    trace = json.loads(path.read_text())
    assert isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    broken = {rule for event in trace["traceEvents"] if (rule := breaks_a_rule(event))}
    assert not broken
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"} <= named
    return list(trace["traceEvents"])


def spans_by_thread(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[float, float, str]]]:
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    return {lane: sorted(spans) for lane, spans in found.items()}


def overlaps(events: list[dict[str, Any]]) -> list[Any]:
    """Spans of one thread that begin before the last one has ended."""
    return [
        (lane, one, other)
        for lane, spans in spans_by_thread(events).items()
        for one, other in itertools.pairwise(spans)
        if other[0] < one[1]
    ]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sums_of_a_trace_are_those_of_the_stats(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "run.json"
    with mpiter.batches(range(200), 8, n_processes=workers, trace=path) as stream:
        assert sum(len(batch) for batch in stream) == 200
        stats = stream.stats()
    events, found = events_of(path), read(path)
    assert not overlaps(events)
    assert left_in(tmp_path) == ["run.json"]

    def total(*spans: Any) -> float:
        return sum(span.seconds for span in itertools.chain(*spans))

    assert len(found.fetched) == stats.tasks
    assert sum(task.rows for task in found.fetched) == stats.samples
    assert (len(found.opens), len(found.steps)) == (stats.batches, stats.batches)  # the last one before the end

    def is_sum(seconds: float, *spans: Any) -> bool:
        """Beginnings and ends are whole microseconds."""
        return abs(total(*spans) - seconds) <= 1e-6 * sum(map(len, spans))

    assert is_sum(stats.wait_s, found.waits)
    assert is_sum(stats.order_s, found.orders)
    assert is_sum(stats.deliver_s, found.opens, found.deliveries)
    assert total(found.fetched) == pytest.approx(stats.fetch_s + stats.pack_s, abs=1e-6)
    names = {"queue_s": "queue_s", "cpu_s": "fetch_cpu_s", "delay_s": "fetch_delay_s", "read_s": "read_s"}
    for name, of_stats in {**names, "pack_s": "pack_s"}.items():
        assert sum(getattr(task, name) for task in found.fetched) == pytest.approx(getattr(stats, of_stats), abs=1e-6)
    (about,) = found.loops.values()
    assert (about["batch_size"], about["n_prefetch"]) == (8, 2 if workers else 1)
    assert (about["backend"], about["workers"]) == (("process", 2) if workers else ("serial", 1))
    assert about["counters"]["batches"] == stats.batches
    assert {task.worker for task in found.fetched} <= set(range(max(workers, 1)))


def test_the_counter_tells_what_is_ready_less_what_has_been_taken(tmp_path: Path) -> None:
    tracer = Trace(str(tmp_path / "run.json")).tally(Rules(workers=1), "process")
    tracer.in_flight(5, 100, 2)
    tracer.in_flight(5, 100, 2)  # nothing new
    tracer.waited(1.0, 1.5)
    at = tracer._loops.rows["queue"][-1][0]
    tracer.opened(at + 1, at + 2)
    tracer.handed_out(4, 100)
    tracer.close()
    counters = [event["args"] for event in events_of(tmp_path / "run.json") if event["ph"] == "C"]
    assert counters == [{"ready": 2, "on their way": 3}, {"ready": 1, "on their way": 3}]


def test_a_step_is_between_two_batches_and_nothing_is_one_after_the_end(tmp_path: Path) -> None:
    tracer = Trace(str(tmp_path / "run.json")).tally(Rules(workers=1), "process")
    for at in (10.0, 20.0):
        tracer.waited(at, at + 1)
        tracer.opened(at + 1, at + 2)
        tracer.handed_out(4, 100)
    tracer.waited(29.0, 30.0)  # the end
    tracer.waited(50.0, 51.0)  # another pass
    tracer.close()
    steps = read(tmp_path / "run.json").steps
    assert [span.seconds for span in steps] == pytest.approx([8.0, 7.0])
    assert all(0 <= span.cpu_s <= span.seconds for span in steps)


def test_a_step_says_how_much_of_it_was_work_and_not_waiting(tmp_path: Path) -> None:
    with mpiter.batches(range(8), 4, n_processes=0, trace=tmp_path / "run.json") as stream:
        next(stream)
        until = time.thread_time() + 0.05
        while time.thread_time() < until:  # work
            pass
        next(stream)
    (step,) = read(tmp_path / "run.json").steps
    assert 0.05 <= step.cpu_s <= step.seconds


def test_ends_and_changes_of_workers_are_marked(tmp_path: Path) -> None:
    tracer = Trace(str(tmp_path / "run.json")).tally(Rules(workers=4), "process")
    tracer.lost(1, was_asked=False)
    tracer.lost(2, was_asked=True)
    tracer.resized(3, 5)
    tracer.close()
    marks = [(event["name"], event["args"]) for event in events_of(tmp_path / "run.json") if event["ph"] == "i"]
    assert marks == [
        ("worker 1 was lost, and is replaced", {"worker": 1, "was_asked": 0}),
        ("worker 2 has ended, as it was asked to", {"worker": 2, "was_asked": 1}),
        ("3 workers, n_prefetch 5", {"workers": 3, "n_prefetch": 5}),
    ]


class Deadly:
    """Its sample 40 ends the worker, once."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> int:
        if index == 40 and not self.marker.exists():
            self.marker.touch()
            os._exit(3)
        return index


@pytest.mark.death
def test_a_worker_that_dies_is_in_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with mpiter.batches(Deadly(tmp_path / "died"), 8, n_processes=2, shuffle=False, trace=path) as stream:
        assert sum(len(batch) for batch in stream) == 80
    assert [event["name"] for event in events_of(path) if event["ph"] == "i"] != []
    assert not overlaps(events_of(path))


@pytest.mark.parametrize("persistent", [None, False])
def test_all_passes_of_a_loader_are_in_one_file(tmp_path: Path, persistent: bool | None) -> None:
    path = tmp_path / "run.json"
    with mpiter.DataLoader(range(40), 4, num_workers=2, persistent_workers=persistent, trace=path) as loader:
        for _ in range(3):
            assert len(list(loader)) == 10
    found = read(path)
    assert set(found.loops) == ({1} if persistent is None else {1, 2, 3})
    assert sum(about["counters"]["batches"] for about in found.loops.values()) == len(found.opens) == 30
    assert not overlaps(events_of(path))
    assert left_in(tmp_path) == ["run.json"]


@pytest.mark.torch
def test_a_loader_of_torch_traces_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from mpiter.torch import DataLoader

    with DataLoader(range(40), 4, num_workers=1, trace=tmp_path / "run.json") as loader:
        assert len(list(loader)) == 10
    assert len(read(tmp_path / "run.json").opens) == 10


@pytest.mark.chainer
def test_an_iterator_of_chainers_door_traces_too(tmp_path: Path) -> None:
    pytest.importorskip("chainer")
    from mpiter.chainer import MultiprocessIterator

    with MultiprocessIterator(range(40), 4, repeat=False, n_processes=1, trace=tmp_path / "run.json") as it:
        assert len(list(it)) == 10
    assert len(read(tmp_path / "run.json").opens) == 10


class Stream:
    def __iter__(self) -> Any:
        return iter(range(40))


def test_shards_that_run_at_once_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with mpiter.DataLoader(Stream(), 4, num_workers=2, trace=path) as loader:
        assert len(list(loader)) == 10
    names = {event["args"]["name"] for event in events_of(path) if event["name"] == "process_name"}
    assert len(names) == len(read(path).loops) == 2
    assert not overlaps(events_of(path))


def test_another_run_begins_another_file_and_one_that_was_taken_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for _ in range(2):
        list(mpiter.SerialIterator(range(8), 4, repeat=False, trace=path))
    assert set(read(path).loops) == {1}
    trace = Trace(str(path))
    trace.tally(Rules(workers=1), "process").close()
    path.unlink()
    tracer = trace.tally(Rules(workers=1), "process")
    tracer.ordered(1.0, 2.0)
    tracer.close()
    assert [span.loop for span in read(path).orders] == [2]


def test_iterators_that_run_at_once_share_a_file(tmp_path: Path) -> None:
    """One for training, one for validation."""
    path = tmp_path / "run.json"
    with mpiter.batches(range(80), 4, n_processes=1, trace=path) as training:
        next(training)
        with mpiter.batches(range(40), 4, n_processes=1, trace=path) as validation:
            assert len(list(validation)) == 10
        assert len(list(training)) == 19
    assert len(read(path).opens) == 30
    assert left_in(tmp_path) == ["run.json"]


def test_of_two_programs_with_one_path_the_later_takes_a_name_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.json"
    program = "import sys, mpiter; list(mpiter.batches(range(40), 4, n_processes=0, trace=sys.argv[1]))"
    with mpiter.batches(range(80), 4, n_processes=0, trace=path) as stream:
        next(stream)
        time.sleep(0.01)  # files' times are coarser than the clock
        subprocess.run([sys.executable, "-c", program, str(path)], timeout=60, check=True)
    assert len(read(path).opens) == 10
    assert len(read(tmp_path / f"run.{os.getpid()}.json").opens) == 1
    assert "another program has written" in caplog.text


def test_a_trace_behind_a_link_is_written_there(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "run.json")
    list(mpiter.batches(range(8), 4, n_processes=0, trace=tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert len(read(tmp_path / "run.json").opens) == 2


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, ""):
        with pytest.raises(OptionError, match="no file that can be written anew"):
            mpiter.batches(range(8), 4, n_processes=0, trace=path)
    for value in (True, 5, b"run.json"):
        with pytest.raises(OptionError, match="is no path"):
            mpiter.batches(range(8), 4, n_processes=0, trace=value)  # type: ignore[arg-type]
    assert (tmp_path / "fifo").is_fifo()


def test_of_many_changes_in_a_millisecond_the_last_is_written(tmp_path: Path) -> None:
    seen = np.array([[1.0001, 5, 1], [1.0002, 5, 2], [1.0003, 5, 3], [1.0015, 4, 2]])
    assert _thinned(seen).tolist() == seen[2:].tolist()


def test_an_iterator_that_is_dropped_writes_its_trace(tmp_path: Path) -> None:
    stream = mpiter.batches(range(8), 4, n_processes=0, trace=tmp_path / "run.json")
    next(stream)
    del stream
    assert len(read(tmp_path / "run.json").opens) == 1


@pytest.mark.parametrize("twin", [copy.copy, lambda it: pickle.loads(pickle.dumps(it))], ids=["copy", "pickle"])
def test_a_copy_of_an_iterator_traces_too(tmp_path: Path, twin: Any) -> None:
    with mpiter.batches(range(8), 4, n_processes=0, trace=tmp_path / "run.json") as stream, twin(stream) as other:
        assert len(list(other)) == 2
    assert len(read(tmp_path / "run.json").opens) == 2


_KILLED = """
import os, signal, sys, mpiter
from mpiter.tuning import trace
trace._EVERY_S = 0.0
for at, batch in enumerate(mpiter.batches(range(400), 4, n_processes=0, trace=sys.argv[1])):
    if at == 50:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_program_has_noted_can_be_read(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "run.json")]
    assert subprocess.run(command, timeout=60, check=False).returncode == -signal.SIGKILL
    (name,) = left_in(tmp_path)
    assert name.startswith("run.json.")
    assert name.endswith(".part")
    found = read(tmp_path / name)
    assert len(found.opens) >= 50
    assert len(found.fetched) >= 50
    assert found.loops[1]["batch_size"] == 4
    whole = (tmp_path / name).read_bytes()
    (tmp_path / "torn").write_bytes(whole[:-1])  # killed while it wrote
    assert len(read(tmp_path / "torn").opens) >= 49
    (tmp_path / "torn").write_bytes(whole + b'{"loop": 1, "ki\n')
    assert len(read(tmp_path / "torn").opens) >= 50


_PART_IN_ADVANCE = """
import os, pathlib, sys, mpiter
folder = pathlib.Path(sys.argv[1])
(folder / "elsewhere").write_text("another's")
for number in range(1, 4):  # what was left by a killed program with our pid, as every container has it, torn or a link
    (folder / f"run.json.{os.getpid()}-{number}.part").write_bytes(b'{"loop": 1, "kind": "or')
    (folder / f"run.json.{os.getpid()}-{number}.part.json").symlink_to(folder / "elsewhere")
with mpiter.batches(range(40), 4, n_processes=0, trace=folder / "run.json") as stream:
    assert len(list(stream)) == 10
assert (folder / "elsewhere").read_text() == "another's"
"""


def test_what_a_killed_program_with_our_pid_has_left_is_left_alone(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _PART_IN_ADVANCE, str(tmp_path)], timeout=60, check=True)
    assert len(read(tmp_path / "run.json").opens) == 10


def test_a_program_that_ends_without_closing_writes_its_trace(tmp_path: Path) -> None:
    program = "import sys, mpiter; it = mpiter.batches(range(40), 4, n_processes=1, trace=sys.argv[1]); next(it)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run.json")], timeout=60, check=True)
    assert len(read(tmp_path / "run.json").opens) == 1
    assert left_in(tmp_path) == ["run.json"]


# -- bounds and failures -----------------------------------------------------------------------------------------------


def ticket(worker: int, began: float = 1.0, seconds: float = 0.5) -> Ticket:
    return Ticket(
        0, 1, worker, 8, seconds, (), began=began, queue_s=0.1, cpu_s=0.2, delay_s=0.3, pack_s=0.05, read_s=0.15
    )


def test_a_task_is_told_with_all_that_its_ticket_says(tmp_path: Path) -> None:
    tracer = Trace(str(tmp_path / "run.json")).tally(Rules(workers=2), "process")
    tracer.answered(ticket(1), again=True)
    tracer.answered(ticket(0, began=0.0, seconds=0.0), again=False)  # of one that failed as a whole
    tracer.close()
    first, second = read(tmp_path / "run.json").fetched
    assert first[3:] == (0.5, 8, 0.1, 0.2, 0.3, 0.15, 0.05, True)
    assert (first.worker, second.worker) == (1, 0)
    assert second.began >= 0
    assert {event["tid"] for event in events_of(tmp_path / "run.json") if event["ph"] == "X"} == {WORKER, WORKER + 1}


def test_rows_beyond_what_a_file_may_hold_are_counted_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "MOST", 10)
    monkeypatch.setattr(tracing, "_EVERY_S", 0.0)
    tracer = Trace(str(tmp_path / "run.json")).tally(Rules(workers=1), "process")
    for at in range(20):
        tracer.ordered(at, at + 0.5)
        tracer.in_flight(at, 1, 0)
    tracer.close()
    found = read(tmp_path / "run.json")
    assert found.left_out == 30
    other = json.loads((tmp_path / "run.json").read_text())["otherData"]
    assert (other["most_rows"], other["left_out"]) == (10, 30)
    assert tracer.order_s == 10.0, "what is not written is counted all the same"


def test_memory_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_EVERY_S", 0.0)
    tracer = Trace(str(tmp_path / "run.json")).tally(Rules(workers=1), "process")
    for at in range(1, 50):
        tracer.opened(1e9 * at, 1e9 * at + 1)
        tracer.handed_out(1, 1)
        tracer.in_flight(at, 1, 0)
        tracer.answered(Ticket(at, 1, 0, 1, 1.0, (), began=1e9 * at), again=False)
        assert not any({**tracer._consumers.rows, **tracer._loops.rows}.values())
    tracer.close()
    assert len(read(tmp_path / "run.json").opens) == 49


@pytest.mark.parametrize("when", ["noting", "finishing"])
def test_a_disk_that_is_full_ends_the_trace_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    stream = mpiter.batches(range(40), 4, n_processes=0, trace=tmp_path / "run.json")
    if when == "noting":
        monkeypatch.setattr(tracing, "open", lambda name, mode: open("/dev/full", "wb"), raising=False)  # noqa: SIM115
    else:
        monkeypatch.setattr(tracing.os, "replace", full)
    assert len(list(stream)) == 10
    stream.close()
    (record,) = [record for record in caplog.records if record.name == "mpiter"]
    assert "run.json cannot be written, and ends here: [Errno 28]" in record.getMessage()
    assert not (tmp_path / "run.json").exists()
    assert all(name.endswith(".part") for name in left_in(tmp_path)), "what there is can still be read"


def test_a_folder_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no folder"):
        mpiter.batches(range(4), 2, trace=tmp_path / "nowhere" / "run.json")
    with pytest.raises(OptionError, match="is no trace of this version of mpiter"):
        (tmp_path / "other.json").write_text('{"traceEvents": []}')
        read(tmp_path / "other.json")


def test_without_a_trace_nobody_listens() -> None:
    with mpiter.batches(range(8), 4, n_processes=0) as stream:
        next(stream)
        assert stream._pump.loop is not None
        assert type(stream._pump.loop.tally) is not Tracer


def test_threads_of_a_loop_have_names(tmp_path: Path) -> None:
    with mpiter.MultithreadIterator(range(8), 4, repeat=False, n_threads=1, trace=tmp_path / "run.json") as it:
        list(it)
    events = events_of(tmp_path / "run.json")
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {CONSUMER: "consumer", PREFETCH: "prefetch thread", WORKER: "worker 0"}
