"""What does a large dataset cost under torch's `DataLoader` and under ours?

Compares memory and first batch; prints verdicts and JSON.

    python bench/dataloader.py --out bench/results/dataloader_memory.json
    python bench/dataloader.py --small  # a smoke test, never a conclusion

Needs torch; how fast both are is in `transport.py`. What a dataset costs is the memory
of all processes after an epoch, less that of the same epoch over a few rows of it. The
first batch counts from the construction of the loader. Exit status: 0, or 1 when a
requirement fails or a turn raises.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from checkout import ROOT
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
from measuring import tree_memory
from payloads import Rows

FILE = ROOT / ".demo" / "dataloader" / "big.f32"
# A gigabyte of float32, in samples of 250 kB.
SHAPE = (4000, 62_500)
FEW_ROWS = 16
BATCH_SIZE = 16
MAPPED = "1 GB memmap"
CASES = {
    "1 GB fork": "1 GB in an ndarray, 8 workers, forked",
    "1 GB forkserver": "1 GB in an ndarray, 8 workers of a fork server",
    MAPPED: "1 GB in an np.memmap, 8 workers of a fork server",
}
ROWS = {"torch": "torch.utils.data.DataLoader", "ours": "mpiter.torch.DataLoader"}
CALLERS_GB = 4 * SHAPE[0] * SHAPE[1] / 1e9
MOST_GB = {"1 GB fork": 1.2, "1 GB forkserver": CALLERS_GB + 1.2, MAPPED: 1.2}


def prepare(options: argparse.Namespace) -> None:
    """Write the file that is mapped, once."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    if MAPPED in options.cases and not (
        FILE.exists() and FILE.stat().st_size == 1e9 * CALLERS_GB
    ):
        np.tile(np.arange(SHAPE[1], dtype=np.float32), SHAPE[0]).tofile(FILE)


def take(turn: Turn) -> dict[str, Any]:
    """Measure in this process, the whole dataset first.

    A loader that ran before would have left a fork server.
    """
    if turn.case == MAPPED:
        rows: Any = np.memmap(FILE, np.float32, "r", shape=SHAPE)
    else:
        rows = np.empty(SHAPE, np.float32)
        rows[:] = np.arange(SHAPE[1], dtype=np.float32)
    first_batch_s, whole = epoch(turn, rows)
    rows = np.array(rows[:FEW_ROWS])
    _, rest = epoch(turn, rows)
    return {
        "first_batch_s": first_batch_s,
        "dataset_gb": (whole - rest) / 1e9,
        "all_gb": whole / 1e9,
    }


def epoch(turn: Turn, rows: Any) -> tuple[float, int]:
    """Return the seconds to the first batch, and the bytes after the last.

    The bytes are those in all processes.
    """
    import torch.utils.data

    import mpiter.torch

    kind: Any = mpiter.torch.DataLoader
    if turn.row == "torch":
        kind = torch.utils.data.DataLoader
    context = "fork" if turn.case == "1 GB fork" else "forkserver"
    options = {
        "num_workers": 8,
        "multiprocessing_context": context,
        "persistent_workers": True,
    }
    begin = time.perf_counter()
    loader = kind(Rows(rows, SHAPE[0]), BATCH_SIZE, shuffle=True, **options)
    batches = iter(loader)
    next(batches)
    first_batch_s = time.perf_counter() - begin
    for pixels, _ in batches:
        pixels.sum().item()
    memory = tree_memory() or 0
    if turn.row == "ours":
        loader.close()
    del loader, batches
    gc.collect()
    return first_batch_s, memory


def claims(summary: Summary) -> Iterator[Claim]:
    for case in CASES:
        yield at_least(
            case,
            "torch's first batch / ours",
            ratio(summary, case, "torch", "ours", "first_batch_s"),
            1.0,
        )
        held = median(summary, case, "ours", "dataset_gb")
        yield at_most(case, "GB (the caller's included)", held, MOST_GB[case])


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases=CASES,
    rows=ROWS,
    figures={"first_batch_s": "first batch s", "dataset_gb": "GB of the dataset"},
    take=take,
    claims=claims,
    against="torch",
    prepare=prepare,
    small={"cases": ["1 GB fork"], "rows": ["ours"]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=0.0, timeout=180.0)))
