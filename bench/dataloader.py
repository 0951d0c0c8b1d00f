"""torch's `DataLoader` and ours, argument for argument: rates, first batches, memory; prints tables, verdicts and JSON.

    python bench/dataloader.py --out bench/results/dataloader.json
    python bench/dataloader.py --quick                # one short round: a smoke test, never a conclusion

Needs torch and Pillow. Every turn (loader x case x round) runs in a process of its own, whose session is gone
afterwards; rounds are interleaved and each starts with another loader. The warm-up is excluded.
Guarantees: what is timed is `next()` and the sum of the batch's first tensor, in the midst of an endless epoch; the
first batch counts from the construction of the loader. What a dataset costs is the memory of all processes after an
epoch, less that of the same epoch over a few rows of it. A turn that fails is a line in the answer.
Exit status: 0, or 1 when a requirement fails or a turn raises.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import series
from loader_cases import BIG, CASES, Big, Case, write_files
from series import Turn
from verdict import Claim, Verdict, judge, ratio

from mpiter.lab.clocks import CpuWindow, tree_memory
from mpiter.lab.spreads import NOISY, Spread

SCHEMA = "mpiter.bench.dataloader/1"
ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / ".demo" / "dataloader"
RATES = ("batches_per_s", "parent_cpu_ms", "workers_cpu_ms", "first_batch_s")
COSTS = ("first_batch_s", "dataset_gb")
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

    def consume(self, seconds: float) -> tuple[int, float]:
        """For so long: batches and seconds, from the arrival of one to that of another."""
        begin = now = time.perf_counter()
        count = 0
        while now - begin < seconds:
            self.next()
            count += 1
            now = time.perf_counter()
        return count, now - begin

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
    import numpy as np
    import torch

    torch.set_num_threads(1)  # a sum doesn't take the workers' cores
    case = CASES[turn.case]
    figures = costs(turn, case) if case.is_big else rates(turn, case)
    return figures | {"versions": {"torch": torch.__version__, "numpy": np.__version__}}


def rates(turn: Turn, case: Case) -> dict[str, Any]:
    loaded = Loaded(turn, case, case.dataset(FILES))
    loaded.consume(turn.warmup_s * case.longer)
    window = CpuWindow()
    window.start()
    batches, seconds = loaded.consume(turn.seconds * case.longer)
    cpu = window.stop()
    return {
        "batches_per_s": batches / seconds,
        "parent_cpu_ms": 1000 * cpu.parent_s / batches,
        "workers_cpu_ms": 1000 * cpu.workers_s / batches,
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
    memory = tree_memory()
    loaded.close()
    return loaded.first_batch_s, memory


# -- the driver ------------------------------------------------------------------------------------------------------


def rows_of(case: str) -> list[str]:
    return [row for row in ROWS if not (CASES[case].is_big and row == "ours, prefetch 2")]


def plan(options: argparse.Namespace) -> Iterator[Turn]:
    """Interleaved: in each round every loader once for each case, beginning with another one."""
    for round_ in range(options.rounds):
        for case in options.cases:
            rows = rows_of(case)
            for at in range(len(rows)):
                row = rows[(at + round_) % len(rows)]
                yield Turn(row, case, options.workers, options.warmup, options.seconds)


def summaries(options: argparse.Namespace, answers: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Spread]]:
    return {
        (case, row): figures
        for case in options.cases
        for row in rows_of(case)
        if (figures := series.summary(answers, case, row, COSTS if CASES[case].is_big else RATES))
    }


def claims(summaries: dict[tuple[str, str], dict[str, Spread]], case: str) -> Iterator[Claim]:
    if not CASES[case].is_big:
        least = MUST_BE_FASTER.get(case, 1.0)
        for row in rows_of(case)[1:]:
            found = ratio(summaries, case, row, "torch", "batches_per_s")
            holds = found is not None and found >= least
            yield Claim(case, f"{case}: {row} >= {least} x torch", found, holds, must=row == "ours")
        return
    found = ratio(summaries, case, "torch", "ours", "first_batch_s")
    yield Claim(case, f"{case}: torch's first batch / ours >= 1.0", found, found is not None and found >= 1.0)
    ours = summaries.get((case, "ours"))
    held = ours["dataset_gb"].median if ours else None
    whose = " (the caller's included)"
    yield Claim(case, f"{case}: GB{whose} <= {MOST_GB[case]:g}", held, held is not None and held <= MOST_GB[case])


def warnings(summaries: dict[tuple[str, str], dict[str, Spread]], answers: list[dict[str, Any]]) -> Iterator[str]:
    for (case, row), figures in summaries.items():
        name = "first_batch_s" if CASES[case].is_big else "batches_per_s"
        if figures[name].relative > NOISY:
            share = f"{figures[name].relative:.0%}"
            yield f"{row} on {case}: the IQR of {name} is {share} of the median; the machine was not quiet"
    for answer in answers:
        if answer.get("workers_changed"):
            yield f"{answer['row']} on {answer['case']}: processes came or went; CPU is a lower bound"


def table(case: str, summaries: dict[tuple[str, str], dict[str, Spread]]) -> Iterator[str]:
    is_big = CASES[case].is_big
    yield f"\n{case}: {CASES[case].says}"
    if is_big:
        yield f"{'':18}{'first s':>9}{'IQR':>6}{'GB of the dataset':>19}{'beyond the caller':>19}"
    else:
        yield (
            f"{'':18}{'batches/s':>10}{'IQR':>6}{'/torch':>8}{'CPU ms/batch: parent':>22}{'workers':>9}{'first s':>9}"
        )
    for row in rows_of(case):
        figures = summaries.get((case, row))
        if figures and is_big:
            first, held = (figures[name] for name in COSTS)
            beyond = held.median - (0 if case == "1 GB memmap" else CALLERS_GB)
            yield f"{row:18}{first.median:9.2f}{first.relative:6.0%}{held.median:19.2f}{beyond:19.2f}"
        elif figures:
            rate, parent, workers, first = (figures[name] for name in RATES)
            times = ratio(summaries, case, row, "torch", "batches_per_s")
            yield (
                f"{row:18}{rate.median:10.1f}{rate.relative:6.0%}{times or 0:8.2f}{parent.median:22.2f}"
                f"{workers.median:9.2f}{first.median:9.2f}"
            )


def report(options: argparse.Namespace, answers: list[dict[str, Any]], judged: list[Verdict]) -> None:
    """The tables and the verdicts."""
    found = summaries(options, answers)
    for case in options.cases:
        print("\n".join(table(case, found)))
    series.conclude(answers, warnings(found, answers), options.rounds, judged)


def document(
    options: argparse.Namespace,
    answers: list[dict[str, Any]],
    judged: list[Verdict],
    began: float,
    load: tuple[float, float, float],
) -> dict[str, Any]:
    """The JSON answer: everything that is printed, and every turn."""
    found = summaries(options, answers)
    versions = next((answer["versions"] for answer in answers if "versions" in answer), {})
    return series.heading(SCHEMA, ROOT, began, load) | {
        "versions": {"python": platform.python_version()} | versions,
        "settings": {name: getattr(options, name) for name in ("rounds", "seconds", "warmup", "workers")},
        "cases": {case: CASES[case].says for case in options.cases},
        "rows": ROWS,
        "summary": [
            {"case": case, "row": row} | {name: asdict(value) for name, value in figures.items()}
            for (case, row), figures in found.items()
        ],
        "warnings": list(warnings(found, answers)),
        "verdicts": [asdict(verdict) | {"says": verdict.says.value} for verdict in judged],
        "turns": answers,
    }


def main() -> int:
    options = series.parse(series.parser(__doc__, CASES, warmup=1.0, timeout=180.0))
    began, load = time.time(), os.getloadavg()
    if options.turn:
        series.answer(take(Turn(**json.loads(options.turn))))
    write_files(FILES, options.cases)
    answers = series.answers(Path(__file__), plan(options), options.timeout)
    found = summaries(options, answers)
    judged = [judge(claim, options.rounds) for case in options.cases for claim in claims(found, case)]
    report(options, answers, judged)
    series.keep(options.out, document(options, answers, judged, began, load))
    return int(any("error" in answer for answer in answers) or any(verdict.failed for verdict in judged))


if __name__ == "__main__":
    sys.exit(main())
