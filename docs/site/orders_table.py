"""The section on order for language models in docs/performance.md, and its picture.

They are made from bench/results/orders.json, and what planning takes from
bench/results/orders_planning.json.

    python docs/site/orders_table.py

This writes the section over the one that is there, or before NEXT if there is none.
Figures whose rounds differ have `~`; a cell that wasn't measured has a dash.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from pictures import ORDERS, PICTURES, ROOT, is_unsteady, orders, version

PLANNING = ORDERS.with_name("orders_planning.json")
PAGE = ROOT / "docs" / "performance.md"
HEADING = "## Order for language models"
NEXT = "## Orders and states of any size"
Result = dict[str, Any]

ROWS = {
    "ours": "**mpiter**",
    "grain": "grain {}",
    "mosaicml-streaming": "mosaicml-streaming {}",
    "litdata": "litdata {}",
    "torchdata": "torchdata {}, nodes",
    "datasets": "datasets {}",
}
ALONE = {"ours, not packed": "mpiter, not packed", "loop": "a loop, not packed"}
FIGURES = (
    "million tokens/s",
    "… 32 rows a batch",
    "off after 10³, 10⁵",
    "… with odd weights",
    "padding",
    "cost, max / mean",
    "state, bytes",
)
SCENES = {
    "worker": "a worker is killed",
    "trainer": "the trainer is killed",
    "ranks": "1, 3, 2 ranks",
    "resized": "… with other batch sizes",
    "edited": "weights edited",
}
NOTHING = "–"

# Paragraphs, which are filled to the width of the page's lines.
WIDTH = 120
FIRST = """
Three corpora are mixed, packed into rows of 2,048 tokens and read from local files by
two workers, 8 rows a batch ([orders.json](../bench/results/orders.json)). *Off* are
samples that a
corpus has too many or too few of, with weights of 0.7, 0.25 and 0.05, or 0.6581, 0.2987
and 0.0432. *Cost* is that of attention, on 8 ranks with 4 rows each. Where packing is
left to the user, 1,000 documents (torchdata, datasets) or as many as fill some eight
rows (mosaicml-streaming, litdata) are packed by best fit.
"""
PICTURE = (
    "![Tokens a second, padding and unevenness of ranks, by loader]"
    "(pictures/orders.svg)"
)
SECOND = """
mpiter shuffles within 256 samples: at every 256th it is off by at most {even} and
{odd}. What an epoch loses or gives twice, resumed as each loader's documentation says:
"""
LAST = """
Planning ([orders_planning.json](../bench/results/orders_planning.json)) takes {plan} µs
of processor a document, and {far} ms for a step at place 10¹².
Each of 1,024 ranks that need 200,000 documents a second spends {core} of a core on it.
A document's length takes {memory} bytes. `python3 bench orders` measures it again, and
[its first lines](../bench/orders.py) say what the other loaders need.
"""


def section(result: Result, planned: Result) -> str:
    """Return the section with the figures of this result; planning is another's."""
    measured = [(name, [*_measured(result, row)]) for row, name in _rows(result, True)]
    scenes = list[tuple[str, list[str]]]()
    for row, name in _rows(result, False):
        scenes.append((name, [_scene(result, case, row) for case in SCENES]))
    planning = LAST.format(
        plan=_told(planned, "planning", "ours", "plan_us", 1),
        far=_told(planned, "planning", "ours", "far_ms", 2),
        core=_told(planned, "planning", "ours", "core", 2),
        memory=_told(planned, "planning", "ours", "bytes_per_document", 0),
    )
    second = SECOND.format(
        even=_told(result, "weights", "ours", "off_at_most", 1),
        odd=_told(result, "odd weights", "ours", "off_at_most", 1),
    )
    parts = [
        HEADING,
        _filled(FIRST),
        PICTURE,
        _table(FIGURES, measured),
        _filled(second),
        _table([*SCENES.values()], scenes),
        _filled(planning),
    ]
    return "\n\n".join(parts) + "\n\n"


def _filled(text: str) -> str:
    return textwrap.fill(
        " ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False
    )


def page(text: str, result: Result, planned: Result) -> str:
    """Return the text of the page with the section of these results."""
    new = section(result, planned)
    there = re.compile(
        rf"^{HEADING}\n.*?(?=^{NEXT}$)|(?=^{NEXT}$)", re.MULTILINE | re.DOTALL
    )
    text, count = there.subn(lambda _: new, text, count=1)
    if count != 1:
        raise LookupError(f"{PAGE.name} has no heading {NEXT!r}")
    return text


def _rows(result: Result, with_unpacked: bool) -> Iterator[tuple[str, str]]:
    for row, name in (ROWS | ALONE if with_unpacked else ROWS).items():
        if row in result["versions"]:
            yield row, name.format(version(result, row))


def _table(heads: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> str:
    lines = [("", [*heads]), *rows]
    drawn = [f"| {name} | {' | '.join(cells)} |" for name, cells in lines]
    drawn.insert(1, "|---" * (1 + len(heads)) + "|")
    return "\n".join(drawn)


def _measured(result: Result, row: str) -> Iterator[str]:
    for case in ("speed", "large"):
        yield _told(result, case, row, "tokens_per_s", 1, 1e-6)
    for case in ("weights", "odd weights"):
        early = _told(result, case, row, "off_early", 0)
        late = _told(result, case, row, "off_late", 0)
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
    if not turns or any("error" in one for one in turns):
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
    result = json.loads(ORDERS.read_text())
    planned = json.loads(PLANNING.read_text())
    PAGE.write_text(page(PAGE.read_text(), result, planned))
    (PICTURES / "orders.svg").write_text(orders(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
