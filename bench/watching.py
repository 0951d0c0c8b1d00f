"""What looking on costs: `stats()`, which is always on, and `trace=`, as shares of a batch of 128 x 28x28; verdicts.

    python bench/watching.py --out bench/results/watching.json

The calls of a run with two workers are written down as they come, then made again, to a tally and to a tracer, without
anybody else: so much processor time for each batch, the least of several repetitions, beside the time that a batch
took, the least of as many runs without a trace.  What the loop writes on the notice board for `mpiter top` is counted
with `stats()`, and so is what a worker asks the system for at each task; writing its file at the end with a trace.
Exit status: 0, or 1 when a requirement fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import checkout  # noqa: F401  # before mpiter
import numpy as np

import mpiter
from mpiter.engine.options import Options
from mpiter.engine.tally import Tally
from mpiter.lab.bench import keep_answer
from mpiter.lab.surroundings import versions
from mpiter.rules import Rules
from mpiter.tuning.trace import Trace
from mpiter.worker.reading import RunDelay

SCHEMA = "mpiter.bench.watching/1"
BATCH_SIZE, BATCHES, WARM, REPETITIONS = 128, 2000, 300, 5
MOST_STATS, MOST_TRACE = 0.01, 0.02
_TOLD = ("asked", "waited", "opened", "handed_out", "ordered", "answered", "delivered", "in_flight")


class Noting(Tally):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in _TOLD:
            return lambda *args: (object.__getattribute__(self, "calls").append((name, args)), _call(self, name, args))[
                1
            ]
        return super().__getattribute__(name)


def _call(tally: Tally, name: str, args: tuple[Any, ...]) -> Any:
    return getattr(Tally, name)(tally, *args)


def stream() -> Any:
    images = np.random.default_rng(0).random((20_000, 28, 28), np.float32)
    dataset = [(image, at % 10) for at, image in enumerate(images)]
    return mpiter.batches(dataset, BATCH_SIZE, n_processes=2, epochs=None, seed=1)


def taken(batches: Any) -> float:
    """Seconds of a batch, in full flow."""
    for _ in range(WARM):
        next(batches)
    began = time.perf_counter()
    for _ in range(BATCHES):
        next(batches)
    return (time.perf_counter() - began) / BATCHES


def again(calls: list[tuple[str, tuple[Any, ...]]], tally: Tally) -> float:
    """Processor seconds of a batch that the calls take."""
    bound = [(getattr(tally, name), args) for name, args in calls]
    began = time.process_time()
    for call, args in bound:
        call(*args)
    return (time.process_time() - began) / (BATCHES + WARM)


def published(batches: Any) -> float:
    """Seconds that it takes to write on the notice board once; the loop does so a few times in ten batches."""
    loop = batches._pump.loop
    began = time.thread_time()
    for _ in range(1000):
        loop._publish()
    return (time.thread_time() - began) / 1000


def asking() -> float:
    """Seconds of a task that a worker takes to ask what it has had of a processor, and waited for one."""
    delay, took = RunDelay(), []
    for _ in range(REPETITIONS):
        began = time.thread_time()
        for _ in range(1000):
            for _ in range(2):
                time.thread_time_ns()
                delay.ns()
        took.append((time.thread_time() - began) / 1000)
    return min(took)


def measured() -> dict[str, float]:
    noting, turns = Noting(), []
    make = Options.make_tally
    batch_s, publish_s = [], []
    for _ in range(REPETITIONS):
        with stream() as batches:
            batch_s.append(taken(batches))
            publish_s.append(published(batches))
    Options.make_tally = lambda self, skipped: noting  # type: ignore[method-assign]
    try:
        with stream() as batches:
            next(batches)
            loop = batches._pump.loop
            publish = loop._publish
            loop._publish = lambda: (turns.append(1), publish())
            taken(batches)
    finally:
        Options.make_tally = make  # type: ignore[method-assign]
    plain, traced, wrote = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for at in range(REPETITIONS):
            plain.append(again(noting.calls, Tally()))
            tracer = Trace(str(Path(folder, f"{at}.json"))).tally(Rules(workers=2), "process")
            traced.append(again(noting.calls, tracer))
            began = time.process_time()
            tracer.close()
            wrote.append((time.process_time() - began) / (BATCHES + WARM))
    board_s = min(publish_s) * len(turns) / (BATCHES + WARM)
    tasks_s = asking() * sum(name == "answered" for name, _ in noting.calls) / (BATCHES + WARM)
    noting_s = min(traced) - min(plain)
    return {
        "batch_us": 1e6 * min(batch_s),
        "stats_us": 1e6 * (min(plain) + board_s + tasks_s),
        "board_us": 1e6 * board_s,
        "workers_us": 1e6 * tasks_s,
        "trace_us": 1e6 * (noting_s + min(wrote)),
        "writing_us": 1e6 * min(wrote),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON")
    options, began, load = parser.parse_args(), time.time(), os.getloadavg()
    found = measured()
    for name, value in found.items():
        print(f"{name:<12}{value:9.2f}")
    claims = [("stats()", found["stats_us"] / found["batch_us"], MOST_STATS)]
    claims.append(("a trace", found["trace_us"] / found["batch_us"], MOST_TRACE))
    for what, share, most in claims:
        print(f"{'PASS' if share <= most else 'FAIL'}  {what} costs {share:.2%} of a batch (at most {most:.0%})")
    print(f"      of it its file, written at the end, {found['writing_us'] / found['batch_us']:.2%}")
    if options.out is not None:
        verdicts = [{"claim": what, "found": share, "most": most} for what, share, most in claims]
        keep_answer(options.out, SCHEMA, began, load, {"versions": versions(), **found, "verdicts": verdicts})
    return 0 if all(share <= most for _, share, most in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
