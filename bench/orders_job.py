"""What every loader of the benchmark of orders for language models is asked for.

Each mixes, packs, saves and resumes as its documentation says.  Rows of loaders that
leave packing to the user are packed here.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from corpora import CAPACITY, corpora
from numpy.typing import NDArray

from mpiter.language.fit import best_fit

# Arrays with a line for each row; `tokens` is one of them.
Batch = Mapping[str, NDArray[np.int32]]
# A document of this corpus has about so many to a row.
A_ROW = 5
# Documents that are packed together, as trl packs a batch of `datasets.map`.
TOGETHER = 1000
ACROSS_RANKS = "not documented: each rank has a state of its own"


@dataclass(frozen=True)
class Job:
    """What every loader is asked for, on one rank."""

    # Where the corpora are.
    folder: Path
    # How often the documents of each corpus come.
    weights: Mapping[str, float]
    # Rows in a batch of this rank.
    batch: int
    rank: int = 0
    size: int = 1
    workers: int = 0
    seed: int = 0
    # An epoch has each document once, or else corpora that have ended begin anew.
    once: bool = False
    shuffle: bool = True


class Loader:
    """Batches on one rank; a state is asked for between two, and loaded before all."""

    environment: ClassVar[str] = "torch"
    way: ClassVar[str]
    # Scenes that the loader isn't put to, and why.
    left_out: ClassVar[dict[str, str]] = {}

    def __init__(self, job: Job) -> None:
        self.job = job

    @classmethod
    def prepare(cls, folder: Path) -> None:
        """Write the corpora as the loader reads them, if not as they are."""

    def batches(self) -> Iterator[Batch]:
        raise NotImplementedError

    def state(self) -> bytes:
        raise NotImplementedError

    def load(self, state: bytes) -> None:
        raise NotImplementedError

    def workers(self) -> list[int]:
        """Return the processes that fetch."""
        return [
            process.pid for process in multiprocessing.active_children() if process.pid
        ]

    @staticmethod
    def mixed(weights: Mapping[str, float], count: int, seed: int) -> Iterator[int]:
        """Yield the number of the component of each of the first samples."""
        raise NotImplementedError


class Stateful(Loader):
    """The base of loaders that have a state as torch's users know it."""

    loader: Any

    def state(self) -> bytes:
        return pickle.dumps(self.loader.state_dict())

    def load(self, state: bytes) -> None:
        self.loader.load_state_dict(pickle.loads(state))

    def batches(self) -> Iterator[Batch]:
        while True:
            for batch in self.loader:
                yield {name: column.numpy() for name, column in batch.items()}
            if self.job.once:
                return


class Numbered:
    """A component of a mixture whose samples are its number."""

    def __init__(self, number: int, length: int) -> None:
        self.number = number
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return self.number

    # grain compares the text that it has kept in a state with this.
    def __repr__(self) -> str:
        return f"Numbered({self.number}, {self.length})"


def numbered(weights: Mapping[str, float]) -> dict[str, Numbered]:
    return {name: Numbered(number, 5000) for number, name in enumerate(weights)}


def documents_of(folder: Path) -> Iterator[tuple[str, list[NDArray[np.int32]]]]:
    """Yield the corpora by name, each as its documents."""
    for name, corpus in corpora(folder).items():
        yield name, [corpus[at] for at in range(len(corpus))]


# -- packing by the user ---------------------------------------------------------------


def packed(documents: Sequence[NDArray[np.int32]]) -> dict[str, NDArray[np.int32]]:
    """Pack documents by best fit, the longest first, as trl does; ours is quick.

    What is left of a row is filled by one more piece, of zeros, so that each array is
    written in one pass.
    """
    lengths = np.array([len(document) for document in documents])
    row_of, count = best_fit(lengths, CAPACITY)
    filled = np.bincount(row_of, lengths, count).astype(np.int64)
    zeros = np.zeros(CAPACITY, np.int32)
    left = CAPACITY - filled
    pieces = [*documents, *(zeros[:size] for size in left.tolist())]
    rows = np.concatenate((row_of, np.arange(count)))
    # Stable, so that a row's zeros come last.
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    sizes = np.concatenate((lengths, left))[order]
    begins = (np.cumsum(sizes) - sizes).astype(np.int32)
    numbers = np.arange(1, len(order) + 1) - np.searchsorted(rows, rows)
    numbers[order >= len(documents)] = 0
    segments = np.repeat(numbers.astype(np.int32), sizes)
    positions = np.arange(count * CAPACITY, dtype=np.int32) - np.repeat(begins, sizes)
    positions[segments == 0] = 0
    columns = {
        "tokens": np.concatenate([pieces[at] for at in order.tolist()]),
        "positions": positions,
        "segment_ids": segments,
    }
    return {name: column.reshape(count, -1) for name, column in columns.items()}


def packed_tensors(documents: Sequence[NDArray[np.int32]]) -> dict[str, Any]:
    """Pack documents in a collate function: a batch has the rows that they need."""
    import torch

    return {
        name: torch.from_numpy(column) for name, column in packed(documents).items()
    }


def stacked(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make a batch of rows."""
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def rows_of(columns: Mapping[str, NDArray[np.int32]]) -> list[dict[str, Any]]:
    """Return the rows of arrays one by one."""
    count = len(columns["tokens"])
    return [{name: one[at] for name, one in columns.items()} for at in range(count)]
