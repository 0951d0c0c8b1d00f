"""What do rows of several lengths cost, beside rows of one length with the same bytes?

Measures batches in full flow, from two workers; prints tables and JSON.

    python bench/ragged.py --out bench/results/ragged.json
    python bench/ragged.py --small  # a smoke test, never a conclusion

Samples are views of one array in memory, so that a batch costs what moving it costs:
texts of 256 to 1,792 tokens (8 KB on average), and clouds of 1,024 to 7,168 points (48
KB). "fixed" has rows of the mean length, "list" and "jagged" rows of all lengths, by
`ragged=`. "fixed" and "jagged" add up all values of a batch in one call, "list" row by
row. Must: "jagged" takes at most 1.25 times what "fixed" takes, and no more than
"list". Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
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
from measuring import flowing

import mpiter

BATCH = 64
LENGTH = 1 << 20
# Values from which the samples are taken.
ROOM = 1 << 16
TIME = "batch_us"
CPU = "cpu_us"
# The mean length of a row, and an element's type and shape.
FORMS: dict[str, tuple[int, str, tuple[int, ...]]] = {
    "tokens": (1024, "i8", ()),
    "points": (4096, "f4", (3,)),
}
CASES = {
    "tokens": "256 to 1,792 numbers of 8 bytes",
    "points": "1,024 to 7,168 points of 12 bytes",
}
ROWS = {
    "fixed": "rows of the mean length",
    "list": 'ragged="list"',
    "jagged": 'ragged="jagged"',
}
FIGURES = {TIME: "us a batch", CPU: "us of processor a batch"}
TIMES = 1.25


class Rows:
    """Samples of one length, or of lengths from a quarter to seven of the mean."""

    def __init__(self, case: str, is_fixed: bool) -> None:
        mean, dtype, shape = FORMS[case]
        self._values = np.ones((ROOM, *shape), dtype)
        self._mean = mean
        self._is_fixed = is_fixed

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        # A multiplicative hash: the lengths of neighbours have nothing in common.
        share = index * 2_654_435_761 % (1 << 32) / (1 << 32)
        length = int(self._mean * (0.25 + 1.5 * share))
        if self._is_fixed:
            length = self._mean
        return self._values[:length], index


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    dataset = Rows(turn.case, turn.row == "fixed")
    way = "raise" if turn.row == "fixed" else turn.row
    with mpiter.batches(
        dataset, BATCH, n_processes=turn.workers, seed=0, epochs=None, ragged=way
    ) as stream:

        def take_one() -> None:
            rows, _ = next(stream)
            if turn.row == "jagged":
                rows = rows.values
            if turn.row == "list":
                for row in rows:
                    row.sum()
            else:
                rows.sum()

        batches, seconds, cpu = flowing(take_one, turn.warmup_s, turn.seconds)
    spent = cpu.parent_s + cpu.workers_s
    return {TIME: 1e6 * seconds / batches, CPU: 1e6 * spent / batches}


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CASES:
        jagged = median(summary, case, "jagged", TIME)
        for other, most in (("fixed", TIMES), ("list", 1.0)):
            theirs = median(summary, case, other, TIME)
            yield at_most(
                case,
                "time of a jagged batch",
                jagged and theirs and jagged / theirs,
                most,
                f" x {other}",
            )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    take=take,
    claims=claims,
    small={"cases": ["tokens"], "rows": ["jagged"]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.5, timeout=90.0)))
