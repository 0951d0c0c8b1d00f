"""What an experiment has to show: tables, curves, bars and timelines, as values that don't know how they are drawn.

Pure.  Made by the experiments from a result, drawn by `plots` and `page`, printed by `text`, read by the tests.
Guarantees that what stems from a publication says so (`published`), and is never mixed with what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Point:
    """One figure of a curve; `low` and `high` are the quartiles, where there were rounds to take them from."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A curve."""

    name: str
    points: tuple[Point, ...]
    published: bool = False  # somebody else's figures, from a publication
    predicted: bool = False  # by a model, not measured


@dataclass(frozen=True, slots=True)
class Lines:
    """Curves over one axis, linear from zero; `target` is a horizontal line with a name (a step time, 100 %)."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    note: str = ""
    target: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its parts lie one upon the other, in the order of `Bars.parts`; `says` stands at its end."""

    name: str
    parts: tuple[float, ...]
    says: str = ""
    low: float | None = None  # quartiles of the whole
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of horizontal bars, each group with a scale of its own (payloads differ by orders of magnitude)."""

    title: str
    unit: str
    parts: tuple[str, ...]  # what the parts of a bar are; one name where bars are whole
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]
    note: str = ""
    target: tuple[str, float] | None = None  # a vertical line in every group (the limit: 100 %)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column names the row, the others are aligned right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    published: bool = False  # somebody else's figures: for the report, not for the terminal

    @classmethod
    def of(cls, title: str, rows: Sequence[Mapping[str, str]], note: str = "") -> Table:
        """Of rows, at least one, whose cells bear the names of their columns."""
        return cls(title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), note)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one lane; the same `kind` is drawn in the same colour in all lanes."""

    begin: float
    end: float
    kind: str  # "fetch", "wait", "step", …
    label: str = ""  # "batch 12"


@dataclass(frozen=True, slots=True)
class Timeline:
    """Who did what when, in seconds from the left edge."""

    title: str
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]
    note: str = ""


View = Lines | Bars | Table | Timeline


@dataclass(frozen=True, slots=True)
class Section:
    """All that is told of one result."""

    name: str  # "overhead": an anchor
    heading: str
    about: str  # what was done, in two or three sentences
    says: tuple[str, ...]  # what came of it, a sentence each
    warnings: tuple[str, ...]
    absent: tuple[str, ...]  # what could not be measured, and why
    views: tuple[View, ...]
    command: str  # repeats it exactly
    facts: tuple[tuple[str, str], ...] = field(default=())  # machine, versions, settings: names and values
