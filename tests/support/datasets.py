"""Datasets that tests share, in a module that every worker can import."""

from __future__ import annotations

import dataclasses
import os
import random
from typing import Any, NamedTuple

import numpy as np

import mpiter


class Pair(NamedTuple):
    image: Any
    label: int


@dataclasses.dataclass
class Record:
    image: Any
    name: str


class Squares:
    """A plain dataset of pairs of an array and a label."""

    def __init__(self, length: int = 20, shape: tuple[int, ...] = (3, 4)) -> None:
        self.length = length
        self.shape = shape

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return np.full(self.shape, index * index, np.float32), index


class Shaped(Squares):
    """Samples built by one of the functions below."""

    def __init__(self, build: str, length: int = 20) -> None:
        super().__init__(length)
        self.build = build

    def __getitem__(self, index: int) -> Any:
        return BUILDS[self.build](index)


def _image(index: int) -> Any:
    return np.full((2, 3), index, np.float32)


BUILDS: dict[str, Any] = {
    "bare array": _image,
    "tuple": lambda i: (_image(i), i),
    "list": lambda i: [_image(i), i],
    "dict": lambda i: {"image": _image(i), "label": i},
    "namedtuple": lambda i: Pair(_image(i), i),
    "dataclass": lambda i: Record(_image(i), f"sample {i}"),
    "nested": lambda i: {
        "a": (_image(i), [i, float(i)]),
        "b": {"c": i % 2 == 0, "d": complex(i)},
    },
    "scalars": lambda i: (
        i,
        float(i),
        np.float32(i),
        np.datetime64(i, "D"),
        bool(i % 2),
    ),
    "strings": lambda i: (_image(i), f"name {i}" * (i % 5), None, b"x" * i),
    "ragged": lambda i: (np.arange(i, dtype=np.int16), i),
    "odd ones": lambda i: (_image(i), i) if i % 7 else (np.zeros(9), "odd", i),
    "objects": lambda i: np.array([i, str(i), None], dtype=object),
    "masked": lambda i: np.ma.masked_array([1, 2, i], [False, True, False]),
    "huge integers": lambda i: 2**70 + i,
    "none": lambda i: None,
    "empty": lambda i: (),
    "oversize": lambda i: np.zeros(50_000 if i % 5 == 0 else 3, np.uint8) + i,
}


class Every(Squares):
    """Samples with a part of each of these kinds."""

    def __getitem__(self, index: int) -> Any:
        return {name: build(index) for name, build in BUILDS.items()}


class Random(Squares):
    """Samples draw from every generator that a dataset may use."""

    def __init__(self, length: int = 20, draws: str = "all") -> None:
        super().__init__(length)
        self.draws = draws

    def __getitem__(self, index: int) -> Any:
        if self.draws == "rng":
            return index, mpiter.get_rng().random()
        return (
            index,
            mpiter.get_rng().random(),
            random.random(),
            float(np.random.normal()),
        )


class Failing(Squares):
    """Some samples raise the errors that are given for them."""

    def __init__(self, errors: dict[int, Any], length: int = 20) -> None:
        super().__init__(length)
        self.errors = errors

    def __getitem__(self, index: int) -> Any:
        if index in self.errors:
            raise self.errors[index]
        return super().__getitem__(index)


class TwoArguments(Exception):
    """An error that can be pickled, but not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Unpicklable(Exception):
    """An error that can't be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        import threading

        self.lock = threading.Lock()


class Gated(Squares):
    """Samples from ``free`` on wait until a file exists."""

    def __init__(self, gate: str, free: int = 0, length: int = 20) -> None:
        super().__init__(length)
        self.gate = gate
        self.free = free

    def __getitem__(self, index: int) -> Any:
        while index >= self.free and not os.path.exists(self.gate):
            pass
        return super().__getitem__(index)


def plain(sample: Any) -> Any:
    """Describe a sample so that ``==`` compares it to the last bit, types included."""
    if isinstance(sample, np.ma.MaskedArray):
        return "masked", plain(np.asarray(sample.data)), plain(np.asarray(sample.mask))
    if isinstance(sample, np.ndarray):
        data = sample.tolist() if sample.dtype.hasobject else sample.tobytes()
        return type(sample).__name__, sample.dtype.str, sample.shape, data
    if isinstance(sample, dict):
        return type(sample).__name__, [
            (key, plain(value)) for key, value in sample.items()
        ]
    if isinstance(sample, (list, tuple)):
        return type(sample).__name__, [plain(value) for value in sample]
    if dataclasses.is_dataclass(sample):
        return type(sample).__name__, plain(vars(sample))
    return type(sample).__name__, repr(sample)


def plain_batch(batch: Any) -> list[Any]:
    return [plain(sample) for sample in batch]


class Attributes(dict):  # type: ignore[type-arg]
    """A mapping that also has an attribute."""

    colour = "none"


class Several(list):  # type: ignore[type-arg]
    """A list of another type."""


class Built(Squares):
    """Samples that a function makes."""

    def __init__(self, build: Any, length: int = 20) -> None:
        super().__init__(length)
        self.build = build

    def __getitem__(self, index: int) -> Any:
        return self.build(index)


class Looked(Squares):
    """Samples are an item of ``mpiter.Packed``, its file, and the reading process."""

    def __init__(self, packed: Any) -> None:
        super().__init__(len(packed))
        self.packed = packed

    def __getitem__(self, index: int) -> Any:
        return self.packed[index], file_of(self.packed), os.getpid()


def file_of(packed: Any) -> int:
    return os.fstat(packed._memory.file.fd).st_ino
