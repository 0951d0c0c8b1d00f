"""Training through a hundred deaths: the same batches as in a quiet run, and what it costs.

    python bench/chaos.py --out bench/results/chaos.json

Two runs of one stream with one seed, the second among kills at random moments of random kinds, workers that are just
starting included. Guarantees: every batch of both runs is read to the last byte; a sample that is lost, repeated or
different makes the exit status 1. `run` and `Strikes` serve the tests as well.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import signal
import statistics
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measure import commit, machine

import mpiter

HERE = Path(__file__).resolve().parent
KINDS = ("SIGKILL", "SIGSEGV", "SIGTERM", "SIGABRT", "SIGSTOP", "SIGKILL to all")
LENGTH, SHAPE, BATCH = 5000, (28, 28), 32
SAMPLE_TIMEOUT_S = 0.5  # after which a stopped worker is noticed


class Noisy:
    """Images that are different each time they come, by their place in the order alone."""

    def __init__(self) -> None:
        self.images = np.random.default_rng(0).random((LENGTH, *SHAPE), np.float32)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.images[index] + mpiter.get_rng().random(SHAPE, np.float32), index


@dataclass
class Strike:
    """A kill, and how long it took to get over it."""

    kind: str
    at: float
    restarts: int  # so far
    recovered_s: float | None = None  # until a batch was handed out after the restart
    longest_wait_s: float = 0.0  # that the consumer had, until the next strike


class Strikes:
    """Kills workers when certain batches are due."""

    def __init__(self, batches: int, kills: int, seed: int, kinds: tuple[str, ...] = KINDS) -> None:
        self._dice = random.Random(seed)
        self._kinds = kinds
        self._due = sorted(self._dice.sample(range(1, batches - 1), kills))
        self.done: list[Strike] = []

    def before(self, number: int, iterator: Any) -> None:
        """Strike if it is time; later, if nobody is there to be struck."""
        if self._due and number >= self._due[0]:
            time.sleep(self._dice.uniform(0, 0.005))  # whatever the workers are doing by then
            if self._strike(iterator):
                self._due.pop(0)

    def _strike(self, iterator: Any) -> bool:
        kind, pids = self._dice.choice(self._kinds), iterator.worker_pids
        name, _, to_all = kind.partition(" to ")
        restarts = iterator.stats().restarts
        victims = pids if to_all else pids and [self._dice.choice(pids)]
        hit = [pid for pid in victims if _send(pid, getattr(signal, name))]
        if hit:
            self.done.append(Strike(kind, time.perf_counter(), restarts))
        return bool(hit)

    def after(self, waited_s: float, iterator: Any) -> None:
        """A batch has been handed out."""
        if not self.done:
            return
        last, restarts = self.done[-1], iterator.stats().restarts
        last.longest_wait_s = max(last.longest_wait_s, waited_s)
        for strike in self.done[-10:]:
            if strike.recovered_s is None and restarts > strike.restarts:
                strike.recovered_s = time.perf_counter() - strike.at

    @property
    def are_over(self) -> bool:
        return not self._due


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:  # it has just died of an earlier one
        return False
    return True


@dataclass
class Run:
    """What came of one run."""

    checksums: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    seconds: float = 0.0
    stats: Any = None

    @property
    def batches_per_s(self) -> float:
        return len(self.checksums) / self.seconds


def run(batches: int, strikes: Strikes | None = None, **options: Any) -> Run:
    """Read so many batches to the last byte."""
    found = Run()
    defaults = {"n_processes": 2, "n_prefetch": 2, "seed": 1, "sample_timeout": SAMPLE_TIMEOUT_S}
    with mpiter.MultiprocessIterator(Noisy(), BATCH, **{**defaults, **options}) as iterator:
        _read(next(iterator), found)
        began = time.perf_counter()
        for number in range(1, batches):
            if strikes is not None:
                strikes.before(number, iterator)
            asked = time.perf_counter()
            batch = next(iterator)
            if strikes is not None:
                strikes.after(time.perf_counter() - asked, iterator)
            _read(batch, found)
        found.seconds = time.perf_counter() - began
        found.stats = iterator.stats()
    return found


def _read(batch: Any, found: Run) -> None:
    images, labels = batch.columns
    found.checksums.append(zlib.crc32(labels.tobytes(), zlib.crc32(images.tobytes())))
    found.labels += labels.tolist()


@dataclass(frozen=True)
class Differences:
    """What one run has that the other hasn't."""

    lost: int
    repeated: int
    different: int  # batches

    @classmethod
    def between(cls, quiet: Run, other: Run) -> Differences:
        expected, came = Counter(quiet.labels), Counter(other.labels)
        different = sum(a != b for a, b in zip(quiet.checksums, other.checksums, strict=True))
        return cls((expected - came).total(), (came - expected).total(), different)

    def __bool__(self) -> bool:
        return bool(self.lost or self.repeated or self.different)


def report(quiet: Run, chaos: Run, strikes: Strikes, differences: Differences) -> dict[str, Any]:
    """All figures of the two runs."""
    recovered = [strike.recovered_s for strike in strikes.done if strike.recovered_s is not None]
    by_kind = {kind: [s.recovered_s for s in strikes.done if s.kind == kind and s.recovered_s] for kind in KINDS}
    waits = [strike.longest_wait_s for strike in strikes.done]
    return {
        "batches": len(chaos.checksums),
        "kills": dict(Counter(strike.kind for strike in strikes.done)),
        "restarts": chaos.stats.restarts,
        "lost": differences.lost,
        "repeated": differences.repeated,
        "different_batches": differences.different,
        "quiet_batches_per_s": quiet.batches_per_s,
        "chaos_batches_per_s": chaos.batches_per_s,
        "recovery_s": {"median": statistics.median(recovered), "worst": max(recovered)},
        "recovery_s_by_kind": {kind: statistics.median(found) for kind, found in by_kind.items() if found},
        "longest_wait_s": {"median": statistics.median(waits), "worst": max(waits)},
    }


def lines(figures: dict[str, Any]) -> Iterator[str]:
    """The figures for people."""
    kills = sum(figures["kills"].values())
    yield f"{figures['batches']} batches, {kills} kills, {figures['restarts']} restarts"
    yield (
        f"lost {figures['lost']}, repeated {figures['repeated']}, "
        f"batches that differ from the quiet run {figures['different_batches']}"
    )
    yield f"batches/s: quiet {figures['quiet_batches_per_s']:.0f}, in chaos {figures['chaos_batches_per_s']:.0f}"
    for title, name in (("from a kill to a batch after the restart", "recovery_s"), ("longest wait", "longest_wait_s")):
        yield f"{title}: median {figures[name]['median']:.2f} s, worst {figures[name]['worst']:.2f} s"
    for kind, seconds in figures["recovery_s_by_kind"].items():
        yield f"  {kind:15} x{figures['kills'][kind]:3}: median {seconds:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", default=None)
    parser.add_argument("--serializer", default="slots", choices=["slots", "packed"])
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--out", type=Path, help="write the JSON answer here")
    asked = parser.parse_args()
    logging.getLogger("mpiter").setLevel(logging.ERROR)
    options = {
        "n_processes": asked.workers,
        "serializer": asked.serializer,
        "backend": mpiter.Process(asked.start_method),
    }
    strikes = Strikes(asked.batches, asked.kills, asked.seed)
    quiet = run(asked.batches, **options)
    chaos = run(asked.batches, strikes, **options)
    differences = Differences.between(quiet, chaos)
    figures = report(quiet, chaos, strikes, differences)
    print(*lines(figures), sep="\n")
    if asked.out:
        versions = {"python": platform.python_version(), "numpy": np.__version__, "mpiter": mpiter.__version__}
        setting = {key: str(value) for key, value in vars(asked).items() if key != "out"}
        where = {"machine": machine(), "commit": commit(HERE.parent), "versions": versions, "setting": setting}
        asked.out.write_text(json.dumps({**where, **figures}, indent=1) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
