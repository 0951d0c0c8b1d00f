"""The file of ``Trace`` keeps the published format, and says what ``stats()`` says.

It is whole however the program ends.  ``mpiter trace`` draws it as a page that needs no
other file.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import pickle
import re
import signal
import subprocess
import sys
import weakref
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

import mpiter
from mpiter.__main__ import main
from mpiter.errors import OptionError
from mpiter.transport.memory import write_all
from mpiter.tuning import timeline
from mpiter.tuning import trace as tracing
from mpiter.tuning.trace import Trace

Event = dict[str, Any]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def keeps_the_rules(event: Event) -> bool:
    """Return whether an event has the keys and types of the Trace Event Format.

    They depend on the phase of the event.
    """
    phase = event["ph"]
    args = event["args"]
    named = (
        isinstance(event["name"], str)
        and isinstance(event["pid"], int)
        and isinstance(event["tid"], int)
    )
    return (
        named
        and is_number(event["ts"])
        and {
            "X": lambda: is_number(event["dur"]) and event["dur"] >= 0,
            "C": lambda: args and all(map(is_number, args.values())),
            "i": lambda: event["s"] in ("g", "p", "t"),
            "M": lambda: (
                event["name"] in ("process_name", "thread_name")
                and isinstance(args["name"], str)
            ),
        }[phase]()
    )


def events_of(path: Path) -> list[Event]:
    """Return the events of a file, and check that they keep all rules.

    Each span of a thread must end before the next one begins.
    """
    events: list[Event] = json.loads(path.read_text())
    assert all(map(keeps_the_rules, events))
    spans = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            spans[event["pid"], event["tid"]].append(
                (event["ts"], event["ts"] + event["dur"])
            )
    assert set(spans) <= {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name"
    }
    for of_thread in spans.values():
        assert all(
            one[1] <= other[0] for one, other in itertools.pairwise(sorted(of_thread))
        )
    return events


@pytest.mark.parametrize(
    "planted", ["run.json", "run.json.{}"], ids=["the file", "the new one"]
)
def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(
    tmp_path: Path, planted: str
) -> None:
    (tmp_path / "another's").write_text("whole")
    (tmp_path / planted.format(os.getpid())).symlink_to("another's")
    with mpiter.batches(
        range(4), 2, n_processes=0, hooks=Trace(str(tmp_path / "run.json"))
    ) as stream:
        list(stream)
    assert (tmp_path / "another's").read_text() == "whole"
    assert events_of(tmp_path / "run.json")


def named(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["name"] == name]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sums_of_a_trace_are_those_of_the_stats(
    tmp_path: Path, workers: int
) -> None:
    path = tmp_path / "run.json"
    with mpiter.batches(
        range(200), 8, n_processes=workers, hooks=Trace(path)
    ) as stream:
        assert sum(len(batch) for batch in stream) == 200
        stats = stream.stats()
    events = events_of(path)
    assert left_in(tmp_path) == ["run.json"]
    fetched = named(events, "fetch")
    opened = named(events, "open")
    assert (len(opened), len(named(events, "step"))) == (stats.batches, stats.batches)
    assert (
        sum(task["args"]["rows"] for task in fetched)
        == sum(batch["args"]["samples"] for batch in opened)
        == 200
    )
    waits = named(events, "wait")
    waited_s = sum(wait["dur"] for wait in waits) / 1e6
    assert abs(waited_s - stats.wait_s) <= 1e-6 * len(waits)
    names = {
        event["tid"]: event["args"]["name"] for event in named(events, "thread_name")
    }
    assert {names[event["tid"]] for event in fetched} <= {
        f"worker {number}" for number in range(max(workers, 1))
    }
    assert {names[event["tid"]] for event in opened} == {"consumer"}
    if workers:
        assert max(event["args"]["ready"] for event in named(events, "batches")) <= 2


class Deadly:
    """The first worker that fetches sample 40 ends."""

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
    with mpiter.batches(
        Deadly(tmp_path / "died"), 8, n_processes=2, shuffle=False, hooks=Trace(path)
    ) as stream:
        assert sum(len(batch) for batch in stream) == 80
    (mark,) = (event["name"] for event in events_of(path) if event["ph"] == "i")
    assert mark.endswith(" was lost, and is replaced")


class Stream:
    def __iter__(self) -> Any:
        return iter(range(40))


@pytest.mark.parametrize(
    ("dataset", "workers", "persistent"),
    [(range(40), 1, False), (Stream(), 2, None)],
    ids=["fresh workers", "shards of a stream"],
)
def test_all_loops_of_a_loader_are_in_one_file(
    tmp_path: Path, dataset: Any, workers: int, persistent: bool | None
) -> None:
    path = tmp_path / "run.json"
    with mpiter.DataLoader(
        dataset,
        4,
        num_workers=workers,
        persistent_workers=persistent,
        hooks=Trace(path),
    ) as loader:
        for _ in range(2):
            assert len(list(loader)) == 10
    events = events_of(path)
    assert Counter(event["name"] for event in events)["open"] == 20
    assert len(named(events, "process_name")) == 2
    assert left_in(tmp_path) == ["run.json"]


_PROGRAM = """
import os, signal, sys, mpiter
from mpiter.tuning import Trace, trace
trace._EVERY_S = 0.0
stream = mpiter.batches(range(400), 4, n_processes=0, hooks=Trace(sys.argv[1]))
for at, batch in enumerate(stream):
    if at == 50 and len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_program_has_noted_is_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(tmp_path / "run.json"), "killed"]
    ran = subprocess.run(command, timeout=60, check=False)
    assert ran.returncode == -signal.SIGKILL
    assert len(named(events_of(tmp_path / "run.json"), "open")) >= 50


def test_of_two_programs_with_one_path_the_later_replaces_the_file_of_the_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_EVERY_S", 0.0)
    path = tmp_path / "run.json"
    path.write_text("an older trace, which was longer" * 100_000)
    with mpiter.batches(range(80), 4, n_processes=0, hooks=Trace(path)) as stream:
        twin = pickle.loads(pickle.dumps(stream))
        next(stream)
        assert len(named(events_of(path), "open")) == 1
        subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(path)], timeout=60, check=True
        )
        assert len(list(stream)) == 19
    assert len(named(events_of(path), "open")) == 100
    with twin:
        assert len(list(twin)) == 20
    assert len(named(events_of(path), "open")) == 20
    assert left_in(tmp_path) == ["run.json"]


def test_an_iterator_that_is_not_closed_writes_its_trace(tmp_path: Path) -> None:
    program = (
        "import sys, mpiter; from mpiter.tuning import Trace; "
        "it = mpiter.batches(range(40), 4, n_processes=1, "
        "hooks=Trace(sys.argv[1])); next(it)"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run.json")],
        timeout=60,
        check=True,
    )
    assert len(named(events_of(tmp_path / "run.json"), "open")) == 1


def test_the_garbage_collector_may_end_another_loop_while_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    trace = Trace(path)

    def with_collection(*written: Any) -> None:
        monkeypatch.setattr(tracing, "write_all", write_all)
        gc.collect()
        write_all(*written)

    gc.disable()
    try:
        # It is dropped, but as part of a circle it stays until the collector runs.
        dropped = Circle(mpiter.batches(range(12), 4, n_processes=0, hooks=trace))
        list(dropped.stream)
        gone = weakref.ref(dropped)
        del dropped
        monkeypatch.setattr(tracing, "write_all", with_collection)
        with mpiter.batches(range(8), 4, n_processes=0, hooks=trace) as stream:
            assert len(list(stream)) == 2
    finally:
        gc.enable()
    assert gone() is None
    opened = Counter(event["pid"] for event in named(events_of(path), "open"))
    assert sorted(opened.values()) == [2, 3]


class Circle:
    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.itself = self


# -- bounds and failures ---------------------------------------------------------------


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    for path in (tmp_path, "", tmp_path / "nowhere" / "run.json"):
        with pytest.raises(OptionError, match=r"must name a file|must be a path"):
            mpiter.batches(range(8), 4, n_processes=0, hooks=Trace(path))


def test_the_file_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "MOST", 13)
    monkeypatch.setattr(tracing, "_EVERY_S", 0.0)
    with mpiter.batches(
        range(80), 4, n_processes=0, hooks=Trace(tmp_path / "run.json")
    ) as stream:
        assert len(list(stream)) == 20
    assert 8 <= len(events_of(tmp_path / "run.json")) <= 13
    assert "run.json cannot be written, and ends here: it has 13 events" in caplog.text


def test_a_disk_that_is_full_ends_the_trace_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Trace, "_opened", lambda self: os.open("/dev/full", os.O_RDWR))
    trace = Trace(tmp_path / "run.json")
    with mpiter.batches(range(40), 4, n_processes=0, hooks=trace) as stream:
        assert len(list(stream)) == 10
    (record,) = [record for record in caplog.records if record.name == "mpiter"]
    assert (
        "run.json cannot be written, and ends here: [Errno 28]" in record.getMessage()
    )
    os.close(trace._fd)


# -- the page that `mpiter trace` writes -----------------------------------------------


def drawn(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the page of a trace, from the place that the command prints.

    The page loads nothing and runs nothing.
    """
    assert main(["trace", str(path), *options]) == 0
    text = Path(capsys.readouterr().out.strip()).read_text()
    assert not re.search(r"""<script|src=|href=|url\(|@import|javascript:""", text)
    return text


def test_a_page_beside_the_trace_has_each_batch_as_a_bar_with_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run & <run>.json"
    with mpiter.batches(range(80), 8, n_processes=0, hooks=Trace(path)) as stream:
        assert len(list(stream)) == 10
    text = drawn(path, capsys)
    assert left_in(tmp_path) == ["run & <run>.html", "run & <run>.json"]
    assert "<title>Timeline of run &amp; &lt;run&gt;.json</title>" in text
    time = r"[\d.]+\xa0(?:µs|ms|s)"
    bars = re.findall(rf"<title>(step|open|fetch): {time} from {time} on", text)
    assert Counter(bars) == {"step": 10, "open": 10, "fetch": 10}
    assert text.count("a batch of 8") == 10
    assert all(
        f">{name}</text>" in text
        for name in ("consumer", "prefetch thread", "worker 0")
    )
    assert "<b>wait</b>: your program waits for a batch" in text
    assert re.search(r'class="faint middle">[\d,.]+ (ms|s)</text>', text), (
        "the axis has units"
    )
    assert "10 batches in " in text
    assert drawn(path, capsys) == text, "a page of its own is written over"


def a_trace(loops: int, batches: int, workers: int) -> list[Event]:
    """Write a trace of loops one after the other, with steps of 4 ms.

    The longest wait but the first takes 90 ms.
    """
    events = list[Event]()

    def add(
        pid: int,
        thread: int,
        phase: str,
        what: str,
        begin: int,
        long: int = 0,
        **args: Any,
    ) -> None:
        about = {"pid": pid, "tid": thread, "ts": begin, "dur": long, "cat": "mpiter"}
        events.append({"ph": phase, "name": what, "s": "p", **about, "args": args})

    now = 0
    for loop in range(loops):
        add(
            loop,
            0,
            "M",
            "process_name",
            now,
            name=f"mpiter {loop}: batches of 8, {workers} workers (process)",
        )
        for thread, name in enumerate(
            ["consumer", "prefetch thread", *map("worker {}".format, range(workers))], 1
        ):
            add(loop, thread, "M", "thread_name", now, name=name)
        for batch in range(batches):
            wait = 500
            if not batch:
                wait = 60_000
            elif (loop, batch) == (0, batches // 2):
                wait = 90_000
            worker = batch % workers
            add(
                loop,
                3 + worker,
                "X",
                "fetch",
                now,
                wait + 3_000,
                rows=8,
                queue_s=1e-4,
                cpu_s=1e-3,
            )
            add(loop, 1, "X", "wait", now, wait)
            add(loop, 1, "X", "open", now + wait, 100, samples=8)
            add(loop, 1, "X", "step", now + wait + 100, 4_000)
            add(loop, 2, "C", "batches", now, ready=batch % 3, **{"on their way": 4})
            now += wait + 4_100
        add(loop, 2, "i", "worker 1 was lost, and is replaced", now - 5)
    return events


def test_a_large_trace_is_drawn_in_slices_and_the_longest_wait_closer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "SHAPES", 3_000)
    path = tmp_path / "run.json"
    path.write_text(json.dumps(a_trace(loops=2, batches=2_000, workers=3)))
    text = drawn(path, capsys)
    assert text.count("<h2>") == 1, "loops one after the other have the same rows"
    assert "4,000 batches in 18.6\xa0s, by 2 loops, one after the other." in text
    assert (
        "Its first wait took 60.0\xa0ms, the longest of the others 90.0\xa0ms, at "
        "4.66\xa0s." in text
    )
    assert "rows marked ≈ are drawn in slices of " in text
    assert 500 < text.count("<rect") <= 3_000 + 2 * 6, "and a track for each row"
    assert "<figcaption>Closer: around the longest wait, at " in text
    assert text.count("<title>worker 1 was lost, and is replaced, at ") == 2
    part = drawn(
        path,
        capsys,
        "--from",
        "4.67",
        "--to",
        "4.80",
        "--out",
        str(tmp_path / "part.html"),
    )
    assert "<title>wait: 79.5\xa0ms from 4.67\xa0s on" in part, (
        "it is cut where the page begins"
    )
    assert "slices" not in part
    assert main(["trace", str(path), "--from", "100"]) == 2
    assert "choose other seconds" in capsys.readouterr().err


GOOD = a_trace(1, 2, 1)
FETCH = next(event for event in GOOD if event["name"] == "fetch")
FIGURES = FETCH["args"]


def test_times_below_zero_are_those_of_a_later_clock_and_the_earliest_is_drawn_at_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    pages = []
    for later in (0, 5_000_000):
        path.write_text(
            json.dumps([{**event, "ts": event["ts"] - later} for event in GOOD])
        )
        pages.append(drawn(path, capsys))
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        json.dumps(GOOD).encode()[:-40],
        bytes(range(256)),
        b"[" * 100_000,
        b'{"traceEvents": []}',
        json.dumps([{**GOOD[0], "cat": "other"}]).encode(),
        json.dumps([{**GOOD[0], "ts": 10**400}]).encode(),
        json.dumps([*GOOD, {**GOOD[-2], "pid": 77}]).encode(),
        json.dumps([*GOOD, {**GOOD[-3], "name": "sleep"}]).encode(),
        json.dumps([*GOOD, {**GOOD[-3], "args": None}]).encode(),
        json.dumps([*GOOD, 7]).encode(),
        json.dumps([*GOOD, {**FETCH, "ts": math.nan}]).encode(),
        json.dumps([*GOOD, {**FETCH, "dur": math.inf}]).encode(),
        json.dumps([*GOOD, {**FETCH, "args": {**FIGURES, "cpu_s": math.nan}}]).encode(),
        json.dumps([*GOOD, {**FETCH, "args": {**FIGURES, "queue_s": 1e999}}]).encode(),
        json.dumps([*GOOD, {**FETCH, "args": {**FIGURES, "cpu_s": 9**999}}]).encode(),
        b"[]",
        json.dumps(GOOD[:3]).encode(),
    ],
)
def test_a_damaged_or_foreign_trace_is_an_error_in_a_line_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    assert main(["trace", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert (
        "a Trace has written, or record it again" in line
        or "take some batches while a Trace records" in line
    )
    assert left_in(tmp_path) == ["run.json"]


def test_all_at_one_moment_however_late_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    late = [{**event, "ts": timeline._LARGEST - 1, "dur": 0} for event in GOOD]
    path.write_text(json.dumps(late))
    assert drawn(path, capsys).count("<title>fetch: ") == 2


def test_no_other_file_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(GOOD))
    (tmp_path / "run.html").write_text("my own")
    assert main(["trace", str(tmp_path / "run.json")]) == 2
    assert "name another file by --out" in capsys.readouterr().err
    assert (tmp_path / "run.html").read_text() == "my own"
    for name, says in (
        (str(tmp_path / "none.json"), "No such file"),
        (".", "Is a directory"),
        ("", "Is a directory"),
    ):
        assert main(["trace", name]) == 1
        assert says in capsys.readouterr().err
