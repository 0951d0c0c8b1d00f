"""The guard for speed: ten ratios in about a minute, against the bounds kept here.

    python3 bench guard

It prints a table. The exit code is 1 where a ratio misses its bound by half.

Each ratio divides what mpiter does by what a reference does on the same machine at the
same time: both take turns, and the medians of the turns are compared.  Absolute times
drift from machine to machine, these ratios little.  A ratio that misses its bound is
reported; only one that misses it by a factor of two fails, since a busy machine costs
as much.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cases import CASES, Case
from driver import add_common, heading, keep_result, refuse_to_overwrite, versions
from limit import fill, slots_of
from loaders import Indexing, InProcess, Setup

import mpiter

SMALL = "28x28"
WORKERS = 2
N_PREFETCH = 2
ROUNDS = 9
TURN_S = 0.4
STARTS = 3
KILLS = 5
# A turn of the smallest batches takes so many seconds, which is thousands of them.
SHORT_S = 0.1


class Bound(NamedTuple):
    """A ratio's name, what it may be, and whether that is the most (or the least)."""

    says: str
    value: float
    is_most: bool = False

    def misses(self, ratio: float, times: float = 1.0) -> bool:
        """Tell whether the ratio misses the bound by more than the factor ``times``."""
        if self.is_most:
            return ratio > self.value * times
        return ratio < self.value / times


BOUNDS = {
    "plain": Bound(
        "no workers: batches(n_processes=0) / a plain loop, batches a second", 0.9
    ),
    "torch": Bound(
        "no workers: mpiter.torch.DataLoader / torch's, batches a second", 0.95
    ),
    "tensors": Bound("the same, small batches of samples of tensors", 0.95),
    "TensorDataset": Bound("the same, small batches of a TensorDataset", 0.95),
    "columns": Bound(
        "no workers: small batches of columns, shuffled / by fancy indexing, batches "
        "a second",
        0.2,
    ),
    "columns in order": Bound("the same, in order / slices of the arrays, copied", 0.2),
    "workers": Bound("two workers: batches() / the floor below, batches a second", 0.5),
    "start": Bound(
        "seconds to the first batch / to the first answer of multiprocessing's own "
        "processes",
        1.5,
        True,
    ),
    "death": Bound(
        "longest wait after a worker was killed / starting a process of "
        "multiprocessing's",
        0.1,
        True,
    ),
    "flight": Bound(
        "bytes in flight / those of n_prefetch + 2 x workers + 1 batches, or 32 MiB",
        1.05,
        True,
    ),
}


# -- what is measured ------------------------------------------------------------------


def ratios() -> Iterator[tuple[str, float | None]]:
    """Yield the ratios by name; None stands for one whose library isn't installed."""
    case = CASES[SMALL]
    dataset = case.dataset()
    size = case.batch_size
    with mpiter.batches(dataset, size, n_processes=0, epochs=None, seed=0) as alone:
        loop = InProcess(dataset, Setup(size, 0, 1, shuffle=True, repeat=True)).batches
        yield "plain", in_turns(alone, loop, TURN_S)
    yield "torch", of_torch(case, TURN_S)
    for name in ("tensors", "TensorDataset"):
        yield name, of_torch(CASES[f"16x8 {name}"], SHORT_S)
    for name in ("columns", "columns in order"):
        yield name, of_columns(CASES[f"16x8 {name}"])
    floor = Floor(case)
    try:
        with mpiter.batches(
            dataset,
            size,
            n_processes=WORKERS,
            n_prefetch=N_PREFETCH,
            epochs=None,
            seed=0,
        ) as stream:
            yield "workers", in_turns(stream, floor, TURN_S)
            most = max(
                stream.stats().in_flight_bytes for _ in itertools.islice(stream, 500)
            )
    finally:
        floor.close()
    starts = [
        (scripted(FIRST_BATCH, case.name), scripted(FIRST_ANSWER))
        for _ in range(STARTS)
    ]
    ours, server = map(statistics.median, zip(*starts, strict=True))
    yield "start", ours / server
    yield "death", statistics.median(waits_after_kills(case)) / server
    one = size * sum(np.asarray(part).nbytes for part in dataset[0])
    # More of the batches that take less than a millisecond may be in flight.
    few = one * (N_PREFETCH + 2 * WORKERS + 1)
    yield "flight", most / max(few, 1 << 25)


def in_turns(ours: Iterator[object], theirs: Iterator[object], turn_s: float) -> float:
    """Return the ratio of their rates; the first turn warms up and doesn't count."""
    mine = []
    reference = []
    for _ in range(1 + ROUNDS):
        mine.append(rate(ours, turn_s))
        reference.append(rate(theirs, turn_s))
    return statistics.median(mine[1:]) / statistics.median(reference[1:])


def rate(stream: Iterator[object], turn_s: float) -> float:
    count = 0
    began = time.perf_counter()
    while (seconds := time.perf_counter() - began) < turn_s:
        next(stream)
        count += 1
    return count / seconds


def of_torch(case: Case, turn_s: float) -> float | None:
    if find_spec("torch") is None:
        return None
    from torch.utils.data import DataLoader

    from mpiter.torch import DataLoader as Ours

    made = [
        kind(case.dataset(), case.batch_size, shuffle=True)
        for kind in (Ours, DataLoader)
    ]
    ours, theirs = (
        itertools.chain.from_iterable(itertools.repeat(loader)) for loader in made
    )
    return in_turns(ours, theirs, turn_s)


def of_columns(case: Case) -> float:
    dataset = case.dataset()
    size = case.batch_size
    shuffle = not case.is_in_order
    theirs = Indexing(dataset, Setup(size, 0, 1, shuffle, repeat=True)).batches
    with mpiter.batches(
        dataset, size, shuffle=shuffle, n_processes=0, epochs=None, seed=0
    ) as ours:
        return in_turns(ours, theirs, SHORT_S)


class Floor:
    """The least that two workers can do for a consumer: the floor of any loader.

    Forked processes write samples into shared slots, one message each way for a batch,
    two batches out for each worker. There is no order, no seed, no check of what a
    sample is, no lease, no death, no timeout.
    """

    def __init__(self, case: Case) -> None:
        self._case, context = case, multiprocessing.get_context("fork")
        count = N_PREFETCH + 2 * WORKERS + 1
        self._slots = slots_of(count, case.batch_size, case.shape)
        self._free = list(range(count))
        self._at = 0
        pipes = [context.Pipe() for _ in range(WORKERS)]
        self._ends = [mine for mine, _ in pipes]
        self._processes = [
            context.Process(target=self._work, args=(theirs,), daemon=True)
            for _, theirs in pipes
        ]
        for process in self._processes:
            process.start()
        for end in self._ends * 2:
            self._ask(end)

    def _work(self, end: Connection) -> None:
        dataset = self._case.dataset()
        while True:
            slot, first = end.recv()
            fill(dataset, first, *self._slots[slot])
            end.send(slot)

    def _ask(self, end: Connection) -> None:
        self._at += self._case.batch_size
        end.send((self._free.pop(), self._at))

    def __next__(self) -> Any:
        (end, *_) = multiprocessing.connection.wait(self._ends)
        slot = end.recv()  # type: ignore[union-attr]
        self._free.insert(0, slot)
        self._ask(end)
        return self._slots[slot]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


# -- starts and deaths -----------------------------------------------------------------

FIRST_ANSWER = """
import multiprocessing, time
def work(end):
    import numpy
    end.send(1)
if __name__ == "__main__":
    import numpy
    context = multiprocessing.get_context("forkserver")
    began = time.perf_counter()
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    for mine, theirs in pipes:
        context.Process(target=work, args=(theirs,), daemon=True).start()
    for mine, theirs in pipes:
        mine.recv()
    print(time.perf_counter() - began)
"""
FIRST_BATCH = """
import time, sys
import numpy, mpiter
from cases import CASES
if __name__ == "__main__":
    case = CASES[sys.argv[1]]
    dataset = case.dataset()
    began = time.perf_counter()
    with mpiter.batches(dataset, case.batch_size, n_processes=2, seed=0) as stream:
        next(stream)
        print(time.perf_counter() - began)
"""


def scripted(text: str, *arguments: str) -> float:
    """Return the seconds that a script prints.

    It runs in a process of its own, where nothing is warm.
    """
    path = Path(__file__).parent
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(text)
        script.flush()
        known = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(path), str(path.parent)]),
        }
        command = [sys.executable, script.name, *arguments]
        return float(
            subprocess.run(
                command, env=known, capture_output=True, text=True, check=True
            ).stdout
        )


def waits_after_kills(case: Case) -> Iterator[float]:
    """Yield the longest wait for one of the 200 batches after each kill."""
    with mpiter.batches(
        case.dataset(), case.batch_size, n_processes=WORKERS, epochs=None, seed=0
    ) as stream:
        for _ in itertools.islice(stream, 200):
            pass
        for kill in range(KILLS):
            os.kill(stream.worker_pids[kill % WORKERS], signal.SIGKILL)
            longest = 0.0
            for _ in range(200):
                began = time.perf_counter()
                next(stream)
                longest = max(longest, time.perf_counter() - began)
            # Wait until the replacement is there.
            time.sleep(0.3)
            yield longest


# -- the answer ------------------------------------------------------------------------


def main() -> int:
    global ROUNDS, TURN_S, STARTS, KILLS
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common(parser)
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help=f"turns of each whose medians are compared (default {ROUNDS})",
    )
    asked = parser.parse_args()
    refuse_to_overwrite(parser, asked)
    ROUNDS = asked.rounds
    if asked.small:
        ROUNDS = 1
        TURN_S = SHORT_S
        STARTS = 1
        KILLS = 1
    # The deaths are meant, and each would be a warning.
    logging.getLogger("mpiter").setLevel(logging.ERROR)
    began = time.time()
    load = os.getloadavg()
    found = dict[str, float]()
    failed = list[str]()
    print(f"{'ratio':>7} {'bound':>7}  ")
    for name, ratio in ratios():
        bound = BOUNDS[name]
        sign = "<" if bound.is_most else ">"
        limit = f"{sign}={bound.value:g}"
        if ratio is None:
            print(
                f"{'-':>7} {limit:>7}  {bound.says}: {name} isn't installed here",
                flush=True,
            )
            continue
        found[name] = round(ratio, 3)
        verdict = ""
        if bound.misses(ratio, 2):
            verdict = "  MISSED BY HALF"
            failed.append(name)
        elif bound.misses(ratio):
            verdict = "  MISSED"
        print(f"{ratio:7.2f} {limit:>7}  {bound.says}{verdict}", flush=True)
    print(f"{time.time() - began:.0f} s")
    keep_result(
        asked.out,
        heading("guard", began, load) | {"versions": versions(), "ratios": found},
    )
    return int(bool(failed) and not asked.small)


if __name__ == "__main__":
    sys.exit(main())
