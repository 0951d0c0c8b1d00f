"""What a plot tells those who don't see it: a sentence for its picture, and a table of its figures.

Pure.  Guarantees that every figure of a view is in its table, and that published and predicted curves are named so.
What is no figure (None, nan, infinite) is a dash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from ..text import number
from ..views import Bar, Bars, Lines, Point, Series, Span, Table, Timeline

Plotted = Lines | Bars | Timeline
_LARGEST = 1e100  # beyond it, axes overflow


def is_figure(value: float | None) -> TypeGuard[float]:
    """Has it a place on an axis?"""
    return value is not None and abs(value) <= _LARGEST  # false for nan, too


def quartiles(low: float | None, high: float | None) -> str:
    """Both, or nothing where one is missing."""
    return f"{number(low)} to {number(high)}" if is_figure(low) and is_figure(high) else ""


def named(series: Series) -> str:
    """The name of a curve, which says what kind it is of."""
    for is_so, word in ((series.published, "published"), (series.predicted, "predicted")):
        if is_so and word not in series.name:
            return f"{series.name} ({word})"
    return series.name


def placed(series: Series) -> list[Point]:
    """Its points that have a place on the axis, from left to right."""
    return sorted((point for point in series.points if is_figure(point.x)), key=lambda point: point.x)


def drawable(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if is_figure(span.begin) and is_figure(span.end) and span.begin <= span.end]


def total(bar: Bar) -> float | None:
    return sum(bar.parts) if bar.parts and all(map(is_figure, bar.parts)) else None


def says(told: Bar | Point) -> str:
    """The figure itself."""
    if isinstance(told, Bar):
        return told.says or number(total(told))
    between = quartiles(told.low, told.high)
    return f"{number(told.y)} ({between})" if between else number(told.y)


# -- in words --------------------------------------------------------------------------------------------------------


def words(view: Plotted) -> str:
    """What the picture shows."""
    match view:
        case Lines():
            told = f"Curves of {view.y} over {view.x}: {_listed(list(map(_course, view.series)))}."
        case Bars():
            groups = (
                f"{name}: " * bool(name) + _listed([f"{bar.name} {says(bar)}" for bar in bars], most=20) + "."
                for name, bars in view.groups
            )
            told = f"Bars, in {view.unit}. {' '.join(groups)}"
        case Timeline():
            told = f"A timeline. {' '.join(f'{name}: {_lasted(spans)}.' for name, spans in view.lanes)}"
    target = None if isinstance(view, Timeline) else view.target
    return f"{view.title}. {told}" + (f" A line at {number(target[1])} marks: {target[0]}." if target else "")


def _course(series: Series) -> str:
    ends = [point for point in placed(series) if is_figure(point.y)]
    if not ends:
        return named(series)
    begin, end = (f"{number(point.y)} at {number(point.x)}" for point in (ends[0], ends[-1]))
    return f"{named(series)}, from {begin} to {end}"


def _lasted(spans: Sequence[Span]) -> str:
    seconds: dict[str, float] = {}
    for span in drawable(spans):
        seconds[span.kind] = seconds.get(span.kind, 0.0) + span.end - span.begin
    return _listed([f"{kind} {number(lasted)} s" for kind, lasted in seconds.items()]) or "nothing"


def _listed(items: Sequence[str], most: int = 12) -> str:
    left = len(items) - most
    return "; ".join(items[:most]) + (f"; and {left} more" if left > 0 else "")


# -- in figures ------------------------------------------------------------------------------------------------------


def figures(view: Plotted) -> Table:
    """A row for each place on the axis, for each bar, for each stretch."""
    match view:
        case Lines():
            columns = (view.x, *map(named, view.series))
            return Table(f"{view.y}, quartiles in brackets", columns, tuple(_by_place(view)))
        case Bars():
            whole = ("together",) if len(view.parts) > 1 else ()
            columns = ("bar", "group", *view.parts, *whole, "quartiles", "says")
            rows = (_of_bar(view, group, bar) for group, bars in view.groups for bar in bars)
            return Table(view.unit, columns, tuple(rows))
        case Timeline():
            stretches = ((lane, span) for lane, spans in view.lanes for span in spans)
            cells = ((lane, number(s.begin), number(s.end), s.kind, s.label) for lane, s in stretches)
            return Table("in seconds", ("lane", "begin", "end", "kind", "label"), tuple(cells))


def _by_place(view: Lines) -> Iterator[tuple[str, ...]]:
    points = [(at, point) for at, series in enumerate(view.series) for point in series.points]
    cells: dict[str, list[list[str]]] = {}
    for at, point in sorted(points, key=lambda pair: pair[1].x if is_figure(pair[1].x) else float("inf")):
        cells.setdefault(number(point.x), [[] for _ in view.series])[at].append(says(point))
    return ((x, *(", ".join(told) for told in row)) for x, row in cells.items())


def _of_bar(view: Bars, group: str, bar: Bar) -> tuple[str, ...]:
    parts = [number(bar.parts[at]) if at < len(bar.parts) else "" for at in range(len(view.parts))]
    whole = [number(total(bar))] if len(view.parts) > 1 else []
    return (bar.name, group, *parts, *whole, quartiles(bar.low, bar.high), bar.says)
