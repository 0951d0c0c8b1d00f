"""The tuner against an exhaustive sweep, here and on 64 simulated cores.

Prints verdicts and JSON.

    python bench/tuning.py --out bench/results/tuning.json
    python bench/tuning.py --small  # a smoke test, never a conclusion

A sweep tries every number of workers in five rounds, by the same trials as the tuner.
What counts is how long a batch takes, by the sweep, with what the tuner chose.
Simulated trials (`bench/cores.py`) have the service times of the load, noise of two
percent, and ten seeds, of which the worst counts; batches come in volleys there, so
their pace is the slope of a line through when they came. Exit status: 0, or 1 when a
requirement fails or a turn raises.
"""

from __future__ import annotations

import functools
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from cores import Load, Outcome, Service, simulate
from driver import (
    Claim,
    Experiment,
    Summary,
    Turn,
    at_most,
    command_line,
    conduct,
    ratio,
)

import mpiter
from mpiter.tuning.bracket import Bracket, Measure, Trial
from mpiter.tuning.tune import measure

SWEEP_ROUNDS = 5
TRIAL_S = 0.5
BATCH_SIZE = 32
MOST = 8
MOST_SIMULATED = 64
NOISE = 0.02
SEEDS = range(10)
WITHIN = 1.10
WITHIN_SIMULATED = 1.05
SHARE = 0.25
# Of what there is: tune() leaves a tenth free.
MEMORY = 0.9
# Batches of a simulated run that are timed.
COUNTED = 400, 1490


# -- loads on this machine -------------------------------------------------------------


class Waits:
    """Each sample waits for 2 ms, as for a store."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return np.full((3, 16, 16), index, np.float32)


class Computes(Waits):
    """Each sample takes about half a millisecond of a processor."""

    def __getitem__(self, index: int) -> Any:
        value = 0
        for number in range(8_000):
            value += number ^ index
        return np.full((3, 16, 16), value, np.float32)


REAL = {"io": Waits, "cpu": Computes}


# -- loads on a machine of 64 cores ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class Simulated:
    """A load, and what is known of the machine."""

    load: Load
    memory_bytes: int = 1 << 40

    @property
    def allowed(self) -> float:
        return MEMORY * self.memory_bytes

    # The cache keeps its objects alive. That does no harm: there are few, and they last
    # as long as the process.
    @functools.cache  # noqa: B019
    def known(self, workers: int) -> tuple[float, float, int]:
        """Return seconds a batch, seconds before the first, and bytes."""
        outcome = simulate(
            self.load, workers, COUNTED[1] + 10, most_bytes=self.memory_bytes
        )
        return pace(outcome), outcome.taken[0] + 0.2, outcome.peak_bytes

    def measure(self, seed: int) -> Measure:
        """Return a function that makes trials, which differ only by noise."""
        draw = random.Random(seed)

        def trial(workers: int, limit_s: float) -> Trial:
            batch_s, before_s, used = self.known(workers)
            cost_s = before_s + max(TRIAL_S, batch_s)
            return Trial(batch_s * draw.lognormvariate(0, NOISE), used, cost_s)

        return trial


def _stragglers(cpu_s: float) -> list[Service]:
    draw = random.Random(0)
    return [
        Service(cpu_s * (20 if draw.random() < 0.02 else draw.lognormvariate(0, 0.3)))
        for _ in range(4999)
    ]


def _bursts() -> list[Service]:
    """Return the times of steps of which every tenth takes long.

    It does so when a model is evaluated or saved.
    """
    return [Service(20e-3 if number % 10 == 9 else 1e-3) for number in range(10)]


# The times of photographs of several sizes that are read, decoded and resized. Each
# stands for a twentieth of the 3,001 times measured on 2026-11-23.
_PHOTOGRAPHS_MS = (
    "1.6 1.8 1.9 2.4 3.0 3.2 4.0 4.5 4.6 4.7 5.0 9.3 9.7 9.9 10.4 12.8 29.6 30.4 31.3 "
    "36.4"
)


def _photographs() -> Load:
    draw = random.Random(0)
    times = [float(one) for one in _PHOTOGRAPHS_MS.split()]
    return Load(
        [Service(1e-3 * draw.choice(times)) for _ in range(3001)],
        task_s=2e-4,
        batch_s=5e-4,
    )


SIMULATED = {
    "64: photographs": Simulated(_photographs()),
    "64: cpu": Simulated(Load([Service(2e-3)], task_s=2e-4, batch_s=5e-4)),
    "64: io": Simulated(Load([Service(1e-4, 3e-3)], task_s=2e-4, batch_s=3e-3)),
    "64: bursty": Simulated(
        Load([Service(1e-3)], steps=_bursts(), task_s=2e-4, batch_s=2e-4)
    ),
    "64: straggling": Simulated(Load(_stragglers(2e-3), task_s=2e-4, batch_s=5e-4)),
    "64: memory": Simulated(
        Load([Service(2e-3)], task_s=2e-4, batch_s=5e-4, worker_bytes=1 << 30), 20 << 30
    ),
}


def pace(outcome: Outcome) -> float:
    """Return the seconds from batch to batch."""
    batches = np.arange(*COUNTED)
    return float(np.polyfit(batches, np.array(outcome.taken)[batches], 1)[0])


# -- a turn ----------------------------------------------------------------------------


def take(turn: Turn) -> dict[str, Any]:
    """Measure the turn in this process."""
    if turn.case in SIMULATED:
        return TAKES_SIMULATED[turn.row](SIMULATED[turn.case])
    return TAKES[turn.row](REAL[turn.case]())


def sweep(dataset: Any) -> dict[str, Any]:
    began = time.perf_counter()
    found: dict[int, list[float]] = {workers: [] for workers in range(MOST + 1)}
    for number in range(SWEEP_ROUNDS):
        # Every other round goes the other way, so that a machine that grows slower
        # doesn't favour few workers.
        order = list(found)
        if number % 2 == 0:
            order.reverse()
        for workers in order:
            trial = measure(dataset, BATCH_SIZE, workers, TRIAL_S)
            found[workers].append(trial.batch_s)
    middle = {workers: statistics.median(times) for workers, times in found.items()}
    return _swept(middle, time.perf_counter() - began)


def _swept(batch_s: dict[int, float], spent_s: float) -> dict[str, Any]:
    best = min(batch_s, key=batch_s.__getitem__)
    at = {f"at_{workers}": seconds for workers, seconds in batch_s.items()}
    return {"workers": best, "batch_ms": 1e3 * batch_s[best], "spent_s": spent_s, **at}


def tuner(dataset: Any) -> dict[str, Any]:
    began = time.perf_counter()
    found = mpiter.tune(dataset, BATCH_SIZE, max_workers=MOST)
    spent_s = time.perf_counter() - began
    batch_s = found.table[found.n_processes].batch_s
    return {"workers": found.n_processes, "batch_ms": 1e3 * batch_s, "spent_s": spent_s}


def sweep_simulated(case: Simulated) -> dict[str, Any]:
    known = {workers: case.known(workers) for workers in range(MOST_SIMULATED + 1)}
    spent_s = sum(
        SWEEP_ROUNDS * (before_s + max(TRIAL_S, seconds))
        for seconds, before_s, _ in known.values()
    )
    fitting = {
        workers: seconds
        for workers, (seconds, _, used) in known.items()
        if used <= case.allowed
    }
    return _swept(fitting, spent_s)


def tuner_simulated(case: Simulated) -> dict[str, Any]:
    """Return the worst of the choices, and the longest search."""
    searches = [
        Bracket(case.measure(seed), MOST_SIMULATED, memory_bytes=case.allowed)
        for seed in SEEDS
    ]
    chosen = [search.choose()[0] for search in searches]
    batch_s, workers = max((case.known(workers)[0], workers) for workers in chosen)
    trials_of = [
        [trial for trials in search.of.values() for trial in trials]
        for search in searches
    ]
    spent_s = max(sum(one.cost_s for one in of) for of in trials_of)
    trials = max(map(len, trials_of))
    return {
        "workers": workers,
        "batch_ms": 1e3 * batch_s,
        "spent_s": spent_s,
        "trials": trials,
    }


TAKES = {"sweep": sweep, "tuner": tuner}
TAKES_SIMULATED = {"sweep": sweep_simulated, "tuner": tuner_simulated}
ROWS = {
    "sweep": f"every number of workers, {SWEEP_ROUNDS} rounds",
    "tuner": "mpiter.tune()",
}


# -- the answer ------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for case in (*REAL, *SIMULATED):
        within = WITHIN if case in REAL else WITHIN_SIMULATED
        found = excess(summary, case, "tuner")
        yield at_most(case, "the tuner's choice", found, within, " x the sweep's best")
        spent = ratio(summary, case, "tuner", "sweep", "spent_s")
        yield at_most(case, "the tuner's time", spent, SHARE, " x the sweep's")


def excess(summary: Summary, case: str, row: str) -> float | None:
    """Return the time for a batch as a multiple of the sweep's best, in the median.

    The sweep timed the number of workers that was chosen.
    """
    swept = summary.get((case, "sweep"))
    chosen = summary.get((case, row))
    if swept is None or chosen is None:
        return None
    best = swept["batch_ms"].median / 1e3
    return statistics.median(
        swept[f"at_{workers:.0f}"].median / best for workers in chosen["workers"].values
    )


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={
        "io": f"samples wait for 2 ms, batches of {BATCH_SIZE}, 0 to {MOST} workers",
        "cpu": (
            f"samples take half a millisecond of a processor, batches of {BATCH_SIZE}, "
            f"0 to {MOST} workers"
        ),
        "64: photographs": (
            "simulated, 64 cores: decoding photographs of several sizes, as measured"
        ),
        "64: cpu": "simulated, 64 cores: 2 ms of processor a sample",
        "64: io": (
            "simulated, 64 cores: 3 ms of waiting a sample, 3 ms of the consumer's "
            "processor a batch"
        ),
        "64: bursty": (
            "simulated, 64 cores: 1 ms of processor a sample; every tenth step takes "
            "20 times as long"
        ),
        "64: straggling": (
            "simulated, 64 cores: 2 ms of processor a sample, of one in 50 twenty "
            "times as much"
        ),
        "64: memory": "simulated, 64 cores: as cpu; a worker takes 1 GB, of 20",
    },
    rows=ROWS,
    figures={
        "batch_ms": "ms a batch",
        "workers": "workers",
        "spent_s": "seconds spent",
        "trials": "trials",
    }
    | {f"at_{workers}": "" for workers in range(MOST_SIMULATED + 1)},
    take=take,
    claims=claims,
    small={"cases": ["64: memory"], "rows": ["tuner"]},
    against="sweep",
    rows_of=lambda case: TAKES if case in REAL else TAKES_SIMULATED,
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=180.0)))
