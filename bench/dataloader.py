"""torch's `DataLoader` and ours, argument for argument: rates, first batches, memory; prints tables, verdicts and JSON.

    python bench/dataloader.py --out bench/results/dataloader_memory.json
    python bench/dataloader.py --small                # one short round: a smoke test, never a conclusion

Needs torch and Pillow. Guarantees: what is timed is `next()` and the sum of the batch's first tensor, in the midst of
an endless epoch; the first batch counts from the construction of the loader. What a dataset costs is the memory of all
processes after an epoch, less that of the same epoch over a few rows of it.
Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

from checkout import ROOT
from driver import Claim, Experiment, Summary, Turn, at_least, at_most, command_line, conduct, median, ratio
from loader_cases import BIG, CASES, Big, Case, write_files
from measuring import CpuWindow, consume, tree_memory

FILES = ROOT / ".demo" / "dataloader"
FIGURES = {
    "batches_per_s": "batches/s",
    "parent_cpu_ms": "parent's CPU ms/batch",
    "workers_cpu_ms": "workers' CPU ms/batch",
    "first_batch_s": "first batch s",
    "dataset_gb": "GB of the dataset",
}
ROWS = {
    "torch": "torch.utils.data.DataLoader",
    "ours": "mpiter.torch.DataLoader",
    "ours, prefetch 2": "mpiter.torch.DataLoader, prefetch_factor=2, which is torch's default",
}
CALLERS_GB = 4 * BIG[0] * BIG[1] / 1e9
MUST_BE_FASTER = {"leaves": 3.0, "straggler": 1.5}  # and nowhere slower
MOST_GB = {"1 GB fork": 1.2, "1 GB forkserver": CALLERS_GB + 1.2, "1 GB memmap": 1.2}
FEW_ROWS = 16


class Loaded:
    """A loader at work."""

    def __init__(self, turn: Turn, case: Case, dataset: Any) -> None:
        import torch.utils.data

        import mpiter.torch

        options: dict[str, Any] = {"prefetch_factor": 2} if turn.row == "ours, prefetch 2" else {}
        loader: Any = torch.utils.data.DataLoader if turn.row == "torch" else mpiter.torch.DataLoader
        begin = time.perf_counter()
        self._loader = loader(
            dataset,
            batch_size=case.batch_size,
            shuffle=True,
            num_workers=case.workers or turn.workers,
            multiprocessing_context=case.context,
            persistent_workers=True,
            **options,
        )
        self._epoch = iter(self._loader)
        self.next()
        self.first_batch_s = time.perf_counter() - begin

    def next(self) -> None:
        """Take a batch and touch it."""
        batch = next(self._epoch)
        first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
        first.sum().item()

    def finish(self) -> None:
        """Take the rest of the epoch; the workers stay."""
        try:
            while True:
                self.next()
        except StopIteration:
            pass

    def close(self) -> None:
        if hasattr(self._loader, "close"):
            self._loader.close()
        del self._loader, self._epoch
        gc.collect()


def take(turn: Turn) -> dict[str, Any]:
    """Measures, in this process."""
    import torch

    torch.set_num_threads(1)  # a sum doesn't take the workers' cores
    case = CASES[turn.case]
    return costs(turn, case) if case.is_big else rates(turn, case)


def rates(turn: Turn, case: Case) -> dict[str, Any]:
    loaded = Loaded(turn, case, case.dataset(FILES))
    consume(loaded.next, turn.warmup_s * case.longer)
    window = CpuWindow()
    window.start()
    batches, seconds = consume(loaded.next, turn.seconds * case.longer)
    cpu = window.stop()
    return {
        "batches_per_s": batches / seconds,
        **cpu.ms(batches),
        "first_batch_s": loaded.first_batch_s,
        "workers_changed": cpu.changed,
        "batches": batches,
        "seconds": seconds,
    }


def costs(turn: Turn, case: Case) -> dict[str, Any]:
    """The whole dataset first: a loader that ran before would have left a fork server behind."""
    import numpy as np

    dataset = case.dataset(FILES)
    first_batch_s, whole = epoch(turn, case, dataset)
    few = Big(np.array(dataset.rows[:FEW_ROWS]))
    del dataset
    _, rest = epoch(turn, case, few)
    return {"first_batch_s": first_batch_s, "dataset_gb": (whole - rest) / 1e9, "all_gb": whole / 1e9}


def epoch(turn: Turn, case: Case, dataset: Any) -> tuple[float, int]:
    """Seconds to the first batch, and bytes in all processes after the last."""
    loaded = Loaded(turn, case, dataset)
    loaded.finish()
    memory = tree_memory() or 0
    loaded.close()
    return loaded.first_batch_s, memory


# -- the answer ------------------------------------------------------------------------------------------------------


def rows_of(case: str) -> list[str]:
    return [row for row in ROWS if not (CASES[case].is_big and row == "ours, prefetch 2")]


def claims(summary: Summary) -> Iterator[Claim]:
    for case, about in CASES.items():
        if about.is_big:
            found = ratio(summary, case, "torch", "ours", "first_batch_s")
            yield at_least(case, "torch's first batch / ours", found, 1.0)
            held = median(summary, case, "ours", "dataset_gb")
            yield at_most(case, "GB (the caller's included)", held, MOST_GB[case])
        for row in () if about.is_big else rows_of(case)[1:]:
            found = ratio(summary, case, row, "torch", "batches_per_s")
            yield at_least(case, row, found, MUST_BE_FASTER.get(case, 1.0), " x torch", must=row == "ours")


def prepare(options: argparse.Namespace) -> None:
    write_files(FILES, options.cases)


EXPERIMENT = Experiment(
    script=__file__,
    doc=__doc__,
    cases={name: case.says for name, case in CASES.items()},
    rows=ROWS,
    figures=FIGURES,
    rows_of=rows_of,
    take=take,
    claims=claims,
    against="torch",
    prepare=prepare,
    small={"cases": ["28x28", "leaves"]},
)


if __name__ == "__main__":
    sys.exit(conduct(EXPERIMENT, command_line(EXPERIMENT, warmup=1.0, timeout=180.0)))
