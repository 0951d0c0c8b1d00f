"""Bars: `Bars` to a plot.

Pure.  Guarantees that every group has an axis of its own from zero, that parts lie one upon the other and negative
ones to the left of zero, and that a bar without a figure is a row that says "–".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..text import number
from ..views import Bar, Bars, Table
from .markup import Markup, tag
from .plots import (
    NARROW,
    WIDE,
    Key,
    Plot,
    colour,
    listed,
    nothing,
    patch,
    quartile_key,
    room,
    shortened,
    svg,
    target_key,
    whisker,
    write,
)
from .scales import Scale, is_figure, labels, quartiles, ticks


@dataclass(frozen=True, slots=True)
class _Layout:
    """The same for all groups of a picture: names stand before their bars, or above them where there is little room."""

    width: float
    left: float
    right: float
    above: bool

    @property
    def pitch(self) -> float:
        return 38 if self.above else 25

    @property
    def thickness(self) -> float:
        return 13 if self.above else 16


def plot(view: Bars) -> Plot:
    """The bars, drawn."""
    if not any(_figures(bar) for _, bars in view.groups for bar in bars):
        return nothing(_data(view))
    return Plot((_draw(view, WIDE), _draw(view, NARROW)), tuple(_keys(view)), _data(view))


def _total(bar: Bar) -> float | None:
    return sum(bar.parts) if bar.parts and all(is_figure(part) for part in bar.parts) else None


def _says(bar: Bar) -> str:
    return bar.says or number(_total(bar))


def _figures(bar: Bar) -> list[float]:
    """All that the axis has to cover."""
    parts = [part for part in bar.parts if is_figure(part)]
    ends = [sum(part for part in parts if part > 0), sum(part for part in parts if part < 0)] if parts else []
    return [value for value in (*ends, bar.low, bar.high) if is_figure(value)]


def _layout(view: Bars, width: float) -> _Layout:
    bars = [bar for _, bars in view.groups for bar in bars]
    names, ends = max(room(bar.name) for bar in bars), max(room(_says(bar)) for bar in bars)
    if width == NARROW or names + ends > width / 2:
        return _Layout(width, 1, width - 6, above=True)
    return _Layout(width, names + 12, width - ends - 12, above=False)


def _draw(view: Bars, width: float) -> Markup:
    layout = _layout(view, width)
    top, content = 0.0, []
    for name, bars in view.groups:
        if not bars:
            continue
        heading = 26 if name or view.unit else 6
        axis = 26 if any(map(_figures, bars)) else 0
        bottom = top + heading + layout.pitch * len(bars)
        content.append(_group(view, name, bars, layout, top, top + heading, bottom))
        top = bottom + axis + 14
    return svg(width, top - 8, _words(view), *content)


def _group(
    view: Bars, name: str, bars: tuple[Bar, ...], layout: _Layout, top: float, begin: float, end: float
) -> Markup:
    figures = [value for bar in bars for value in _figures(bar)]
    target = view.target[1] if view.target else None
    marks = ticks([*figures, *([target] if is_figure(target) else [])], 4 if layout.above else 6)
    scale = Scale(marks[0], marks[-1], layout.left, layout.right)
    rows = [begin + layout.pitch * index for index in range(len(bars))]
    unit_fits = room(name) + room(view.unit) + 20 < layout.width
    return tag(
        "g",
        write(0, top + 14, shortened(name, layout.width * 0.85), "heading"),
        *([write(layout.width, top + 14, view.unit, "tick", "end")] if unit_fits else []),
        *(_axis(marks, scale, view.target, begin, end, layout) if figures else ()),
        *(_row(view, bar, scale, row, layout) for bar, row in zip(bars, rows, strict=True)),
    )


def _axis(
    marks: tuple[float, ...],
    scale: Scale,
    target: tuple[str, float] | None,
    begin: float,
    end: float,
    layout: _Layout,
) -> Iterator[Markup]:
    taken = None
    if target and is_figure(target[1]):
        says = f"{target[0]}: {number(target[1])}"
        half = room(says) / 2
        taken = min(max(scale(target[1]), half), layout.width - half), half
        yield write(taken[0], end + 16, says, "note", "middle")
    for mark, label in zip(marks, labels(marks), strict=True):
        x = scale(mark)
        yield tag("line", x1=x, y1=begin, x2=x, y2=end, class_="grid" if mark else "axis")
        half = room(label) / 2 + 2
        at = min(max(x, half), layout.width - half)
        if taken is None or abs(at - taken[0]) > taken[1] + half + 4:
            yield write(at, end + 16, label, "tick", "middle")


def _row(view: Bars, bar: Bar, scale: Scale, top: float, layout: _Layout) -> Markup:
    thick = layout.thickness
    says, middle = _says(bar), top + layout.pitch - thick / 2 - 5
    tip = f"{bar.name}: {says}" + (f", quartiles {_between(bar)}" if _between(bar) else "")
    pieces = list(_parts(view, bar, scale, middle - thick / 2, thick))
    if is_figure(bar.low) and is_figure(bar.high):
        pieces.append(whisker((scale(bar.low), middle), (scale(bar.high), middle)))
    if view.target and is_figure(view.target[1]):  # at each bar by itself, where no text is; over bars, under texts
        x, reach = scale(view.target[1]), thick / 2 + (1 if layout.above else 4)
        pieces.append(tag("line", x1=x, y1=middle - reach, x2=x, y2=middle + reach, class_="target"))
    if layout.above:
        end = write(layout.width, middle - thick / 2 - 5, shortened(says, layout.width * 0.6), "figure", "end")
        name = shortened(bar.name, layout.width - min(room(says), layout.width * 0.6) - 10)
        return tag("g", tag("title", tip), write(layout.left + 5, middle - thick / 2 - 5, name, "name"), *pieces, end)
    end = write(max(map(scale, [0, *_figures(bar)])) + 8, middle + 4, says, "figure")
    return tag("g", tag("title", tip), write(layout.left - 10, middle + 4, bar.name, "name", "end"), *pieces, end)


def _parts(view: Bars, bar: Bar, scale: Scale, top: float, thick: float) -> Iterator[Markup]:
    right = left = 0.0
    for index, part in enumerate(bar.parts):
        if not is_figure(part) or part == 0:
            continue
        if part > 0:
            begin, end = right, right + part
            right = end
        else:
            begin, end = left + part, left
            left = begin
        name = view.parts[index] if index < len(view.parts) else ""
        tip = tag("title", f"{bar.name}, {name}: {number(part)} {view.unit}")
        box = {"x": scale(begin), "y": top, "width": max(0.75, scale(end) - scale(begin)), "height": thick}
        yield tag("rect", tip, **box, class_=f"fill part {colour(index)}")


def _keys(view: Bars) -> Iterator[Key]:
    if len(view.parts) > 1:
        for index, part in enumerate(view.parts):
            yield Key(patch(colour(index)), part)
    if any(_between(bar) for _, bars in view.groups for bar in bars):
        yield quartile_key()
    if view.target and is_figure(view.target[1]):
        yield target_key(view.target[0], f"{number(view.target[1])} {view.unit}")


def _words(view: Bars) -> str:
    told = [_told(name, listed([f"{bar.name} {_says(bar)}" for bar in bars], most=20)) for name, bars in view.groups]
    target = f" A line at {number(view.target[1])} marks: {view.target[0]}." if view.target else ""
    return f"{view.title}. Bars, in {view.unit}. {' '.join(told)}{target}"


def _told(group: str, bars: str) -> str:
    return f"{group}: {bars}." if group else f"{bars}."


def _data(view: Bars) -> Table:
    """A row for each bar."""
    whole = ("together",) if len(view.parts) > 1 else ()
    columns = ("bar", "group", *view.parts, *whole, "quartiles", "says")
    rows = (
        (bar.name, group, *_of_parts(view, bar), *(number(_total(bar)) for _ in whole), _between(bar), bar.says)
        for group, bars in view.groups
        for bar in bars
    )
    return Table(view.unit, columns, tuple(rows))


def _of_parts(view: Bars, bar: Bar) -> Iterator[str]:
    for index in range(len(view.parts)):
        yield number(bar.parts[index]) if index < len(bar.parts) else ""


def _between(bar: Bar) -> str:
    return quartiles(bar.low, bar.high)
