"""How long does a program's loading take until its first batch?

Prints tables, verdicts and JSON.

    python bench/start.py --python-torch PATH --out bench/results/start.json
    python bench/start.py --small  # a smoke test, never a conclusion

First batch: the loader is made, the program does something else for two seconds (or
nothing), then the first `next()` is timed, `iter()` included; with torch imported by
the program before (or without). Guarantees a fresh process for each turn, so nothing is
warm: neither a fork server nor what it has imported.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import cases as data
from driver import (
    Claim,
    Experiment,
    Summary,
    Turn,
    at_most,
    command_line,
    conduct,
    median,
)

PAUSE_S = 2.0
MOST_FIRST_S = 0.25
# Each case says whether there is a pause, and whether torch has been imported.
FIRST = {
    "paused": (True, False),
    "paused_torch": (True, True),
    "at_once": (False, False),
    "at_once_torch": (False, True),
}
CASES = {
    "paused": f"first batch, {PAUSE_S:g} s after the loader was made",
    "paused_torch": "the same, torch imported before",
    "at_once": "first batch, asked for as soon as the loader is made",
    "at_once_torch": "the same, torch imported before",
}
ROWS = {
    "iterator": "mpiter.MultiprocessIterator",
    "loader": "mpiter.DataLoader",
    "torch_loader": "mpiter.torch.DataLoader",
}
FIGURES = {
    "first_batch_s": "first batch s",
    "made_s": "made in s",
}


def rows_of(case: str) -> list[str]:
    _, has_torch = FIRST[case]
    if has_torch:
        return ["iterator", "loader", "torch_loader"]
    return ["iterator", "loader"]


# -- the first batch -------------------------------------------------------------------


def take(turn: Turn) -> dict[str, Any]:
    """Measure the turn in this process."""
    pauses, has_torch = FIRST[turn.case]
    if has_torch:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            return {"error": f"{error}; say --python-torch PATH"}
    make = maker(turn.row)
    dataset = data.CASES["3x64x64"].dataset()
    size = data.CASES["3x64x64"].batch_size
    begin = time.perf_counter()
    loader = make(dataset, size, turn.workers)
    made = time.perf_counter()
    time.sleep(PAUSE_S if pauses else 0)
    asked = time.perf_counter()
    next(iter(loader))
    return {"first_batch_s": time.perf_counter() - asked, "made_s": made - begin}


def maker(row: str) -> Callable[[Any, int, int], Any]:
    """Return a loader's constructor, with its package imported."""
    if row == "iterator":
        from mpiter import MultiprocessIterator

        return lambda dataset, size, workers: MultiprocessIterator(
            dataset, size, n_processes=workers
        )
    if row == "loader":
        from mpiter import DataLoader
    else:
        from mpiter.torch import DataLoader
    return lambda dataset, size, workers: DataLoader(
        dataset, size, shuffle=True, num_workers=workers
    )


# -- the answer ------------------------------------------------------------------------


def claims(summary: Summary) -> Iterable[Claim]:
    for case, (pauses, _) in FIRST.items():
        if not pauses:
            continue
        for row in rows_of(case):
            found = median(summary, case, row, "first_batch_s")
            yield at_most(
                case, f"{row}: seconds to the first batch", found, MOST_FIRST_S
            )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    rows_of=rows_of,
    take=take,
    small={"cases": ["at_once"], "rows": ["loader"]},
    claims=claims,
    environment=lambda row, case: "torch" if FIRST[case][1] else "ours",
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=60.0)))
