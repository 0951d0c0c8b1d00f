"""What a file of receipts says, as values: who wrote it, where it starts, and columns of numbers for all samples.

Pure.  Guarantees that nothing of a file is believed before its type and its bounds have been looked at.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...order.order import Shuffled
from ...order.state import SEEDS

LARGEST = 1 << 53

Ints = NDArray[np.int64]


class Kind(IntEnum):
    """What became of samples."""

    BATCH = 0  # they were handed out
    FILL = 1  # once more, to fill up a step
    SKIPPED = 2
    FAILED = 3
    END = 4  # no samples: an epoch has ended


KINDS = {"batch": Kind.BATCH, "skipped": Kind.SKIPPED, "failed": Kind.FAILED}
LENGTHS = {"batch": 7, "skipped": 5, "failed": 5, "from": 4, "end": 3}


class Told(NamedTuple):
    """What a file says of the order."""

    length: int | None
    order: str | None
    seed: int | None
    step: int | None

    def keys(self, epoch: int, positions: Ints) -> Ints:
        """Of the samples at these positions."""
        if self.order == "sequential":
            return positions
        return Shuffled(self.length or 0, self.seed or 0, epoch).at(positions)

    def __str__(self) -> str:
        return f"{self.order or 'its own order'} of {self.length} samples, seed {self.seed}"


class Start(NamedTuple):
    """From here on the training goes on from ``epoch`` and ``place``."""

    epoch: int
    place: int
    told: Told


COLUMNS = "kind", "epoch", "place", "first", "count", "key", "step", "start", "digest"


@dataclass
class Log:
    """One file: what one start of one rank was handed."""

    path: str
    rank: int
    size: int
    time: float
    loader: str
    starts: list[Start] = field(default_factory=list)
    columns: dict[str, Any] = field(default_factory=lambda: {name: array("q") for name in COLUMNS})
    keys: Any = field(default_factory=lambda: array("q"))  # that are listed
    has_text: bool = False  # some keys are hashes of strings
    last: float = 0.0  # when it came to the end of an epoch
    torn: int = 0  # bytes of its last record
    breaks: list[str] = field(default_factory=list)  # where a checksum doesn't follow

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def reached(self) -> tuple[int, int]:
        """The epoch and the place of the last batch; of none, before all."""
        columns = (self.columns[name] for name in ("kind", "epoch", "place"))
        return max(
            ((epoch, place) for kind, epoch, place in zip(*columns, strict=True) if kind != Kind.END), default=(-1, 0)
        )


def id_of(text: str) -> int:
    """A number for a key that is a string."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def spread(firsts: Ints, counts: Ints) -> Ints:
    """The numbers from each first on, so many of each."""
    ends = np.cumsum(counts)
    found: Ints = np.arange(ends[-1] if len(ends) else 0, dtype=np.int64)
    found += np.repeat(firsts - (ends - counts), counts)
    return found


class Wrong(Exception):
    """What a record must not be."""


# -- what a record may hold --------------------------------------------------------------------------------------------


def as_number(value: Any, name: str, high: int = LARGEST) -> int:
    if type(value) is not int or not 0 <= value <= high:
        raise Wrong(f"its {name} is {value!r:.40}")
    return value


def as_whole(header: Mapping[str, Any], name: str, low: int = 0, high: int = 1 << 32) -> int:
    value = as_number(header.get(name), name, high)
    if value < low:
        raise Wrong(f"its {name} is {value}")
    return value


def as_time(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < LARGEST:
        raise Wrong(f"its time is {value!r:.40}")
    return float(value)


def as_runs(positions: Any) -> list[tuple[int, int]]:
    if not isinstance(positions, list) or len(positions) % 2:
        raise Wrong(f"positions are {positions!r:.40}, not first, count, first, count, …")
    numbers = [as_number(number, "position") for number in positions]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def as_told(value: Any) -> Told:
    if not isinstance(value, dict):
        raise Wrong(f"an order is {value!r:.40}")
    length, order, seed, step = (value.get(name) for name in Told._fields)
    if order not in (None, "shuffled", "sequential") or (order and length is None):
        raise Wrong(f"an order is {order!r:.40}, of length {length!r:.40}")
    for number in (length, step):
        if number is not None:
            as_number(number, "length or step")
    if seed is not None and not (isinstance(seed, str) and seed.removeprefix("-").isdecimal() and len(seed) <= 40):
        raise Wrong(f"a seed is {seed!r:.40}")
    if order == "shuffled" and (seed is None or not SEEDS[0] <= int(seed) <= SEEDS[1]):
        raise Wrong(f"a seed is {seed!r:.40}")
    return Told(length, order, None if seed is None else int(seed), step)


def as_digest(contents: Any) -> int:
    if contents is None:
        return 0
    if not isinstance(contents, bytes) or len(contents) != 8:
        raise Wrong(f"a hash of contents is {contents!r:.40}, not 8 bytes")
    return int.from_bytes(contents, "little", signed=True)
