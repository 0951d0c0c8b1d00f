"""The demo's comparison at length: Chainer trainers fed by Chainer's iterators and by ours; prints tables and JSON.

    python bench/chainer_training.py --out bench/results/chainer_training.json
    python bench/chainer_training.py --small                # one short round: a smoke test, never a conclusion

Needs Chainer and Pillow. Every turn (iterator x dataset x round) is a `Trainer` with a `StandardUpdater`; evaluation
and snapshots are left out.
Guarantees: what is timed is the training loop, and within it `next()`, from the arrival of one batch to that of
another; processor time is the kernel's, parent and workers apart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from checkout import ROOT
from driver import Experiment, Turn, command_line, conduct
from measuring import CpuWindow

FIGURES = {
    "images_per_s": "images/s",
    "waited": "share waited",
    "parent_cpu_ms": "parent's CPU ms/batch",
    "workers_cpu_ms": "workers' CPU ms/batch",
    "first_batch_s": "first batch s",
}
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
            **cpu.ms(batches),
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
    return watch.figures


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
    options = {"n_processes": turn.workers, "n_prefetch": turn.options["n_prefetch"]}
    return module.MultiprocessIterator(dataset, size, **options), collate


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    take=take,
    against="chainer processes",
    paths=[str(ROOT / "examples")],
    asked=["n_prefetch"],
    small={"cases": ["28x28"]},
)


def main() -> int:
    parser = command_line(EXPERIMENT, warmup=2.0, timeout=60.0)
    parser.add_argument("--n-prefetch", type=int, default=2)
    return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    sys.exit(main())
