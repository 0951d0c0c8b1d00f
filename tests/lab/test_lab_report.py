"""The report: one document that parses, tells everything, holds every figure, and loads nothing."""

from __future__ import annotations

import html
import itertools
import re

import pytest
from lab_results import SECTIONS, TITLE, alone, drawn, having, parsed, text_of
from lab_results import report as written

from mpiter.lab.report import page as writing
from mpiter.lab.report import sheet
from mpiter.lab.report.page import page
from mpiter.lab.text import number
from mpiter.lab.views import Bar, Bars, Lines, Point, Section, Series, Span, Table, Timeline

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("report")]  # a page is the same on every Python


@pytest.fixture(scope="module")
def report():
    return parsed(written())


def test_it_is_a_whole_document_in_a_language_with_a_title_and_a_viewport(report):
    assert report.get("lang") == "en"
    assert report.find("head/title").text == TITLE == report.find("body/header/h1").text
    assert [meta.get("content") for meta in having(report, name="viewport")] == ["width=device-width, initial-scale=1"]
    assert [node.tag for node in report.find("body")] == ["header", "nav", "main"]


def test_the_contents_lead_to_every_section_and_no_address_is_given_twice(report):
    ids = [node.get("id") for node in report.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    leading = [link.get("href") for link in report.find("body/nav").iter("a")]
    names = ("summary", "overhead", "speedup", "workers", "hide", "images", "staging", "echo", "peers")
    assert leading == [f"#{name}" for name in names]
    assert {link.get("href")[1:] for link in report.iter("a")} <= set(ids)


def test_sections_of_one_name_have_addresses_of_their_own():
    names = ["Peers", "peers", "summary", "<&>", ""]
    root = parsed(page([alone(name=name, heading=name) for name in names], TITLE))
    sections = [section.get("id") for section in root.find("body/main")]
    assert sections == ["summary", "peers", "peers-2", "summary-2", "section", "section-2"]


def test_what_came_of_it_stands_at_the_top_and_names_the_warnings(report):
    (summary,) = having(report, id="summary")
    for section in SECTIONS:
        assert all(told in text_of(summary) for told in section.says)
    assert [text_of(node) for node in having(summary, **{"class": "doubt"})] == ["1 warning"]
    assert "There are no results" in text_of(parsed(page([], TITLE)))
    assert "Nothing can be concluded" in text_of(parsed(page([alone()], TITLE)))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
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
    "view", [view for section in SECTIONS for view in section.views], ids=lambda view: view.title.replace(" ", "-")
)
def test_every_figure_is_in_a_table(view):
    root = parsed(page([alone(view)], TITLE))
    (table,) = root.iter("table")
    cells = [text_of(cell) for row in table.iter("tr") for cell in row]
    read = {word.strip("(),") for cell in cells for word in cell.split()} | set(cells)
    assert figures_of(view) <= read
    assert {cell.get("scope") for cell in table.iter("th")} == {"col", "row"}


@drawn
def test_every_plot_says_in_words_what_it_shows(report):
    pictures = list(report.iter("svg"))
    shown = [view for section in SECTIONS for view in section.views if not isinstance(view, Table)]
    assert len(pictures) == 2 * len(shown)  # for a wide page and for a telephone
    for view, wide, narrow in zip(shown, pictures[::2], pictures[1::2], strict=True):
        assert wide.get("role") == narrow.get("role") == "img"
        assert wide.get("aria-label") == narrow.get("aria-label")
        assert wide.get("aria-label").startswith(view.title)
        assert (wide.get("class"), narrow.get("class")) == ("picture wide", "picture narrow")
    labels = [picture.get("aria-label") for picture in pictures]
    assert "28x28: slots 10.1 ms; slots, copy 10.1 ms; packed 10.1 ms; pickle 101 ms" in labels[0]
    assert any("measured, from 99 at 1 to 33 at 3" in label for label in labels)
    assert any("A line at 40 marks: step." in label for label in labels)


def test_without_matplotlib_the_figures_are_there_and_the_page_says_what_to_install(monkeypatch):
    monkeypatch.setattr(writing, "can_be_drawn", lambda: False)
    root = parsed(page(SECTIONS, TITLE))
    assert "pip install 'mpiter[lab]'" in text_of(root.find("body/header"))
    assert not list(root.iter("svg"))
    assert not having(root, **{"class": "nothing"})
    beneath = [node for node in root.iter("details") if not node.get("class")]
    assert beneath
    assert all(node.get("open") for node in beneath)


@drawn
def test_with_matplotlib_nothing_is_to_be_installed(report):
    assert "pip install" not in text_of(report.find("body/header"))


def test_nothing_is_loaded_and_nothing_runs(report):
    document = written()
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
    assert len(list(root.iter("svg"))) == 6 * sheet.can_be_drawn()
    assert html.escape(SEEN) in document
