"""Parquet files for the benchmark of reading them: numbers, and numbers among text.

Each row has its number as its `id`, counted through all files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

# Rows of a row group: some 8 MB, so that a window has eight of them.
ROWS = {"numbers": 100_000, "mixed": 65_000, "few": 5_000}
# Row groups of the files that a trainer is killed on, and rows of all of them.
FEW_GROUPS = 8
FEW_ROWS = FEW_GROUPS * ROWS["few"]
FILES = 2


def written(folder: Path, kind: str, groups: int) -> Path:
    """Return the folder with so many row groups of a kind, written if need be."""
    import pyarrow as pa
    from pyarrow import parquet

    found = folder / f"{kind}-{groups}"
    # It gets its name once all files are there.
    if found.exists():
        return found
    part = folder / f".{kind}-{groups}"
    part.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    make = _MAKES[kind]
    rows = ROWS[kind]
    a_file = -(-groups // FILES)
    for number, first in enumerate(range(0, groups, a_file)):
        these = range(first, min(first + a_file, groups))
        table = pa.concat_tables([make(rng, group * rows, rows) for group in these])
        path = part / f"{number}.parquet"
        parquet.write_table(table, path, row_group_size=rows)
    part.rename(found)
    return found


def _numbers(rng: np.random.Generator, first: int, rows: int) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {"id": np.arange(first, first + rows)}
    for at in range(8):
        columns[f"single{at}"] = rng.random(rows, np.float32)
    for at in range(2):
        columns[f"double{at}"] = rng.standard_normal(rows)
    for at in range(4):
        columns[f"whole{at}"] = rng.integers(0, 10 ** (at + 2), rows)
    columns["label"] = rng.integers(0, 10, rows).astype(np.int8)
    return pa.table(columns)


def _mixed(rng: np.random.Generator, first: int, rows: int) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {"id": np.arange(first, first + rows)}
    for at in range(3):
        columns[f"single{at}"] = rng.random(rows, np.float32)
    columns["label"] = rng.integers(0, 10, rows).astype(np.int8)
    towns = [f"town {number}" for number in range(100)]
    columns["town"] = [towns[at] for at in rng.integers(0, 100, rows).tolist()]
    words = [f"word{number:x}" for number in range(4096)]
    drawn = rng.integers(0, 4096, (rows, 8)).tolist()
    columns["text"] = [" ".join([words[at] for at in some]) for some in drawn]
    lengths = rng.integers(1, 33, rows)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    tokens = rng.integers(0, 30_000, int(offsets[-1])).astype(np.int32)
    columns["tokens"] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    return pa.table(columns)


_MAKES: dict[str, Callable[[np.random.Generator, int, int], pa.Table]] = {
    "numbers": _numbers,
    "mixed": _mixed,
    "few": _numbers,
}
