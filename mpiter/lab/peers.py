"""Ours beside the loaders of others, on the same samples, in one run; the machine's limit is the 100 % line.

`take` runs in the process that is measured, everything else in the driver, on values.
Guarantees: each loader in a process of its own, with the same number of workers and the same prefetch; what is timed is
`next()` and obtaining every sample; in each turn the loader's batches are then read to the last byte, outside the timed
part, and compared with the in-process loop's.  A loader that isn't installed is a line that says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..asked import at_least
from .cases import CASES, Case, Digest, Images, expected_digest
from .clocks import Cpu
from .limit import filling
from .loaders import Chainer, Grain, InProcess, Ours, OursColumns, OursStrict, Peer, Setup, Spdl, Torch
from .results import Result
from .spreads import NOISY
from .text import Telling, median, number, share, times
from .turns import Absent, Answer, Turn, flowing, numbers
from .views import Bar, Bars, Table, View

NAME = "peers"
HEADING = "Ours and theirs, side by side"
ABOUT = (
    "The same samples from memory through every loader that is installed, interleaved in one run, each in a process of "
    "its own, with as many workers and the same prefetch (n_prefetch, prefetch_factor). What is beyond that is each "
    "loader's own default: ours plans up to 64 batches further ahead, so one row asks for strictly none of that "
    "(run_ahead=0); grain is given one reading thread and a short queue, with which it is faster. The limit is what "
    "the machine allows: workers that fill shared memory with the samples in their order, with nobody to hand it to; "
    "the loaders shuffle."
)
LIMIT, LOOP = "limit", "in-process loop"
OURS = ("mpiter, lists", "mpiter, columns")
PEERS: dict[str, type[Peer]] = {
    LOOP: InProcess,
    OURS[0]: Ours,
    OURS[1]: OursColumns,
    "mpiter, run_ahead=0": OursStrict,
    "Chainer": Chainer,
    "torch": Torch,
    "grain": Grain,
    "SPDL": Spdl,
}
ROWS = (LIMIT, *PEERS)
DEFAULT_CASES = ["28x28", "3x64x64", "3x224x224", "straggler"]
FULL: dict[str, Any] = {"cases": DEFAULT_CASES, "rows": list(ROWS), "workers": 2, "prefetch": 2}
SMALL: dict[str, Any] = FULL | {"cases": ["28x28"]}
SECONDS, WARMUP_S, SMALL_SECONDS = 1.5, 0.5, 0.2
preparing = nullcontext  # nothing is needed
_WARM = 8  # batches, besides the seconds
Opens = Callable[[Images, Setup], Peer]


def arguments(add: Callable[..., Any]) -> None:
    add("--cases", nargs="+", choices=CASES, metavar="CASE", help=f"of {', '.join(CASES)}")
    add("--rows", nargs="+", choices=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}")
    add("--workers", type=at_least(1), metavar="N")
    add("--prefetch", type=at_least(1), metavar="N", help="our and Chainer's n_prefetch, torch's prefetch_factor, …")


def turns(options: argparse.Namespace) -> Iterator[Turn]:
    about = {"prefetch": options.prefetch}
    for case in options.cases:
        for row in options.rows:
            at = {"workers": options.workers}
            yield Turn(NAME, row, case, at, options.seconds, options.warmup, options.seed, about)


def take(turn: Turn) -> Answer:
    case = CASES[turn.case]
    setup = Setup(case.batch_size, turn.workers, turn.options["prefetch"], shuffle=True, repeat=True, seed=turn.seed)
    if turn.row == LIMIT:
        return _figures(limit(case, setup, turn.warmup_s, turn.seconds))
    kind = PEERS[turn.row]
    try:
        kind.find()
    except ImportError as error:
        raise Absent(f"not installed ({error}): {kind.remedy}") from error
    found = _figures(loader(kind, case, setup, turn.warmup_s, turn.seconds))
    return found | {"problems": found["problems"] + differences(kind, case, setup)}


@dataclass(frozen=True, slots=True)
class Timed:
    """A stretch in full flow."""

    batches: int
    seconds: float
    cpu: Cpu
    first_batch_s: float | None = None
    stats: Any = None


def loader(open_: Opens, case: Case, setup: Setup, warmup_s: float, seconds: float) -> Timed:
    """What a loader does; the first batch counts from its construction."""
    dataset = case.dataset(seed=setup.seed)
    np.random.seed(setup.seed)  # whose global generator orders the loop's and Chainer's samples, and ours
    begin = time.perf_counter()
    peer = open_(dataset, setup)

    def take_one() -> None:
        peer.touch(next(peer.batches))

    take_one()
    first_batch_s = time.perf_counter() - begin
    try:
        return Timed(*flowing(take_one, warmup_s, seconds, warm=_WARM), first_batch_s, peer.stats())
    finally:
        peer.close()


def limit(case: Case, setup: Setup, warmup_s: float, seconds: float) -> Timed:
    """What the machine allows."""
    return Timed(*filling(case, setup, _WARM, warmup_s, seconds))


def _figures(timed: Timed) -> Answer:
    figures = {"batches_per_s": timed.batches / timed.seconds, "first_batch_s": timed.first_batch_s}
    return numbers(figures | timed.cpu.ms(timed.batches)) | {"problems": timed.cpu.problems}


def differences(open_: Opens, case: Case, setup: Setup) -> list[str]:
    """One epoch in order, read in every way that the loader offers, each batch before the next is asked for."""
    dataset = case.dataset(case.checked_length, setup.seed)
    peer = open_(dataset, Setup(setup.batch_size, setup.workers, setup.n_prefetch, shuffle=False, repeat=False))
    try:
        ways = {name: (Digest(), read) for name, read in peer.readings().items()}
        for batch in peer.batches:
            for digest, read in ways.values():
                read(digest, batch)
    finally:
        peer.close()
    wanted = expected_digest(case, setup.seed)
    return [f"the {name} differ from the in-process loop's" for name, (d, _) in ways.items() if d.hex() != wanted]


# -- what it says ----------------------------------------------------------------------------------------------------


def _ratio(result: Result, one: str, other: str, case: str, figure: str) -> Any:
    return result.ratio(result.find(one, case), result.find(other, case), figure)


def tell(result: Result) -> Telling:
    telling = Telling()
    for case in result.values_of("case"):
        for name in ("Chainer", "torch", "grain", "SPDL"):
            faster = _ratio(result, OURS[0], name, case, "batches_per_s")
            dearer = _ratio(result, name, OURS[0], case, "cpu_ms")
            sentence = f"{case}: mpiter hands out {times(faster)} the batches of {name}, "
            sentence += f"which spends {times(dearer)} our CPU on one."
            telling.conclude(sentence, faster, dearer)
        loop = _ratio(result, LOOP, OURS[0], case, "batches_per_s")
        if loop and loop.median > 1 + NOISY:
            telling.conclude(
                f"{case}: the loop without workers hands out {times(loop)} our batches: n_processes=0.", loop
            )
        of_limit = _ratio(result, OURS[0], LIMIT, case, "batches_per_s")
        telling.conclude(f"{case}: mpiter reaches {share(of_limit)} of what the machine allows.", of_limit)
    return telling


def views(result: Result) -> tuple[View, ...]:
    return (_shares(result), *(_table(result, case) for case in result.values_of("case")))


def _shares(result: Result) -> Bars:
    groups = []
    for case in result.values_of("case"):
        rows = [row for row in result.rows if row.case == case and row.row != LIMIT]
        bars = [_bar(row.row, _ratio(result, row.row, LIMIT, case, "batches_per_s")) for row in rows]
        groups.append((case, tuple(bar for bar in bars if bar)))
    return Bars(
        "Share of the limit",
        "%",
        ("batches a second",),
        tuple(groups),
        "Limit: as many processes that fill preallocated slots, with no coordination and no consumer. The loop has no "
        "workers, SPDL's are threads of the consumer's process.",
        ("limit", 100.0),
    )


def _bar(name: str, found: Any) -> Bar | None:
    if found is None:
        return None
    low, high = (100 * edge for edge in found.edges)
    return Bar(name, (100 * found.median,), share(found), low, high)


def _table(result: Result, case: str) -> Table:
    about = CASES[case]
    shape = "×".join(map(str, about.shape))
    work = (
        f"; {number(about.work_s * 1e6)} µs of work a sample, one in 50 takes 50 times as long" if about.work_s else ""
    )
    rows = [
        {
            "loader": row.row,
            "batches/s": median(row["batches_per_s"]),
            "of the limit": share(_ratio(result, row.row, LIMIT, case, "batches_per_s")),
            "mpiter's lists / it": times(_ratio(result, OURS[0], row.row, case, "batches_per_s")),
            "consumer's CPU ms/batch": median(row["parent_cpu_ms"]),
            "workers' CPU ms/batch": median(row["workers_cpu_ms"]),
            "first batch s": median(row.get("first_batch_s")),
        }
        for row in result.rows
        if row.case == case
    ]
    return Table.of(f"{case}: batches of {about.batch_size} × {shape} float32 and a label{work}", rows)
