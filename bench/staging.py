"""Staging from a slow store: the first epoch, later ones, and small tiers.

The small tiers have room for a part.

    python bench/staging.py --out bench/results/staging.json
    python bench/staging.py --cases half --rows folder

The store is an HTTP server on the loopback, which takes 20 ms for each file and has 20
MB/s for all; samples are files of 80 kB. Must: a warm epoch at least 5 times as fast as
without staging, the first no slower; with room for a quarter, half and three quarters
of the samples, later epochs hit that share within 2 points. Exit status: 0, or 1 when a
requirement fails or a turn raises.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from driver import (
    Answer,
    Claim,
    Experiment,
    Summary,
    Turn,
    at_least,
    at_most,
    command_line,
    conduct,
    median,
    ratio,
)
from slow_store import SIZE, Remote, serving

import mpiter
from mpiter.staging import Staging

NONE = "none"
FOLDER = "folder"
MEMORY = "memory"
FIRST = "first_per_s"
WARM = "warm_per_s"
OFF = "hits_off"
# Bytes that stand behind a copy.
TAIL = 16
BATCH_SIZE = 16
SHARES = {"quarter": 0.25, "half": 0.5, "three quarters": 0.75}
ALL = "all"
TIMES = 5.0
POINTS = 0.02


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    samples = turn.options["samples"]
    place = "/dev/shm" if turn.row == MEMORY else None
    with (
        serving() as port,
        tempfile.TemporaryDirectory(prefix="mpiter-bench-", dir=place) as folder,
    ):
        room = SHARES.get(turn.case, 1.0) * samples * (SIZE + TAIL)
        remote = Remote(port, samples)
        if turn.row == NONE:
            return gone_through(turn, remote, None)
        staging = Staging(folder, room)
        return gone_through(turn, staging.of(remote), staging)


def gone_through(turn: Turn, dataset: Any, staging: Staging | None) -> Answer:
    """Go through epoch after epoch."""
    with mpiter.batches(
        dataset, BATCH_SIZE, n_processes=turn.workers, seed=0
    ) as stream:
        first_s = epoch(stream)
        before = staging and staging.stats()
        began = time.perf_counter()
        epochs = 0
        while time.perf_counter() < began + turn.seconds or not epochs:
            epoch(stream)
            epochs += 1
        seconds = time.perf_counter() - began
    found = {FIRST: len(dataset) / first_s, WARM: epochs * len(dataset) / seconds}
    if staging is not None and before is not None:
        hit_rate = (staging.stats().hits - before.hits) / (epochs * len(dataset))
        found |= {"hit_rate": hit_rate, OFF: abs(hit_rate - SHARES.get(turn.case, 1.0))}
    return found


def epoch(stream: Any) -> float:
    """Return the seconds that an epoch takes."""
    began = time.perf_counter()
    for _ in stream:
        pass
    return time.perf_counter() - began


def claims(summary: Summary) -> Iterator[Claim]:
    for row in (FOLDER, MEMORY):
        yield at_least(
            ALL, f"warm, {row}", quotient(summary, row, WARM), TIMES, " x none"
        )
        yield at_least(
            ALL, f"first epoch, {row}", quotient(summary, row, FIRST), 1.0, " x none"
        )
    for case in SHARES:
        for row in (FOLDER, MEMORY):
            yield at_most(
                case, f"hits of {row} off by", median(summary, case, row, OFF), POINTS
            )


def quotient(summary: Summary, row: str, figure: str) -> float | None:
    return ratio(summary, ALL, row, NONE, figure)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={
        ALL: "room for all samples",
        **{
            name: f"room for {share:.0%} of the samples"
            for name, share in SHARES.items()
        },
    },
    rows={NONE: "no staging", FOLDER: "a folder of the local disk", MEMORY: "memory"},
    figures={
        WARM: "samples/s, warm",
        FIRST: "first epoch",
        "hit_rate": "hits",
        OFF: "off",
    },
    take=take,
    claims=claims,
    small={"samples": 48, "cases": [ALL], "rows": [NONE, FOLDER]},
    rows_of=lambda case: (NONE, FOLDER, MEMORY) if case == ALL else (FOLDER, MEMORY),
    against=NONE,
    asked=("samples",),
)


def main() -> int:
    parser = command_line(EXPERIMENT, warmup=0.0, timeout=120.0, seconds=4.0)
    parser.add_argument(
        "--samples", type=int, default=512, help="of 80 kB each (default 512)"
    )
    return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    sys.exit(main())
