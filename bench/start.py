"""How a program's loading begins: until the first batch, and from there to full flow; prints tables, verdicts and JSON.

    python bench/start.py --python-torch PATH --out bench/results/start.json
    python bench/start.py --small                           # one short round: a smoke test, never a conclusion

First batch: the loader is made, the program does something else for two seconds (or nothing), then the first `next()`
is timed, `iter()` included; with torch imported by the program before (or without).
Full flow: seconds from the first batch's arrival to the first moment from which both the next 0.05 s and the next 0.2 s
(so that what lay ready doesn't count) bring batches at 80 % of the steady rate, which is the median rate of the windows
in the last half.
Guarantees a fresh process for each turn, so nothing is warm: neither a fork server nor what it has imported.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import cases as data
import peers
from driver import Claim, Experiment, Summary, Turn, at_most, command_line, conduct, median
from loaders import Setup
from peers import OURS

PAUSE_S = 2.0
WINDOW_S, LASTING_S, FULL = 0.05, 0.2, 0.8
N_PREFETCH = 2
MOST_FIRST_S, MOST_FLOW_S = 0.25, 0.1
FIRST = {  # whether there is a pause, whether torch has been imported
    "paused": (True, False),
    "paused_torch": (True, True),
    "at_once": (False, False),
    "at_once_torch": (False, True),
}
FLOW = ("3x64x64", "3x224x224")
CASES = {
    "paused": f"first batch, {PAUSE_S:g} s after the loader was made",
    "paused_torch": "the same, torch imported before",
    "at_once": "first batch, asked for as soon as the loader is made",
    "at_once_torch": "the same, torch imported before",
} | {name: f"from the first batch to full flow, batches of {data.CASES[name].batch_size} x {name}" for name in FLOW}
ROWS = {
    "iterator": "mpiter.MultiprocessIterator",
    "loader": "mpiter.DataLoader",
    "torch_loader": "mpiter.torch.DataLoader",
} | {name: peers.ROWS[name].says for name in OURS}
FIGURES = {
    "first_batch_s": "first batch s",
    "made_s": "made in s",
    "flow_s": "full after s",
    "behind_s": "behind by s",
    "steady_batches_per_s": "batches/s",
}


def rows_of(case: str) -> list[str]:
    if case in FLOW:
        return list(OURS)
    return ["iterator", "loader", "torch_loader"] if FIRST[case][1] else ["iterator", "loader"]


def take(turn: Turn) -> dict[str, Any]:
    """Measures, in this process."""
    return flow(turn) if turn.case in FLOW else first_batch(turn)


# -- the first batch -------------------------------------------------------------------------------------------------


def first_batch(turn: Turn) -> dict[str, Any]:
    pauses, has_torch = FIRST[turn.case]
    if has_torch:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            return {"error": f"{error}; say --python-torch PATH"}
    make, dataset, size = maker(turn.row), data.CASES["3x64x64"].dataset(), data.CASES["3x64x64"].batch_size
    begin = time.perf_counter()
    loader = make(dataset, size, turn.workers)
    made = time.perf_counter()
    time.sleep(PAUSE_S if pauses else 0)
    asked = time.perf_counter()
    next(iter(loader))
    return {"first_batch_s": time.perf_counter() - asked, "made_s": made - begin}


def maker(row: str) -> Callable[[Any, int, int], Any]:
    """A loader's constructor, its package imported."""
    if row == "iterator":
        from mpiter import MultiprocessIterator

        return lambda dataset, size, workers: MultiprocessIterator(dataset, size, n_processes=workers)
    if row == "loader":
        from mpiter import DataLoader
    else:
        from mpiter.torch import DataLoader
    return lambda dataset, size, workers: DataLoader(dataset, size, shuffle=True, num_workers=workers)


# -- full flow -------------------------------------------------------------------------------------------------------


def flow(turn: Turn) -> dict[str, Any]:
    case = data.CASES[turn.case]
    setup = Setup(case.batch_size, turn.workers, N_PREFETCH, shuffle=True, repeat=True)
    peer = peers.ROWS[turn.row].open(case.dataset(), setup)
    arrivals = arrivals_of(peer.batches, peer.touch, turn.seconds)
    peer.close()
    return figures_of(arrivals)


def arrivals_of(batches: Iterator[Any], touch: Callable[[Any], None], seconds: float) -> list[float]:
    """When batches came, in seconds since the first."""
    clock = time.perf_counter
    touch(next(batches))
    begin, found = clock(), [0.0]
    while found[-1] < seconds:
        touch(next(batches))
        found.append(clock() - begin)
    return found


def figures_of(arrivals: Sequence[float]) -> dict[str, float]:
    """When the flow was full; and how many seconds' worth of batches were missing by half-time."""
    half = arrivals[-1] / 2
    starts = itertools.takewhile(lambda at: at <= arrivals[-1] - WINDOW_S, itertools.count(half, WINDOW_S))
    steady = statistics.median([_rate(arrivals, at, WINDOW_S) for at in starts])
    return {
        "flow_s": next((at for at in arrivals if at >= half or _is_full(arrivals, at, FULL * steady)), half),
        "behind_s": half - bisect_left(arrivals, half) / steady,
        "steady_batches_per_s": steady,
    }


def _is_full(arrivals: Sequence[float], at: float, least: float) -> bool:
    return all(_rate(arrivals, at, length) >= least for length in (WINDOW_S, LASTING_S))


def _rate(arrivals: Sequence[float], at: float, length: float) -> float:
    """Batches a second that came after `at`, within a window."""
    return (bisect_left(arrivals, at + length) - bisect_left(arrivals, at)) / length


# -- the answer ------------------------------------------------------------------------------------------------------


def claims(summary: Summary) -> Iterable[Claim]:
    for case, (pauses, _) in FIRST.items():
        for row in rows_of(case) if pauses else []:
            found = median(summary, case, row, "first_batch_s")
            yield at_most(case, f"{row}: seconds to the first batch", found, MOST_FIRST_S)
    for case, row in itertools.product(FLOW, OURS):
        found = median(summary, case, row, "flow_s")
        yield at_most(case, f"{row}: seconds from the first batch to full flow", found, MOST_FLOW_S)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    rows_of=rows_of,
    take=take,
    small={"cases": ["at_once", "3x64x64"]},
    claims=claims,
    environment=lambda row, case: "torch" if case in FIRST and FIRST[case][1] else "ours",
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=60.0)))
