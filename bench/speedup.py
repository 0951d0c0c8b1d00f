"""The course project's loaders and ours, as multiples of the sequential one.

They are compared by workers and augmentation.

    python bench/speedup.py --cases "cost 1" "cost 4"

Image files are read by workers and augmented (resized to 256x256, cropped to 200x200,
once to four times over) by the consumer, as in the project; in one group of rows by the
workers. The project's sequential `DataLoader` is 1; `DataLoaderPar` is its parallel one
(`project_loaders.py`): an index queue for each worker, one output queue, two batches
ahead. Batches of 300, and with two workers and the second augmentation of 10 to 1000.
Needs Pillow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from checkout import ROOT
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
from measuring import flowing
from project_images import FILES, Augmented, Files, augmentation, make_files
from project_loaders import DataLoader, DataLoaderPar

import mpiter

FOLDER = ROOT / ".demo" / "speedup"
SEQUENTIAL = "DataLoader"
PARALLEL = "DataLoaderPar"
OURS = "mpiter"
IN_WORKERS = "mpiter, augmented by workers"
WORKERS = (1, 2, 4, 6, 8)
COSTS = (1, 2, 3, 4)
SIZES = (10, 50, 100, 300, 500, 1000)
BATCH_SIZE = 300
COST_OF_SIZES = 2
WORKERS_OF_SIZES = 2
CASES = {
    **{
        f"cost {cost}": f"augmented {cost} times over, batches of {BATCH_SIZE}"
        for cost in COSTS
    },
    **{f"batches of {size}": f"augmented {COST_OF_SIZES} times over" for size in SIZES},
}
ROWS = {SEQUENTIAL: "one process"} | {
    f"{name}, {count}": f"{name} with {count} worker(s)"
    for name in (PARALLEL, OURS, IN_WORKERS)
    for count in WORKERS
}
# The published speed-ups over one process, by workers, on a Pentium with two cores;
# then those by batch size.
PUBLISHED: dict[int, Mapping[int, float]] = {
    1: {1: 1.03, 2: 1.39, 4: 1.87, 6: 2.15, 8: 1.94},
    2: {1: 3.56, 2: 5.03, 4: 6.40, 6: 7.16, 8: 4.50},
    3: {1: 4.29, 2: 5.94, 4: 6.82, 6: 4.65, 8: 2.75},
    4: {1: 4.53, 2: 6.68, 4: 5.06, 6: 3.58, 8: 2.15},
}
PUBLISHED_BY_SIZE: Mapping[int, float] = {
    10: 1.54,
    50: 1.60,
    100: 1.57,
    300: 1.55,
    500: 1.48,
    1000: 1.73,
}
# Batches before the clock runs, and while it does.
WARM = 1
LEAST = 2
THEIRS = "the course project (published)"
FIGURE = "images_per_s"


def rows_of(case: str) -> list[str]:
    is_by_size = not case.startswith("cost")
    return [
        row
        for row in ROWS
        if not is_by_size or row == SEQUENTIAL or row.endswith(f", {WORKERS_OF_SIZES}")
    ]


def prepare(options: argparse.Namespace) -> None:
    make_files(FOLDER, options.files)


def _unchanged(image: Any) -> Any:
    return image


def take(turn: Turn) -> Answer:
    """Measure the turn in this process."""
    name = turn.row
    count = 0
    if turn.row != SEQUENTIAL:
        name, _, last = turn.row.rpartition(", ")
        count = int(last)
    kind, _, value = turn.case.rpartition(" ")
    cost = COST_OF_SIZES
    size = int(value)
    if kind == "cost":
        cost = size
        size = turn.options["batch"]
    paths = [str(path) for path in sorted(FOLDER.glob("*.jpg"))]
    augment: Callable[[Any], Any]
    dataset: Any
    if name == IN_WORKERS:
        augment = _unchanged
        dataset = Augmented(paths, cost)
    else:
        augment = augmentation(cost)
        dataset = Files(paths)
    batches = iter(loader_of(name, dataset, size, count))

    def step() -> None:
        np.stack([augment(image) for image in next(batches)])

    step()
    taken, seconds, cpu = flowing(
        step, turn.warmup_s, turn.seconds, warm=WARM, timed=LEAST
    )
    return {FIGURE: taken * size / seconds, **cpu.ms(taken * size)}


def loader_of(name: str, dataset: Files, size: int, workers: int) -> Any:
    if name == SEQUENTIAL:
        return DataLoader(dataset, size)
    if name == PARALLEL:
        return DataLoaderPar(dataset, size, workers)
    return mpiter.MultiprocessIterator(
        dataset, size, shuffle=False, n_processes=workers, n_prefetch=2, seed=0
    )


def times(summary: Summary, case: str, name: str, workers: int) -> float | None:
    found = median(summary, case, f"{name}, {workers}", FIGURE)
    alone = median(summary, case, SEQUENTIAL, FIGURE)
    if not found or not alone:
        return None
    return found / alone


def curves(summary: Summary) -> Iterator[Curves]:
    names = (PARALLEL, OURS, IN_WORKERS)
    y = "times one process"
    for cost, theirs in PUBLISHED.items():
        lines = {
            name: [
                (w, found)
                for w in WORKERS
                if (found := times(summary, f"cost {cost}", name, w))
            ]
            for name in names
        }
        if any(lines.values()):
            title = f"Augmentation of cost {cost}, batches of {BATCH_SIZE}"
            yield Curves(
                title, "workers", y, lines | {THEIRS: list(theirs.items())}, [THEIRS]
            )
    by_size = {
        name: [
            (size, f)
            for size in SIZES
            if (f := times(summary, f"batches of {size}", name, WORKERS_OF_SIZES))
        ]
        for name in names
    }
    if any(by_size.values()):
        title = f"{WORKERS_OF_SIZES} workers, augmentation of cost {COST_OF_SIZES}"
        yield Curves(
            title,
            "batch size",
            y,
            by_size | {THEIRS: list(PUBLISHED_BY_SIZE.items())},
            [THEIRS],
        )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures={
        FIGURE: "images/s",
        "parent_cpu_ms": "consumer's CPU ms/image",
        "workers_cpu_ms": "workers'",
    },
    rows_of=rows_of,
    take=take,
    curves=curves,
    against=SEQUENTIAL,
    asked=("batch", "files"),
    prepare=prepare,
    small={
        "cases": ["batches of 10"],
        "rows": [SEQUENTIAL, *(f"{name}, 2" for name in (PARALLEL, OURS))],
        "files": 16,
    },
)


def main() -> int:
    parser = command_line(EXPERIMENT, warmup=0.5, timeout=120.0, seconds=1.5, rounds=3)
    parser.add_argument(
        "--batch",
        type=int,
        default=BATCH_SIZE,
        help="of the cases by cost (default 300)",
    )
    parser.add_argument(
        "--files", type=int, default=FILES, help=f"to read (default {FILES})"
    )
    return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    sys.exit(main())
