"""The tuner and "auto" against an exhaustive sweep, on this machine and on a simulated one of 64 cores; verdicts, JSON.

    python bench/tuning.py --out bench/results/tuning.json
    python bench/tuning.py --small                       # one short round: a smoke test, never a conclusion

A sweep tries every number of workers in five rounds, as `bench/workers.py` does, by the same
trials as the tuner, with few and with many batches that wait. What counts is how long a batch takes, by the sweep,
with what the tuner chose. Of `n_processes="auto"`, which finds out while batches are handed out (as `Auto(most=8)` on
this machine): here the number it has come to after 200 batches, simulated how long a batch takes then. A load that
changes half-way is held against the better fixed number for each half.
Simulated trials have the service times of the load, noise of two percent, and ten seeds, of which the worst counts;
batches come in volleys there, so their pace is the slope of a line through when they came, and a sweep tries only
every fourth number of workers with many batches that wait.
Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from driver import Claim, Experiment, Summary, Turn, at_most, command_line, conduct, median, ratio

import mpiter
from mpiter.engine.pilot import Auto, Setting
from mpiter.tuning.auto import AutoPilot
from mpiter.tuning.bracket import Bracket, most_trials
from mpiter.tuning.measuring import Loading
from mpiter.tuning.simulation import Load, Machine, Outcome, Service, simulate
from mpiter.tuning.trials import Asked, Notes, Trial

SWEEP_ROUNDS, TRIAL_S, BATCH_SIZE = 5, 0.5, 32
MOST, MOST_SIMULATED = 8, 64
NOISE, SEEDS = 0.02, range(10)
MEMORY = 0.9  # of what there is: tune() and auto leave a tenth free
WITHIN, WITHIN_SIMULATED, WITHIN_CHANGING, SHARE = 1.10, 1.05, 1.10, 0.25
FEW, MANY = 2, 64  # batches that wait
EARLY, LATE_CHANGES = 200, 3  # batches in which auto may change what it likes, and changes after them
FLIGHT, COUNTED = 1500, (400, 1490)  # batches of a simulated run under auto, and those that are timed in any run


# -- loads on this machine -------------------------------------------------------------------------------------------


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


# -- loads on a machine of 64 cores ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulated:
    """A load, and what is known of the machine."""

    load: Load
    memory_bytes: int = 1 << 40


def _stragglers(cpu_s: float) -> list[Service]:
    draw = random.Random(0)
    return [Service(cpu_s * (20 if draw.random() < 0.02 else draw.lognormvariate(0, 0.3))) for _ in range(4999)]


def _bursts() -> list[Service]:
    """As of steps: every tenth takes long, as when a model is evaluated or saved."""
    return [Service(20e-3 if number % 10 == 9 else 1e-3) for number in range(10)]


def _photographs() -> Load:
    """As measured by `bench/service_times.py`."""
    path = Path(__file__).parent / "results" / "service_times.json"
    found = json.loads(path.read_text())
    times = zip(*([1e-6 * float(one) for one in found[name].split()] for name in ("cpu_us", "wait_us")), strict=True)
    return Load(list(itertools.starmap(Service, times)), task_s=2e-4, batch_s=5e-4)


SIMULATED = {
    "64: photographs": Simulated(_photographs()),
    "64: cpu": Simulated(Load([Service(2e-3)], task_s=2e-4, batch_s=5e-4)),
    "64: cpu, light": Simulated(Load([Service(2e-4)], task_s=2e-4, batch_s=5e-4)),
    "64: io": Simulated(Load([Service(1e-4, 3e-3)], task_s=2e-4, batch_s=3e-3)),
    "64: bursty": Simulated(Load([Service(1e-3)], steps=_bursts(), task_s=2e-4, batch_s=2e-4)),
    "64: straggling": Simulated(Load(_stragglers(2e-3), task_s=2e-4, batch_s=5e-4)),
    "64: memory": Simulated(Load([Service(2e-3)], task_s=2e-4, batch_s=5e-4, worker_bytes=1 << 30), 20 << 30),
}


CHANGING, HALF = "64: changing", 1000  # the second half of the batches is another load


def _changing() -> Load:
    samples = [Service(0.0, 2e-3)] * (4 * HALF) * 2 + [Service(0.0, 8e-3)] * (4 * HALF) * 2
    return Load(samples, [Service(0.0, 8e-3)] * (2 * HALF), batch_size=8, start_s=0.3)


def pace(outcome: Outcome) -> float:
    """Seconds from batch to batch."""
    batches = np.arange(*COUNTED)
    return float(np.polyfit(batches, np.array(outcome.taken)[batches], 1)[0])


class Virtual:
    """Measures by simulation, once for each setting; a trial differs from another by noise alone."""

    def __init__(self, case: Simulated) -> None:
        self._case, self._known = case, dict[Setting, tuple[float, float, int]]()

    def known(self, setting: Setting) -> tuple[float, float, int]:
        """Seconds a batch, seconds before, bytes."""
        if setting not in self._known:
            outcome = simulate(self._case.load, Machine.of(64), *setting, batches=COUNTED[1] + 10)
            self._known[setting] = pace(outcome), outcome.start_s + 0.2, outcome.peak_bytes
        return self._known[setting]

    def measure(self, seed: int) -> Callable[[Setting, Asked], Trial]:
        draw = random.Random(seed)

        def trial(setting: Setting, asked: Asked) -> Trial:
            batch_s, before_s, used = self.known(setting)
            batches = max(asked.batches, math.ceil(asked.seconds / batch_s))
            seconds = batches * batch_s * math.exp(draw.gauss(0, NOISE))
            return Trial(seconds, batches, used, before_s + seconds)

        return trial


# -- a turn ----------------------------------------------------------------------------------------------------------


def take(turn: Turn) -> dict[str, Any]:
    """Measures, in this process."""
    if turn.case == CHANGING:
        return TAKES_CHANGING[turn.row]()
    if turn.case in SIMULATED:
        return TAKES_SIMULATED[turn.row](SIMULATED[turn.case])
    return TAKES[turn.row](REAL[turn.case]())


def sweep(dataset: Any) -> dict[str, Any]:
    measure, began = Loading(dataset, BATCH_SIZE, {}), time.perf_counter()
    found = {n_prefetch: _middle(measure, n_prefetch) for n_prefetch in (FEW, MANY)}
    return _swept(found, time.perf_counter() - began)


def _middle(measure: Loading, n_prefetch: int) -> dict[int, float]:
    """Seconds of a batch for each number of workers."""
    found: dict[int, list[float]] = {workers: [] for workers in range(MOST + 1)}
    for number in range(SWEEP_ROUNDS):
        for workers in found if number % 2 else reversed(found):
            found[workers].append(measure(Setting(workers, n_prefetch), Asked(TRIAL_S)).batch_s)
    return {workers: statistics.median(times) for workers, times in found.items()}


def _swept(found: dict[int, dict[int, float]], spent_s: float) -> dict[str, Any]:
    batch_s = {Setting(workers, few): time for few, times in found.items() for workers, time in times.items()}
    best = min(batch_s, key=batch_s.__getitem__)
    at = {f"at_{_name(setting)}": seconds for setting, seconds in batch_s.items()}
    return {
        "workers": best.workers,
        "waiting": best.n_prefetch,
        "batch_ms": 1e3 * batch_s[best],
        "spent_s": spent_s,
        **at,
    }


def _name(setting: Setting) -> str:
    return f"{setting.workers}_{FEW if setting.n_prefetch < MANY else MANY}"


def tuner(dataset: Any) -> dict[str, Any]:
    began = time.perf_counter()
    found = mpiter.tune(dataset, BATCH_SIZE, max_workers=MOST, cache=False)
    spent_s = time.perf_counter() - began
    (row,) = (row for row in found.table if (row.workers, row.n_prefetch) == found.chosen)
    trials = sum(row.trials for row in found.table)
    chosen = {"workers": row.workers, "waiting": row.n_prefetch}
    return {**chosen, "batch_ms": 1e3 * row.seconds, "spent_s": spent_s, "trials": trials}


def auto(dataset: Any) -> dict[str, Any]:
    with mpiter.batches(dataset, BATCH_SIZE, epochs=None, n_processes=Auto(most=MOST), shuffle=False) as stream:
        began = time.perf_counter()
        for _ in range(EARLY):
            next(stream)
        settled, count = time.perf_counter(), 0
        while time.perf_counter() < settled + 4 * TRIAL_S:
            next(stream)
            count += 1
        batch_ms = 1e3 * (time.perf_counter() - settled) / count
        chosen = {"workers": stream.stats().workers, "waiting": FEW}
        return {**chosen, "batch_ms": batch_ms, "spent_s": settled - began}


def auto_simulated(case: Simulated) -> dict[str, Any]:
    pilot = AutoPilot(Auto(most=MOST_SIMULATED), Auto(), memory=lambda stats: float(case.memory_bytes))
    machine = Machine.of(64, case.memory_bytes)
    outcome = simulate(case.load, machine, 1, 2, FLIGHT, pilot, most_workers=MOST_SIMULATED)
    late = sum(change.batches > EARLY for change in pilot.changes)
    batch_ms = 1e3 * pace(outcome)
    spent_s = outcome.taken[EARLY]
    return {"workers": outcome.stats.workers, "batch_ms": batch_ms, "spent_s": spent_s, "late": late}


def fixed_changing() -> dict[str, Any]:
    """The better number for each half."""
    load, halves = _changing(), []
    for workers in (1, 2, 4, 8, 16, 32, 64):
        outcome = simulate(load, Machine.of(64), workers, 2, 2 * HALF)
        halves.append((outcome.taken[HALF], outcome.seconds - outcome.taken[HALF]))
    return {"batch_ms": 1e3 * sum(min(half[at] for half in halves) for at in (0, 1)) / (2 * HALF)}


def auto_changing() -> dict[str, Any]:
    pilot = AutoPilot(Auto(most=MOST_SIMULATED), Auto(), memory=lambda stats: 1e12)
    outcome = simulate(_changing(), Machine.of(64), 1, 2, 2 * HALF, pilot, most_workers=MOST_SIMULATED)
    return {"workers": outcome.stats.workers, "batch_ms": 1e3 * outcome.seconds / (2 * HALF)}


def sweep_simulated(case: Simulated) -> dict[str, Any]:
    virtual, spent_s = Virtual(case), 0.0
    batch_s: dict[int, dict[int, float]] = {FEW: {}, MANY: {}}
    for workers in range(MOST_SIMULATED + 1):
        for n_prefetch, found in batch_s.items():
            if n_prefetch == MANY and workers % 4:
                continue
            seconds, before_s, used = virtual.known(Setting(workers, n_prefetch))
            spent_s += SWEEP_ROUNDS * (before_s + max(TRIAL_S, seconds))
            if used <= MEMORY * case.memory_bytes:
                found[workers] = seconds
    return _swept(batch_s, spent_s)


def tuner_simulated(case: Simulated) -> dict[str, Any]:
    """The worst of the choices, and the longest search."""
    virtual, searches = Virtual(case), []
    for seed in SEEDS:
        notes = Notes(virtual.measure(seed), Asked(TRIAL_S), most=most_trials(MOST_SIMULATED))
        chosen = Bracket(notes, MOST_SIMULATED, MEMORY * case.memory_bytes).choose().setting
        searches.append((virtual.known(chosen)[0], chosen, notes))
    batch_s, (workers, waiting), _ = max(searches, key=lambda one: one[0])
    spent_s = max(notes.spent_s for *_, notes in searches)
    trials = max(notes.count for *_, notes in searches)
    return {"workers": workers, "waiting": waiting, "batch_ms": 1e3 * batch_s, "spent_s": spent_s, "trials": trials}


TAKES = {"sweep": sweep, "tuner": tuner, "auto": auto}
TAKES_SIMULATED = {"sweep": sweep_simulated, "tuner": tuner_simulated, "auto": auto_simulated}
TAKES_CHANGING = {"fixed": fixed_changing, "auto": auto_changing}
ROWS = {
    "sweep": f"every number of workers, {SWEEP_ROUNDS} rounds",
    "tuner": "mpiter.tune()",
    "auto": f"n_processes=mpiter.Auto(most={MOST}), simulated {MOST_SIMULATED}",
    "fixed": "the better fixed number of workers for each half",
}


# -- the answer ------------------------------------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for case in (*REAL, *SIMULATED):
        within = WITHIN if case in REAL else WITHIN_SIMULATED
        yield at_most(case, "the tuner's choice", excess(summary, case, "tuner"), within, " x the sweep's best")
        yield at_most(
            case, "the tuner's time", ratio(summary, case, "tuner", "sweep", "spent_s"), SHARE, " x the sweep's"
        )

    for case in REAL:
        yield at_most(case, "where auto comes to", excess(summary, case, "auto"), WITHIN, " x the sweep's best")
        spent = ratio(summary, case, "auto", "sweep", "spent_s")
        yield at_most(case, "auto's first 200 batches", spent, SHARE, " x the sweep's time")
    for case in SIMULATED:
        found = ratio(summary, case, "auto", "sweep", "batch_ms")
        yield at_most(case, "a batch by auto", found, WITHIN_SIMULATED, " x the sweep's best")
        late = median(summary, case, "auto", "late")
        yield at_most(case, "auto's changes after 200 batches", late, LATE_CHANGES)
    found = ratio(summary, CHANGING, "auto", "fixed", "batch_ms")
    yield at_most(CHANGING, "auto's time", found, WITHIN_CHANGING, " x the better fixed number's on each half")


def excess(summary: Summary, case: str, row: str) -> float | None:
    """How long a batch takes with the number chosen, by the sweep, as a multiple of its best; in the median."""
    swept, chosen = summary.get((case, "sweep")), summary.get((case, row))
    if swept is None or chosen is None:
        return None
    best = swept["batch_ms"].median / 1e3
    settings = zip(chosen["workers"].values, chosen["waiting"].values, strict=True)
    names = [_name(Setting(int(workers), int(waiting))) for workers, waiting in settings]
    return statistics.median(swept[f"at_{name}"].median / best for name in names)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={
        "io": f"samples wait for 2 ms, batches of {BATCH_SIZE}, 0 to {MOST} workers",
        "cpu": f"samples take half a millisecond of a processor, batches of {BATCH_SIZE}, 0 to {MOST} workers",
        "64: photographs": "simulated, 64 cores: decoding photographs of several sizes, as measured",
        "64: cpu": "simulated, 64 cores: 2 ms of processor a sample",
        "64: cpu, light": "simulated, 64 cores: 0.2 ms of processor a sample",
        "64: io": "simulated, 64 cores: 3 ms of waiting a sample, 3 ms of the consumer's processor a batch",
        "64: bursty": "simulated, 64 cores: 1 ms of processor a sample; every tenth step takes 20 times as long",
        "64: straggling": "simulated, 64 cores: 2 ms of processor a sample, of one in 50 twenty times as much",
        CHANGING: "simulated, 64 cores: samples that wait for 2 ms, half-way for 8; steps of 8 ms",
        "64: memory": "simulated, 64 cores: as cpu; a worker takes 1 GB, of 20",
    },
    rows=ROWS,
    figures={
        "batch_ms": "ms a batch",
        "workers": "workers",
        "waiting": "waiting",
        "spent_s": "seconds spent",
        "trials": "trials",
        "late": "late",
    }
    | {f"at_{workers}_{few}": "" for workers in range(MOST_SIMULATED + 1) for few in (FEW, MANY)},
    take=take,
    claims=claims,
    against="sweep",
    rows_of=lambda case: TAKES if case in REAL else TAKES_CHANGING if case == CHANGING else TAKES_SIMULATED,
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=180.0)))
