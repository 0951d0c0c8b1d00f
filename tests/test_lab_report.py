"""The report: one document that parses, holds every figure, loads nothing, and can be read anywhere, by anyone."""

from __future__ import annotations

import functools
import html
import http.server
import io
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.resources import files
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiter.lab.report import bars, curves, timelines
from mpiter.lab.report.page import page
from mpiter.lab.report.plots import NARROW, WIDE
from mpiter.lab.report.scales import kept_apart, labels, ticks
from mpiter.lab.text import NOTHING, number
from mpiter.lab.views import Bar, Bars, Lines, Point, Section, Series, Span, Table, Timeline

pytestmark = pytest.mark.slow  # a page is the same on every Python, and a browser takes its time
WORKERS = (1, 2, 4, 8)
TRANSPORTS = {  # milliseconds a batch in the parent and in the workers
    "mpiter, slots": (0.021, 0.034),
    "pipe, pickled": (0.31, 0.27),
    "pipe, protocol 5": (0.22, 0.15),
    "shared arrays, one copy": (0.09, 0.11),
    "a file in /dev/shm": (0.14, 0.19),
    "a thread, nothing sent": (0.004, 0.0),
}
PAYLOADS = {"128 x 28x28, uint8": 1, "64 x 3x64x64, float32": 9.3, "32 x 3x224x224, float32": 151.7}
FACTS = (
    ("machine", "AMD EPYC 7B13, 8 cores of 16, 62 GiB"),
    ("system", "Linux 6.1.0-18-cloud-amd64, glibc 2.36"),
    ("versions", "Python 3.11.9, NumPy 2.4.6, mpiter 0.1.0"),
    ("settings", "n_prefetch=2, start_method='fork', rounds=7, seconds_a_round=2.0"),
)


def overhead():
    groups = tuple(
        (
            payload,
            tuple(
                Bar(
                    name,
                    (parent * factor, workers * factor),
                    f"{number((parent + workers) * factor)} ms",
                    (parent + workers) * factor * 0.93,
                    (parent + workers) * factor * 1.12,
                )
                for name, (parent, workers) in TRANSPORTS.items()
            ),
        )
        for payload, factor in PAYLOADS.items()
    )
    rows = tuple(
        (name, *(number((parent + workers) * factor) for factor in PAYLOADS.values()), f"{parent / 0.3:.0%}")
        for name, (parent, workers) in TRANSPORTS.items()
    )
    return Section(
        name="overhead",
        heading="What a batch costs on its way",
        about="The same samples travelled from two workers to the loop by six ways, in seven interleaved rounds. "
        "What the dataset itself takes was measured beside it and is subtracted.",
        says=(
            "Slots cost 0.055 ms a batch of small images, a tenth of what pickling through a pipe costs.",
            "With large images all but slots are bound by the memory's bandwidth.",
        ),
        warnings=("Rounds of “a file in /dev/shm” spread by 29 %: something else was running.",),
        absent=("Huge pages: the kernel offers none to this container.",),
        views=(
            Bars(
                "Processor time a batch, without the dataset's own",
                "ms a batch",
                ("parent", "workers"),
                groups,
                "Each payload has a scale of its own.",
            ),
            Table("The same in figures", ("transport", *PAYLOADS, "of it in the parent"), rows, "Milliseconds."),
        ),
        command="python3 -m mpiter lab overhead --payloads 28x28,3x64x64,3x224x224 --rounds 7 --seed 0 --out results/",
        facts=FACTS,
    )


def curve(name, factor, **kinds):
    figures = [(n, factor * n / (1 + 0.06 * n)) for n in WORKERS]
    spread = not kinds
    points = (Point(n, y, y * 0.95 if spread else None, y * 1.04 if spread else None) for n, y in figures)
    return Series(name, tuple(points), **kinds)


def speedup():
    return Section(
        name="speed-up",
        heading="How much faster with more workers",
        about="A dataset that decodes JPEG files, read by one process and then by more of them.",
        says=("Eight workers of mpiter are 5.4 times as fast as one process.",),
        warnings=(),
        absent=(),
        views=(
            Lines(
                "Speed-up over one process",
                "workers",
                "times as fast",
                (
                    curve("mpiter", 1.0),
                    curve("multiprocessing.Pool", 0.86),
                    curve("torch DataLoader", 0.9),
                    curve("Isobe 2018, 2 x Xeon", 0.97, published=True),
                ),
                "Medians of seven rounds. The dashed curve is from another machine, as its authors gave it.",
            ),
        ),
        command="python3 -m mpiter lab speedup --workers 1,2,4,8",
        facts=FACTS,
    )


def workers():
    epochs = tuple(Point(n, 41.0 / n + 1.1 * n, 40.0 / n + 1.05 * n, 43.0 / n + 1.2 * n) for n in range(1, 9))
    memory = tuple(Point(n, 212 + 38.5 * n) for n in range(1, 9))
    return Section(
        name="workers",
        heading="How many workers to take",
        about="Time of an epoch and memory in use, against the number of workers.",
        says=("Six workers give the shortest epoch; each of them takes 39 MB.",),
        warnings=("This machine has two cores: what more workers would gain elsewhere cannot be seen here.",),
        absent=(),
        views=(
            Lines("Time", "workers", "seconds an epoch", (Series("mpiter", epochs),)),
            Lines("Memory", "workers", "MB", (Series("resident", memory),), target=("free at the start", 480.0)),
        ),
        command="python3 -m mpiter lab workers",
        facts=FACTS,
    )


def lane(kind, step, length, start, count):
    return tuple(Span(start + n * step, start + n * step + length, kind, f"batch {n}") for n in range(count))


def hide():
    predicted = tuple(Point(n, max(20.0, 61.0 / n)) for n in range(1, 9))
    measured = tuple(Point(n, max(20.4, 63.5 / n), max(20.1, 61.5 / n), max(21, 66.0 / n)) for n in range(1, 9))
    training = [
        Span(0.061, 0.081, "step", "batch 0"),
        *itertools.chain.from_iterable(
            (Span(0.081 + n * 0.03, 0.091 + n * 0.03, "wait"), Span(0.091 + n * 0.03, 0.111 + n * 0.03, "step", str(n)))
            for n in range(8)
        ),
    ]
    lanes = (
        ("worker 0", lane("fetch", 0.061, 0.0585, 0.0, 5)),
        ("worker 1", lane("fetch", 0.0305, 0.022, 0.004, 18)[:18]),
        ("training", tuple(training)),
    )
    return Section(
        name="hide",
        heading="Whether fetching hides behind the step",
        about="A step of 20 ms, and samples that take 61 ms a batch to fetch.",
        says=("From four workers on, the loop never waits.",),
        warnings=(),
        absent=("A real accelerator: there is none here, so the step is a sleep.",),
        views=(
            Lines(
                "Time from batch to batch",
                "workers",
                "ms",
                (Series("max(step, fetch ÷ n)", predicted, predicted=True), Series("measured", measured)),
                target=("the step alone", 20.0),
            ),
            Timeline("The first third of a second", lanes, "With two workers, the loop waits 10 ms before each step."),
        ),
        command="python3 -m mpiter lab hide --step 0.02",
        facts=FACTS,
    )


def peers():
    shares = {"mpiter": 87.4, "torch DataLoader": 31.2, "grain": 44.9, "Chainer 7.8.1": 6.1, "a <service> & co": 0.0}
    bars = tuple(Bar(name, (share,), low=share * 0.96, high=share * 1.05) for name, share in shares.items())
    broken = Bar('broken "one"', (math.nan,), "did not run")
    return Section(
        name="peers",
        heading="Beside other loaders",
        about="The limit is what two processes reach that fill preallocated memory and do nothing else.",
        says=("mpiter reaches 87 % of the limit.",),
        warnings=(),
        absent=("spdl: no wheel for this Python.",),
        views=(Bars("Share of the limit", "%", ("share",), (("", (*bars, broken)),), target=("the limit", 100.0)),),
        command="python3 -m mpiter lab peers",
        facts=FACTS,
    )


def sample():
    return (overhead(), speedup(), workers(), hide(), peers())


TITLE = "Lab report: results/2026-11-21"


# the document ---------------------------------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def report():
    return parsed(page(sample(), TITLE))


def test_it_is_a_whole_document_in_a_language_with_a_title_and_a_viewport(report):
    assert report.get("lang") == "en"
    assert report.find("head/title").text == TITLE == report.find("body/header/h1").text
    assert [meta.get("content") for meta in having(report, name="viewport")] == ["width=device-width, initial-scale=1"]
    assert [node.tag for node in report.find("body")] == ["header", "nav", "main"]


def test_the_contents_lead_to_every_section_and_no_address_is_given_twice(report):
    ids = [node.get("id") for node in report.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    leading = [link.get("href") for link in report.find("body/nav").iter("a")]
    assert leading == ["#summary", "#overhead", "#speed-up", "#workers", "#hide", "#peers"]
    assert {link.get("href")[1:] for link in report.iter("a")} <= set(ids)


def test_sections_of_one_name_have_addresses_of_their_own():
    names = ["Peers", "peers", "summary", "<&>", ""]
    root = parsed(page([alone(name=name, heading=name) for name in names], TITLE))
    sections = [section.get("id") for section in root.find("body/main")]
    assert sections == ["summary", "peers", "peers-2", "summary-2", "section", "section-2"]


def test_what_came_of_it_stands_at_the_top_and_names_the_warnings(report):
    (summary,) = having(report, id="summary")
    for section in sample():
        assert all(told in text_of(summary) for told in section.says)
    assert [text_of(node) for node in having(summary, **{"class": "doubt"})] == ["1 warning", "1 warning"]
    assert "There are no results" in text_of(parsed(page([], TITLE)))
    assert "Nothing can be concluded" in text_of(parsed(page([alone()], TITLE)))


@pytest.mark.parametrize("section", sample(), ids=lambda section: section.name)
def test_a_section_tells_all_that_is_known(report, section):
    (written,) = having(report, id=section.name)
    told = [section.heading, section.about, *section.says, *section.warnings, *section.absent]
    told += [text for view in section.views for text in (view.title, view.note)] + list(itertools.chain(*section.facts))
    assert all(text in text_of(written) for text in told)
    assert [code.text for code in written.iter("code")] == [section.command]
    warned = [item.text for box in having(written, **{"class": "warning"}) for item in box.iter("li")]
    assert warned == list(section.warnings)


def figures_of(view):
    """All numbers of it, as they have to be readable."""
    match view:
        case Lines():
            points = [point for series in view.series for point in series.points]
            return {number(figure) for p in points for figure in (p.x, p.y, p.low, p.high) if figure is not None}
        case Bars():
            bars_ = [bar for _, group in view.groups for bar in group]
            return {number(figure) for bar in bars_ for figure in (*bar.parts, bar.low, bar.high) if figure is not None}
        case Timeline():
            return {number(figure) for _, spans in view.lanes for span in spans for figure in (span.begin, span.end)}
        case Table():
            return {cell for row in view.rows for cell in row}


@pytest.mark.parametrize(
    "view", [view for section in sample() for view in section.views], ids=lambda view: view.title.replace(" ", "-")
)
def test_every_figure_is_in_a_table(view):
    root = parsed(page([alone(view)], TITLE))
    (table,) = root.iter("table")
    cells = [text_of(cell) for row in table.iter("tr") for cell in row]
    read = {word.strip("(),") for cell in cells for word in cell.split()} | set(cells)
    assert figures_of(view) <= read
    assert {cell.get("scope") for cell in table.iter("th")} == {"col", "row"}


def test_every_plot_says_in_words_what_it_shows(report):
    pictures = [svg for svg in report.iter("svg") if svg.get("aria-hidden") is None]
    plots = [view for section in sample() for view in section.views if not isinstance(view, Table)]
    assert len(pictures) == 2 * len(plots)  # for a wide page and for a telephone
    for view, wide, narrow in zip(plots, pictures[::2], pictures[1::2], strict=True):
        assert wide.get("role") == narrow.get("role") == "img"
        assert wide.get("aria-label") == narrow.get("aria-label")
        assert wide.get("aria-label").startswith(view.title)
        assert (wide.get("class"), narrow.get("class")) == ("picture wide", "picture narrow")
    label = pictures[0].get("aria-label")
    assert "128 x 28x28, uint8: mpiter, slots 0.0550 ms; pipe, pickled 0.580 ms" in label
    assert "mpiter, from 0.943 at 1 to 5.41 at 8" in pictures[2].get("aria-label")


def test_what_others_published_is_dashed_and_grey_and_named_so():
    (view,) = speedup().views
    root = parsed(page([alone(view)], TITLE))
    grey = [group for group in having(root, **{"class": "grey"}) if group.tag == "g"]
    assert len(grey) == 3  # in both pictures and in the legend
    assert all(node.get("class").endswith(" published") for group in grey for node in group)
    assert "Isobe 2018, 2 x Xeon (published)" in [text_of(item) for item in root.iter("li")]
    style = files("mpiter.lab.report").joinpath("style.css").read_text()
    assert "dasharray" in re.search(r"\.curve\.published \{(.*?)\}", style)[1]


def test_what_a_model_predicts_is_dotted_and_named_so():
    root = parsed(page([alone(hide().views[0])], TITLE))
    assert having(root, **{"class": "curve predicted"})
    assert "max(step, fetch ÷ n) (predicted)" in [text_of(item) for item in root.iter("li")]


def test_nothing_is_loaded_and_nothing_runs(report):
    document = page(sample(), TITLE)
    assert not re.search(r"https?://|<script|@import|url\(|\ssrc=|\son\w+=", document, re.IGNORECASE)
    assert [link.get("href") for link in report.iter("link")] == ["data:,"]
    (policy,) = having(report, **{"http-equiv": "Content-Security-Policy"})
    assert policy.get("content").startswith("default-src 'none'")


EVIL = """<script>alert('1')</script>&amp;"><img src=x onerror='y'>\x00\x1b\ud800]]><!-- -->"""
SEEN = EVIL.replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")


def test_any_text_is_only_text():
    views = (
        Lines(EVIL, EVIL, EVIL, (Series(EVIL, (Point(1, 1, 1, 1),)),), EVIL, (EVIL, 1.0)),
        Bars(EVIL, EVIL, (EVIL, EVIL), ((EVIL, (Bar(EVIL, (1, 2), EVIL),)),), EVIL, (EVIL, 1.0)),
        Table(EVIL, (EVIL, EVIL), ((EVIL, EVIL),), EVIL),
        Timeline(EVIL, ((EVIL, (Span(0, 1, EVIL, EVIL),)),), EVIL),
    )
    section = Section(EVIL, EVIL, EVIL, (EVIL,), (EVIL,), (EVIL,), views, EVIL, ((EVIL, EVIL),))
    document = page([section], EVIL)
    document.encode()
    root = parsed(document)
    assert not list(root.iter("script")) + list(root.iter("img"))
    assert root.find("head/title").text == SEEN
    assert [code.text for code in root.iter("code")] == [SEEN]
    assert len(list(root.iter("svg"))) > 6
    assert html.escape(SEEN) in document


# pictures of anything -------------------------------------------------------------------------------------------------

DRAWN_BY = {Lines: curves.plot, Bars: bars.plot, Timeline: timelines.plot}
NAN, INF = math.nan, math.inf


def lines(*points, **others):
    return Lines("t", "x", "y", (Series("s", tuple(Point(*point) for point in points)),), **others)


def rows(*values, **others):
    return Bars("t", "u", ("p",), (("g", tuple(Bar(f"b{n}", (value,)) for n, value in enumerate(values))),), **others)


def spans(*edges):
    return Timeline("t", (("lane", tuple(Span(begin, end, "k", "l") for begin, end in edges)),))


DRAWABLE = {
    "one point": lines((3, 4)),
    "one point at zero": lines((0, 0)),
    "all zeros": lines((0, 0), (1, 0), (2, 0)),
    "huge": lines((1e200, 1e299), (2e200, 1e300)),
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
    "bars from 1e-300 to 1e300": rows(1e-300, 1e300),
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
PLACES = {"x", "y", "x1", "x2", "y1", "y2", "width", "height", "d", "points", "viewBox"}


def broken_places(root):
    """Of what is drawn, what cannot be."""
    placed = [(key, value) for svg in root.iter("svg") for node in svg.iter() for key, value in node.items()]
    return [value for key, value in placed if key in PLACES and re.search("nan|inf|None", value)]


@pytest.mark.parametrize("view", DRAWABLE.values(), ids=DRAWABLE.keys())
def test_whatever_can_be_drawn_is_drawn(view):
    root = parsed(page([alone(view)], TITLE))
    pictures = [svg for svg in root.iter("svg") if svg.get("role")]
    assert [svg.get("viewBox").split()[2] for svg in pictures] == [str(WIDE), str(NARROW)]
    assert not broken_places(root)
    assert not having(root, **{"class": "nothing"})


@pytest.mark.parametrize("view", EMPTY.values(), ids=EMPTY.keys())
def test_where_there_is_nothing_to_draw_it_says_so(view):
    root = parsed(page([alone(view)], TITLE))
    assert not list(root.iter("svg"))
    assert [text_of(node) for node in having(root, **{"class": "nothing"})] == [
        "Nothing to draw: there are no figures."
    ]


def test_a_missing_figure_is_a_gap_in_the_curve_and_a_dash_in_the_table():
    root = parsed(page([alone(lines((1, 1), (2, 2), (3, NAN), (4, 4), (5, 5)))], TITLE))
    wide = next(root.iter("svg"))
    assert len(having(wide, **{"class": "curve measured"})) == 2
    assert NOTHING in [cell.text for cell in root.iter("td")]


def test_no_two_of_many_curves_look_alike():
    root = parsed(page([alone(DRAWABLE["thirty curves"])], TITLE))
    (legend,) = having(root, **{"class": "legend"})
    looks = [(group.get("class"), group.find("path").get("d")) for group in legend.iter("g")]
    assert len(looks) == len(set(looks)) == 30


def test_each_group_of_bars_has_a_scale_of_its_own():
    groups = tuple((name, (Bar("b", (size,)),)) for name, size in (("small", 1.0), ("large", 1e6)))
    wide = next(parsed(page([alone(Bars("t", "u", ("p",), groups))], TITLE)).iter("svg"))
    small, large = having(wide, **{"class": "fill part c0"})
    assert small.get("width") == large.get("width")


def test_a_kind_has_one_colour_in_all_lanes():
    view = Timeline("t", (("a", (Span(0, 1, "x"), Span(1, 2, "y"))), ("b", (Span(0, 1, "y"), Span(1, 2, "x")))))
    wide = next(parsed(page([alone(view)], TITLE)).iter("svg"))
    shades = [rect.get("class") for rect in wide.iter("rect") if rect.get("class") != "track"]
    assert shades == ["fill c0", "fill c1", "fill c1", "fill c0"]


anything = st.none() | st.floats() | st.integers(-(10**6), 10**6)
texts = st.text(max_size=8)
plots = st.one_of(
    st.builds(
        Lines,
        *(texts,) * 3,
        st.lists(
            st.builds(
                Series,
                texts,
                st.lists(st.builds(Point, *(anything,) * 4), max_size=5).map(tuple),
                st.booleans(),
                st.booleans(),
            ),
            max_size=3,
        ).map(tuple),
        target=st.none() | st.tuples(texts, anything),
    ),
    st.builds(
        Bars,
        *(texts,) * 2,
        st.lists(texts, max_size=3).map(tuple),
        st.lists(
            st.tuples(
                texts,
                st.lists(
                    st.builds(Bar, texts, st.lists(anything, max_size=3).map(tuple), texts, anything, anything),
                    max_size=3,
                ).map(tuple),
            ),
            max_size=3,
        ).map(tuple),
        target=st.none() | st.tuples(texts, anything),
    ),
    st.builds(
        Timeline,
        texts,
        st.lists(
            st.tuples(texts, st.lists(st.builds(Span, anything, anything, texts, texts), max_size=4).map(tuple)),
            max_size=3,
        ).map(tuple),
    ),
)


@settings(max_examples=300, deadline=None)
@given(plots)
def test_no_figures_whatever_break_the_document(view):
    plot = DRAWN_BY[type(view)](view)
    assert plot.pictures
    document = page([alone(view)], TITLE)
    document.encode()
    assert not broken_places(parsed(document))


# numbers --------------------------------------------------------------------------------------------------------------

figures = st.floats(-1e300, 1e300)


@given(st.lists(figures, max_size=5), st.integers(3, 12), st.booleans())
def test_ticks_are_round_and_cover_all_values_and_are_few(values, most, whole):
    marks = ticks(values, most, whole=whole)
    assert 2 <= len(marks) <= most
    assert marks[0] <= min([v for v in values if v < -1e-300], default=0.0)
    assert marks[-1] >= max([v for v in values if v > 1e-300], default=0.0)
    assert 0.0 in marks
    digits = {f"{mark:.6e}".partition("e")[0].lstrip("-").rstrip("0").rstrip(".") for mark in marks[:2] if mark}
    steps = [f"{after - before:.6e}" for before, after in itertools.pairwise(marks)]
    assert len({float(step) for step in steps}) == 1
    assert re.fullmatch(r"[125]\.0+e[+-]\d+", steps[0])
    assert digits
    if whole:
        assert all(mark == int(mark) for mark in marks)


@given(st.lists(figures, max_size=3))
def test_the_labels_of_ticks_differ(values):
    written = labels(ticks(values))
    assert len(written) == len(set(written))


@given(figures.filter(bool))
def test_a_figure_is_written_with_three_digits_at_least(value):
    read = float(number(value).replace(",", "").replace("\u2212", "-"))
    assert math.isclose(read, value, rel_tol=5.1e-3)


@given(st.lists(st.floats(0, 100), max_size=8))
def test_names_beside_curves_keep_apart_and_within_the_picture(wanted):
    places = kept_apart(wanted, gap=12, low=0, high=100)
    assert all(-1e-9 <= place <= 100 + 1e-9 for place in places)
    assert all(after - before >= 12 - 1e-9 for before, after in itertools.pairwise(sorted(places)))


# colours --------------------------------------------------------------------------------------------------------------


def colours(scheme):
    """The variables of the style sheet."""
    style = files("mpiter.lab.report").joinpath("style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    return dict(re.findall(r"--([\w-]+): (#\w+)", light + (dark if scheme == "dark" else "")))


def luminance(colour):
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_and_curves_can_be_seen(scheme):
    found = colours(scheme)
    for text, ground in itertools.product(("fg", "muted", "link", "doubt"), ("bg", "panel")):
        assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    assert min(contrast(found[text], found["doubt-bg"]) for text in ("fg", "doubt")) >= 4.5
    for index in range(6):
        assert contrast(found[f"on-{index}"], found[f"c{index}"]) >= 4.5, f"text upon c{index}"
    assert min(contrast(found[name], found["bg"]) for name in ("c0", "c1", "c2", "c3", "c4", "c5", "grey")) >= 3


# in a browser ---------------------------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install Debian's chromium")
PATIENCE = 60  # seconds for a browser on a busy machine

MEASURE = """<!doctype html><title>-</title><pre id="found"></pre><script>
function measure(frame) {
  const inside = frame.contentDocument, width = WIDTH, root = inside.documentElement;
  const shown = (node) => node.getClientRects().length > 0;
  const named = (node) => node.tagName + "." + node.getAttribute("class") + ": " + node.textContent.slice(0, 40);
  const sticksOut = (node) => shown(node) && node.getBoundingClientRect().right > width + 0.5;
  const found = {cut: [], sizes: [], pictures: 0};
  inside.querySelectorAll("details").forEach((node) => node.open = true);
  found.dark = frame.contentWindow.matchMedia("(prefers-color-scheme: dark)").matches;
  found.width = root.scrollWidth;
  found.out = [...inside.querySelectorAll("body *")]
    .filter((node) => sticksOut(node) && !node.closest(".scroll table")).map(named);
  inside.querySelectorAll("svg[role=img]").forEach((svg) => {
    if (!shown(svg)) return;
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    found.pictures += 1;
    svg.querySelectorAll("text").forEach((text) => {
      const at = text.getBoundingClientRect();
      found.sizes.push(scale * parseFloat(frame.contentWindow.getComputedStyle(text).fontSize));
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1)
        found.cut.push(named(text));
    });
  });
  document.getElementById("found").textContent = JSON.stringify(found);
}
</script><iframe src="report.html" width="WIDTH" height="800" style="border: 0" onload="measure(this)"></iframe>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """A browser lets one page look into another only where a server gives both."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        server.daemon_threads = False  # closing waits for them
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def browse(address, *options, dark=False):
    """What the browser prints; its console must stay empty.  Its profile goes away with it, and so do its children."""
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as home:  # short: sockets lie in it
        command = [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--disable-breakpad", "--no-first-run", "--enable-logging=stderr", "--v=0", f"--user-data-dir={home}/p"),
            *(f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=5000", *options),
            address,
        ]
        kept = {key: value for key, value in os.environ.items() if not key.startswith("XDG_")}
        surroundings = kept | {"HOME": home, "TMPDIR": home}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
        with subprocess.Popen(command, env=surroundings, start_new_session=True, **pipes) as browser:
            try:
                said, complained = browser.communicate(timeout=PATIENCE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(browser.pid, signal.SIGKILL)
        assert browser.returncode == 0, complained
        assert not [line for line in complained.splitlines() if "CONSOLE" in line]
        return said


def measured(folder, width, **options):
    """What a page of this width shows: in a frame, because the browser's own window may refuse to be so narrow."""
    (folder / "measure.html").write_text(MEASURE.replace("WIDTH", str(width)))
    with served(folder) as address:
        said = browse(f"{address}/measure.html", "--dump-dom", **options)
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', said, re.DOTALL)[1]))


@in_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it_and_has_nothing_to_complain_of(scheme, tmp_path):
    Image = pytest.importorskip("PIL.Image", reason="a picture is looked at with Pillow: pip install Pillow")
    (tmp_path / "report.html").write_text(page(sample(), TITLE))
    shot = tmp_path / "shot.png"
    options = (f"--screenshot={shot}", "--window-size=1280,5000")
    browse((tmp_path / "report.html").as_uri(), *options, dark=scheme == "dark")
    with Image.open(io.BytesIO(shot.read_bytes())) as picture:
        counted = picture.convert("RGB").getcolors(maxcolors=1 << 24)
    assert len(counted) > 200
    _, ground = max(counted)
    assert "#{:02x}{:02x}{:02x}".format(*ground) == colours(scheme)["bg"]
    shown = {"#{:02x}{:02x}{:02x}".format(*colour) for _, colour in counted}
    assert {colours(scheme)[name] for name in ("c0", "c1", "c2", "doubt-bg")} <= shown


@in_a_browser
@pytest.mark.parametrize("width", [320, 375, 679, 680, 1120, 1600])
def test_no_width_of_the_page_scrolls_it_sideways_or_shrinks_its_text(width, tmp_path):
    (tmp_path / "report.html").write_text(page(sample(), TITLE))
    found = measured(tmp_path, width)
    assert (found["width"], found["out"], found["cut"]) == (width, [], [])
    assert found["pictures"] == 7  # one of the two drawings of each
    assert min(found["sizes"]) >= 10


@in_a_browser
@pytest.mark.parametrize("width", [375, 1120])
def test_degenerate_pictures_fit_the_page_as_well(width, tmp_path):
    views = [replace(view, title=name, note="word" * 60) for name, view in (DRAWABLE | EMPTY).items()]
    table = Table("wide", tuple(f"column {n}" for n in range(40)), (("name " * 30, *"0123456789" * 4),))
    section = alone(*views, table, heading="w" * 300, command="c" * 300, facts=(("f" * 100, "v" * 300),))
    (tmp_path / "report.html").write_text(page([section], "t" * 300))
    found = measured(tmp_path, width, dark=True)
    assert found["dark"]
    assert (found["width"], found["out"], found["cut"]) == (width, [], [])
    assert min(found["sizes"]) >= 10
