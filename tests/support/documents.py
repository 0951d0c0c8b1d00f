"""Documents whose tokens tell which document they are of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


class Documents:
    """Documents of the given lengths; all tokens of one are its number, from 1."""

    def __init__(self, lengths: Iterable[int], first: int = 1) -> None:
        self.lengths = np.array([*lengths], np.int64)
        self.first = first

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Any:
        return np.full(self.lengths[index], self.first + index, np.int64)

    def tokens(self) -> Counter[int]:
        """Return how many tokens each document has."""
        return Counter(
            {self.first + at: int(n) for at, n in enumerate(self.lengths) if n}
        )


class Plain(Documents):
    """The same, and it doesn't tell its lengths."""

    def __init__(self, lengths: Iterable[int], first: int = 1) -> None:
        super().__init__(lengths, first)
        self.held = self.lengths
        del self.lengths

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, index: int) -> Any:
        return np.full(self.held[index], self.first + index, np.int64)


class Named:
    """A component whose samples are its name and their numbers."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return f"{self.name} {index}"


def lognormal(count: int, seed: int = 0, most: int = 64, mean: float = 2.5) -> Any:
    """Return lengths as documents have them."""
    rng = np.random.default_rng(seed)
    return np.minimum(rng.lognormal(mean, 1.0, count).astype(np.int64) + 1, most)


def tokens_in(batches: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Return how many tokens of each document are in packed batches."""
    found = Counter[int]()
    for batch in batches:
        real = np.asarray(batch["tokens"])[np.asarray(batch["segment_ids"]) > 0]
        for number, count in zip(*np.unique(real, return_counts=True), strict=True):
            found[int(number)] += int(count)
    return found
