"""The course project's two tables: how much faster than one process, for an augmentation of rising cost.

`take` runs in the process that is measured, everything else in the driver, on values.
Guarantees: all loaders read the same files by the same decoder; a step is a batch, augmented and stacked, and what is
timed are steps in full flow; the augmentation runs in the consumer, as in the original, and in one row, which says so,
in the workers.  A speed-up is against the sequential loader at the same cost and batch size, round by round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

import mpiter

from ..asked import at_least
from . import pictures
from .historical import DataLoader, DataLoaderPar
from .pictures import Augmented, Files, augmentation
from .results import Result, Row
from .text import Telling, median, number, point, some, times
from .turns import Answer, Turn, flowing, numbers
from .views import Lines, Point, Series, Table, View

NAME = "speedup"
HEADING = "Faster than one process, at which price of augmentation"
ABOUT = (
    "The course project's experiment: image files are read by workers and augmented (resized to 256×256, cropped to "
    "200×200, once to four times over) by the consumer. Its sequential DataLoader is 1; DataLoaderPar is its parallel "
    "one, with an index queue for each worker, one output queue, and two batches ahead."
)
SEQUENTIAL, PARALLEL = "DataLoader", "DataLoaderPar"
OURS, IN_WORKERS = "mpiter", "mpiter, augmented by the workers"
BY_WORKERS, BY_BATCH = "by workers", "by batch size"
PUBLISHED: dict[int, dict[float, float]] = {  # cost -> workers -> speed-up, batches of 300, on a two-core Pentium
    1: {1: 1.03, 2: 1.39, 4: 1.87, 6: 2.15, 8: 1.94},
    2: {1: 3.56, 2: 5.03, 4: 6.40, 6: 7.16, 8: 4.50},
    3: {1: 4.29, 2: 5.94, 4: 6.82, 6: 4.65, 8: 2.75},
    4: {1: 4.53, 2: 6.68, 4: 5.06, 6: 3.58, 8: 2.15},
}
# with 2 workers, the 2nd augmentation
PUBLISHED_BY_BATCH: dict[float, float] = {10: 1.54, 50: 1.60, 100: 1.57, 300: 1.55, 500: 1.48, 1000: 1.73}
COST_OF_BATCHES = 2
FULL: dict[str, Any] = {
    "workers": [1, 2, 4, 6, 8],
    "costs": [1, 2, 3, 4],
    "batch_size": 300,
    "batch_sizes": [10, 50, 100, 300, 500, 1000],
}
SMALL: dict[str, Any] = {"workers": [2], "costs": [1, 4], "batch_size": 20, "batch_sizes": [10]}
SECONDS, WARMUP_S, SMALL_SECONDS = 1.5, 0.5, 0.3
_WARM, _LEAST = 1, 2  # batches before the clock runs, and while it does


def arguments(add: Callable[..., Any]) -> None:
    add("--images", type=Path, metavar="FOLDER", help="image files to read (default: some are made)")
    add("--workers", nargs="+", type=at_least(1), metavar="N", help="numbers of workers")
    add(
        "--costs",
        nargs="+",
        type=int,
        choices=PUBLISHED,
        metavar="C",
        help="how often the augmentation is done: 1 to 4",
    )
    add("--batch-size", type=at_least(1), metavar="B", help="of the table by workers")
    add("--batch-sizes", nargs="+", type=at_least(1), metavar="B", help="of the other table (2 workers, cost 2)")


def preparing(options: argparse.Namespace) -> AbstractContextManager[None]:
    return pictures.provided(options)


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    for cost in options.costs:
        yield from _group(options, BY_WORKERS, options.workers, cost, options.batch_size)
    for batch_size in options.batch_sizes:
        yield from _group(options, BY_BATCH, [2], COST_OF_BATCHES, batch_size)


def _group(options: argparse.Namespace, case: str, workers: Iterable[int], cost: int, batch: int) -> Iterator[Turn]:
    rows = [(SEQUENTIAL, 0), *((row, count) for row in (PARALLEL, OURS, IN_WORKERS) for count in workers)]
    for row, count in rows:
        at = {"workers": count, "cost": cost, "batch_size": batch}
        files = {"paths": options.paths}
        yield Turn(NAME, row, case, at, options.seconds, options.warmup, options.seed, files)


def take(turn: Turn) -> Answer:
    batch_size, cost = int(turn.at["batch_size"]), int(turn.at["cost"])
    paths = turn.options["paths"]
    augment: Callable[[Any], Any] = augmentation(cost, turn.seed)
    if turn.row == IN_WORKERS:
        dataset: Files = Augmented(paths, cost, turn.seed)
        augment = _as_it_is
    else:
        dataset = Files(paths)
    loader = _loader(turn, dataset, batch_size)
    batches = iter(loader)

    def step() -> None:
        np.stack([augment(image) for image in next(batches)])

    step()
    count, seconds, cpu = flowing(step, turn.warmup_s, turn.seconds, warm=_WARM, timed=_LEAST)
    images = count * batch_size
    figures = {"images_per_s": images / seconds, "batch_s": seconds / count, **cpu.ms(images)}
    how = {"read by": pictures.reader().name, "augmented by": pictures.augmenter()}
    return numbers(figures) | {"extra": how, "problems": cpu.problems}


def _as_it_is(image: Any) -> Any:
    return image


def _loader(turn: Turn, dataset: Files, batch_size: int) -> Any:
    if turn.row == SEQUENTIAL:
        return DataLoader(dataset, batch_size)
    if turn.row == PARALLEL:
        return DataLoaderPar(dataset, batch_size, turn.workers)
    return mpiter.MultiprocessIterator(
        dataset, batch_size, shuffle=False, n_processes=turn.workers, n_prefetch=2, seed=turn.seed
    )


# -- what it says ----------------------------------------------------------------------------------------------------


def speedup(result: Result, row: Row) -> Any:
    at = dict(row.at) | {"workers": 0}
    return result.ratio(row, result.find(SEQUENTIAL, row.case, **at), "images_per_s")


def tell(result: Result) -> Telling:
    telling = Telling()
    for cost in result.values_of("cost"):
        best = {name: _best(result, name, cost) for name in (PARALLEL, OURS, IN_WORKERS)}
        if all(best.values()):
            found = {name: speedup(result, row) for name, row in best.items() if row}
            counts = {name: some(row.at["workers"], "worker") for name, row in best.items() if row}
            telling.conclude(
                f"augmentation of cost {cost:g}: the course project's loader is at best {times(found[PARALLEL])} as "
                f"fast as one process ({counts[PARALLEL]}), mpiter {times(found[OURS])} ({counts[OURS]}), and "
                f"{times(found[IN_WORKERS])} where the workers augment ({counts[IN_WORKERS]}).",
                *found.values(),
            )
    return telling


def _best(result: Result, name: str, cost: float) -> Row | None:
    rows = [r for r in result.rows if (r.row, r.case, r.at["cost"]) == (name, BY_WORKERS, cost)]
    return max(rows, key=lambda row: row["images_per_s"].median, default=None)


def views(result: Result) -> tuple[View, ...]:
    costs = {row.at["cost"] for row in result.rows if row.case == BY_WORKERS}
    by_cost = [view for cost in sorted(costs) for view in _by_workers(result, cost)]
    return (*by_cost, *_by_batch(result))


def _by_workers(result: Result, cost: float) -> Iterator[View]:
    rows = [row for row in result.rows if row.case == BY_WORKERS and row.at["cost"] == cost]
    batches = [row.at["batch_size"] for row in rows]
    title = f"Augmentation of cost {cost:g}, batches of {', '.join(f'{b:g}' for b in dict.fromkeys(batches))}"
    theirs = _theirs("course project, batches of 300", PUBLISHED[int(cost)])
    yield Lines(title, "workers", "times one process", (*_curves(result, rows, "workers"), theirs))
    yield _table(result, rows, title, "workers")


def _by_batch(result: Result) -> Iterator[View]:
    rows = [row for row in result.rows if row.case == BY_BATCH]
    if rows:
        title = f"Batch size (2 workers, augmentation of cost {COST_OF_BATCHES})"
        theirs = _theirs("course project", PUBLISHED_BY_BATCH)
        yield Lines(title, "batch size", "times one process", (*_curves(result, rows, "batch_size"), theirs))
        yield _table(result, rows, title, "batch_size")


def _theirs(name: str, published: Mapping[float, float]) -> Series:
    return Series(name, tuple(Point(x, y) for x, y in published.items()), published=True)


def _curves(result: Result, rows: list[Row], axis: str) -> Iterator[Series]:
    for name in (PARALLEL, OURS, IN_WORKERS):
        found = [(row.at[axis], speedup(result, row)) for row in rows if row.row == name]
        yield Series(name, tuple(point(x, ratio) for x, ratio in found if ratio))


def _table(result: Result, rows: list[Row], title: str, axis: str) -> Table:
    cells = [
        {
            "loader": row.row,
            axis.replace("_", " "): number(row.at[axis]),
            "images/s": median(row["images_per_s"]),
            "times one process": times(speedup(result, row)),
            "consumer's CPU ms/image": median(row["parent_cpu_ms"]),
            "workers' CPU ms/image": median(row["workers_cpu_ms"]),
        }
        for row in rows
    ]
    read: dict[str, Any] = next(iter(next(iter(result.extra.values()), {}).values()), {})
    return Table.of(
        title,
        cells,
        "More than one worker for each core is asked for, as in the original, which counts processes: workers and one. "
        f"Read by {read.get('read by', '?')}, augmented by {read.get('augmented by', '?')}.",
    )
