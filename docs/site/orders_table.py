"""The table of orders for language models in docs/performance.md.

It is made from bench/results/orders.json and orders_scenes.json.

    python docs/site/orders_table.py

This writes the figures of these files into the page, over the table that begins with
the same line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pictures import ROOT, is_unsteady

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "bench" / "results"
Result = Mapping[str, Any]

HEADS = (
    "million tokens/s",
    "off after 10³, 10⁵",
    "padding",
    "cost, max / mean",
    "state, bytes",
    "worker killed",
    "trainer killed",
    "1, 3, 2 ranks",
    "weights edited",
)
ROWS = {
    "ours": "**mpiter**",
    "grain": "grain {}",
    "torchdata": "torchdata {}, nodes",
    "datasets": "datasets {}",
    "ours, not packed": "mpiter, not packed",
    "loop": "a loop, not packed",
}
SCENES = ("worker", "trainer", "ranks", "edited")
NOTHING = "–"


def table(figures: Result, scenes: Result) -> list[str]:
    """Return the lines of the table."""
    lines = [("", [*HEADS])]
    for row, name in ROWS.items():
        version = figures["versions"].get(row, {}).get(row, "")
        cells = [*_measured(figures, row)]
        cells += [_scene(scenes, case, row) for case in SCENES]
        lines.append((name.format(version), cells))
    drawn = [f"| {name} | {' | '.join(cells)} |" for name, cells in lines]
    drawn.insert(1, "|---" * (1 + len(HEADS)) + "|")
    return drawn


def page(text: str, figures: Result, scenes: Result) -> str:
    """Return the text of the page with the figures of these results."""
    lines = table(figures, scenes)
    there = rf"^{re.escape(lines[0])}\n(?:\|.*\n)+"
    new = "".join(f"{line}\n" for line in lines)
    text, count = re.subn(there, lambda _: new, text, flags=re.MULTILINE)
    if count != 1:
        raise LookupError(f"{PAGE.name} has {count} tables of orders")
    return text


def _measured(result: Result, row: str) -> Iterator[str]:
    yield _told(result, "speed", row, "tokens_per_s", 1, 1e-6)
    early = _told(result, "weights", row, "off_early", 0)
    late = _told(result, "weights", row, "off_late", 0)
    yield NOTHING if early == NOTHING else f"{early}, {late}"
    padding = _told(result, "rows", row, "padding", 2)
    yield padding if padding == NOTHING else f"{padding} %"
    yield _told(result, "rows", row, "max_over_mean", 2)
    yield _told(result, "rows", row, "state_bytes", 0)


def _told(
    result: Result, case: str, row: str, figure: str, places: int, unit: float = 1
) -> str:
    for one in result["summary"]:
        if (one["case"], one["row"]) == (case, row) and figure in one:
            found = one[figure]
            mark = "~" * is_unsteady(found)
            return f"{mark}{unit * found['median']:,.{places}f}"
    return NOTHING


def _scene(result: Result, case: str, row: str) -> str:
    """Return what became of a loader in a scene, over all rounds."""
    turns = [one for one in result["turns"] if (one["case"], one["row"]) == (case, row)]
    if not turns:
        return NOTHING
    if any("absent" in one for one in turns):
        return "not documented"
    if any("lost" not in one for one in turns):
        return "refuses"
    counts = list[str]()
    for what in ("lost", "twice"):
        numbers = [one[what] for one in turns]
        least = min(numbers)
        most = max(numbers)
        if most > least:
            counts.append(f"{least} to {most} {what}")
        elif most:
            counts.append(f"{most} {what}")
    says = ", ".join(counts) or "exact"
    # What is bad beside these has been raised, or nothing more came.
    if all(one["bad"] > one["lost"] + one["twice"] for one in turns):
        first = "hangs" if "gave nothing" in turns[0]["says"] else "raises"
        return f"{first}; resumed: {says}"
    return says


def main() -> int:
    figures = json.loads((RESULTS / "orders.json").read_text())
    scenes = json.loads((RESULTS / "orders_scenes.json").read_text())
    PAGE.write_text(page(PAGE.read_text(), figures, scenes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
