"""Three corpora of uneven size, with documents of lognormal lengths, from a seed.

A document's tokens all have its number, counted from 1 through the three corpora, so
that it is known in a row of any loader; 0 is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpiter.files import Tokens

CAPACITY = 2048
# Documents of each corpus: many, and few enough for an epoch in seconds.  Batches of 40
# and of 60 documents come out even with the latter, for loaders that drop what is left.
LARGE = {"web": 40_000, "code": 10_000, "books": 5_000}
FEW = {"web": 2940, "code": 840, "books": 420}
NAMES = tuple(LARGE)
# The mean of a document's logarithmic length, and the deviation.
MEANS = {"web": 5.5, "code": 5.2, "books": 6.2}
SIGMA = 1.0


def lengths_of(counts: Mapping[str, int]) -> dict[str, NDArray[np.int64]]:
    """Return the lengths of the documents of each corpus."""
    rng = np.random.default_rng(7)
    found = dict[str, NDArray[np.int64]]()
    for name, documents in counts.items():
        drawn = rng.lognormal(MEANS[name], SIGMA, documents).astype(np.int64)
        found[name] = np.clip(drawn, 16, CAPACITY)
    return found


def write(folder: Path, counts: Mapping[str, int]) -> None:
    """Write the corpora, and where their documents begin."""
    first = 1
    for name, lengths in lengths_of(counts).items():
        numbers = np.arange(first, first + len(lengths), dtype=np.int32)
        np.repeat(numbers, lengths).tofile(folder / f"{name}.bin")
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        np.save(folder / f"{name}.offsets.npy", offsets)
        first += len(lengths)


def corpora(folder: Path) -> dict[str, Tokens]:
    """Return the corpora that were written, mapped."""
    found = dict[str, Tokens]()
    for name in NAMES:
        offsets = folder / f"{name}.offsets.npy"
        found[name] = Tokens(folder / f"{name}.bin", offsets, "int32")
    return found


def padding_in(rows: NDArray[np.int32]) -> float:
    """Return the share of a batch's tokens that is padding."""
    return 1 - np.count_nonzero(rows) / rows.size


def cost_of(rows: NDArray[np.int32]) -> float:
    """Return the sum of the squared lengths of the documents in a batch's rows."""
    cost = 0.0
    for row in rows:
        borders = np.flatnonzero(np.diff(row)) + 1
        begins = np.concatenate(([0], borders))
        lengths = np.diff(np.concatenate((begins, [len(row)])))
        cost += float(np.square(lengths[row[begins] > 0], dtype=np.float64).sum())
    return cost
