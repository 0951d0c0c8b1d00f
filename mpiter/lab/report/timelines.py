"""Timelines: `Timeline` to a plot.

Pure.  Guarantees that a kind has one colour in all lanes, which it shares with no other where there are at most six;
that the shortest stretch can still be seen; and that a stretch is labelled where its label fits.  All labels are there
as tooltips.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..text import number
from ..views import Span, Table, Timeline
from .markup import Markup, tag
from .plots import NARROW, WIDE, Key, Plot, colour, listed, nothing, patch, room, shortened, svg, write
from .scales import Scale, is_figure, labels, ticks

_UNITS = ((1.0, "seconds"), (1e-3, "milliseconds"), (1e-6, "microseconds"))


def plot(view: Timeline) -> Plot:
    """The lanes, drawn."""
    if not any(_drawable(spans) for _, spans in view.lanes):
        return nothing(_data(view))
    kinds = _kinds(view)
    keys = tuple(Key(patch(shade), kind) for kind, shade in kinds.items())
    return Plot((_draw(view, kinds, WIDE), _draw(view, kinds, NARROW)), keys, _data(view))


def _drawable(spans: tuple[Span, ...]) -> list[Span]:
    return [span for span in spans if is_figure(span.begin) and is_figure(span.end) and span.begin <= span.end]


def _kinds(view: Timeline) -> dict[str, str]:
    """The colour of each kind, in the order in which they come."""
    kinds = dict.fromkeys(span.kind for _, spans in view.lanes for span in spans)
    return {kind: colour(index) for index, kind in enumerate(kinds)}


def _draw(view: Timeline, kinds: dict[str, str], width: float) -> Markup:
    longest = max(room(name) for name, _ in view.lanes)
    above = width == NARROW or longest > width / 4
    left, pitch = (1, 46) if above else (longest + 14, 36)
    edges = [edge for _, spans in view.lanes for span in _drawable(spans) for edge in (span.begin, span.end)]
    length = max(map(abs, edges))
    unit, unit_name = next((pair for pair in _UNITS if length >= pair[0]), _UNITS[-1])
    marks = ticks((edge / unit for edge in edges), 5 if width == NARROW else 9)
    low, high = min(0.0, *edges) / unit, max(edges) / unit  # to the last stretch's end, not to the tick beyond it
    scale = Scale(low, high if high > low else marks[-1], left, width - 2)
    bottom = pitch * len(view.lanes)
    return svg(
        width,
        bottom + 44,
        _words(view),
        *_axis(list(zip(marks, labels(marks), strict=True)), scale, bottom, unit_name),
        *(
            _lane(name, _drawable(spans), kinds, unit, scale, pitch * index, above)
            for index, (name, spans) in enumerate(view.lanes)
        ),
    )


def _axis(marks: list[tuple[float, str]], scale: Scale, bottom: float, unit: str) -> Iterator[Markup]:
    for mark, label in marks:
        if scale.low <= mark <= scale.high:
            x = scale(mark)
            yield tag("line", x1=x, y1=0, x2=x, y2=bottom + 4, class_="grid")
            half = room(label) / 2 + 2
            yield write(min(max(x, half), scale.end - half), bottom + 18, label, "tick", "middle")
    yield write((scale.begin + scale.end) / 2, bottom + 36, unit, "name", "middle")


def _lane(
    name: str, spans: list[Span], kinds: dict[str, str], unit: float, scale: Scale, top: float, above: bool
) -> Markup:
    band = top + (20 if above else 5)
    label = write(0, top + 14, shortened(name, scale.end), "name") if above else None
    return tag(
        "g",
        tag("rect", x=scale.begin, y=band, width=scale.end - scale.begin, height=24, class_="track"),
        label or write(scale.begin - 10, band + 16, name, "name", "end"),
        *(piece for span in spans for piece in _span(name, span, kinds[span.kind], unit, scale, band)),
    )


def _span(lane: str, span: Span, shade: str, unit: float, scale: Scale, top: float) -> Iterator[Markup]:
    begin, end = scale(span.begin / unit), scale(span.end / unit)
    what = f"{span.kind}, {span.label}" if span.label else span.kind
    tip = tag("title", f"{lane}: {what}, {number(span.begin)} s to {number(span.end)} s")
    width = max(0.75, end - begin - 0.75)  # a hair apart from the next one
    yield tag("rect", tip, x=begin, y=top, width=width, height=24, class_=f"fill {shade}")
    if span.label and room(span.label) + 4 < width:
        yield write((begin + end) / 2, top + 16, span.label, f"within {shade}", "middle")


def _words(view: Timeline) -> str:
    return f"{view.title}. A timeline. {' '.join(_told(name, _drawable(spans)) for name, spans in view.lanes)}"


def _told(lane: str, spans: list[Span]) -> str:
    lasted: dict[str, float] = {}
    for span in spans:
        lasted[span.kind] = lasted.get(span.kind, 0.0) + span.end - span.begin
    told = [f"{kind} {number(seconds)} s" for kind, seconds in lasted.items()]
    return f"{lane}: {listed(told) or 'nothing'}."


def _data(view: Timeline) -> Table:
    """A row for each stretch."""
    rows = tuple(
        (lane, number(span.begin), number(span.end), span.kind, span.label)
        for lane, spans in view.lanes
        for span in spans
    )
    return Table("in seconds", ("lane", "begin", "end", "kind", "label"), rows)
