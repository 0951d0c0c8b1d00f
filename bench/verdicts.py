"""Are the share of waiting and the headroom right?  Of loads whose truth is known; verdict lines and JSON.

    python bench/verdicts.py --out bench/results/verdicts.json

A dataset that sleeps, a trainer that sleeps, or both: a batch takes the trainer's time or the workers' share of the
samples', whichever is longer, so what the trainer waits, and how fast it would be with data for nothing, is known.
Must: the share of waiting within 5 points of the truth, the headroom within 20 %.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import checkout  # noqa: F401  # before mpiter
import numpy as np

import mpiter
from mpiter.lab.bench import Bench, command_line, conduct
from mpiter.lab.turns import Turn
from mpiter.lab.verdict import Claim, Summary, at_most, median
from mpiter.tuning.headroom import headroom

ROW, BATCH_SIZE, WARM_S = "mpiter", 16, 0.5
POINTS, SHARE = 0.05, 0.20


@dataclass(frozen=True)
class Case:
    """So many seconds a sample and a step, and so many workers."""

    what: str
    sample_s: float
    step_s: float
    workers: int = 2

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.sample_s)
        return np.full(4, index)

    def step(self, batch: Any) -> None:
        time.sleep(self.step_s)

    @property
    def batch_s(self) -> float:
        return max(self.step_s, self.sample_s * BATCH_SIZE / self.workers)


CASES = {
    "dataset": Case("the dataset sleeps for 5 ms a sample, a step takes 2 ms", 5e-3, 2e-3),
    "trainer": Case("the trainer sleeps for 60 ms a step, a sample takes 2 ms", 2e-3, 60e-3),
    "both": Case("the dataset sleeps for 8 ms a sample, the trainer for 32 ms", 8e-3, 32e-3),
    "four": Case("the dataset sleeps for 8 ms a sample, the trainer for 20 ms; 4 workers", 8e-3, 20e-3, 4),
    "even": Case("samples of 4 ms by 2 workers, steps of 36 ms: nobody waits", 4e-3, 36e-3),
}


def take(turn: Turn) -> dict[str, Any]:
    case = CASES[turn.case]
    with mpiter.batches(case, BATCH_SIZE, n_processes=case.workers, epochs=None, shuffle=False) as stream:
        began = time.perf_counter()
        while time.perf_counter() < began + WARM_S:
            case.step(next(stream))
        since, began = stream.stats(), time.perf_counter()
        while time.perf_counter() < began + turn.seconds:
            case.step(next(stream))
        now = stream.stats()
        found = headroom(stream, case.step, turn.seconds)
    waited = (now.wait_s - since.wait_s) / (now.seconds - since.seconds)
    truth, most = 1 - case.step_s / case.batch_s, case.batch_s / case.step_s
    return {
        "off": abs(waited - truth),
        "waited": waited,
        "truth": truth,
        "headroom_off": abs(found.times / most - 1),
        "times": found.times,
        "most": most,
    }


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CASES:
        yield at_most(case, "the share of waiting is off by", median(summary, case, ROW, "off"), POINTS)
        yield at_most(case, "the headroom is off by", median(summary, case, ROW, "headroom_off"), SHARE)


BENCH = Bench(
    schema="mpiter.bench.verdicts/1",
    script=__file__,
    doc=__doc__,
    cases={name: case.what for name, case in CASES.items()},
    rows={ROW: "what is said, and what is so"},
    figures={
        "off": "off",
        "waited": "waited",
        "truth": "truth",
        "headroom_off": "headroom off",
        "times": "times",
        "most": "truth ",
    },
    take=take,
    claims=claims,
)


if __name__ == "__main__":
    sys.exit(conduct(BENCH, command_line(BENCH, warmup=0.0, timeout=60.0)))
