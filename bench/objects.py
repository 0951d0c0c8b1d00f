"""A million small dicts for four workers, in a list and in mpiter.Packed: first batch, memory; prints tables and JSON.

    python bench/objects.py --python-torch PATH --out bench/results/objects.json
    python bench/objects.py --small                         # one round: a smoke test, never a conclusion

A shuffled epoch over all of them, in batches of 256 pairs of numbers that a dataset reads off each dict. The first
batch counts from the construction of the loader, as soon as the program begins. Memory is that of all processes when
the epoch is over; what the dicts cost is what there is more of it than with a few dicts, read over and over again.
Guarantees that each turn is a process of its own, and that what the caller holds himself (the list, or what is packed)
is in the sum, and stated by itself too.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from driver import Claim, Experiment, Summary, Turn, at_most, command_line, conduct, median

import mpiter
from mpiter.machine import tree_memory

MANY, FEW, BATCH, WORKERS = 1_000_000, 100, 256, 4
LOOKED_UP = 200_000
CASES = {"many": f"{MANY:,} dicts of five entries, {WORKERS} workers", "few": f"{FEW} dicts, each read many times"}
ROWS = {
    "list": "mpiter.DataLoader, workers of a fork server; a list",
    "list, forked": "mpiter.DataLoader, forked workers; a list",
    "list, torch": "torch.utils.data.DataLoader, forked workers; a list",
    "packed": "mpiter.DataLoader, workers of a fork server; mpiter.Packed",
    "packed, forked": "mpiter.DataLoader, forked workers; mpiter.Packed",
    "packed, torch": "torch.utils.data.DataLoader, forked workers; mpiter.Packed",
}
FIGURES = {
    "first_batch_s": "first batch s",
    "made_s": "made in s",
    "index_ns": "ns an index",
    "epoch_s": "epoch s",
    "callers_mb": "caller MB",
    "packed_mb": "packed MB",
    "worker_mb": "a worker MB",
    "all_mb": "all MB",
}
MOST_FIRST_S, MOST_TIMES = 1.5, 1.3


def items(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "id": number,
            "file": f"images/{number:08}.jpg",
            "label": number % 1000,
            "score": number / 7,
            "tags": ["day", "outdoor"],
        }


class Annotated:
    """A million samples, two numbers each, of however many annotations there are."""

    def __init__(self, annotations: Sequence[dict[str, Any]]) -> None:
        self.annotations = annotations

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> tuple[int, float]:
        annotation = self.annotations[index % len(self.annotations)]
        return annotation["label"], annotation["score"]


def take(turn: Turn) -> dict[str, Any]:
    """Measures, in this process."""
    kind, _, way = turn.row.partition(", ")
    library: Any = mpiter
    if way == "torch":
        import torch.utils.data as library
    before, begin = tree_memory() or 0, time.perf_counter()
    annotations: Any = (mpiter.Packed if kind == "packed" else list)(items(MANY if turn.case == "many" else FEW))
    made_s = time.perf_counter() - begin
    callers = (tree_memory() or 0) - before
    index_ns = looked_up(annotations)
    begin = time.perf_counter()
    loader = library.DataLoader(
        Annotated(annotations),
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        persistent_workers=True,
        multiprocessing_context="fork" if way else None,
    )
    epoch = iter(loader)
    next(epoch)
    first_batch_s = time.perf_counter() - begin
    assert sum(1 for _ in epoch) == (MANY - 1) // BATCH
    pids = [process.pid for process in epoch._workers] if way == "torch" else loader.worker_pids
    figures = {
        "first_batch_s": first_batch_s,
        "epoch_s": time.perf_counter() - begin,
        "all_mb": (tree_memory() or 0) / 1e6,
        "worker_mb": statistics.mean(map(private_mb, pids)),
        "callers_mb": callers / 1e6,
        "made_s": made_s,
        "index_ns": index_ns,
    }
    return figures | ({"packed_mb": annotations.nbytes / 1e6} if kind == "packed" else {})


def looked_up(annotations: Any) -> float:
    """Nanoseconds of processor time that an index takes, the loop included."""
    count = len(annotations)
    begin = time.process_time()
    for number in range(LOOKED_UP):
        annotations[number % count]
    return 1e9 * (time.process_time() - begin) / LOOKED_UP


def private_mb(pid: int) -> float:
    """What would be free if this process ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


# -- the answer ------------------------------------------------------------------------------------------------------


def beyond_few(summary: Summary, row: str, figure: str) -> float | None:
    many, few = (median(summary, case, row, figure) for case in CASES)
    return None if many is None or few is None else many - few


def claims(summary: Summary) -> Iterable[Claim]:
    for row in ("packed", "packed, forked"):
        found = median(summary, "many", row, "first_batch_s")
        yield at_most("many", f"{row}: seconds to the first batch", found, MOST_FIRST_S)
        dicts, packed = beyond_few(summary, row, "all_mb"), median(summary, "many", row, "packed_mb")
        times = dicts / packed if dicts is not None and packed else None
        yield at_most("many", f"{row}: memory of all processes", times, MOST_TIMES, " x the packed bytes")


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures=FIGURES,
    take=take,
    small={"cases": ["few"], "rows": ["list", "packed"]},
    claims=claims,
    environment=lambda row, case: "torch" if row.endswith("torch") else "ours",
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=180.0)))
