"""Are the predictions right?  Runs with a known bottleneck are recorded, others predicted from them, and carried out.

    python bench/predictions.py --out bench/results/predictions.json
    python bench/predictions.py --rounds 1 --seconds 1      # a smoke test, never a conclusion

Each case is a dataset and a trainer whose times are made (sleeping, computing), under a first setting, and one thing
that is otherwise in the second run: workers, n_prefetch, a faster decoder, a store that answers at once, more memory,
a slower trainer.  To compute is to do a fixed amount of work, which takes longer where somebody shares the core.  The
first run is recorded by `trace=`; from its times the second one's samples a second are predicted, by replaying them in
the simulated engine; then the second is measured, in the same turn.  The machine's capacity (what two busy processes do
together), and how much work a core does alone, are measured in each turn as well.  Must: the median error at most 10 %,
the worst 25 %.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import checkout  # noqa: F401  # before mpiter
import numpy as np

import mpiter
from mpiter import machine
from mpiter.engine.pilot import Setting
from mpiter.lab.bench import Bench, command_line, conduct
from mpiter.lab.turns import Turn
from mpiter.lab.verdict import Claim, Summary, at_most, median
from mpiter.tuning.capacity import measured, rounds_per_s, work
from mpiter.tuning.explain import Case, predicted, run_of
from mpiter.tuning.simulation import Service
from mpiter.tuning.trace import read

SCHEMA, ROW = "mpiter.bench.predictions/1", "mpiter"
MOST_MEDIAN, MOST_WORST = 0.10, 0.25
LEAST = 25  # batches: a shorter trace is not explained
WARM = 0.3  # of a run's seconds


TWO = Setting(workers=2, n_prefetch=2)


@dataclass(frozen=True)
class Made:
    """A dataset that takes its time: for each sample so many milliseconds of waiting and of computing."""

    io_ms: float = 0.0
    cpu_ms: float = 0.0
    shape: tuple[int, ...] = (16,)
    straggler: int = 0  # each so many-eth sample takes 20 times as long
    pace: float = 0.0  # rounds of work that a core of one's own does in a second

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> Any:
        times = 20 if self.straggler and index % self.straggler == 0 else 1
        if self.io_ms:
            time.sleep(times * self.io_ms / 1e3)
        work(times * self.pace * self.cpu_ms / 1e3)
        return np.zeros(self.shape, np.float32)


@dataclass(frozen=True)
class Scenario:
    """What was recorded, and what is otherwise then."""

    what: str
    data: Made
    step_io_ms: float = 0.0
    step_cpu_ms: float = 0.0
    batch_size: int = 16
    setting: Setting = TWO
    memory_mb: int = 0  # of the machine; 0: what there is
    workers: int | None = None
    n_prefetch: int | None = None
    io: float = 1.0  # times as much
    cpu: float = 1.0
    step: float = 1.0
    memory: int = 1

    @property
    def then(self) -> Scenario:
        """The second run."""
        workers, n_prefetch = self.setting
        data = replace(self.data, io_ms=self.io * self.data.io_ms, cpu_ms=self.cpu * self.data.cpu_ms)
        return replace(
            self,
            data=data,
            step_io_ms=self.step * self.step_io_ms,
            step_cpu_ms=self.step * self.step_cpu_ms,
            memory_mb=self.memory * self.memory_mb,
            setting=Setting(
                workers if self.workers is None else self.workers,
                n_prefetch if self.n_prefetch is None else self.n_prefetch,
            ),
        )

    def of(self, case: Case) -> Case:
        """What was recorded, as it would be then."""
        load = case.load
        samples = tuple(Service(self.cpu * one.cpu_s, self.io * one.wait_s) for one in load.samples)
        steps = tuple(Service(self.step * one.cpu_s, self.step * one.wait_s) for one in load.steps)
        return replace(
            case,
            load=replace(load, samples=samples, steps=steps),
            machine=replace(case.machine, memory_bytes=self.memory * case.machine.memory_bytes),
            setting=self.then.setting,
        )


READS, DECODES, BOTH = Made(io_ms=4), Made(cpu_ms=3), Made(io_ms=3, cpu_ms=1)
LARGE = Made(cpu_ms=0.2, shape=(3, 224, 224))
UNEVEN = Made(io_ms=0.5, shape=(3, 128, 128), straggler=50)  # 3.1 MB a batch of 16
SCENARIOS = {
    "reading-4": Scenario("reading; 2 workers, then 4", READS, workers=4),
    "reading-8": Scenario("reading; 2 workers, then 8", READS, workers=8),
    "reading-1": Scenario("reading; 4 workers, then 1", READS, setting=Setting(4, 2), workers=1),
    "reading-0": Scenario("reading; 2 workers, then none", READS, workers=0),
    "reading-fast": Scenario("reading; a store twice as fast", READS, io=0.5),
    "reading-cached": Scenario("reading and decoding; everything cached", BOTH, io=0.0),
    "reading-slow": Scenario("reading; a store half as fast", READS, setting=Setting(4, 2), io=2.0),
    "reading-trainer": Scenario("reading beside a trainer; 2 workers, then 4", READS, step_io_ms=20, workers=4),
    "decoding-2": Scenario("decoding; 1 worker, then 2", DECODES, setting=Setting(1, 2), workers=2),
    "decoding-0": Scenario("decoding; 1 worker, then none", DECODES, setting=Setting(1, 2), workers=0),
    "decoding-fast": Scenario("decoding; a decoder twice as fast, 1 worker", DECODES, setting=Setting(1, 2), cpu=0.5),
    "decoding-fast-2": Scenario("decoding; a decoder twice as fast, 2 workers", DECODES, cpu=0.5),
    "decoding-trainer": Scenario("decoding beside a trainer; twice as fast", DECODES, step_io_ms=20, cpu=0.5),
    "cores-4": Scenario("too few cores; 2 workers that decode, then 4", DECODES, workers=4),
    "cores-both": Scenario("too few cores; 2 that read and decode, then 8", BOTH, workers=8),
    "cores-trainer": Scenario(
        "too few cores beside a trainer that computes; 2, then 1", DECODES, step_cpu_ms=20, workers=1
    ),
    "transport-1": Scenario("large samples; 2 workers, then 1", LARGE, batch_size=32, workers=1),
    "transport-trainer": Scenario("large samples; a trainer, then one twice as slow", LARGE, 20, 0, 32, step=2.0),
    "transport-ahead": Scenario("large samples; n_prefetch 2, then 8", LARGE, batch_size=32, n_prefetch=8),
    "straggler-4": Scenario("a straggler in 50; 2 workers, then 4", replace(READS, io_ms=1, straggler=50), workers=4),
    "straggler-ahead": Scenario(
        "a straggler in 50 beside a trainer; n_prefetch 1, then 8",
        replace(READS, io_ms=1, straggler=50),
        step_io_ms=12,
        setting=Setting(2, 1),
        n_prefetch=8,
    ),
    "memory-4": Scenario(
        "no memory to run ahead of a straggler; 2 workers, then 4", UNEVEN, step_io_ms=5, memory_mb=200, workers=4
    ),
    "memory-ample": Scenario(
        "no memory to run ahead of a straggler; then four times as much",
        UNEVEN,
        setting=Setting(4, 2),
        memory_mb=250,
        memory=4,
    ),
    "trainer-1": Scenario(
        "the trainer; 4 workers, then 1", Made(io_ms=0.5), step_io_ms=40, setting=Setting(4, 2), workers=1
    ),
    "trainer-slow": Scenario("the trainer; then one twice as slow", READS, step_io_ms=50, step=2.0),
    "trainer-fast": Scenario("the trainer; then one four times as fast", READS, step_io_ms=60, step=0.25),
}


def take(turn: Turn) -> dict[str, Any]:
    """Record, predict, carry out."""
    scenario = SCENARIOS[turn.case]
    capacity, pace = measured(), rounds_per_s()
    scenario = replace(scenario, data=replace(scenario.data, pace=pace))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "run.json")
        before = rate_of(scenario, turn.seconds, path)
        run = run_of(read(path), capacity)
    then = scenario.then
    found = predicted(turn.case, scenario.of(run.case))
    after = rate_of(then, turn.seconds)
    error = found.samples_per_s / after - 1
    figures = {
        "off": abs(error),
        "signed": error,
        "before_per_s": before,
        "predicted_per_s": found.samples_per_s,
        "measured_per_s": after,
        "two_busy": capacity[min(1, len(capacity) - 1)],
    }
    return figures


def rate_of(scenario: Scenario, seconds: float, trace: str | None = None) -> float:
    """Samples a second, of a trainer that takes its time."""
    workers, n_prefetch = scenario.setting
    memory = scenario.memory_mb << 20 or machine.memory_total()
    with (
        unittest.mock.patch.object(machine, "memory_total", return_value=memory),
        mpiter.batches(
            scenario.data,
            scenario.batch_size,
            n_processes=workers,
            n_prefetch=n_prefetch,
            epochs=None,
            shuffle=False,
            trace=trace,
        ) as it,
    ):
        next(it)
        began = time.perf_counter()
        warm, count = began, 0
        while (now := time.perf_counter()) < began + seconds or count < LEAST:
            if warm == began and now > began + WARM * seconds:
                warm, count = now, 0
            next(it)
            if scenario.step_io_ms:
                time.sleep(scenario.step_io_ms / 1e3)
            work(scenario.data.pace * scenario.step_cpu_ms / 1e3)
            count += 1
        return scenario.batch_size * count / (time.perf_counter() - warm)


def claims(summary: Summary) -> Iterable[Claim]:
    errors = {case: median(summary, case, ROW, "off") for case in SCENARIOS}
    found = [error for error in errors.values() if error is not None]
    yield from _of_each(errors)
    if found:
        one = next(case for case, error in errors.items() if error is not None)
        claim = at_most(one, "", statistics.median(found), MOST_MEDIAN)
        yield replace(claim, text=f"{len(found)} scenarios: median error <= {MOST_MEDIAN:g}")


def _of_each(errors: dict[str, float | None]) -> Iterator[Claim]:
    for case, error in errors.items():
        yield at_most(case, "error", error, MOST_WORST)


BENCH = Bench(
    schema=SCHEMA,
    script=__file__,
    doc=__doc__,
    cases={name: scenario.what for name, scenario in SCENARIOS.items()},
    rows={ROW: "predicted, and measured"},
    figures={
        "off": "off",
        "signed": "signed",
        "before_per_s": "before/s",
        "predicted_per_s": "predicted/s",
        "measured_per_s": "measured/s",
        "two_busy": "two busy",
    },
    take=take,
    claims=claims,
)


if __name__ == "__main__":
    sys.exit(conduct(BENCH, command_line(BENCH, warmup=0.0, timeout=120.0)))
