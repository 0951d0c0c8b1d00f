"""The Num Worker Tuner's table: time and memory by the number of workers, and the number that its rule would choose.

`take` runs in the process that is measured, everything else in the driver, on values.
Guarantees: a time is that of so many batches in full flow, the start and the first batch left out; memory is taken
after the timed part, once as the original does it (`tracemalloc`, the consumer's own Python objects) and once of all
processes together.  The rule (`choice`) is theirs but for its threshold, which is a share unless `--alpha` asks for
their seconds: a share means the same however many batches are timed.
"""

from __future__ import annotations

import argparse
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import mpiter

from .. import machine
from ..asked import above_zero, at_least
from . import pictures
from .choice import GAIN, Rule, choose, reason, times_as, whole_rounds
from .clocks import MemoryWatch
from .results import Result, Row
from .spreads import LEAST_ROUNDS
from .subjects import ANSWER_S, BUILT_IN, subject
from .text import Telling, median, number, point, some, times
from .turns import Answer, Turn, flowing, numbers
from .views import Lines, Point, Series, Table, View

NAME = "workers"
HEADING = "How many workers: time and memory"
ABOUT = (
    "The Num Worker Tuner's experiment: the time of so many batches for every number of workers from none on, memory "
    "beside it, and the number that its greedy rule takes: a larger one only if it gains more than 5% (--gain), or so "
    "many seconds, as theirs has it (--alpha 0.5), and is slower in no round. Threads are the threaded pipeline of "
    "Chien et al. Here cifar is random images of CIFAR-10's shape, and store simulates a slow store: each sample "
    "sleeps for 3 ms."
)
THEIR_CORES = 32
PUBLISHED = {  # workers -> (seconds, normalised; megabytes): CIFAR-10, batches of 128, 32-core Threadripper
    0: (14.25, 2757.84),
    14: (1.49, 2025.32),
    16: (1.41, 2055.37),
    32: (1.55, 2275.36),
    63: (2.21, 2773.60),
}
THREADS_PUBLISHED = (
    "Chien et al. 2018: threads raise the read bandwidth 2.3 times (disk) and 7.8 times (parallel file system)"
)
_NAMES = {"process": "worker processes", "thread": "threads"}
BATCH_SIZES = {"cifar": 128, "store": 32, "files": 32}
FULL: dict[str, Any] = {
    "backend": ["process", "thread"],
    "dataset": ["cifar", "store"],
    "most": None,
    "iterations": 100,
    "gain": GAIN,
    "alpha": None,
    "batch_size": None,
}
SMALL: dict[str, Any] = FULL | {"dataset": ["store"], "most": 2, "iterations": 6}
SECONDS, WARMUP_S, SMALL_SECONDS = None, 0.3, None
_BATCH_S = {"cifar": 0.02, "store": 32 * ANSWER_S}  # in one process, roughly: what to expect of a turn


def arguments(add: Callable[..., Any]) -> None:
    add("--backend", nargs="+", choices=("process", "thread"), metavar="B", help="process, thread (default: both)")
    add("--dataset", nargs="+", metavar="D", help=f"{', '.join(BUILT_IN)}, or module:function of your own")
    add("--most", type=at_least(0), metavar="N", help="the largest number of workers (default: the cores, at least 4)")
    add("--iterations", type=at_least(1), metavar="N", help="batches that are timed")
    add("--gain", type=above_zero, metavar="G", help=f"a larger number must gain more, a share (default {GAIN:g})")
    add("--alpha", type=above_zero, metavar="S", help="in place of --gain: a larger number must gain more seconds")
    add("--batch-size", type=at_least(1), metavar="B", help="default: 128 of cifar, 32 of the others")


def preparing(options: argparse.Namespace) -> AbstractContextManager[None]:
    return pictures.provided(options, "files" in options.dataset)


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    most = max(4, machine.cores()) if options.most is None else options.most
    for dataset in options.dataset:
        for backend in options.backend:
            for workers in range(most + 1):
                if workers or backend == options.backend[0]:  # none at all is the same for every backend
                    about = {
                        "iterations": options.iterations,
                        "batch_size": options.batch_size or BATCH_SIZES.get(dataset, 32),
                        "paths": options.paths,
                    }
                    at = {"workers": workers}
                    seconds = options.iterations * _BATCH_S.get(dataset, 0.1) / max(1, workers)
                    yield Turn(NAME, backend, dataset, at, seconds, options.warmup, options.seed, about)


def take(turn: Turn) -> Answer:
    dataset = subject(turn.case, turn.seed, turn.options["paths"])
    loading = mpiter.batches(
        dataset,
        turn.options["batch_size"],
        epochs=None,
        n_processes=turn.workers,
        backend=turn.row,
        seed=turn.seed,
    )
    transfer = loading.next
    transfer()
    iterations = turn.options["iterations"]
    _, seconds, cpu = flowing(transfer, turn.warmup_s, 0, timed=iterations)
    own, everyone = _memory(transfer, max(4, iterations // 10))
    loading.close()
    tracemalloc.stop()  # not while other threads allocate: before Python 3.12.9 and 3.13.2 they may crash then
    figures = {
        "seconds": seconds,
        "batches_per_s": iterations / seconds,
        **cpu.ms(iterations),
        "tracemalloc_mb": own / 1e6,
        "tree_mb": everyone / 1e6 if everyone else None,
    }
    return numbers(figures) | {"problems": cpu.problems}


def _memory(transfer: Callable[[], object], batches: int) -> tuple[int, int | None]:
    """The peak of what this process allocates for a few batches, and before that of all memory held meanwhile.

    Leaves the allocations being traced.
    """
    with MemoryWatch() as everyone:
        for _ in range(batches):
            transfer()
    tracemalloc.start()
    for _ in range(batches):
        transfer()
    _, peak = tracemalloc.get_traced_memory()
    return peak, everyone.most


# -- what it says ----------------------------------------------------------------------------------------------------


def tell(result: Result) -> Telling:
    telling = Telling()
    for dataset, backend, rows in _curves(result):
        if len(rows) > 1:
            _tell_the_choice(result, telling, f"{dataset}, {_NAMES[backend]}", rows)
        threads = [row for row in rows if row.at["workers"] > 1]
        if backend == "thread" and threads:
            best = min(threads, key=lambda row: row["seconds"].median)
            gain = result.ratio(_row(rows, 1), best, "seconds")
            telling.conclude(f"{dataset}: {best.at['workers']:g} threads are {times(gain)} as fast as one.", gain)
    return telling


def _tell_the_choice(result: Result, telling: Telling, which: str, rows: list[Row]) -> None:
    """What the rule takes in view of all rounds, and why."""
    rule = Rule(result.settings.get("gain", GAIN), result.settings["alpha"])
    rounds = whole_rounds(rows, "seconds")
    if len(rounds) < LEAST_ROUNDS:
        return
    taken = choose(rounds, rule)
    chosen = _row(rows, taken)
    assert chosen is not None
    ratio = result.ratio(_row(rows, 0), chosen, "seconds") if taken else None
    against_none = f", {times_as(ratio)} as fast as without" if ratio else ""
    took = f"{result.settings['iterations']} batches in {median(chosen['seconds'])} s{against_none}"
    why = reason(rounds, taken, rule).text
    telling.says.append(f"{which}: the rule takes {some(taken, 'worker')} ({took}): {why}.")


def _row(rows: list[Row], workers: int) -> Row | None:
    return next((row for row in rows if row.at["workers"] == workers), None)


def _curves(result: Result) -> Iterator[tuple[str, str, list[Row]]]:
    """Dataset, backend, and the rows by number of workers, none at all first."""
    for dataset in result.values_of("case"):
        here = [row for row in result.rows if row.case == dataset]
        for backend in dict.fromkeys(row.row for row in here):
            rows = [row for row in here if row.row == backend or not row.at["workers"]]
            yield dataset, backend, sorted(rows, key=lambda row: row.at["workers"])


def views(result: Result) -> tuple[View, ...]:
    curves = list(_curves(result))
    figures = (("seconds", "Time", 0), ("tree_mb", "Memory of all processes", 1))
    lines = [_beside(result, curves, figure, title, place) for figure, title, place in figures]
    return (*lines, *(_table(result, *curve) for curve in curves), _published())


def _beside(result: Result, curves: list[tuple[str, str, list[Row]]], figure: str, title: str, place: int) -> Lines:
    """Ours and theirs, each against its own figure without workers, by workers for each core."""
    cores, series = result.heading["machine"]["cores_usable"], []
    for dataset, backend, rows in curves:
        against_none = [(row.at["workers"] / cores, result.ratio(row, _row(rows, 0), figure)) for row in rows]
        points = tuple(point(x, found) for x, found in against_none if found)
        series.append(Series(f"{dataset}, {backend}", points))
    theirs = PUBLISHED[0][place]
    points = tuple(Point(count / THEIR_CORES, values[place] / theirs) for count, values in PUBLISHED.items())
    series.append(Series("Num Worker Tuner, CIFAR-10", points, published=True))
    note = f"Against the figure without workers. We had {cores} cores, they {THEIR_CORES}."
    return Lines(f"{title} by workers for each core", "workers for each core", "against none", tuple(series), note)


def _table(result: Result, dataset: str, backend: str, rows: list[Row]) -> Table:
    none = _row(rows, 0)
    cells = [
        {
            "workers": number(row.at["workers"]),
            "s": median(row["seconds"]),
            "batches/s": median(row["batches_per_s"]),
            "speed-up": times(result.ratio(none, row, "seconds")),
            "tracemalloc peak MB": median(row["tracemalloc_mb"]),
            "all processes MB": median(row["tree_mb"]),
            "consumer's CPU ms/batch": median(row["parent_cpu_ms"]),
            "workers' CPU ms/batch": median(row["workers_cpu_ms"]),
        }
        for row in rows
    ]
    return Table.of(
        f"{dataset}, {_NAMES[backend]}: {result.settings['iterations']} batches",
        cells,
        "tracemalloc sees the consumer's Python objects only (the slots are shared memory); the next column is all. "
        "Threads are of the consumer's process, and so is their CPU.",
    )


def _published() -> Table:
    rows = tuple((number(w), number(s), number(mb)) for w, (s, mb) in PUBLISHED.items())
    said = {0: "", 14: "chosen", 16: "fastest"}
    return Table(
        "Published: Num Worker Tuner, CIFAR-10, batches of 128, 32-core Threadripper 3970X",
        ("workers", "s (normalised)", "MB", ""),
        tuple((*row, said.get(count, "")) for row, count in zip(rows, PUBLISHED, strict=True)),
        f"Theirs, not measured here. {THREADS_PUBLISHED}.",
        published=True,
    )
