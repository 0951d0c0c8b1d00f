"""The pictures of the documentation, made from measured results.

Run `python docs/site/pictures.py` to make them.

Writes docs/pictures/speed.svg and timeline.svg, which depend on bench/results/ alone
and bring their own ground, light or dark as the reader has it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "pictures"
SPEED = ROOT / "bench" / "results" / "transport.json"
TIMELINE = ROOT / "bench" / "results" / "hide.json"
# orders_table.py draws it.
ORDERS = ROOT / "bench" / "results" / "orders.json"

# Pixels: the picture, the names on the left, between columns, a row.
WIDTH = 850
BESIDE = 160
GAP = 14
ROW = 26
# Pixels of a digit or letter, about.
LETTER = 7.3
# Rows of the measurement, and what they are called.
BARS = {
    "ours_columns": "mpiter, columns",
    "ours": "mpiter, lists",
    "ours_torch": "mpiter.torch",
    "ours_alone": "mpiter, no workers",
    "torch": "torch {}",
    "chainer": "Chainer {}",
}
SHOWN_S = 0.32  # of the timeline
# Orders for language models: loaders, what they are called, and what is measured.
ORDER_ROWS = {
    "ours": "mpiter",
    "grain": "grain {}",
    "mosaicml-streaming": "mosaicml {}",
    "litdata": "litdata {}",
    "torchdata": "torchdata {}",
    "datasets": "datasets {}",
}
ORDER_COLUMNS = {
    ("speed", "tokens_per_s"): ("tokens", "million a second: more is better"),
    ("rows", "padding"): ("padding", "% of the cells: less is better"),
    ("rows", "max_over_mean"): (
        "busiest of 8 ranks",
        "% above the mean: less is better",
    ),
}
STYLE = """
svg { --ground: #fdfdfc; --ink: #1c2127; --faint: #59626d; --track: #e8ebee; \
--ours: #0072b2; --theirs: #8a939d;
  --step: #0072b2; --wait: #d55e00; --fetch: #009e73; --on: #fff; --on-fetch: #000; }
@media (prefers-color-scheme: dark) {
  svg { --ground: #14171b; --ink: #e4e7ea; --faint: #a0a9b3; --track: #2a3037; \
--ours: #56b4e9; --theirs: #7f8994;
    --step: #56b4e9; --wait: #e8873a; --fetch: #2fbf93; --on: #000; }
}
text { font: 13px system-ui, sans-serif; fill: var(--ink); }
.faint { fill: var(--faint); } .small { font-size: 11px; } .bold { font-weight: 650; }
.on { fill: var(--on); } .on-fetch { fill: var(--on-fetch); font-size: 11px; }
"""


def speed() -> str:
    """Draw the batches a second of each loader.

    Each kind of sample has a column, as wide as the limit.
    """
    result = json.loads(SPEED.read_text())
    figures = {
        (one["case"], one["row"]): one["batches_per_s"] for one in result["summary"]
    }
    rates = {place: figure["median"] for place, figure in figures.items()}
    names = {row: name.format(version(result, row)) for row, name in BARS.items()}
    cases = {
        case: about
        for case, about in result["cases"].items()
        if (case, "limit") in rates
    }
    width = (WIDTH - BESIDE - GAP * len(cases)) / len(cases)
    parts = []
    for at, (row, name) in enumerate(names.items()):
        kind = "bold" if "ours" in row else ""
        parts.append(_text(10, 58 + ROW * at + 17, name, kind))
    for number, (case, about) in enumerate(cases.items()):
        left = BESIDE + number * (width + GAP)
        limit = rates[case, "limit"]
        parts += [
            _text(left, 24, _called(about), "bold"),
            _text(left, 44, f"limit {limit:,.0f}", "faint small"),
        ]
        for at, row in enumerate(BARS):
            rate = rates[case, row]
            top = 58 + ROW * at
            parts.append(_box(left, top, width, ROW - 4, "track"))
            says = f"{'~' * is_unsteady(figures[case, row])}{rate:,.0f}"
            colour = "ours" if "ours" in row else "theirs"
            parts += _bar(left, top, width * rate / limit, width, says, colour)
    height = 58 + ROW * len(BARS) + 34
    workers = result["settings"]["workers"]
    limit = f"the limit: {workers} processes that fill slots and do nothing else"
    says = (
        f"Batches a second, {workers} workers. A whole track is {limit}. "
        "~: rounds differ by more than 15%."
    )
    parts.append(_text(10, height - 14, says, "faint small"))
    return _svg(height, "Batches a second by loader and kind of sample", parts)


def orders(result: dict[str, Any]) -> str:
    """Draw what loaders that mix and pack are told apart by.

    Each figure has a column, as wide as the largest.
    """
    figures = {
        (one["case"], one["row"], figure): one[figure]
        for one in result["summary"]
        for figure in one
    }
    rows = [row for row in ORDER_ROWS if row in result["versions"]]
    width = (WIDTH - BESIDE - GAP * len(ORDER_COLUMNS)) / len(ORDER_COLUMNS)
    parts = []
    for at, row in enumerate(rows):
        name = ORDER_ROWS[row].format(version(result, row))
        parts.append(_text(10, 58 + ROW * at + 17, name, "bold" * (row == "ours")))
    for number, ((case, figure), heads) in enumerate(ORDER_COLUMNS.items()):
        left = BESIDE + number * (width + GAP)
        parts += [
            _text(left, 24, heads[0], "bold"),
            _text(left, 44, heads[1], "faint small"),
        ]
        found = {
            row: figures[case, row, figure]
            for row in rows
            if (case, row, figure) in figures
        }
        values = {row: _order(figure, one["median"]) for row, one in found.items()}
        for at, row in enumerate(rows):
            top = 58 + ROW * at
            parts.append(_box(left, top, width, ROW - 4, "track"))
            if row not in values:
                continue
            digits = ".2g" if values[row] < 10 else ".0f"
            says = f"{'~' * is_unsteady(found[row])}{values[row]:{digits}}"
            long = width * values[row] / max(values.values())
            colour = "ours" if row == "ours" else "theirs"
            parts += _bar(left, top, long, width, says, colour)
    height = 58 + ROW * len(rows) + 34
    workers = result["settings"]["workers"]
    says = (
        f"{workers} workers, rows of 2,048 tokens. ~: rounds differ by more than 15%."
    )
    parts.append(_text(10, height - 14, says, "faint small"))
    return _svg(height, "What tells loaders for language models apart", parts)


def _order(figure: str, value: float) -> float:
    """Return a figure in the unit of its column."""
    if figure == "tokens_per_s":
        return value / 1e6
    if figure == "max_over_mean":
        return 100 * (value - 1)
    return value


def is_unsteady(figure: dict[str, Any]) -> bool:
    """Tell whether the rounds differ too much for more than an order of magnitude."""
    return bool(figure["iqr"] > 0.15 * figure["median"])


def version(result: dict[str, Any], row: str) -> str:
    """Return the name and version of the library that was measured."""
    whole = result["versions"][row].get(row, "").split("+")[0]
    numbers = whole.split(".")
    shown = 2 if row == "torch" else 3
    return ".".join(numbers[:shown])


def _called(about: str) -> str:
    """Return a case in as few words as stand over a column.

    "batches of 128 x 28x28 float32 and …" becomes 128 × 28×28.
    """
    of, shape = re.findall(r"^batches of (\d+) x (\d+(?:x\d+)*) ", about)[0]
    for says, what in {
        "one in 50 takes 50x": "1 in 50 takes 50×",
        "decoded from JPEG": f"{of} JPEG files",
    }.items():
        if says in about:
            return what
    return f"{of} × {shape.replace('x', '×')}"


def _bar(
    left: float, top: float, long: float, room: float, says: str, colour: str
) -> Iterator[str]:
    yield _box(left, top, long, ROW - 4, colour)
    end = left + long
    if long + 12 + LETTER * len(says) > room:
        # The figure would stand beyond the column's end: it goes into the bar.
        yield _text(end - 6, top + 16, says, "on", is_end=True)
    else:
        yield _text(end + 6, top + 16, says)


def timeline() -> str:
    """Draw what consumer and workers did for a third of a second.

    It shows one worker, and as many as hide loading.
    """
    result = json.loads(TIMELINE.read_text())
    recorded = {
        turn["row"]: turn["lanes"] for turn in result["turns"] if "lanes" in turn
    }
    parts = []
    top = 12.0
    for workers in ("1", "3"):
        lanes = recorded[f"training, {workers}"]
        title = "1 worker" if workers == "1" else f"{workers} workers"
        says = f"{title}: the consumer waits {_waited(lanes[0][1])} of the time"
        parts.append(_text(10, top + 16, says, "bold"))
        top += ROW
        for name, spans in lanes:
            parts += [
                _text(10, top + 16, name),
                _box(BESIDE, top, _at(SHOWN_S) - BESIDE, ROW - 4, "track"),
                *_lane(top, spans),
            ]
            top += ROW
        top += 10
    for tenth in range(int(10 * SHOWN_S) + 1):
        says = f"{100 * tenth} ms"
        parts.append(_text(_at(tenth / 10), top + 6, says, "faint small"))
    kinds = {
        "step": "a training step (40 ms)",
        "wait": "waiting for a batch",
        "fetch": "fetching samples of batch n",
    }
    parts += _key(top + 20, kinds)
    return _svg(top + 50, "A timeline of consumer and workers", parts)


def _waited(spans: list[Any]) -> str:
    """Return the share of what is shown in which the consumer waited."""
    waits = [
        min(end, SHOWN_S) - begin
        for begin, end, kind, _ in spans
        if kind == "wait" and begin < SHOWN_S
    ]
    share = sum(waits) / SHOWN_S
    if share < 0.01:
        return "less than 1%"
    return f"{share:.0%}"


def _at(seconds: float) -> float:
    return BESIDE + (WIDTH - BESIDE - GAP) * seconds / SHOWN_S


def _lane(top: float, spans: list[Any]) -> Iterator[str]:
    for begin, end, kind, label in spans:
        left = _at(begin)
        right = _at(min(end, SHOWN_S))
        if right <= left:
            continue
        yield _box(left, top, max(right - left - 1, 0.5), ROW - 4, kind)
        number = label.removeprefix("batch ")
        if number and right - left > LETTER * len(number) + 4:
            yield _text(
                (left + right) / 2 - 3 * len(number), top + 15, number, "on-fetch"
            )


def _key(top: float, kinds: dict[str, str]) -> Iterator[str]:
    left = float(BESIDE)
    for kind, says in kinds.items():
        yield _box(left, top, 14, 14, kind)
        yield _text(left + 20, top + 11, says, "faint small")
        left += 34 + 6.2 * len(says)


def _box(left: float, top: float, width: float, height: float, colour: str) -> str:
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} rx="2" fill="var(--{colour})"/>'


def _text(
    left: float, base: float, says: str, kind: str = "", is_end: bool = False
) -> str:
    which = f' class="{kind}"' if kind else ""
    anchor = ' text-anchor="end"' if is_end else ""
    return f'<text x="{left:.1f}" y="{base:.1f}"{which}{anchor}>{escape(says)}</text>'


def _svg(height: float, title: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'width="{WIDTH}" role="img">'
    )
    ground = (
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="6" fill="var(--ground)"/>'
    )
    title = f"<title>{title}</title>"
    style = f"<style>{STYLE}</style>"
    return "\n".join([head, title, style, ground, *parts, "</svg>", ""])


def main() -> int:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "speed.svg").write_text(speed())
    (PICTURES / "timeline.svg").write_text(timeline())
    return 0


if __name__ == "__main__":
    sys.exit(main())
