"""What is moved in the overhead experiment: samples of six kinds, from memory.

They lie behind a long virtual length.

Runs in the process that is measured and in its workers.  Guarantees that `dataset[i]`
costs little (it is measured beside) and depends on the seed and on `i` alone, so that
storage is not measured and whatever arrives can be compared with what was sent.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

DISTINCT = 64
LENGTH = 1 << 20  # so long that its end is not met


class Endless(ABC):
    """`dataset[i]` is one of a few samples, made anew each time.

    pickle would notice an object that comes twice.
    """

    def __len__(self) -> int:
        return LENGTH

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...


class Labelled(Endless):
    """An image, as a view, and a label."""

    def __init__(self, images: np.ndarray[Any, Any]) -> None:
        self._images = images

    def __getitem__(self, index: int) -> Any:
        return self._images[index % len(self._images)], np.int64(index)


class Bare(Labelled):
    """An array and nothing else."""

    def __getitem__(self, index: int) -> Any:
        return self._images[index % len(self._images)]


class Leaves(Endless):
    """A dict of many small arrays."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self._values = values
        self._names = [f"leaf{number:03}" for number in range(values.shape[1])]

    def __getitem__(self, index: int) -> Any:
        return dict(
            zip(self._names, self._values[index % len(self._values)], strict=True)
        )


class Records(Endless):
    """Strings, numbers, lists and dicts within dicts, as they come from a store."""

    def __init__(self, rng: np.random.Generator) -> None:
        def words(count: int) -> list[str]:
            return [
                "".join(map(chr, rng.integers(97, 123, rng.integers(3, 12))))
                for _ in range(count)
            ]

        def record(number: int) -> dict[str, Any]:
            boxes = [
                {
                    "label": word,
                    "at": {"x": float(rng.random()), "y": float(rng.random())},
                }
                for word in words(4)
            ]
            return {
                "id": number,
                "caption": " ".join(words(20)),
                "tags": words(5),
                "boxes": boxes,
                "source": None,
            }

        self._stored = [pickle.dumps(record(number)) for number in range(DISTINCT)]

    def __getitem__(self, index: int) -> Any:
        return pickle.loads(self._stored[index % len(self._stored)])


class Rows:
    """Rows of one array, each of them as often as it takes to be so many samples."""

    def __init__(self, rows: np.ndarray[Any, Any], length: int) -> None:
        self._rows = rows
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._rows[index % len(self._rows)], index


@dataclass(frozen=True, slots=True)
class Payload:
    """A kind of sample, and how many of them are a batch."""

    name: str
    says: str
    batch_size: int
    make: Callable[[np.random.Generator], Endless]
    is_arrays: bool = True

    def dataset(self, seed: int) -> Endless:
        return self.make(np.random.default_rng(seed))


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.random(shape, np.float32)


PAYLOADS = {
    payload.name: payload
    for payload in (
        Payload(
            "28x28",
            "a 28×28 uint8 image and a label",
            128,
            lambda rng: Labelled(rng.integers(0, 256, (DISTINCT, 28, 28), np.uint8)),
        ),
        Payload(
            "3x64x64",
            "a 3×64×64 float32 image and a label",
            64,
            lambda rng: Labelled(_floats(rng, DISTINCT, 3, 64, 64)),
        ),
        Payload(
            "3x224x224",
            "a 3×224×224 float32 image and a label",
            32,
            lambda rng: Labelled(_floats(rng, DISTINCT, 3, 224, 224)),
        ),
        Payload(
            "32 MiB",
            "one float32 array of 32 MiB",
            1,
            lambda rng: Bare(_floats(rng, 3, 8 << 20)),
        ),
        Payload(
            "100 arrays",
            "a dict of 100 float32 arrays of 8 numbers",
            32,
            lambda rng: Leaves(_floats(rng, DISTINCT, 100, 8)),
        ),
        Payload(
            "nested",
            "strings, numbers, lists and dicts within dicts",
            64,
            Records,
            False,
        ),
    )
}


def array_bytes(value: Any) -> int:
    """Return the bytes of a sample's arrays, NumPy numbers and strings."""
    if isinstance(value, np.ndarray | np.generic):
        return int(value.nbytes)
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(array_bytes, value.values()))
    if isinstance(value, tuple | list):
        return sum(map(array_bytes, value))
    return 8


def same(one: Any, other: Any) -> bool:
    """Tell whether what arrived equals what was sent, to the last bit."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and np.array_equal(one, other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            same(one[key], other[key]) for key in one
        )
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
