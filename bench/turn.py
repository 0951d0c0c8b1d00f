"""One turn: one loader, one dataset, one round, in a process of its own; the driver (transport.py) starts it.

Usage: python turn.py --turn SPECIFICATION (JSON text; the last line that it prints is the JSON answer).
Guarantees: the timed part is `next()` and touching the samples, nothing else; it begins in full flow, right after the
warm-up, and ends on the arrival of a batch. Bytes are read afterwards, from a second instance over a fixed order, and
their digest is returned beside the in-process loop's. The first batch's time counts from the construction of the
loader, its package being imported and the dataset made.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import series
from peers import ROWS, Row

from mpiter.lab.cases import CASES, Case, Digest, expected_digest
from mpiter.lab.clocks import Cpu, CpuWindow
from mpiter.lab.limit import Limit, filling
from mpiter.lab.loaders import Peer, Setup

WARMUP_BATCHES = 8


@dataclass(frozen=True)
class Turn:
    """What the driver asks for."""

    row: str
    case: str
    workers: int
    n_prefetch: int
    shuffle: bool
    warmup_s: float
    seconds: float
    verify: bool

    def setup(self, *, repeat: bool, shuffle: bool) -> Setup:
        return Setup(CASES[self.case].batch_size, self.workers, self.n_prefetch, shuffle, repeat)


@contextmanager
def running(row: Row, case: Case, setup: Setup, length: int | None = None) -> Iterator[Peer]:
    dataset = case.dataset() if length is None else case.dataset(length)
    peer = row.open(dataset, setup)
    try:
        yield peer
    finally:
        peer.close()


def consume(peer: Peer, seconds: float) -> tuple[int, float]:
    """Batches and seconds; the batch in hand is dropped when the next one has arrived, as in a training loop."""
    batches, touch, clock = peer.batches, peer.touch, time.perf_counter
    begin = now = clock()
    count = 0
    while now - begin < seconds:
        batch = next(batches)
        touch(batch)
        count += 1
        now = clock()
    return count, now - begin


def measure_peer(turn: Turn, row: Row, case: Case) -> dict[str, Any]:
    dataset = case.dataset()
    setup = turn.setup(repeat=True, shuffle=turn.shuffle)
    begin = time.perf_counter()
    peer = row.open(dataset, setup)
    try:
        peer.touch(next(peer.batches))
        first_batch_s = time.perf_counter() - begin
        window = CpuWindow()
        for _ in range(WARMUP_BATCHES):
            next(peer.batches)
        consume(peer, turn.warmup_s)
        window.start()
        batches, seconds = consume(peer, turn.seconds)
        cpu = window.stop()
        return _figures(batches, seconds, cpu, first_batch_s, peer.stats())
    finally:
        peer.close()


def measure_limit(turn: Turn, case: Case) -> dict[str, Any]:
    setup = turn.setup(repeat=True, shuffle=False)
    batches, seconds, cpu = filling(case, setup, WARMUP_BATCHES, turn.warmup_s, turn.seconds)
    return _figures(batches, seconds, cpu, None, None)


def _figures(batches: int, seconds: float, cpu: Cpu, first_batch_s: float | None, stats: Any) -> dict[str, Any]:
    return {
        "batches": batches,
        "seconds": seconds,
        "batches_per_s": batches / seconds,
        "parent_cpu_s_per_batch": cpu.parent_s / batches,
        "workers_cpu_s_per_batch": cpu.workers_s / batches,
        "cpu_s_per_batch": (cpu.parent_s + cpu.workers_s) / batches,
        "workers_changed": cpu.changed,
        "first_batch_s": first_batch_s,
        "peak_in_flight_batches": getattr(stats, "peak_in_flight_batches", None),
        "peak_in_flight_bytes": getattr(stats, "peak_in_flight_bytes", None),
        "stats": asdict(stats) if is_dataclass(stats) and not isinstance(stats, type) else None,
    }


def digests(turn: Turn, row: Row, case: Case) -> dict[str, str]:
    """One epoch in order, read in every way the loader offers, each batch before the next is asked for."""
    if row.peer is Limit:
        return {"columns": Limit.digest(case)}
    with running(row, case, turn.setup(repeat=False, shuffle=False), case.checked_length) as peer:
        ways = {name: (Digest(), read) for name, read in peer.readings().items()}
        for batch in peer.batches:
            for digest, read in ways.values():
                read(digest, batch)
    return {name: digest.hex() for name, (digest, _) in ways.items()}


def take(turn: Turn) -> dict[str, Any]:
    row, case = ROWS[turn.row], CASES[turn.case]
    try:
        package = Peer.version() if row.peer is Limit else row.peer.version()
    except ImportError as error:
        return {"absent": str(error)}
    answer = measure_limit(turn, case) if row.peer is Limit else measure_peer(turn, row, case)
    if turn.verify:
        answer["digests"] = digests(turn, row, case)
        answer["expected_digest"] = expected_digest(case)
    return answer | {"versions": series.versions(package)}


if __name__ == "__main__":
    series.answer(take(Turn(**json.loads(sys.argv[2]))))
