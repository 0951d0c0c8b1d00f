"""A busy consumer: what is left of a training loop's pace when its batches come from workers; tables, verdicts, JSON.

    python bench/busy.py --python-chainer PATH --python-torch PATH --out bench/results/busy.json
    python bench/busy.py --quick                            # one short round: a smoke test, never a conclusion

A step is so much work as takes 10 ms alone: pure Python, which holds the GIL all the time, or small matrix products on
one thread. A batch costs the workers 5 ms of processor time, half of what the two of them have during a step.
Guarantees: what is found is the steps a second as a share of those over batches that are there already, by the same
process, half of it before the workers have started and half after they have ended. Work is counted, not clocked: who
takes the consumer's core or its GIL makes its steps longer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, product
from multiprocessing import get_context
from typing import Any

import checkout  # noqa: F401  # before mpiter
import numpy as np
import peers
from peers import OURS, Row
from threadpoolctl import threadpool_limits

from mpiter.lab.bench import Bench, command_line, conduct
from mpiter.lab.cases import Images, work
from mpiter.lab.clocks import CpuWindow
from mpiter.lab.loaders import Ours, Peer, Setup
from mpiter.lab.turns import Turn, consume
from mpiter.lab.verdict import Claim, Summary, at_least, median

SCHEMA = "mpiter.bench.busy/1"
STEP_S, BATCH_S = 0.010, 0.005
BATCH, SHAPE, N_PREFETCH = 32, (28, 28), 2
SIZE = 64  # of the matrices: a product takes some microseconds
MUST, AIM = 0.85, 0.95
CASES = {
    "python": "a step is 10 ms of pure Python",
    "numpy": f"a step is 10 ms of np.dot of {SIZE}x{SIZE} matrices, one thread",
}
FIGURES = {
    "share": "of the pace",
    "steps_per_s": "steps/s",
    "ready_steps_per_s": "if ready",
    "waited": "share waited",
    "parent_cpu_ms": "parent's CPU ms/step",
    "workers_cpu_ms": "workers' CPU ms/step",
}


def be_nice(_info: Any) -> None:
    """A worker that leaves the core to whoever else wants it."""
    os.nice(10)


class Costly(Images):
    """Small images, 5 ms of processor time for a batch of them."""

    def __getitem__(self, index: int) -> Any:
        work(BATCH_S / BATCH)
        return super().__getitem__(index)


class Unconnected(Peer):
    """What the machine allows: processes do the work of a batch for each step, and hand nothing over."""

    def __init__(self, dataset: Images, setup: Setup) -> None:
        context = get_context("fork")
        self._dataset, self._steps = dataset, context.Semaphore(setup.n_prefetch)
        self._processes = [context.Process(target=self._work, daemon=True) for _ in range(setup.workers)]
        for process in self._processes:
            process.start()
        self.batches = self._pretend()

    def _work(self) -> None:
        while True:
            self._steps.acquire()
            for index in range(BATCH):
                self._dataset[index]

    def _pretend(self) -> Iterator[Any]:
        while True:
            self._steps.release()
            yield None, None

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


ROWS = (
    {"limit": Row("ours", Unconnected, {}, "processes work as much for each step, and hand nothing over")}
    | {name: peers.ROWS[name] for name in ("ours", "ours_columns", "chainer", "torch")}
    | {"ours_nice": Row("ours", Ours, {"worker_init": be_nice}, "MultiprocessIterator, workers at nice 10")}
)


# -- steps -----------------------------------------------------------------------------------------------------------


def in_python(units: int) -> None:
    total = 0
    for number in range(units):
        total += number * number


def in_numpy(units: int) -> None:
    for _ in range(units):
        np.dot(_LEFT, _RIGHT, out=_PRODUCT)


_LEFT, _RIGHT, _PRODUCT = (np.ones((SIZE, SIZE), np.float32) for _ in range(3))
STEPS = {"python": in_python, "numpy": in_numpy}


def units_of(step: Callable[[int], None]) -> int:
    """How much work takes 10 ms with nobody in the way."""
    units = 1
    while (seconds := _fastest(step, units)) < STEP_S:
        units *= 2
    return round(units * STEP_S / seconds)


def _fastest(step: Callable[[int], None], units: int) -> float:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        step(units)
        times.append(time.perf_counter() - begin)
    return min(times)


class Trainer:
    """Takes a batch, makes a step."""

    def __init__(self, case: str) -> None:
        self._step = STEPS[case]
        self._units = units_of(self._step)
        self.waited_s = 0.0  # for batches, and for what is in them

    def train(self, batches: Iterator[Any], touch: Callable[[Any], None], seconds: float) -> tuple[int, float]:
        """Steps made, and seconds."""
        clock, step, units = time.perf_counter, self._step, self._units

        def take_one() -> None:
            begin = clock()
            touch(next(batches))
            self.waited_s += clock() - begin
            step(units)

        return consume(take_one, seconds)

    def pace(self, seconds: float) -> float:
        """Steps a second over batches that are there already."""
        samples = Images(SHAPE)
        ready = [[samples[at] for at in range(start, start + BATCH)] for start in (0, BATCH)]
        count, took = self.train(cycle(ready), Ours.touch, seconds)
        return count / took


# -- a turn ----------------------------------------------------------------------------------------------------------


def take(turn: Turn) -> dict[str, Any]:
    """Trains and measures, in this process."""
    row = ROWS[turn.row]
    assert issubclass(row.peer, Peer)
    try:
        row.peer.find()
    except ImportError as error:
        return {"absent": str(error)}
    with threadpool_limits(1):
        return measure(turn, row)


def measure(turn: Turn, row: Row) -> dict[str, Any]:
    trainer = Trainer(turn.case)
    before = trainer.pace(turn.seconds / 2)
    peer = row.open(Costly(SHAPE), Setup(BATCH, turn.workers, N_PREFETCH, shuffle=True, repeat=True))
    try:
        trainer.train(peer.batches, peer.touch, 0)
        window = CpuWindow()
        trainer.train(peer.batches, peer.touch, turn.warmup_s)
        trainer.waited_s = 0.0
        window.start()
        count, took = trainer.train(peer.batches, peer.touch, turn.seconds)
        cpu = window.stop()
    finally:
        peer.close()
    waited = trainer.waited_s / took
    ready = (before + trainer.pace(turn.seconds / 2)) / 2
    return {
        "share": count / took / ready,
        "steps_per_s": count / took,
        "ready_steps_per_s": ready,
        "waited": waited,
        **cpu.ms(count),
        "workers_changed": cpu.changed,
    }


# -- the answer ------------------------------------------------------------------------------------------------------


def claims(summary: Summary) -> Iterable[Claim]:
    asked = [(MUST, OURS, True), (AIM, (*OURS, "ours_nice"), False)]
    for case, (bound, rows, must) in product(CASES, asked):
        for row in rows:
            found = median(summary, case, row, "share")
            yield at_least(case, row, found, bound, " of the pace over ready batches", must)


BENCH = Bench(
    schema=SCHEMA,
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows={name: row.says for name, row in ROWS.items()},
    figures=FIGURES,
    take=take,
    claims=claims,
    against="limit",
    environment=lambda row, case: ROWS[row].environment,
)


if __name__ == "__main__":
    sys.exit(conduct(BENCH, command_line(BENCH, warmup=0.5, timeout=60.0)))
