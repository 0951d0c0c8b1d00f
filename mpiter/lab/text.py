"""Figures as text, tables on a terminal, and sentences that are only said where the figures bear them.

Pure.  Guarantees three significant digits (whole numbers in full), `–` for what isn't known, `~` before a figure whose
rounds disagree too much to conclude from, and that no sentence rests on such a figure.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field

from .spreads import NOISY, Spread
from .views import Point, Table

NOTHING, MINUS = "\u2013", "\u2212"  # the dash and the minus sign of typography
_NARROWEST = 9  # characters of a column: longer headings are broken


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


def drawn(table: Table) -> Iterator[str]:
    """A table in lines of text."""
    cells_of = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    least = [max([_NARROWEST, *map(len, cells)]) for cells in cells_of]
    heads = [
        textwrap.wrap(name, width, break_long_words=False) or [""]
        for name, width in zip(table.columns, least, strict=True)
    ]
    deepest = max(map(len, heads))
    header = list(zip(*([""] * (deepest - len(head)) + head for head in heads), strict=True))
    widths = [max(map(len, cells)) for cells in zip(*header, *table.rows, strict=True)]
    yield table.title
    for cells in (*header, *table.rows):
        first, *others = (f"{cell:{'<' if not at else '>'}{widths[at]}}" for at, cell in enumerate(cells))
        yield "  ".join([first, *others]).rstrip()
    if table.note:
        yield table.note
