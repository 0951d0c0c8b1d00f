"""What does an order cost by the length of the dataset?

Measures planning, going on from a state, and the state itself; prints tables and JSON.

    python bench/order.py --out bench/results/order.json
    python bench/order.py --small  # a smoke test, never a conclusion

A rank of 4,096 plans batches of 128 of one shuffled epoch, without loading anything;
then a new iterator goes on from a state in the middle, up to its first batch (of
numbers, by no workers). Lengths from 10^3 to 10^12: nothing may grow with them but the
digits of the state. Must: planning and going on at 10^12 take at most twice what they
take at 10^6, and for a rank at most twice what they take alone; the state has at most
400 bytes, and no order is held in memory. Exit status: 0, or 1 when a requirement fails
or a turn raises.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterator

from driver import (
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_most,
    command_line,
    conduct,
    median,
)

import mpiter
from mpiter.order.cursor import Cursor, Pace, Share
from mpiter.order.order import Shuffled

BATCH = 128  # batches a look at the clock
PLANNED = 200
PLAN = "plan_us"
RESUME = "resume_ms"
STATE = "state_bytes"
MEMORY = "grown_mb"
CASES = {f"10^{digits}": f"{10**digits:,} samples" for digits in (3, 6, 9, 12)}
FEW = "10^6"
MANY = "10^12"
ROWS = {
    "alone": "one process",
    "shared": "the last of 4,096 ranks; of 10^3 samples, of 4",
}
FIGURES = {
    PLAN: "us to plan a batch",
    RESUME: "ms to go on",
    STATE: "bytes of state",
    MEMORY: "MB more",
}
TIMES = 2.0
MOST_BYTES = 400
MOST_MB = 16


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    length = 10 ** int(turn.case.partition("^")[2])
    ranks = 1
    if turn.row != "alone":
        # A step of 4,096 ranks must fit into the dataset.
        ranks = 4096 if length > BATCH * 4096 else 4
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {PLAN: planned_us(length, Share(ranks - 1, ranks), turn.seconds)}
    state, found[RESUME] = resumed(length, mpiter.Shard(ranks - 1, ranks))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found | {STATE: float(len(state)), MEMORY: (after - before) / 1024}


def planned_us(length: int, share: Share, seconds: float) -> float:
    """Return the microseconds that planning a batch takes, without loading it."""
    pace = Pace(BATCH, share=share)
    cursor = Cursor(0, 0, False, Shuffled(length, 0))
    batches = 0
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        for _ in range(PLANNED):
            plan = pace.step(cursor)
            assert plan is not None
            list(plan.stretches)
            cursor = plan.after
        batches += PLANNED
    return 1e6 * (now - began) / batches


def resumed(length: int, shard: mpiter.Shard) -> tuple[str, float]:
    """Return a state in mid-epoch, and the seconds from it to the next batch."""
    with mpiter.batches(
        range(length), BATCH, n_processes=0, seed=0, shard=shard
    ) as stream:
        next(stream)
        state = json.dumps(stream.state_dict() | {"position": length // 2})
    began = time.perf_counter()
    with mpiter.batches(
        range(length), BATCH, n_processes=0, seed=0, shard=shard
    ) as stream:
        stream.load_state_dict(json.loads(state))
        next(stream)
        return state, 1e3 * (time.perf_counter() - began)


def claims(summary: Summary) -> Iterator[Claim]:
    for row in ROWS:
        for figure, what in ((PLAN, "planning"), (RESUME, "going on")):
            if row == "alone":
                other = (FEW, row)
                words = f" x that of {FEW}"
            else:
                other = (MANY, "alone")
                words = " x alone"
            these = median(summary, MANY, row, figure)
            those = median(summary, *other, figure)
            yield at_most(
                MANY, f"{what}, {row}", these and those and these / those, TIMES, words
            )
        yield at_most(
            MANY,
            f"bytes of state, {row}",
            median(summary, MANY, row, STATE),
            MOST_BYTES,
        )
        yield at_most(
            MANY, f"MB more, {row}", median(summary, MANY, row, MEMORY), MOST_MB
        )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    take=take,
    claims=claims,
    small={"cases": [MANY], "rows": ["shared"]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=90.0)))
