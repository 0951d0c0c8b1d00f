"""Datasets that take time, and let themselves be looked into: `read(i)`, then `transform(sample)`.

Run in the process that is measured and in its workers.  `cifar` is all processor time (random 32×32 images, cropped,
flipped and normalised), `store` mostly waiting (the same from a store that answers after a while: a simulation, by
sleeping), `files` decoding.  `module:name` is the user's own: what calling it returns.
Guarantees that a sample of `cifar` and `store` depends on the seed and its place in the order alone.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import mpiter

from ..datasets.named import named
from ..errors import OptionError
from .payloads import Endless
from .pictures import Augmented
from .turns import Absent

BUILT_IN = ("cifar", "store", "files")
ANSWER_S = 0.003  # what the store takes for a sample
_MEAN = np.array([125.3, 123.0, 113.9], np.float32)
_DEVIATION = np.array([63.0, 62.1, 66.7], np.float32)


class Cifar(Endless):
    """Ten thousand small images, made up: `dataset[i]` is `transform(read(i))`."""

    def __init__(self, seed: int) -> None:
        self._images = np.random.default_rng(seed).integers(0, 256, (10_000, 32, 32, 3), np.uint8)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))

    def read(self, index: int) -> Any:
        return self._images[index % len(self._images)], np.int64(index % 10)

    def transform(self, sample: Any) -> Any:
        image, label = sample
        rng = mpiter.get_rng()
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
        top, left, flip = rng.integers(0, 9), rng.integers(0, 9), rng.integers(0, 2)
        cropped = padded[top : top + 32, left : left + 32]
        turned = cropped[:, ::-1] if flip else cropped
        return ((turned - _MEAN) / _DEVIATION).transpose(2, 0, 1), label


class Store(Cifar):
    """The same, from a store that takes its time."""

    def read(self, index: int) -> Any:
        time.sleep(ANSWER_S)
        return super().read(index)


def subject(name: str, seed: int, paths: list[str]) -> Any:
    """The dataset of that name."""
    if name == "cifar":
        return Cifar(seed)
    if name == "store":
        return Store(seed)
    if name == "files":
        return Augmented(paths, 1, seed)
    if ":" not in name:
        raise Absent(f"there is no dataset {name!r}; use {', '.join(BUILT_IN)}, or module:function of your own")
    try:
        return named(name)
    except OptionError as error:
        raise Absent(str(error)) from error
