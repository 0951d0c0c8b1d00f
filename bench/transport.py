"""The transport benchmark: mpiter, its peers and the limit, in one run.

All are interleaved; prints tables, verdicts and JSON.

    python bench/transport.py --python-chainer PATH --python-torch PATH \\
        --out bench/results/transport.json
    python bench/transport.py --small  # a smoke test, never a conclusion

Guarantees: the timed part is `next()` and touching the samples, nothing else; it begins
in full flow, right after the warm-up, and ends on the arrival of a batch. Each turn's
bytes are read afterwards, from a second loader over a fixed order, and compared with
the in-process loop's; without workers those of a shuffled epoch too. The first batch
counts from the construction of the loader, its package being imported and the dataset
made. Variants of mpiter, which enter no requirement, get half the time, cases for
loaders without workers a quarter. Exit status: 0, or 1 when a requirement or a checksum
fails or a turn raises.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, is_dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from cases import CASES, Case, Digest, Form, expected_digest
from driver import (
    Claim,
    Experiment,
    Summary,
    Turn,
    at_least,
    at_most,
    command_line,
    conduct,
    median,
    ratio,
)
from limit import Limit, filling
from loaders import (
    Chainer,
    ChainerSerial,
    ChainerThreads,
    Grain,
    Indexing,
    InProcess,
    Ours,
    OursAlone,
    OursColumns,
    OursSerial,
    OursThreads,
    OursTorch,
    OursTorchAlone,
    Peer,
    Setup,
    Spdl,
    Torch,
    TorchAlone,
)
from measuring import Cpu, flowing


@dataclass(frozen=True)
class Row:
    """A line of the result: which loader, in which environment, with which options."""

    environment: str
    peer: type[Peer] | type[Limit]
    options: dict[str, Any]
    says: str
    # A variant enters no requirement, and gets half the time.
    variant: bool = False
    reads: tuple[Form, ...] = (Form.samples,)

    def open(self, dataset: Any, setup: Setup) -> Peer:
        assert issubclass(self.peer, Peer)
        return self.peer(dataset, setup, **self.options)


ROWS = {
    "in_process": Row("ours", InProcess, {}, "no workers, np.stack"),
    "limit": Row("ours", Limit, {}, "workers fill shared slots, nothing is consumed"),
    "chainer": Row("chainer", Chainer, {}, "MultiprocessIterator, lists"),
    "torch": Row("torch", Torch, {}, "DataLoader, columns (tensors)"),
    "grain": Row(
        "ours", Grain, {}, "MapDataset in worker processes, columns", variant=True
    ),
    "spdl": Row("ours", Spdl, {}, "a pipeline of threads, columns", variant=True),
    "ours": Row(
        "ours",
        Ours,
        {},
        "MultiprocessIterator, lists, all defaults (on Linux: fork server)",
    ),
    "ours_columns": Row("ours", OursColumns, {}, "batches(), columns"),
    "ours_torch": Row(
        "torch", OursTorch, {}, "mpiter.torch.DataLoader, columns (tensors)"
    ),
    "ours_alone": Row(
        "ours",
        OursAlone,
        {},
        "batches(n_processes=0), columns",
        reads=(Form.samples, Form.columns),
    ),
    "indexing": Row(
        "ours",
        Indexing,
        {},
        "columns[shuffled indices], or slices, copied",
        reads=(Form.columns,),
    ),
    "ours_serial": Row("chainer", OursSerial, {}, "SerialIterator, lists, no workers"),
    "chainer_serial": Row(
        "chainer", ChainerSerial, {}, "SerialIterator, lists, no workers"
    ),
    "ours_threads": Row("chainer", OursThreads, {}, "MultithreadIterator, lists"),
    "chainer_threads": Row("chainer", ChainerThreads, {}, "MultithreadIterator, lists"),
    "ours_torch_alone": Row(
        "torch",
        OursTorchAlone,
        {},
        "mpiter.torch.DataLoader, no workers",
        reads=(Form.samples, Form.tensors),
    ),
    "torch_alone": Row(
        "torch",
        TorchAlone,
        {},
        "DataLoader, no workers",
        reads=(Form.samples, Form.tensors),
    ),
    "ours_copy": Row("ours", Ours, {"copy": True}, "lists, copy=True", variant=True),
    "ours_packed": Row(
        "ours",
        Ours,
        {"serializer": "packed"},
        'lists, serializer="packed"',
        variant=True,
    ),
    "ours_fork": Row(
        "ours", Ours, {"start_method": "fork"}, "lists, workers forked", variant=True
    ),
    "ours_spawn": Row(
        "ours", Ours, {"start_method": "spawn"}, "lists, workers spawned", variant=True
    ),
}
OURS = ("ours", "ours_columns")
PEERS = ("chainer", "torch")
FEW_ROWS = (
    "in_process",
    "limit",
    "chainer",
    "torch",
    "ours",
    "ours_columns",
    "ours_torch",
    "ours_alone",
)
TORCHS_ALONE = ("ours_torch_alone", "torch_alone")
HELD = tuple(name for name, case in CASES.items() if case.form is not Form.samples)
# Only loaders without workers read these cases.
ALONE_CASES = ("16x8", "128x8", "sleeping", *HELD)
# The share of a turn's seconds that such cases get: 16x8 is loaded some thousand times.
ALONE_SHARE = 0.25
DEFAULT_CASES = tuple(case for case in CASES if case != "straggler_heavy")
# Batches that are loaded at least, besides the seconds.
WARM = 8
FIGURES = {
    "batches_per_s": "batches/s",
    "cpu_s_per_batch": "CPU s/batch",
    "parent_cpu_s_per_batch": "parent's",
    "workers_cpu_s_per_batch": "workers'",
    "first_batch_s": "first batch s",
    "in_flight_batches": "batches in flight",
    "in_flight_bytes": "bytes in flight",
}
MUST_BE_FASTER = {
    ("28x28", "chainer"): 14.0,
    ("28x28", "torch"): 12.0,
    ("3x64x64", "chainer"): 7.0,
    ("3x64x64", "torch"): 9.0,
    ("3x224x224", "chainer"): 3.5,
    ("3x224x224", "torch"): 7.0,
    ("straggler", "chainer"): 1.5,
    ("straggler", "torch"): 1.5,
    ("jpeg", "chainer"): 1.0,
    ("jpeg", "torch"): 1.0,
}
# CPU seconds per batch, of both sides together.
MUST_BE_CHEAPER = ("28x28", "3x64x64", "3x224x224")
# What ours must reach, as a multiple of the loader that it replaces, both without
# workers.
MUST_ALONE = {
    ("ours_alone", "in_process"): {
        "16x8": 0.6,
        "128x8": 0.85,
        "28x28": 0.9,
        "3x64x64": 0.9,
    },
    ("ours_alone", "indexing"): {
        "16x8 columns": 0.2,
        "28x28 columns": 0.7,
        "3x64x64 columns": 0.9,
        "16x8 columns in order": 0.2,
        "28x28 columns in order": 0.7,
        "3x64x64 columns in order": 0.9,
    },
    ("ours_serial", "chainer_serial"): {
        "16x8": 0.7,
        "128x8": 0.7,
        "28x28": 0.7,
        "3x64x64": 0.7,
    },
    ("ours_torch_alone", "torch_alone"): {
        "16x8": 0.7,
        "128x8": 0.9,
        "28x28": 0.95,
        "3x64x64": 0.95,
        "16x8 tensors": 0.95,
        "28x28 tensors": 0.95,
        "3x64x64 tensors": 1.0,
        "16x8 TensorDataset": 0.95,
        "28x28 TensorDataset": 0.95,
        "3x64x64 TensorDataset": 1.0,
        "16x8 getitems": 0.95,
        "28x28 getitems": 0.95,
        "3x64x64 getitems": 0.95,
        "tokens": 0.95,
        "jpeg": 0.97,
        "sleeping": 0.97,
    },
}
NO_WORKERS = tuple(dict.fromkeys(row for pair in MUST_ALONE for row in pair))
# What ours with threads must reach, as a multiple of Chainer's.
MUST_BY_THREADS = {"28x28": 1.0, "3x64x64": 1.0}
MUST_OF_LIMIT = {"28x28": 0.38, "3x64x64": 0.36, "3x224x224": 0.8, "straggler": 0.8}
MOST_IN_FLIGHT = {"28x28": 4e6, "3x64x64": 50e6}  # bytes
# Of columns of 28x28.
MOST_CPU_S = {"parent_cpu_s_per_batch": 80e-6, "workers_cpu_s_per_batch": 200e-6}


def rows_of(case: str) -> Iterable[str]:
    rows: Iterable[str] = ROWS
    if case == "sleeping":
        rows = TORCHS_ALONE
    elif case in ALONE_CASES:
        rows = NO_WORKERS
    elif case == "jpeg":
        rows = (*FEW_ROWS, *TORCHS_ALONE)
    elif case.startswith("straggler"):
        rows = FEW_ROWS
    return [row for row in rows if CASES[case].form in ROWS[row].reads]


# -- a turn ----------------------------------------------------------------------------


def take(turn: Turn) -> dict[str, Any]:
    """Measure the turn in this process."""
    row = ROWS[turn.row]
    case = CASES[turn.case]
    peer = Peer if row.peer is Limit else row.peer
    assert issubclass(peer, Peer)
    try:
        peer.find()
    except ImportError as error:
        return {"absent": str(error)}
    seconds = turn.seconds
    warmup_s = turn.warmup_s
    if turn.case in ALONE_CASES:
        seconds *= ALONE_SHARE
        warmup_s *= ALONE_SHARE
    elif row.variant:
        seconds /= 2
    shuffle = turn.options["shuffle"] and not case.is_in_order
    setup = Setup(
        case.batch_size, turn.workers, turn.options["n_prefetch"], shuffle, repeat=True
    )
    if row.peer is Limit:
        found = figures(Timed(*filling(case, setup, WARM, warmup_s, seconds)))
        problems = []
        if Limit.digest(case) != expected_digest(case):
            problems.append("the slots differ from the in-process loop's")
    else:
        found = figures(loaded(row, case, setup, warmup_s, seconds))
        problems = differences(row, case, setup)
        if turn.row in NO_WORKERS:
            problems += differences(row, case, setup, shuffle=True)
    return found | {"problems": problems}


@dataclass(frozen=True)
class Timed:
    """What a loader did in the timed part, and how long it took to begin."""

    batches: int
    seconds: float
    cpu: Cpu
    first_batch_s: float | None = None
    stats: Any = None


def loaded(
    row: Row, case: Case, setup: Setup, warmup_s: float, seconds: float
) -> Timed:
    """Measure a loader; the time to the first batch counts from its construction."""
    dataset = case.dataset()
    # NumPy's global generator orders the samples of the loop, of Chainer's and of ours.
    np.random.seed(0)
    begin = time.perf_counter()
    peer = row.open(dataset, setup)

    def take_one() -> None:
        peer.touch(next(peer.batches))

    take_one()
    first_batch_s = time.perf_counter() - begin
    try:
        return Timed(
            *flowing(take_one, warmup_s, seconds, warm=WARM),
            first_batch_s,
            peer.stats(),
        )
    finally:
        peer.close()


def differences(row: Row, case: Case, setup: Setup, shuffle: bool = False) -> list[str]:
    """Read one epoch in every way that the loader offers.

    Each batch is read before the next is asked for.
    """
    dataset = case.dataset(case.checked_length)
    peer = row.open(dataset, replace(setup, shuffle=shuffle, repeat=False))
    try:
        ways = {name: (Digest(), read) for name, read in peer.readings().items()}
        for batch in peer.batches:
            for digest, read in ways.values():
                read(digest, batch)
    finally:
        peer.close()
    in_order = not shuffle
    wanted = expected_digest(case, in_order=in_order)
    different = [
        name for name, (digest, _) in ways.items() if digest.hex(in_order) != wanted
    ]
    order = "in order" if in_order else "shuffled"
    return [
        f"the {name}, {order}, differ from the in-process loop's" for name in different
    ]


def figures(timed: Timed) -> dict[str, Any]:
    cpu = timed.cpu
    count = timed.batches
    stats = timed.stats
    told_stats = None
    if is_dataclass(stats) and not isinstance(stats, type):
        told_stats = asdict(stats)
    return {
        "batches": count,
        "seconds": timed.seconds,
        "batches_per_s": count / timed.seconds,
        "parent_cpu_s_per_batch": cpu.parent_s / count,
        "workers_cpu_s_per_batch": cpu.workers_s / count,
        "cpu_s_per_batch": (cpu.parent_s + cpu.workers_s) / count,
        "workers_changed": cpu.changed,
        "first_batch_s": timed.first_batch_s,
        "in_flight_batches": getattr(stats, "in_flight_batches", None),
        "in_flight_bytes": getattr(stats, "in_flight_bytes", None),
        "stats": told_stats,
    }


# -- the answer ------------------------------------------------------------------------


def claims(summary: Summary) -> Iterator[Claim]:
    for (case, peer), least in MUST_BE_FASTER.items():
        for ours in OURS:
            yield at_least(
                case,
                ours,
                ratio(summary, case, ours, peer, "batches_per_s"),
                least,
                f" x {peer}",
            )
    for (ours, theirs), shares in MUST_ALONE.items():
        for case, least in shares.items():
            found = ratio(summary, case, ours, theirs, "batches_per_s")
            yield at_least(case, ours, found, least, f" x {theirs}")
    for case, least in MUST_BY_THREADS.items():
        found = ratio(summary, case, "ours_threads", "chainer_threads", "batches_per_s")
        yield at_least(case, "ours_threads", found, least, " x chainer_threads")
    for case, ours, peer in product(MUST_BE_CHEAPER, OURS, PEERS):
        found = ratio(summary, case, ours, peer, "cpu_s_per_batch")
        claim = f"{case}: {ours} CPU (parent + workers) < {peer}'s"
        yield Claim(case, claim, found, found is not None and found < 1.0)
    for (case, share), row in product(MUST_OF_LIMIT.items(), OURS):
        found = ratio(summary, case, row, "limit", "batches_per_s")
        yield at_least(case, row, found, share, " of the limit")
    for (case, bytes_), ours in product(MOST_IN_FLIGHT.items(), OURS):
        found = median(summary, case, ours, "in_flight_bytes")
        yield at_most(case, f"{ours} bytes in flight", found, bytes_)
    for figure, most in MOST_CPU_S.items():
        found = median(summary, "28x28", "ours_columns", figure)
        yield at_most("28x28", f"ours_columns {FIGURES[figure]}", found, most)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={name: case.about for name, case in CASES.items()},
    rows={name: row.says for name, row in ROWS.items()},
    figures=FIGURES,
    rows_of=rows_of,
    take=take,
    claims=claims,
    against="limit",
    environment=lambda row, case: ROWS[row].environment,
    asked=("n_prefetch", "shuffle"),
    default_cases=DEFAULT_CASES,
    small={
        "cases": ["28x28", "16x8 columns"],
        "rows": ["ours", "chainer", "ours_alone", "indexing"],
    },
)


def main() -> int:
    parser = command_line(EXPERIMENT, warmup=0.4, timeout=60.0, seconds=1.5)
    parser.add_argument(
        "--n-prefetch",
        type=int,
        default=2,
        help="torch's prefetch_factor too (default 2)",
    )
    parser.add_argument(
        "--no-shuffle",
        dest="shuffle",
        action="store_false",
        help="sequential order in the timed part",
    )
    return conduct(EXPERIMENT, parser)


if __name__ == "__main__":
    sys.exit(main())
