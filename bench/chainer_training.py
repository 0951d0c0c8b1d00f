"""The demo's comparison at length: Chainer trainers fed by Chainer's iterators and by ours; prints tables and JSON.

    python bench/chainer_training.py --out bench/results/chainer_training.json
    python bench/chainer_training.py --quick                # one short round: a smoke test, never a conclusion

Needs Chainer and Pillow. Every turn (iterator x dataset x round) is a `Trainer` with a `StandardUpdater` in a session
of its own, all of which is gone afterwards; rounds are interleaved and each starts with another iterator. The warm-up
is excluded, evaluation and snapshots are left out.
Guarantees: what is timed is the training loop, and within it `next()`, from the arrival of one batch to that of
another; processor time is the kernel's, parent and workers apart. A turn that fails is a line in the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import series
from verdict import MIN_ROUNDS

from mpiter.lab.clocks import CpuWindow

SCHEMA = "mpiter.bench.chainer_training/1"
ROOT = Path(__file__).resolve().parent.parent
NOISY = 0.15
FIGURES = ("images_per_s", "waited", "parent_cpu_ms", "workers_cpu_ms", "first_batch_s")
ROWS = {
    "chainer serial": "Chainer's SerialIterator",
    "chainer threads": "Chainer's MultithreadIterator",
    "chainer processes": "Chainer's MultiprocessIterator",
    "ours serial": "mpiter.chainer.SerialIterator",
    "ours threads": "mpiter.chainer.MultithreadIterator",
    "ours processes": "mpiter.chainer.MultiprocessIterator, concat_examples",
    "ours, converter": "mpiter.chainer.MultiprocessIterator, mpiter.chainer.converter",
}
CASES = {
    "jpeg": "224x224 JPEG files, decoded in grey, cropped at random and scaled to 32x32; batches of 64",
    "28x28": "TupleDataset of 28x28 float32 arrays and int32 labels in memory; batches of 128",
    "3x64x64": "TupleDataset of 3x64x64 float32 arrays and int32 labels in memory; batches of 128",
}
BATCH = {"jpeg": 64, "28x28": 128, "3x64x64": 128}


@dataclass(frozen=True)
class Turn:
    """What is asked of one process."""

    row: str
    case: str
    workers: int
    n_prefetch: int
    warmup_s: float
    seconds: float


class Watch:
    """Stops a trainer, having measured it: asked before each iteration whether it is over."""

    def __init__(self, turn: Turn, waits: list[float]) -> None:
        self.turn, self.waits, self.window = turn, waits, None
        self.begins = time.perf_counter() + turn.warmup_s

    def __call__(self, trainer: Any) -> bool:
        now = time.perf_counter()
        if now < self.begins:
            return False
        if self.window is None:
            self.window, self.batches, self.waited = CpuWindow(), trainer.updater.iteration, sum(self.waits)
            self.window.start()
            self.began = time.perf_counter()
            return False
        if now < self.began + self.turn.seconds:
            return False
        cpu, seconds = self.window.stop(), now - self.began
        batches = trainer.updater.iteration - self.batches
        self.figures = {
            "images_per_s": batches * BATCH[self.turn.case] / seconds,
            "waited": (sum(self.waits) - self.waited) / seconds,
            "parent_cpu_ms": 1000 * cpu.parent_s / batches,
            "workers_cpu_ms": 1000 * cpu.workers_s / batches,
            "workers_changed": cpu.changed,
            "first_batch_s": self.waits[0],
            "batches": batches,
            "seconds": seconds,
        }
        return True


def take(turn: Turn) -> dict[str, Any]:
    """Trains and measures, in this process."""
    # isort: off
    import mpiter.chainer_compat  # noqa: F401  # before Chainer, which it lets run on today's NumPy
    # isort: on

    import chainer
    import meters
    import numpy as np
    from threadpoolctl import threadpool_limits

    dataset = _dataset(turn.case)
    begin = time.perf_counter()
    iterator, collate = _iterator(turn, dataset)
    made_s = time.perf_counter() - begin
    waits = meters.clock(iterator)
    np.random.seed(0)
    links, functions = chainer.links, chainer.functions
    net = chainer.Sequential(links.Linear(None, 64), functions.relu, links.Linear(64, 10))
    optimizer = chainer.optimizers.SGD().setup(links.Classifier(net))
    updater = chainer.training.StandardUpdater(iterator, optimizer, converter=collate)
    watch = Watch(turn, waits)
    trainer = chainer.training.Trainer(updater, watch, out=str(ROOT / ".demo" / "bench"))
    with threadpool_limits(1):
        trainer.run()
    watch.figures["first_batch_s"] += made_s
    return watch.figures | {"versions": {"chainer": chainer.__version__, "numpy": np.__version__}}


def _dataset(case: str) -> Any:
    import numpy as np
    import pictures
    from chainer.datasets import TupleDataset

    if case == "jpeg":
        pictures.write(ROOT / ".demo", lambda: None)
        return pictures.Shapes(ROOT / ".demo", range(pictures.PICTURES))
    shape = tuple(map(int, case.split("x")))
    rng = np.random.default_rng(0)
    images = rng.random((20_000 if case == "28x28" else 4000, *shape), np.float32)
    return TupleDataset(images, rng.integers(10, size=len(images), dtype=np.int32))


def _iterator(turn: Turn, dataset: Any) -> tuple[Any, Callable[..., Any]]:
    from chainer import iterators as theirs
    from chainer.dataset import concat_examples

    from mpiter import chainer as ours

    module: Any = theirs if turn.row.startswith("chainer") else ours
    collate = ours.converter if turn.row == "ours, converter" else concat_examples
    size = BATCH[turn.case]
    if "serial" in turn.row:
        return module.SerialIterator(dataset, size), collate
    if "threads" in turn.row:
        return module.MultithreadIterator(dataset, size, n_threads=turn.workers), collate
    options = {"n_processes": turn.workers, "n_prefetch": turn.n_prefetch}
    return module.MultiprocessIterator(dataset, size, **options), collate


def plan(options: argparse.Namespace) -> Iterator[Turn]:
    """Interleaved: in each round every iterator once for each dataset, beginning with another one."""
    for round_ in range(options.rounds):
        for case in options.cases:
            for at in range(len(options.rows)):
                row = options.rows[(at + round_) % len(options.rows)]
                yield Turn(row, case, options.workers, options.n_prefetch, options.warmup, options.seconds)


def report(options: argparse.Namespace, answers: list[dict[str, Any]]) -> None:
    """The tables."""
    for case in options.cases:
        print(f"\n{case}: {CASES[case]}")
        print(
            f"{'':20}{'images/s':>10}{'IQR':>6}{'/Chainer':>10}{'waited':>8}{'CPU ms/batch: parent':>22}{'workers':>9}"
            f"{'first s':>9}"
        )
        chainers = series.summary(answers, case, "chainer processes", FIGURES)
        for row in options.rows:
            figures = series.summary(answers, case, row, FIGURES)
            if figures:
                rate, waited, parent, workers, first = (figures[name] for name in FIGURES)
                noise = "!" if rate.relative > NOISY else ""
                ratio = f"{rate.median / chainers['images_per_s'].median:.2f}" if chainers else ""
                print(
                    f"{row:20}{rate.median:10.0f}{rate.relative:6.0%}{ratio:>10}{waited.median:8.0%}{parent.median:22.2f}"
                    f"{workers.median:9.2f}{first.median:9.2f} {noise}"
                )
    for answer in answers:
        if "error" in answer:
            print(f"PROBLEM  {answer['row']} on {answer['case']}: {answer['error']}")
        elif answer["workers_changed"]:
            print(f"warning  {answer['row']} on {answer['case']}: processes came or went; CPU is a lower bound")
    if options.rounds < MIN_ROUNDS:
        print(f"\nfewer than {MIN_ROUNDS} rounds: not a conclusion")
    print("\n/Chainer: images/s as a multiple of those of Chainer's MultiprocessIterator")
    print(f"! the spread (IQR) is more than {NOISY:.0%} of the median: the machine was not quiet")


def document(
    options: argparse.Namespace, answers: list[dict[str, Any]], began: float, load: tuple[float, float, float]
) -> dict[str, Any]:
    """The JSON answer: everything that is printed, and every turn."""
    versions = next((answer["versions"] for answer in answers if "versions" in answer), {})
    return series.heading(SCHEMA, ROOT, began, load) | {
        "versions": {"python": platform.python_version()} | versions,
        "settings": {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "workers", "n_prefetch")},
        "cases": {case: CASES[case] for case in options.cases},
        "rows": {row: ROWS[row] for row in options.rows},
        "summary": [
            {"case": case, "row": row}
            | {name: asdict(value) for name, value in series.summary(answers, case, row, FIGURES).items()}
            for case in options.cases
            for row in options.rows
        ],
        "turns": answers,
    }


def parse() -> argparse.Namespace:
    parser = series.parser(__doc__, CASES, warmup=2.0, timeout=60.0)
    parser.add_argument("--n-prefetch", type=int, default=2)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    return series.parse(parser)


def main() -> int:
    options, began, load = parse(), time.time(), os.getloadavg()
    if options.turn:
        series.answer(take(Turn(**json.loads(options.turn))))
    answers = series.answers(Path(__file__), plan(options), options.timeout, ROOT / "examples")
    report(options, answers)
    series.keep(options.out, document(options, answers, began, load))
    return int(any("error" in answer for answer in answers))


if __name__ == "__main__":
    sys.exit(main())
