"""Figures as text, tables and sentences on a terminal, and conclusions that are only drawn where the figures bear them.

Pure.  Guarantees three significant digits (whole numbers in full), `–` for what isn't known, `~` before a figure whose
rounds disagree too much to conclude from; that no conclusion rests on such a figure; and lines of at most `WIDTH`
characters, but for a word that is longer: long names of rows are broken, and what remains too wide is drawn as
several tables, each with the columns that say which row it is.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .spreads import NOISY, Spread
from .views import Point, Table

NOTHING, MINUS = "\u2013", "\u2212"  # the dash and the minus sign of typography
WIDTH = 80  # of a terminal
_LABEL = 9  # characters of what a sentence is: says, warning, absent
_NARROWEST = 9  # characters of a column: longer headings are broken
_NAME = range(20, 33)  # of what the first column may have, where there is no room for all
_NAMES = 50  # of what all that say which row it is may have together
_GAP = "  "


def number(value: float | None) -> str:
    """Three significant digits; whole numbers as they are.

    >>> [number(figure) for figure in (0.0123, 1.234, -12.34, 1234.5, 128.0, 1.5e-7, None, float("nan"))]
    ['0.0123', '1.23', '−12.3', '1,234', '128', '1.5e-7', '–', '–']
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value)
    return f"{MINUS if value < 0 else ''}{_digits(size)}"


def _digits(size: float) -> str:
    if size and not 1e-4 <= size < 1e9:
        digits, _, exponent = f"{size:.2e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size == int(size):
        return f"{size:,.0f}"
    rounded = float(f"{size:.3g}")
    return f"{size:,.{max(0, 2 - math.floor(math.log10(rounded)))}f}"


def median(found: Spread | None) -> str:
    """A figure; with `~` where its rounds disagree."""
    return NOTHING if found is None else f"{'~' if found.is_noisy else ''}{number(found.median)}"


def times(ratio: Spread | None) -> str:
    """A ratio, or nothing where there is none."""
    return median(ratio) + ("×" if ratio else "")


def some(count: float, noun: str) -> str:
    """1 worker, 2 workers, no workers"""
    return f"{f'{count:g}' if count else 'no'} {noun}{'' if count == 1 else 's'}"


def share(value: Spread | None) -> str:
    return NOTHING if value is None else f"{'~' if value.is_noisy else ''}{value.median:.0%}"


def point(x: float, found: Spread) -> Point:
    """A figure on a curve, with its quartiles where it has rounds to take them from."""
    low, high = found.edges or (None, None)
    return Point(x, found.median, low, high)


@dataclass
class Telling:
    """What a run says, and what it doesn't."""

    says: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def conclude(self, sentence: str, *rests_on: Spread | None) -> None:
        """Say it if all that it rests on is there and steady; else say why not."""
        if any(found is None for found in rests_on):
            return
        worst = max((found.relative for found in rests_on if found), default=0.0)
        if worst > NOISY:
            self.warnings.append(f"no conclusion, since rounds differ by {worst:.0%}: {sentence}")
        else:
            self.says.append(sentence)


def wrapped(text: str, label: str = "", indent: int = 0) -> str:
    """A sentence in lines; with a label before it, all of it stands beside that."""
    hang = " " * (_LABEL if label else indent)
    told = f"{label:{_LABEL}}{text}" if label else text
    return "\n".join(textwrap.wrap(told, WIDTH, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False))


def drawn(table: Table) -> Iterator[str]:
    """A table in lines of text."""
    yield from wrapped(table.title, indent=2).splitlines()
    columns = [_Column(name, [row[at] for row in table.rows]) for at, name in enumerate(table.columns)]
    for at, part in enumerate(_parts(columns)):
        if at:
            yield ""
        yield from _lines(part)
    yield from wrapped(table.note).splitlines()


class _Column:
    """A heading, broken, and the cells."""

    def __init__(self, name: str, cells: Sequence[str]) -> None:
        self.cells = list(cells)
        least = max([_NARROWEST, *map(len, cells)])
        self.head = textwrap.wrap(name, least, break_long_words=False) or [""]
        self.width = max(map(len, [*self.head, *cells]))

    def narrowed(self, width: int) -> None:
        self.width = max(width, *map(len, self.head))


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.width + len(_GAP) for column in columns) - len(_GAP)


def _parts(columns: list[_Column]) -> Iterator[list[_Column]]:
    """The table, or as many as it takes."""
    first, beyond = columns[0], _width(columns) - WIDTH
    if beyond > 0 and first.width - beyond >= _NAME[0]:
        first.narrowed(first.width - beyond)
    if _width(columns) <= WIDTH:
        yield columns
        return
    first.narrowed(min(first.width, _NAME[-1]))
    names = columns[: _naming(columns)]
    part = names
    for column in columns[len(names) :]:
        if len(part) > len(names) and _width([*part, column]) > WIDTH:
            yield part
            part = names
        part = [*part, column]
    yield part


def _naming(columns: list[_Column]) -> int:
    """How many columns, from the first, tell one row from another; one if that takes more than leaves room."""
    for count in range(1, len(columns)):
        if _width(columns[:count]) > _NAMES:
            break
        rows = list(zip(*(column.cells for column in columns[:count]), strict=True))
        if len(set(rows)) == len(rows):
            return count
    return 1


def _lines(columns: list[_Column]) -> Iterator[str]:
    first, *others = columns
    deepest = max(len(column.head) for column in columns)
    heads = [[""] * (deepest - len(column.head)) + column.head for column in columns]
    rows = list(zip(*heads, strict=True))
    for number_of_row, cell in enumerate(first.cells):
        name, *more = textwrap.wrap(cell, max(1, first.width), subsequent_indent=_GAP, break_on_hyphens=False) or [""]
        rows.append((name, *(column.cells[number_of_row] for column in others)))
        rows += [(line, *("" for _ in others)) for line in more]
    for name, *cells in rows:
        figures = (f"{cell:>{column.width}}" for cell, column in zip(cells, others, strict=True))
        yield _GAP.join([f"{name:<{first.width}}", *figures]).rstrip()
