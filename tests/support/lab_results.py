"""What the lab may have to show, made up: a result of each experiment, odd plots, and a report read as XML."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from mpiter.lab import echo, hide, images, laboratory, overhead, peers, results, speedup, staging
from mpiter.lab.experiments import EXPERIMENTS
from mpiter.lab.report import sheet
from mpiter.lab.report.page import page
from mpiter.lab.results import Result, Row
from mpiter.lab.turns import Turn
from mpiter.lab.views import Bar, Bars, Lines, Point, Section, Series, Span, Table, Timeline

drawn = pytest.mark.skipif(not sheet.can_be_drawn(), reason="plots are drawn by matplotlib: pip install 'mpiter[lab]'")
TITLE = "Lab report: results/2026-11-21"
HEADING = {
    "schema": results.SCHEMA,
    "command": "python -m mpiter lab overhead",
    "again": "mpiter lab overhead --seed 0",
    "started": "2026-11-21T12:00:00+0000",
    "took_s": 12.0,
    "machine": {"cpu": "a processor", "cores_usable": 2, "memory_bytes": 24e9, "system": "Linux"},
    "commit": {"id": None, "dirty": None},
    "versions": {"python": "3.11", "mpiter": "0.1.0"},
}


def turn(row, case="28x28", **at):
    return Turn("overhead", row, case, at or {"workers": 2}, 0.1, 0.1, seed=0)


def result_of(rows, experiment="overhead", **settings):
    """A result from (row, case, at, {figure: a value for each round})."""
    made = [
        Row(row, case, at, {name: dict(enumerate(values)) for name, values in figures.items()})
        for row, case, at, figures in rows
    ]
    return Result(experiment, dict(HEADING), {**EXPERIMENTS[experiment].FULL, **settings}, made)


def everything():
    """A result of each experiment, made up."""
    steady = [10.0, 10.1, 10.2]
    cpu = {"cpu_ms": steady, "parent_cpu_ms": steady, "workers_cpu_ms": steady}
    moved = {
        "batches_per_s": steady,
        "mb_per_s": steady,
        "copied_mb": steady,
        "piped_mb": steady,
        "peak_mb": steady,
        "fetch_ms": steady,
    }
    moved |= cpu | {"first_batch_s": steady, "payload_mb": steady}
    dear = moved | {"cpu_ms": [100.0, 101.0, 102.0]}
    yield result_of(
        [
            (row, "28x28", {"workers": w}, dear if row == "pickle" else moved)
            for w in (1, 2)
            for row in overhead.TRANSPORTS
        ]
    )
    step = {"images_per_s": steady, "batch_s": steady, "parent_cpu_ms": steady, "workers_cpu_ms": steady}
    fast = step | {"images_per_s": [20.0, 20.2, 20.4]}
    rows = [
        (speedup.SEQUENTIAL, 0, step),
        *((r, 2, fast) for r in (speedup.PARALLEL, speedup.OURS, speedup.IN_WORKERS)),
    ]
    yield result_of(
        [(row, case, {"workers": w, "cost": 2, "batch_size": 300}, figures)
         for case in (speedup.BY_WORKERS, speedup.BY_BATCH) for row, w, figures in rows],
        "speedup",
    )  # fmt: skip
    loading = cpu | {"batches_per_s": steady, "tracemalloc_mb": steady, "tree_mb": steady}
    yield result_of(
        [(row, "store", {"workers": w}, loading | {"seconds": [9.0 / max(1, w)] * 3})
         for row in ("process", "thread") for w in (0, 1, 2) if w or row == "process"],
        "workers", dataset=["store"],
    )  # fmt: skip
    split = {"batch_ms": [100.0] * 3, "cpu_ms": [10.0] * 3, "read_ms": [90.0] * 3, "transform_ms": [8.0] * 3}
    made = result_of(
        [
            (hide.SPLIT, "store", {"workers": 0}, split | {"collate_ms": [2.0] * 3}),
            *((hide.LOADING, "store", {"workers": w}, {"batch_ms": [99 / w] * 3, "cpu_ms": steady}) for w in (1, 2, 3)),
            *((hide.TRAINING, "store", {"workers": w}, {"step_ms": [40.0] * 3, "wait_ms": [60.0 if w < 3 else 0.1] * 3})
              for w in (1, 2, 3)),
        ],
        "hide", dataset="store",
    )  # fmt: skip
    lane = ["consumer", [[0.0, 0.5, "wait", ""], [0.5, 1.0, "step", ""]]]
    made.extra = {hide.TRAINING: {"store": {"1": [lane], "3": [lane, ["worker 0", [[0.0, 0.9, "fetch", "batch 3"]]]]}}}
    yield made
    yield result_of(
        [(row, case, {"workers": w}, cpu | {images.FIGURE: [rate, 1.01 * rate, 1.02 * rate]})
         for case in images.CASES for w in (0, 2) for rate, row in enumerate(images.ROWS, 10)],
        "images",
    )  # fmt: skip
    copied = {"first_per_s": [20.0, 20.2, 20.4], "later_per_s": [100.0, 101.0, 102.0], "staged_s": steady}
    yield result_of(
        [(staging.NONE, staging.CASE, {"workers": 2, "room": 0}, {"first_per_s": steady, "later_per_s": steady}),
         *((row, staging.CASE, {"workers": 2, "room": room}, copied | {"hit_rate": [room] * 3})
           for room in (0.5, 1) for row in (staging.FOLDER, staging.MEMORY))],
        "staging",
    )  # fmt: skip
    yield result_of(
        [("augmented", echo.CASE, {"workers": 2, "ratio": ratio, "factor": factor},
          {echo.FIGURE: [few * echo.predicted(ratio, factor, 20e-3) for few in (0.97, 0.98, 0.99)],
           "fresh": [1 / factor] * 3})
         for ratio in (1, 2, 4) for factor in (1, 1.5, 2, 3, 4)],
        "echo",
    )  # fmt: skip
    loaded = cpu | {"batches_per_s": steady, "first_batch_s": steady}
    yield result_of([(row, "28x28", {"workers": 2}, loaded) for row in peers.ROWS], "peers")


def sections():
    """What a report says of them; the first has a warning, and something is absent."""
    found = list(everything())
    found[0].absent["grain"], found[0].ended_by = "pip install grain", "it was interrupted"
    return [laboratory._section(EXPERIMENTS[made.experiment], made) for made in found]


# -- plots of anything ------------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


SECTIONS = sections()
PLOTS = sum(not isinstance(view, Table) for section in SECTIONS for view in section.views)


@functools.cache
def report() -> str:
    """The page of all sections, which takes some seconds to draw."""
    return page(SECTIONS, TITLE)


def lines(*points, name="s", published=False, predicted=False, **others):
    series = Series(name, tuple(Point(*point) for point in points), published, predicted)
    return Lines("t", "x", "y", (series,), **others)


def rows(*values, name="b", **others):
    bars = tuple(Bar(f"{name}{n}", (value,)) for n, value in enumerate(values))
    return Bars("t", "u", ("p",), (("g", bars),), **others)


def spans(*edges):
    return Timeline("t", (("lane", tuple(Span(begin, end, "k", "l") for begin, end in edges)),))


DRAWABLE = {
    "one point": lines((3, 4)),
    "one point at zero": lines((0, 0)),
    "all zeros": lines((0, 0), (1, 0), (2, 0)),
    "huge": lines((1e20, 1e99), (2e20, 1e100)),
    "tiny": lines((1e-200, 1e-299), (2e-200, 5e-324)),
    "beneath zero": lines((-1, -5), (1, 5)),
    "holes": lines((1, 1), (2, NAN), (3, None), (4, 4), (NAN, 5), (6, INF)),
    "one quartile missing": lines((1, 1, None, 2), (2, 2, 1, NAN), (3, 3, 2, 4)),
    "a target far above": lines((1, 1), (2, 2), target=("limit", 1e6)),
    "a target that is none": lines((1, 1), (2, 2), target=("limit", NAN)),
    "a thousand points with a band": lines(*((n, n % 7, n % 7 - 1, n % 7 + 1) for n in range(1000))),
    "thirty curves": Lines("t", "x", "y", tuple(Series(f"s{n}", (Point(1, n), Point(2, n))) for n in range(30))),
    "nameless": Lines("", "", "", (Series("", (Point(1, 1), Point(2, 2))),)),
    "a name like a novel": Lines("t", "x", "y", (Series("word " * 99, (Point(1, 1), Point(2, 2))),)),
    "names in Japanese": Lines("t", "x", "y", (Series("反復子のデータ", (Point(1, 1), Point(2, 2))),)),
    "bars of zero": rows(0, 0),
    "one bar": rows(7),
    "bars on both sides": rows(-3, 5),
    "bars with a hole": rows(NAN, 2, None, INF),
    "bars from 1e-300 to 1e99": rows(1e-300, 1e99),
    "bars and a target that is none": rows(1, target=("limit", INF)),
    "an empty group among others": Bars("t", "u", ("p",), (("", ()), ("g", (Bar("b", (1,)), Bar("c", ()))))),
    "parts of both signs": Bars("t", "u", ("p", "q", "r"), (("g", (Bar("b", (3, -1, NAN), low=1, high=4),)),)),
    "a bar's name like a novel": Bars("t", "u", ("p",), (("", (Bar("名前 " * 99, (1,), "says " * 99),)),)),
    "a group's name like a novel": Bars("t", "u", ("p",), (("word " * 99, (Bar("b", (1,)),)),)),
    "one lane": spans((0, 1)),
    "five hundred spans": spans(*((n, n + 0.9) for n in range(500))),
    "a span without length": spans((0, 0)),
    "spans of nanoseconds": spans((1e-9, 2e-9)),
    "spans before the beginning": spans((-3, -1), (2, 5)),
    "spans with holes": spans((NAN, 1), (2, INF), (3, None), (5, 4), (1, 2)),
    "an idle lane": Timeline("t", (("busy", (Span(0, 1, "k"),)), ("idle", ()))),
    "many kinds": Timeline("t", (("lane", tuple(Span(n, n + 1, f"k{n}") for n in range(20))),)),
}
EMPTY = {
    "no curves": Lines("t", "x", "y", ()),
    "a curve without points": lines(),
    "points that are none": lines((NAN, 1), (1, None)),
    "no groups": Bars("t", "u", (), ()),
    "groups without bars": Bars("t", "u", ("p",), (("g", ()),)),
    "bars that are none": rows(NAN, None),
    "no lanes": Timeline("t", ()),
    "lanes without spans": Timeline("t", (("lane", ()),)),
    "spans that are none": spans((NAN, NAN)),
}


# -- the report ----------------------------------------------------------------------------------------------------


def parsed(document):
    """As XML, which is stricter than a browser: every element is closed, every attribute quoted, all text escaped."""
    doctype, _, rest = document.partition("\n")
    assert doctype == "<!doctype html>"
    return ElementTree.fromstring(rest)


def having(root, **attributes):
    return [node for node in root.iter() if all(node.get(key) == value for key, value in attributes.items())]


def text_of(node):
    return " ".join("".join(node.itertext()).split())


def alone(*views, **others):
    """A section that has nothing but views."""
    blank = Section("one", "One", about="", says=(), warnings=(), absent=(), views=views, command="")
    return replace(blank, **others)
