"""Plots: what the reader sees of each figure, whatever the figures are."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_results import DRAWABLE, EMPTY, NAN, alone, drawn, having, lines, parsed, rows, spans, text_of

from mpiter.lab.report import plots, sheet
from mpiter.lab.report.page import page
from mpiter.lab.text import NOTHING
from mpiter.lab.views import Bar, Bars, Lines, Point, Series, Span, Timeline

pytestmark = pytest.mark.slow  # a picture is the same on every Python


def page_of(*views):
    return parsed(page([alone(*views)], "plots"))


def looks(root, variable):
    """The styles of what has this colour."""
    return [node.get("style") for node in root.iter() if f"var(--{variable})" in node.get("style", "")]


@drawn
def test_what_others_published_is_dashed_and_grey_and_named_so():
    root = page_of(lines((1, 1), (2, 2), name="Isobe 2018", published=True))
    assert [look for look in looks(root, "grey") if "stroke-dasharray" in look and "fill: none" in look]
    assert not looks(root, "c0")
    assert "Isobe 2018 (published)" in text_of(next(root.iter("svg")))


@drawn
def test_what_a_model_predicts_is_dotted_and_named_so():
    root = page_of(lines((1, 1), (2, 2), name="max(step, fetch ÷ n)", predicted=True))
    assert [look for look in looks(root, "c0") if "stroke-dasharray: 0.2" in look]
    assert any("(predicted)" in text_of(svg) for svg in root.iter("svg"))


@drawn
def test_every_mark_says_what_it_is():
    views = (lines((1, 2, 1, 3), name="s"), rows(7, name="b"), spans((0, 1)))
    tips = [tip.text for tip in page_of(*views).iter("title")][1:]
    assert tips == ["s: 2 (1 to 3) at 1"] * 2 + ["b0, p: 7 u"] * 2 + ["lane: k, l, 0 s to 1 s"] * 2


@drawn
def test_a_figure_that_is_uncertain_is_marked_in_the_picture_and_beneath():
    bars = Bars("t", "ms", ("p",), (("", (Bar("b", (2.0,), "~2 ms", 1.0, 3.0),)),))
    root = page_of(bars)
    assert all("~2 ms" in text_of(svg) and "quartiles of the rounds" in text_of(svg) for svg in root.iter("svg"))
    assert "~2 ms" in [cell.text for cell in root.iter("td")]


PLACES = {"x", "y", "d", "transform", "viewBox"}


def broken_places(root):
    """Of what is drawn, what cannot be."""
    placed = [(key, value) for svg in root.iter("svg") for node in svg.iter() for key, value in node.items()]
    return [value for key, value in placed if key in PLACES and re.search("nan|inf|None", value)]


@drawn
@pytest.mark.parametrize("view", DRAWABLE.values(), ids=DRAWABLE.keys())
def test_whatever_can_be_drawn_is_drawn(view):
    root = page_of(view)
    assert [svg.get("viewBox").split()[2] for svg in root.iter("svg")] == [str(sheet.WIDE), str(sheet.NARROW)]
    assert not broken_places(root)
    assert not having(root, **{"class": "nothing"})


@drawn
@pytest.mark.parametrize("view", EMPTY.values(), ids=EMPTY.keys())
def test_where_there_is_nothing_to_draw_it_says_so(view):
    root = page_of(view)
    assert not list(root.iter("svg"))
    said = [text_of(node) for node in having(root, **{"class": "nothing"})]
    assert said == ["Nothing to draw: there are no figures."]


@drawn
def test_a_missing_figure_is_a_gap_in_the_curve_and_a_dash_in_the_table():
    root = page_of(lines((1, 1), (2, 2), (3, NAN), (4, 4), (5, 5)))
    (curve,) = [
        path.get("d")
        for path in next(root.iter("svg")).iter("path")
        if "fill: none; stroke: var(--c0)" in path.get("style", "")
    ]
    assert curve.count("M") == 2
    assert NOTHING in [cell.text for cell in root.iter("td")]


@drawn
def test_no_two_of_many_curves_look_alike():
    wide = next(page_of(DRAWABLE["thirty curves"]).iter("svg"))
    marks = {node.get("id"): node.get("d") for node in wide.iter("path") if node.get("id")}
    found = {(marks[use.get("href")[1:]], use.get("style")) for use in wide.iter("use")}
    assert len(found) == 30


@drawn
def test_each_group_of_bars_has_a_scale_of_its_own():
    groups = tuple((name, (Bar("b", (size,)),)) for name, size in (("small", 1.0), ("large", 1e6)))
    wide = next(page_of(Bars("t", "u", ("p",), groups)).iter("svg"))
    small, large = (
        re.findall(r"[\d.]+ ", path.get("d"))[::2] for path in wide.iter("path") if "var(--c0)" in path.get("style", "")
    )
    assert small == large


@drawn
def test_a_kind_has_one_colour_in_all_lanes():
    view = Timeline("t", (("a", (Span(0, 1, "x"), Span(1, 2, "y"))), ("b", (Span(0, 1, "y"), Span(1, 2, "x")))))
    wide = next(page_of(view).iter("svg"))
    shades = [
        re.search(r"fill: var\(--(\w+)\)", path.get("style"))[1]
        for path in wide.iter("path")
        if path.find("title") is not None
    ]
    assert shades == ["c0", "c1", "c1", "c0"]


anything = st.none() | st.floats() | st.integers(-(10**6), 10**6)
texts = st.text(max_size=8)
figures_of_any_kind = st.one_of(
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


@drawn
@settings(max_examples=25)
@given(figures_of_any_kind)
def test_no_figures_whatever_break_the_document(view):
    document = page([alone(view)], "plots")
    document.encode()
    assert not broken_places(parsed(document))


@given(st.lists(st.floats(0, 1), max_size=8))
def test_names_beside_curves_keep_apart_and_within_the_picture(wanted):
    places = plots.kept_apart(wanted, gap=0.12)
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    assert all(after - before >= 0.12 - 1e-9 for before, after in itertools.pairwise(sorted(places)))
