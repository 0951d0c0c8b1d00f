"""The report as one HTML document that needs nothing else: no network, no script, no font.

Pure, but for the style sheet, which is package data.  Guarantees that each figure can be read as text, that no input
breaks the document, that warnings stand where the conclusions do, and that its own policy forbids it to load anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files

from ..views import Section, Table, View
from .markup import Markup, joined, tag
from .plots import pictures
from .sheet import can_be_drawn
from .told import Plotted, figures

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_REMEDY = "pip install 'mpiter[lab]'"
_OWN_ANCHORS = ("contents", "summary", "top")


def page(sections: Sequence[Section], title: str) -> str:
    """The whole report."""
    anchored = list(zip(_anchors(sections), sections, strict=True))
    return "<!doctype html>\n" + tag(
        "html",
        _head(title),
        tag(
            "body",
            tag("header", tag("p", "mpiter lab", class_="from"), tag("h1", title), *_missing(), id="top"),
            _contents(anchored),
            tag("main", _summary(anchored), *(_section(anchor, section) for anchor, section in anchored)),
        ),
        lang="en",
    )


def _head(title: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),  # or a browser asks its server for one
        tag("title", title),
        tag("style", Markup(files(__package__).joinpath("style.css").read_text(encoding="utf-8"))),
    )


def _missing() -> Iterator[Markup]:
    if not can_be_drawn():
        yield tag("p", "Without plots, since matplotlib is not installed: ", tag("code", _REMEDY), class_="doubt")


def _anchors(sections: Sequence[Section]) -> Iterator[str]:
    """The sections' names as addresses, numbered where one comes again."""
    taken = set(_OWN_ANCHORS)
    for section in sections:
        name = re.sub("[^a-z0-9]+", "-", section.name.lower()).strip("-") or "section"
        anchor, number = name, 2
        while anchor in taken:
            anchor, number = f"{name}-{number}", number + 1
        taken.add(anchor)
        yield anchor


def _contents(anchored: list[tuple[str, Section]]) -> Markup:
    entries = [("summary", "What came of it"), *((anchor, section.heading) for anchor, section in anchored)]
    links = (tag("li", tag("a", heading, href=f"#{anchor}")) for anchor, heading in entries)
    return tag("nav", tag("ol", *links), id="contents", aria_label="Contents")


def _summary(anchored: list[tuple[str, Section]]) -> Markup:
    told = (_in_short(anchor, section) for anchor, section in anchored)
    nothing = () if anchored else (tag("p", "There are no results to report on."),)
    return tag(
        "section", tag("h2", "What came of it"), *told, *nothing, id="summary", class_="summary", aria_label="Summary"
    )


def _in_short(anchor: str, section: Section) -> Markup:
    says = section.says or ("Nothing can be concluded from it.",)
    doubts = len(section.warnings)
    doubt = f"{doubts} warning{'s' if doubts > 1 else ''}"
    return joined(
        tag("h3", tag("a", section.heading, href=f"#{anchor}")),
        tag(
            "ul",
            *(tag("li", sentence) for sentence in says),
            *([tag("li", tag("a", doubt, href=f"#{anchor}"), class_="doubt")] if doubts else []),
        ),
    )


def _section(anchor: str, section: Section) -> Markup:
    return tag(
        "section",
        tag("h2", section.heading, id=f"{anchor}-heading"),
        *([tag("p", section.about, class_="about")] if section.about else []),
        *_sentences("What came of it", section.says, "says"),
        *_sentences("Warnings" if len(section.warnings) > 1 else "Warning", section.warnings, "warning"),
        *_sentences("Not measured", section.absent, "absent"),
        *(_view(view, f"{anchor}-{at}") for at, view in enumerate(section.views)),
        *_facts(section.facts),
        *_command(section.command),
        id=anchor,
        aria_labelledby=f"{anchor}-heading",
    )


def _sentences(heading: str, sentences: tuple[str, ...], class_: str) -> Iterator[Markup]:
    if sentences:
        yield tag("div", tag("h3", heading), tag("ul", *(tag("li", told) for told in sentences)), class_=class_)


def _facts(facts: tuple[tuple[str, str], ...]) -> Iterator[Markup]:
    if facts:
        listed = (tag("div", tag("dt", name), tag("dd", value)) for name, value in facts)
        yield tag("details", tag("summary", "Machine, versions, settings"), tag("dl", *listed), class_="facts")


def _command(command: str) -> Iterator[Markup]:
    if command:
        yield tag("h3", "Repeat it")
        yield tag("pre", tag("code", command))


def _view(view: View, prefix: str) -> Markup:
    content = (_table(view, view.title),) if isinstance(view, Table) else _plot(view, prefix)
    note = (tag("p", view.note),) if view.note else ()
    return tag("figure", tag("figcaption", tag("h3", view.title), *note), *content)


def _plot(view: Plotted, prefix: str) -> Iterator[Markup]:
    """The pictures, and the figures beneath; in their place where there are no pictures."""
    drawn, data = pictures(view, prefix) if can_be_drawn() else (), figures(view)
    yield from drawn
    if can_be_drawn() and not drawn:
        yield tag("p", "Nothing to draw: there are no figures.", class_="nothing")
    if data.rows:
        about = tag("p", data.title, class_="unit")
        content = tag("summary", "The figures"), about, _table(data, f"{view.title}: the figures")
        yield tag("details", *content, open=None if drawn else "open")


def _table(table: Table, name: str) -> Markup:
    """In a box of its own, which scrolls where it is too wide and can be scrolled by keyboard."""
    head = tag("tr", *(tag("th", column, scope="col") for column in table.columns))
    rows = (
        tag("tr", *(tag("th", cell, scope="row") if at == 0 else tag("td", cell) for at, cell in enumerate(row)))
        for row in table.rows
    )
    written = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("div", written, class_="scroll", tabindex=0, role="region", aria_label=name)
