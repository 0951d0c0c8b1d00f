"""Views drawn by matplotlib: curves, bars, timelines.

Each is drawn twice, for a wide page and for a telephone, because text that shrinks with its picture cannot be read; the
style sheet shows one of them.  Guarantees that published curves are grey, dashed and hollow, predicted ones dotted and
hollow; that each group of bars has an axis of its own; and that a kind has one colour in all lanes of a timeline.  What
is no figure is a gap.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from ..text import MINUS, number
from ..views import Bar, Bars, Lines, Series, Timeline
from .markup import Markup, printable
from .sheet import COLOURS, INK, LINE, NARROW, WIDE, Sheet, cut, room, styled
from .told import Plotted, drawable, is_figure, named, placed, quartiles, says, words

_MARKERS = "os^DvPX"  # seven, with six colours: no pair comes twice in 42 curves
_MOST_WHISKERS, _MOST_MARKERS = 12, 40  # more points have a band, and not a marker each
_LETTERS_BESIDE = 22  # in a line of the name beside a curve
_UNITS = ((1.0, "seconds"), (1e-3, "milliseconds"), (1e-6, "microseconds"))


def pictures(view: Plotted, prefix: str) -> tuple[Markup, ...]:
    """The plot for both widths; none where there is nothing to draw.  The prefix is of the identities in it."""
    if not _has_figures(view):
        return ()
    return _picture(view, WIDE, f"{prefix}-wide"), _picture(view, NARROW, f"{prefix}-narrow")


def _has_figures(view: Plotted) -> bool:
    match view:
        case Lines():
            return any(is_figure(point.y) for series in view.series for point in placed(series))
        case Bars():
            return any(_reach(bar) for _, bars in view.groups for bar in bars)
        case Timeline():
            return any(drawable(spans) for _, spans in view.lanes)


def _picture(view: Plotted, width: float, prefix: str) -> Markup:
    with styled():
        sheet = Sheet(width)
        match view:
            case Lines():
                _draw_lines(sheet, view)
            case Bars():
                _draw_bars(sheet, view)
            case Timeline():
                _draw_timeline(sheet, view)
        return sheet.markup(words(view), prefix)


def _axis(axis: Any, most: int, *, whole: bool = False) -> None:
    """Few and round ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", MINUS)))


def _limits(values: Iterable[float | None]) -> tuple[float, float]:
    """From zero, or below."""
    found = [0.0, *filter(is_figure, values)]
    low, high = 1.03 * min(found), 1.03 * max(found)
    return (low, high) if high - low > 1e-100 else (0.0, 1.0)


def _target(target: tuple[str, float] | None) -> float | None:
    return target[1] if target and is_figure(target[1]) else None


def _target_key(target: tuple[str, float], unit: str = "") -> dict[str, Any]:
    """How the line that things are held against looks."""
    name = cut(f"{target[0]}: {number(target[1])} {unit}".rstrip(), NARROW - 50)
    return {"color": INK["fg"], "linewidth": 1.25, "linestyle": "dashdot", "label": name}


_QUARTILES = "quartiles of the rounds"
_CAPS = {"fmt": "none", "capsize": 3, "elinewidth": 1.25, "capthick": 1.25}


def _middle(low: float, high: float) -> tuple[float, float]:
    """Of two quartiles, and the way from there to both."""
    return (low + high) / 2, abs(high - low) / 2


# -- curves ----------------------------------------------------------------------------------------------------------


def _draw_lines(sheet: Sheet, view: Lines) -> None:
    axes = sheet.figure.subplots()
    curves = [series for series in view.series if any(is_figure(point.y) for point in placed(series))]
    points = [point for series in curves for point in placed(series)]
    heights = [height for point in points for height in (point.y, point.low, point.high)]
    axes.set_xlim(*_limits(point.x for point in points))
    axes.set_ylim(*_limits([*heights, _target(view.target)]))
    _axis(axes.xaxis, 5 if sheet.is_narrow else 9, whole=all(float(point.x).is_integer() for point in points))
    _axis(axes.yaxis, 6)
    axes.grid(visible=False, axis="x")
    axes.axhline(0, color=INK["axis"], linewidth=1, zorder=1)
    axes.set_title(cut(view.y, sheet.width - 60), loc="left")
    axes.set_xlabel(cut(view.x, sheet.width - 60))
    names = ["\n".join(textwrap.wrap(printable(named(series)), _LETTERS_BESIDE)) for series in curves]
    lines = [name.count("\n") + 1 for name in names]
    are_beside = not sheet.is_narrow and max(lines) <= 2 and sum(lines) <= 14
    for at, series in enumerate(curves):
        _draw_curve(sheet, axes, series, at, "" if are_beside else cut(named(series), sheet.width - 50))
    if view.target and is_figure(view.target[1]):
        axes.axhline(view.target[1], **_target_key(view.target))
    if are_beside:
        _name_beside(axes, curves, names)
    sheet.finish(260 if sheet.is_narrow else 330)


def _ink(series: Series, at: int) -> str:
    return INK["grey" if series.published else COLOURS[at % len(COLOURS)]]


def _draw_curve(sheet: Sheet, axes: Any, series: Series, at: int, name: str) -> None:
    points, ink, is_hollow = placed(series), _ink(series, at), series.published or series.predicted
    step = -(-len(points) // _MOST_MARKERS)
    axes.plot(
        [point.x for point in points],
        [point.y if is_figure(point.y) else float("nan") for point in points],
        color=ink,
        linestyle="dashed" if series.published else "dotted" if series.predicted else "solid",
        marker=_MARKERS[at % len(_MARKERS)],
        markersize=7,
        markevery=step,
        markerfacecolor=INK["bg"] if is_hollow else ink,
        markeredgecolor=ink if is_hollow else INK["bg"],
        label=name,
        zorder=2.5 if series.published else 3,
        gid=sheet.says(*(f"{named(series)}: {says(p)} at {number(p.x)}" for p in points[::step] if is_figure(p.y))),
    )
    spread = [point for point in points if is_figure(point.y) and quartiles(point.low, point.high)]
    xs, edges = [point.x for point in spread], [(point.low or 0.0, point.high or 0.0) for point in spread]
    if len(spread) > _MOST_WHISKERS:
        axes.fill_between(xs, *zip(*edges, strict=True), color=ink, alpha=0.18, linewidth=0, label=_QUARTILES)
    elif spread:
        middles, ways = zip(*(_middle(*both) for both in edges), strict=True)
        axes.errorbar(xs, middles, yerr=ways, ecolor=ink, label=_QUARTILES, zorder=2, **_CAPS)


def _name_beside(axes: Any, curves: Sequence[Series], names: Sequence[str]) -> None:
    """Names at the curves' ends, kept apart, each with a thin line that leads to it."""
    low, high = axes.get_ylim()
    ends = [next(point for point in reversed(placed(series)) if is_figure(point.y)) for series in curves]
    gap = LINE * max(name.count("\n") + 1 for name in names) / 240
    heights = kept_apart([(end.y - low) / (high - low) for end in ends], gap)
    for at, (series, name, end, height) in enumerate(zip(curves, names, ends, heights, strict=True)):
        lead = {"arrowstyle": "-", "color": _ink(series, at), "alpha": 0.6, "relpos": (0, 0.5), "shrinkB": 5}
        where = {"textcoords": "axes fraction", "va": "center", "annotation_clip": False}
        axes.annotate(name, (end.x, end.y), (1.03, height), arrowprops=lead, **where)


def kept_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Places from 0 to 1 near the wanted ones, at least `gap` from each other if there is room.

    >>> kept_apart([0.5, 0.5, 0.25], gap=0.125)
    [0.5, 0.625, 0.25]
    """
    order, places = sorted(range(len(wanted)), key=wanted.__getitem__), list(wanted)
    floor, ceiling = 0.0, 1.0
    for at in order:
        places[at] = max(places[at], floor)
        floor = places[at] + gap
    for at in reversed(order):
        places[at] = min(places[at], ceiling)
        ceiling = places[at] - gap
    return places


# -- bars ------------------------------------------------------------------------------------------------------------


def _reach(bar: Bar) -> list[float]:
    """All that the axis has to cover."""
    parts = list(filter(is_figure, bar.parts))
    ends = [sum(part for part in parts if part > 0), sum(part for part in parts if part < 0)] if parts else []
    return list(filter(is_figure, [*ends, bar.low, bar.high]))


def _draw_bars(sheet: Sheet, view: Bars) -> None:
    groups = [(name, bars) for name, bars in view.groups if bars]
    every = [bar for _, bars in groups for bar in bars]
    is_above = sheet.is_narrow or max(room(bar.name) + room(says(bar)) for bar in every) > sheet.width / 2
    heights = [(38 if is_above else 25) * len(bars) + 52 for _, bars in groups]
    rows = sheet.figure.subplots(len(groups), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, bars) in zip(rows, groups, strict=True):
        axes.set_title(cut(name, 0.8 * sheet.width), loc="left", fontweight="bold", x=0)
        axes.set_title(cut(view.unit, 0.15 * sheet.width), loc="right", color=INK["muted"])
        axes.set_xlim(*_limits([*(end for bar in bars for end in _reach(bar)), _target(view.target)]))
        axes.set_ylim(len(bars) - 0.5, -0.8 if is_above else -0.5)
        _axis(axes.xaxis, 4 if sheet.is_narrow else 6)
        axes.grid(visible=False, axis="y")
        axes.axvline(0, color=INK["axis"], linewidth=1)
        axes.set_yticks(range(len(bars)), [""] * len(bars) if is_above else [cut(bar.name, 300) for bar in bars])
        axes.tick_params("y", labelcolor=INK["fg"])
        for at, bar in enumerate(bars):
            _draw_bar(sheet, axes, view, bar, at, is_above)
        if view.target and is_figure(view.target[1]):
            ends = [[at + way for at in range(len(bars))] for way in (-0.4, 0.4)]
            axes.vlines([view.target[1]] * len(bars), *ends, **_target_key(view.target, view.unit))
    sheet.finish(sum(heights))


def _draw_bar(sheet: Sheet, axes: Any, view: Bars, bar: Bar, at: int, is_above: bool) -> None:
    ends = {True: 0.0, False: 0.0}  # of the parts above zero, and below
    place, thick = (at + 0.15, 0.36) if is_above else (at, 0.64)
    for index, part in enumerate(bar.parts):
        if is_figure(part) and part:
            name = printable(view.parts[index]) if index < len(view.parts) else ""
            axes.barh(
                place,
                part,
                thick,
                left=ends[part > 0],
                color=INK[COLOURS[index % len(COLOURS)]],
                edgecolor=INK["bg"],
                linewidth=0.75,
                label=name if len(view.parts) > 1 else "",
                gid=sheet.says(f"{bar.name}, {name}: {number(part)} {view.unit}"),
            )
            ends[part > 0] += part
    if is_figure(bar.low) and is_figure(bar.high):
        middle, way = _middle(bar.low, bar.high)
        halo = _CAPS | {"elinewidth": 3.5, "capthick": 3.5, "alpha": 0.75}
        axes.errorbar(middle, place, xerr=way, ecolor=INK["bg"], **halo)
        axes.errorbar(middle, place, xerr=way, ecolor=INK["fg"], label=_QUARTILES, **_CAPS)
    if is_above:
        end = cut(says(bar), 0.6 * sheet.width)
        above = {"transform": axes.get_yaxis_transform(), "va": "bottom"}
        axes.text(0.01, place - 0.2, cut(bar.name, 0.95 * sheet.width - room(end)), **above)
        axes.text(1, place - 0.2, end, ha="right", **above)
    else:
        beside = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
        axes.annotate(cut(says(bar), 300), (max([0.0, *_reach(bar)]), place), (8, 0), **beside)


# -- timelines -------------------------------------------------------------------------------------------------------


def _draw_timeline(sheet: Sheet, view: Timeline) -> None:
    axes = sheet.figure.subplots()
    lanes = [(name, drawable(spans)) for name, spans in view.lanes]
    edges = [edge for _, spans in lanes for span in spans for edge in (span.begin, span.end)]
    length = max(map(abs, edges))
    unit, unit_name = next((pair for pair in _UNITS if length >= pair[0]), _UNITS[-1])
    low, high = min(0.0, *edges) / unit, max(edges) / unit
    axes.set_xlim(low, high if high > low else low + 1)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    names = [cut(name, sheet.width / 4) for name, _ in lanes]
    axes.set_yticks(range(len(lanes)), names)
    axes.tick_params("y", labelcolor=INK["fg"])
    axes.grid(visible=False, axis="y")
    _axis(axes.xaxis, 4 if sheet.is_narrow else 8)
    axes.set_xlabel(unit_name)
    kinds = list(dict.fromkeys(span.kind for _, spans in lanes for span in spans))
    pixels = (sheet.width - max(map(room, names)) - 20) / max(high - low, 1e-9)  # a unit
    for at, (name, spans) in enumerate(lanes):
        axes.barh(at, high - low, 0.66, left=low, color=INK["track"], zorder=0.5)
        for span in spans:
            index, long = kinds.index(span.kind) % len(COLOURS), (span.end - span.begin) / unit
            what = f"{span.kind}, {span.label}" if span.label else span.kind
            tip = f"{name}: {what}, {number(span.begin)} s to {number(span.end)} s"
            look = {"color": INK[COLOURS[index]], "edgecolor": INK["bg"], "linewidth": 0.75}
            key = cut(span.kind, 200)
            axes.barh(at, long, 0.66, left=span.begin / unit, label=key, gid=sheet.says(tip), **look)
            if span.label and room(span.label) + 4 < long * pixels:
                middle = (span.begin + span.end) / 2 / unit
                inside = {"ha": "center", "va": "center", "color": INK[f"on-{index}"]}
                axes.text(middle, at, printable(span.label), **inside)
    sheet.finish(36 * len(lanes) + 50)
