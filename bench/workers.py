"""The Num Worker Tuner's table: time and memory by the number of workers.

The workers are processes and threads.

    python bench/workers.py --cases "store, processes" --most 8

The time of so many batches for every number of workers from none on, memory beside it,
and the number that the greedy rule of Synn and Kim would take: a larger one only if it
saves more than half a second. `cifar` is random images of CIFAR-10's shape, cropped,
flipped and normalised: all processor time. `store` is the same from a simulated store
that takes 3 ms for each sample: waiting. Threads are the threaded pipeline of Chien et
al. Guarantees: a time is that of the batches in full flow, the start and the first
batch left out; memory is taken after the timed part, once as the original does it
(`tracemalloc`, the consumer's own Python objects) and once of all processes together.
"""

from __future__ import annotations

import itertools
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from driver import (
    Answer,
    Curves,
    Experiment,
    Summary,
    Turn,
    command_line,
    conduct,
    median,
)
from measuring import MemoryWatch, flowing
from subjects import SUBJECTS

import mpiter
from mpiter import machine

MOST = max(4, machine.cores())
ALPHA = 0.5  # s
BATCH_SIZES = {"cifar": 128, "store": 32}
BACKENDS = {"processes": "process", "threads": "thread"}
CASES = {
    f"{name}, {kind}": f"{subject.says}, batches of {BATCH_SIZES[name]}, by {kind}"
    for name, subject in SUBJECTS.items()
    for kind in BACKENDS
}
# Published figures: workers -> seconds, normalised, and megabytes. They are of CIFAR-10
# in batches of 128, on a Threadripper of 32 cores.
PUBLISHED = {
    0: (14.25, 2757.84),
    14: (1.49, 2025.32),
    16: (1.41, 2055.37),
    32: (1.55, 2275.36),
    63: (2.21, 2773.60),
}
THEIR_CORES = 32
FIGURES = {
    "seconds": "s",
    "batches_per_s": "batches/s",
    "tracemalloc_mb": "tracemalloc MB",
    "tree_mb": "all processes MB",
    "parent_cpu_ms": "consumer's CPU ms/batch",
    "workers_cpu_ms": "workers'",
}


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    name, kind = turn.case.split(", ")
    workers = int(turn.row)
    iterations = turn.options["iterations"]
    options: dict[str, Any] = {
        "n_processes": workers,
        "backend": BACKENDS[kind],
        "epochs": None,
        "seed": 0,
    }
    loading = mpiter.batches(SUBJECTS[name](), BATCH_SIZES[name], **options)
    transfer = loading.next
    transfer()
    _, seconds, cpu = flowing(transfer, turn.warmup_s, 0, timed=iterations)
    own, everyone = memory(transfer, max(4, iterations // 10))
    loading.close()
    # tracemalloc stops while no other thread allocates: before Python 3.12.9 and 3.13.2
    # the interpreter may crash otherwise.
    tracemalloc.stop()
    return {
        "seconds": seconds,
        "batches_per_s": iterations / seconds,
        **cpu.ms(iterations),
        "tracemalloc_mb": own / 1e6,
        "tree_mb": everyone / 1e6 or None,
    }


def memory(transfer: Callable[[], object], batches: int) -> tuple[int, int]:
    """Return the peak that this process allocates for a few batches.

    The second value is the most memory that all processes held meanwhile.
    """
    with MemoryWatch() as everyone:
        for _ in range(batches):
            transfer()
    tracemalloc.start()
    for _ in range(batches):
        transfer()
    _, peak = tracemalloc.get_traced_memory()
    return peak, everyone.most


def curves(summary: Summary) -> Iterator[Curves]:
    """Return ours and theirs, each against its own figure without workers.

    They stand by workers for each core.
    """
    for figure, title, place in (
        ("seconds", "Time", 0),
        ("tree_mb", "Memory of all processes", 1),
    ):
        lines: dict[str, list[tuple[float, ...]]] = {}
        for case in CASES:
            none = median(summary, case, "0", figure)
            found = [
                (row, median(summary, case, str(row), figure))
                for row in range(MOST + 1)
            ]
            lines[case] = [
                (row / machine.cores(), value / none)
                for row, value in found
                if value and none
            ]
        theirs = "Num Worker Tuner, CIFAR-10 (published)"
        lines[theirs] = [
            (row / THEIR_CORES, both[place] / PUBLISHED[0][place])
            for row, both in PUBLISHED.items()
        ]
        yield Curves(
            f"{title} by workers for each core",
            "workers for each core",
            "against none",
            lines,
            [theirs],
        )


def says(summary: Summary) -> Iterator[str]:
    for case in CASES:
        found = (
            median(summary, case, str(count), "seconds") for count in range(MOST + 1)
        )
        seconds = list(itertools.takewhile(lambda one: one is not None, found))
        if len(seconds) > 1:
            yield (
                f"{case}: the rule takes {nwt(seconds)} workers (a larger number must "
                f"save more than {ALPHA:g} s)"
            )


def nwt(seconds: Sequence[float], alpha: float = ALPHA) -> int:
    """Return the number of workers that the published rule takes.

    `seconds` are those of all batches with 0, 1, 2, … workers.

    The paper speaks of mean times; on the mean of one batch half a second would always
    choose none.
    """
    chosen = 0
    for workers, taken in enumerate(seconds):
        if seconds[chosen] - taken > alpha:
            chosen = workers
    return chosen


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows={str(count): f"{count} workers" for count in range(MOST + 1)},
    figures=FIGURES,
    take=take,
    says=says,
    curves=curves,
    against="0",
    asked=("iterations",),
    small={"cases": ["store, processes"], "rows": ["0", "1"], "iterations": 3},
)


def main() -> int:
    parser = command_line(EXPERIMENT, warmup=0.3, timeout=120.0, rounds=3)
    parser.add_argument(
        "--iterations",
        type=int,
        default=100,
        help="batches that are timed (default 100)",
    )
    return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    sys.exit(main())
