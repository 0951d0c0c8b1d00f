"""A training through a hundred deaths gets the batches of a quiet run.

This counts what the deaths cost.

    python bench/chaos.py --out bench/results/chaos.json
    python bench/chaos.py --small  # a smoke test, never a conclusion

Runs of one stream with one seed, every other one quiet: one among kills at random
moments of random kinds, one among such as end a single worker at once (strikes.py), for
which alone it is said what they may cost. Guarantees: every batch of all runs is read
to the last byte; a sample that is lost, repeated within its epoch or different makes
the exit status 1, as a requirement does that fails. A death counts as got over when a
batch is handed out that holds a sample of a new worker, not when one comes that was
finished before. `run` serves tests/deaths/test_chaos.py as well.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from driver import (
    Verdict,
    add_common,
    at_least,
    at_most,
    heading,
    judge,
    keep_result,
    refuse_to_overwrite,
    versions,
)
from strikes import KINDS, SINGLE, STARTING, Strike, Strikes

import mpiter

LENGTH = 5000
SHAPE = (28, 28)
BATCH = 32
# After this time a stopped worker is noticed.
SAMPLE_TIMEOUT_S = 0.5
# These bounds hold among single strikes: the median of the longest waits, and the share
# of the quiet rate.
MOST_WAIT_S = 0.025
LEAST_RATE = 0.5
# Fewer strikes allow no conclusion.
ENOUGH = 20


class Noisy:
    """Images with noise that depends on their place, labels, and who fetched them."""

    def __init__(self) -> None:
        self.images = np.random.default_rng(0).random((LENGTH, *SHAPE), np.float32)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, int]:
        return (
            self.images[index] + mpiter.get_rng().random(SHAPE, np.float32),
            index,
            os.getpid(),
        )


@dataclass
class Run:
    """What came of one run."""

    checksums: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    seconds: float = 0.0
    stats: Any = None

    def read(self, batch: Any) -> None:
        """Record a batch's checksum and labels, without who fetched it."""
        images, labels, _ = batch.columns
        self.checksums.append(
            zlib.crc32(labels.tobytes(), zlib.crc32(images.tobytes()))
        )
        self.labels += labels.tolist()

    @property
    def samples(self) -> Counter[tuple[int, int]]:
        """Return how often each sample came in each epoch."""
        return Counter(
            (place // LENGTH, label) for place, label in enumerate(self.labels)
        )

    @property
    def batches_per_s(self) -> float:
        return (len(self.checksums) - 1) / self.seconds


def run(batches: int, strikes: Strikes | None = None, **options: Any) -> Run:
    """Read so many batches; time counts from the first."""
    found = Run()
    strikes = strikes or Strikes(batches, kills=0, seed=0)
    defaults = {
        "n_processes": 2,
        "n_prefetch": 2,
        "seed": 1,
        "sample_timeout": SAMPLE_TIMEOUT_S,
    }
    if options.get("n_processes") == 0:
        source: Any = mpiter.SerialIterator(Noisy(), BATCH, seed=1)
    else:
        source = mpiter.MultiprocessIterator(Noisy(), BATCH, **{**defaults, **options})
    with source as iterator:
        stream = strikes.among(iterator, batches)
        found.read(next(stream))
        began = time.perf_counter()
        for batch in stream:
            found.read(batch)
        found.seconds = time.perf_counter() - began
        found.stats = iterator.stats()
    return found


@dataclass(frozen=True)
class Differences:
    """What another run lacks of the quiet one's, repeats, or has differently.

    A sample may come once in an epoch.
    """

    lost: int = 0
    repeated: int = 0
    different_batches: int = 0

    @classmethod
    def between(cls, quiet: Run, other: Run) -> Differences:
        came = other.samples
        lost = (quiet.samples - came).total()
        repeated = came.total() - len(came)
        pairs = zip(quiet.checksums, other.checksums, strict=True)
        different = sum(one != another for one, another in pairs)
        return cls(lost, repeated, different)

    def __bool__(self) -> bool:
        return self != Differences()


def figures(
    quiet: Run, chaos: Run, quiet_after: Run, strikes: Strikes
) -> dict[str, Any]:
    """Return all figures of a run and of the two quiet ones beside it."""
    by_kind = {
        kind: [strike for strike in strikes.done if strike.kind == kind]
        for kind in (*KINDS, STARTING)
    }
    differences = Differences.between(quiet, chaos)
    quiet_rate = (quiet.batches_per_s + quiet_after.batches_per_s) / 2
    return {
        "batches": len(chaos.checksums),
        "epochs": len(chaos.labels) / LENGTH,
        "kills": len(strikes.done),
        "restarts": chaos.stats.restarts,
        **asdict(differences),
        "checksums_equal": chaos.checksums == quiet.checksums,
        "quiet_batches_per_s": quiet_rate,
        "chaos_batches_per_s": chaos.batches_per_s,
        "of_quiet": chaos.batches_per_s / quiet_rate,
        "strikes": {
            kind: _summary(some)
            for kind, some in (by_kind | {"all": strikes.done}).items()
            if some
        },
    }


def _summary(strikes: list[Strike]) -> dict[str, Any]:
    recovered = [
        strike.recovered_s for strike in strikes if strike.recovered_s is not None
    ]
    return {
        "kills": len(strikes),
        "recovered": len(recovered),
        "recovery_s": _spread(recovered),
        "longest_wait_s": _spread([strike.longest_wait_s for strike in strikes]),
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {"median": statistics.median(seconds), "worst": max(seconds)}


def verdicts(told: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on strikes that end single workers at once."""
    wait = told["strikes"].get("all", {}).get("longest_wait_s", {}).get("median")
    kinds = ", ".join(kind.removeprefix("SIG") for kind in SINGLE)
    claims = [
        at_most(kinds, "the consumer's longest wait, s", wait, MOST_WAIT_S),
        at_least(
            kinds, "batches/s", told["of_quiet"], LEAST_RATE, " of the quiet run's"
        ),
    ]
    return [judge(claim, told["kills"], ENOUGH) for claim in claims]


def lines(told: dict[str, Any]) -> Iterator[str]:
    """Yield the figures for people."""
    yield (
        f"{told['batches']} batches, {told['epochs']:g} epochs, {told['kills']} kills, "
        f"{told['restarts']} restarts"
    )
    checksums = "equal" if told["checksums_equal"] else "DIFFER"
    yield (
        f"lost {told['lost']}, repeated {told['repeated']}, "
        f"different batches {told['different_batches']}; checksums {checksums}"
    )
    quiet = told["quiet_batches_per_s"]
    chaos = told["chaos_batches_per_s"]
    yield (
        f"batches/s: quiet {quiet:.0f}, in chaos {chaos:.0f}, {told['of_quiet']:.2f} "
        "of it"
    )
    yield f"\n{'':24}{'':6}{'s until a new worker':>24}{'s waited for':>20}"
    yield f"{'':24}{'kills':>6}{'has fetched a batch':>24}{'one batch':>20}"
    yield (
        f"{'':24}{'':6}" + f"{'median':>15}{'worst':>9}" + f"{'median':>11}{'worst':>9}"
    )
    for kind, found in told["strikes"].items():
        recovery = _cells(found["recovery_s"], 15)
        waits = _cells(found["longest_wait_s"], 11)
        yield f"{kind:24}{found['kills']:6}{recovery}{waits}"


def _cells(spread: dict[str, float], width: int) -> str:
    if not spread:
        return f"{'-':>{width}}{'-':>9}"
    return f"{spread['median']:{width}.3f}{spread['worst']:9.3f}"


def about(asked: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures were measured with."""
    told = {
        name: value
        for name, value in vars(asked).items()
        if name not in ("out", "force", "small")
    }
    constant = {
        "batch_size": BATCH,
        "shape": SHAPE,
        "samples": LENGTH,
        "sample_timeout_s": SAMPLE_TIMEOUT_S,
    }
    return {"versions": versions(), "settings": told | constant}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", help="of the workers (default: mpiter's)")
    parser.add_argument("--serializer", default="slots", choices=["slots", "packed"])
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    add_common(parser)
    asked = parser.parse_args()
    refuse_to_overwrite(parser, asked)
    if asked.small:
        asked.batches = 100
        asked.kills = 2
    return asked


def main() -> int:
    asked = parse()
    began = time.time()
    load = os.getloadavg()
    # Each death would be a warning.
    logging.getLogger("mpiter").setLevel(logging.ERROR)
    backend = mpiter.Process(asked.start_method)
    options = {
        "n_processes": asked.workers,
        "serializer": asked.serializer,
        "backend": backend,
    }
    runs = [run(asked.batches, **options)]
    told = []
    for kinds in (KINDS, SINGLE):
        strikes = Strikes(asked.batches, asked.kills, asked.seed, kinds)
        runs += [run(asked.batches, strikes, **options), run(asked.batches, **options)]
        told.append(figures(*runs[-3:], strikes))
        print(*lines(told[-1]), "", sep="\n")
    judged = verdicts(told[-1])
    print(*[verdict.line() for verdict in judged], sep="\n")
    found = told[0] | {
        "single": told[1],
        "verdicts": [asdict(verdict) for verdict in judged],
    }
    keep_result(asked.out, heading("chaos", began, load) | about(asked) | found)
    spoilt = any(Differences.between(runs[0], other) for other in runs)
    return int(spoilt or any(verdict.failed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
