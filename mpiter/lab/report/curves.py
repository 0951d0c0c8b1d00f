"""Curves: `Lines` to a plot.

Pure.  Guarantees that measured curves are solid, each with a colour and a marker of its own; that published ones are
grey, dashed and hollow and predicted ones dotted, and both are named so; that what is no figure is a gap in its curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from textwrap import wrap

from ..text import number
from ..views import Lines, Point, Series, Table
from .markup import Markup, joined, tag
from .plots import (
    LINE,
    NARROW,
    WIDE,
    Key,
    Plot,
    colour,
    listed,
    nothing,
    quartile_key,
    room,
    stroke,
    svg,
    whisker,
    write,
)
from .scales import Scale, is_figure, kept_apart, labels, quartiles, ticks

_SHAPES = (  # of markers, around a place that was moved to; about equal in area
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "m-3.5-3.5h7v7h-7z",
    "m0-4.8l4.4 7.6h-8.8z",
    "m0-5l5 5l-5 5l-5-5z",
    "m0 4.8l4.4-7.6h-8.8z",
    "m-1.4-4.4h2.8v3h3v2.8h-3v3h-2.8v-3h-3v-2.8h3z",
)
_LETTERS_BESIDE = 22  # in a line of the name beside a curve; names of more than two lines go into the legend
_MOST_WHISKERS = 12  # more points than this have a band
_MOST_MARKERS = 40


@dataclass(frozen=True, slots=True)
class _Curve:
    """A series, and how it looks."""

    series: Series
    colour: str
    shape: str

    @property
    def name(self) -> str:
        for is_so, word in ((self.series.published, "published"), (self.series.predicted, "predicted")):
            if is_so and word not in self.series.name:
                return f"{self.series.name} ({word})"
        return self.series.name

    @property
    def line(self) -> str:
        return "published" if self.series.published else "predicted" if self.series.predicted else "measured"

    @property
    def points(self) -> list[Point]:
        """With a place on both axes, from left to right."""
        return [point for run in self.runs for point in run]

    @property
    def runs(self) -> list[list[Point]]:
        """Stretches without a gap."""
        placed = sorted((point for point in self.series.points if is_figure(point.x)), key=lambda point: point.x)
        return [list(run) for there, run in groupby(placed, lambda point: is_figure(point.y)) if there]


@dataclass(frozen=True, slots=True)
class _Area:
    """Where the curves lie on the picture."""

    x: Scale
    y: Scale
    across: tuple[float, ...]
    up: tuple[float, ...]

    def place(self, point: Point) -> tuple[float, float]:
        return self.x(point.x), self.y(point.y)


def plot(view: Lines) -> Plot:
    """The curves, drawn."""
    curves = [curve for curve in _curves(view) if curve.points]
    if not curves:
        return nothing(_data(view))
    return Plot((_draw(view, curves, WIDE), _draw(view, curves, NARROW)), tuple(_keys(view, curves)), _data(view))


def _curves(view: Lines) -> Iterator[_Curve]:
    colours = shapes = 0
    for series in view.series:
        shade = "grey" if series.published else colour(colours)
        yield _Curve(series, shade, _SHAPES[(shapes + shapes // len(_SHAPES)) % len(_SHAPES)])  # another pair each time
        colours, shapes = colours + (not series.published), shapes + 1


def _beside(curves: list[_Curve], width: float) -> list[list[str]]:
    """The lines of the names beside the curves; none where there is no room for them."""
    names = [wrap(curve.name, _LETTERS_BESIDE) or [""] for curve in curves]
    fits = width == WIDE and max(map(len, names)) <= 2 and sum(map(len, names)) <= 16
    return names if fits else []


def _draw(view: Lines, curves: list[_Curve], width: float) -> Markup:
    names = _beside(curves, width)
    area = _area(view, curves, width, max((room(line) + 26 for name in names for line in name), default=14))
    return svg(
        width,
        area.y.begin + (42 if view.x else 24),
        _words(view, curves),
        *_axes(view, area),
        *([_target(view.target, curves, area)] if view.target and is_figure(view.target[1]) else []),
        *(_drawn(curve, area) for curve in sorted(curves, key=lambda curve: not curve.series.published)),
        *_names(curves, names, area),
    )


def _area(view: Lines, curves: list[_Curve], width: float, margin: float) -> _Area:
    points = [point for curve in curves for point in curve.points]
    heights = [y for point in points for y in (point.y, point.low, point.high)] + [view.target[1] if view.target else 0]
    up = ticks(filter(is_figure, heights), 6)
    is_counted = all(float(point.x).is_integer() for point in points)
    across = ticks((point.x for point in points), 9 if width == WIDE else 5, whole=is_counted)
    left = max(map(room, labels(up))) + 14
    margin = max(margin, room(labels(across)[-1]) / 2 + 4)
    bottom = 300 if width == WIDE else 230
    return _Area(Scale(across[0], across[-1], left, width - margin), Scale(up[0], up[-1], bottom, 34), across, up)


def _axes(view: Lines, area: _Area) -> Iterator[Markup]:
    x, y = area.x, area.y
    for mark, label in zip(area.up, labels(area.up), strict=True):
        yield tag("line", x1=x.begin, y1=y(mark), x2=x.end, y2=y(mark), class_="grid" if mark else "axis")
        yield write(x.begin - 8, y(mark) + 4, label, "tick", "end")
    for mark, label in zip(area.across, labels(area.across), strict=True):
        yield tag("line", x1=x(mark), y1=y.begin, x2=x(mark), y2=y.begin + 4, class_="axis")
        yield write(x(mark), y.begin + 18, label, "tick", "middle")
    yield write(0, 14, view.y, "name")
    if view.x:
        yield write((x.begin + x.end) / 2, y.begin + 36, view.x, "name", "middle")


def _target(target: tuple[str, float], curves: list[_Curve], area: _Area) -> Markup:
    """The line, and its name above or beneath it, at the end where the curves are farthest away."""
    says, height = f"{target[0]}: {number(target[1])}", area.y(target[1])
    half = room(says) / 2
    corners = list(product((area.x.begin + half + 6, area.x.end - half - 2), (height - 10, height + 12)))
    inside = [corner for corner in corners if area.y.end - 12 < corner[1] < area.y.begin]
    places = [place for curve in curves for run in curve.runs for place in _along(run, area)]
    x, y = max(inside, key=lambda corner: _free_space(corner, half, places))
    return joined(
        tag("line", x1=area.x.begin, y1=height, x2=area.x.end, y2=height, class_="target"),
        write(x, y + 4, says, "note", "middle"),
    )


def _free_space(corner: tuple[float, float], half: float, places: list[tuple[float, float]]) -> float:
    """From a text, so wide to both sides, to the curves."""
    x, y = corner
    return min(max(0, abs(there - x) - half) + abs(height - y) for there, height in places)


def _along(run: list[Point], area: _Area) -> Iterator[tuple[float, float]]:
    """Places on a stretch of a curve, some of them between its points."""
    corners = [area.place(point) for point in run]
    yield corners[0]
    for (x1, y1), (x2, y2) in pairwise(corners):
        yield from ((x1 + (x2 - x1) * part / 6, y1 + (y2 - y1) * part / 6) for part in range(1, 7))


def _drawn(curve: _Curve, area: _Area) -> Markup:
    points = curve.points
    spread = [point for point in points if is_figure(point.low) and is_figure(point.high)]
    step = -(-len(points) // _MOST_MARKERS)
    return tag(
        "g",
        *([_band(spread, area)] if len(spread) > _MOST_WHISKERS else [_quartiles(point, area) for point in spread]),
        *(tag("path", d=_path(run, area), class_=f"curve {curve.line}") for run in curve.runs if len(run) > 1),
        *(_marker(curve, point, area) for point in points[::-step]),
        class_=curve.colour,
    )


def _path(run: list[Point], area: _Area) -> str:
    return "M" + "L".join("{:.2f} {:.2f}".format(*area.place(point)) for point in run)


def _band(points: list[Point], area: _Area) -> Markup:
    edges = [(point.x, point.high) for point in points] + [(point.x, point.low) for point in reversed(points)]
    corners = " ".join(f"{area.x(x):.2f},{area.y(y):.2f}" for x, y in edges if y is not None)
    return tag("polygon", points=corners, class_="band")


def _quartiles(point: Point, area: _Area) -> Markup:
    x = area.x(point.x)
    low, high = (area.y(y) for y in (point.low, point.high) if y is not None)
    return whisker((x, low), (x, high), "coloured")


def _marker(curve: _Curve, point: Point, area: _Area) -> Markup:
    x, y = area.place(point)
    says = f"{curve.name}: {_says(point)} at {number(point.x)}"
    return tag("path", tag("title", says), d=f"M{x:.2f} {y:.2f}{curve.shape}", class_=f"marker {curve.line}")


def _names(curves: list[_Curve], names: list[list[str]], area: _Area) -> Iterator[Markup]:
    """Beside the curves' ends, kept apart, each with a thin line that leads to it."""
    ends = [area.place(curve.points[-1]) for curve, _ in zip(curves, names, strict=False)]
    gap = LINE * max(map(len, names), default=1)
    heights = kept_apart([y for _, y in ends], gap, area.y.end, area.y.begin)
    for curve, name, (x, y), height in zip(curves, names, ends, heights, strict=False):  # no names, nothing to do
        lead = f"M{x + 6:.2f} {y:.2f}L{area.x.end + 8:.2f} {y:.2f}L{area.x.end + 16:.2f} {height:.2f}"
        yield tag("path", d=lead, class_=f"lead {curve.colour}")
        for index, line in enumerate(name):
            yield write(area.x.end + 20, height + 4 + LINE * (index - (len(name) - 1) / 2), line, "name")


def _keys(view: Lines, curves: list[_Curve]) -> Iterator[Key]:
    for curve in curves:
        line = tag("line", x1=1, y1=6, x2=29, y2=6, class_=f"curve {curve.line}")
        marker = tag("path", d=f"M15 6{curve.shape}", class_=f"marker {curve.line}")
        swatch = stroke(tag("g", line, marker, class_=curve.colour))
        yield Key(swatch, curve.name, narrow_only=bool(_beside(curves, WIDE)))
    if any(quartiles(point.low, point.high) for curve in curves for point in curve.points):
        yield quartile_key()


def _words(view: Lines, curves: list[_Curve]) -> str:
    told = [f"{curve.name}, from {_at(curve.points[0])} to {_at(curve.points[-1])}" for curve in curves]
    target = f" A line at {number(view.target[1])} marks: {view.target[0]}." if view.target else ""
    return f"{view.title}. Curves of {view.y} over {view.x}: {listed(told)}.{target}"


def _at(point: Point) -> str:
    return f"{number(point.y)} at {number(point.x)}"


def _says(point: Point) -> str:
    between = quartiles(point.low, point.high)
    return f"{number(point.y)} ({between})" if between else number(point.y)


def _data(view: Lines) -> Table:
    """A row for each place on the axis, a column for each curve."""
    curves = list(_curves(view))
    cells: dict[str, list[list[str]]] = {}
    points = [(index, point) for index, curve in enumerate(curves) for point in curve.series.points]
    for index, point in sorted(points, key=lambda pair: pair[1].x if is_figure(pair[1].x) else float("inf")):
        row = cells.setdefault(number(point.x), [[] for _ in curves])
        row[index].append(_says(point))
    rows = tuple((x, *(", ".join(told) for told in row)) for x, row in cells.items())
    return Table(f"{view.y}, quartiles in brackets", (view.x, *(curve.name for curve in curves)), rows)
