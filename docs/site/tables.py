"""The tables of batches a second in docs/performance.md.

They are made from bench/results/transport.json.

    python docs/site/tables.py

This writes the figures of that file into the page. A table is found on the page by its
first line. A cell whose loader or case wasn't measured has a dash.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pictures import ROOT, SPEED, is_unsteady, version

PAGE = ROOT / "docs" / "performance.md"
NOTHING = "–"
# The keys are case and row, then the figure, which has its median and spread.
Figures = Mapping[tuple[str, str], Mapping[str, Any]]

# The cases, and the heads of their columns.
WITH_WORKERS = {
    "28x28": "128 × 28×28",
    "3x64x64": "128 × 3×64×64",
    "3x224x224": "64 × 3×224×224",
    "straggler": "one sample in 50 takes 50×",
    "jpeg": "32 JPEG files",
}
# Rows, and what they are called.
RATES = {
    "ours": "**mpiter**, lists of samples",
    "ours_columns": "**mpiter**, columns (`batches()`)",
    "ours_torch": "**mpiter**, tensors (`mpiter.torch.DataLoader`)",
    "ours_alone": "**mpiter**, no workers",
    "chainer": "Chainer {} `MultiprocessIterator`",
    "torch": "torch {} `DataLoader`",
    "limit": "limit",
}
RATIOS = {
    ("ours", "chainer"): "mpiter (lists) / Chainer",
    ("ours_columns", "torch"): "mpiter (columns) / torch",
    ("ours_torch", "torch"): "`mpiter.torch` / torch",
}
SIZES = {
    "16x8": "16 × 8",
    "128x8": "128 × 8",
    "28x28": "128 × 28×28",
    "3x64x64": "128 × 3×64×64",
}
TORCHS = ("ours_torch_alone", "torch_alone")
OURS = "`mpiter.torch.DataLoader` / torch's"
INDEXED = ("ours_alone", "indexing")
# What a row is called, its two loaders, and what its cases are called after their size.
WITHOUT_WORKERS = [
    (f"{OURS}: samples of arrays", TORCHS, ""),
    ("the same: samples of tensors", TORCHS, " tensors"),
    ("the same: a `TensorDataset`", TORCHS, " TensorDataset"),
    ("the same: tensors by `__getitems__`", TORCHS, " getitems"),
    (
        "`batches((x, y), n_processes=0)` / `x[rows], y[rows]`, shuffled",
        INDEXED,
        " columns",
    ),
    ("the same with `shuffle=False` / slices, copied", INDEXED, " columns in order"),
    (
        "`batches(n_processes=0)` / a loop with `np.stack`",
        ("ours_alone", "in_process"),
        "",
    ),
    ("`SerialIterator` / Chainer's", ("ours_serial", "chainer_serial"), ""),
]
OF_TORCH = {
    "tokens": "16 × two tensors of 1,024 tokens",
    "sleeping": "16 samples that wait 1 ms",
    "jpeg": "32 JPEG files",
}


def tables(result: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the tables of the page, each as its lines."""
    figures = {(one["case"], one["row"]): one for one in result["summary"]}
    yield _table(WITH_WORKERS.values(), _with_workers(figures, result))
    yield _table(SIZES.values(), _without_workers(figures))
    cells = [_beside(figures, case, *TORCHS) for case in OF_TORCH]
    yield _table(OF_TORCH.values(), [(OURS, cells)])


def page(text: str, result: Mapping[str, Any]) -> str:
    """Return the text of the page with the figures of ``result``."""
    for lines in tables(result):
        there = rf"^{re.escape(lines[0])}\n(?:\|.*\n)+"
        new = "".join(f"{line}\n" for line in lines)
        text, count = re.subn(there, lambda _, new=new: new, text, flags=re.MULTILINE)
        if count != 1:
            raise LookupError(
                f"{PAGE.name} has {count} tables that begin with {lines[0]}"
            )
    return text


def _table(heads: Any, rows: Any) -> list[str]:
    lines = [("", heads), *rows]
    drawn = [f"| {name} | {' | '.join(cells)} |" for name, cells in lines]
    drawn.insert(1, "|---" * (1 + len(heads)) + "|")
    return drawn


def _with_workers(
    figures: Figures, result: Mapping[str, Any]
) -> Iterator[tuple[str, list[str]]]:
    def each(cell: Callable[..., str], *what: Any) -> list[str]:
        return [cell(figures, case, *what) for case in WITH_WORKERS]

    for row, name in RATES.items():
        mark = "**" if row.startswith("ours") else ""
        cells = [f"{mark}{cell}{mark}" for cell in each(_rate, row)]
        yield name.format(version(result, row)), cells
    for (ours, theirs), name in RATIOS.items():
        yield name, [f"{cell}×" for cell in each(_ratio, ours, theirs, 1)]
    says = "processor time a batch, ms: mpiter / Chainer / torch"
    yield says, each(_several, "cpu_s_per_batch", 1e3, "ours", "chainer", "torch")
    says = "time to the first batch, s: mpiter / `mpiter.torch` / torch"
    yield says, each(_several, "first_batch_s", 1, "ours", "ours_torch", "torch")


def _without_workers(figures: Figures) -> Iterator[tuple[str, list[str]]]:
    for name, loaders, form in WITHOUT_WORKERS:
        yield name, [_beside(figures, size + form, *loaders) for size in SIZES]


def _told(
    figures: Figures, case: str, row: str, figure: str, places: int, unit: float = 1
) -> str:
    found = figures.get((case, row), {}).get(figure)
    if found is None:
        return NOTHING
    return f"{'~' * is_unsteady(found)}{unit * found['median']:,.{places}f}"


def _rate(figures: Figures, case: str, row: str) -> str:
    return _told(figures, case, row, "batches_per_s", 0)


def _ratio(figures: Figures, case: str, ours: str, theirs: str, places: int) -> str:
    if not {(case, ours), (case, theirs)} <= figures.keys():
        return NOTHING
    mine = figures[case, ours]["batches_per_s"]["median"]
    reference = figures[case, theirs]["batches_per_s"]["median"]
    return f"{mine / reference:.{places}f}"


def _beside(figures: Figures, case: str, ours: str, theirs: str) -> str:
    ratio = _ratio(figures, case, ours, theirs, 2)
    if ratio == NOTHING:
        return NOTHING
    return f"{_rate(figures, case, ours)} / {_rate(figures, case, theirs)}: {ratio}"


def _several(figures: Figures, case: str, figure: str, unit: float, *rows: str) -> str:
    return " / ".join(_told(figures, case, row, figure, 1, unit) for row in rows)


def main() -> int:
    PAGE.write_text(page(PAGE.read_text(), json.loads(SPEED.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
