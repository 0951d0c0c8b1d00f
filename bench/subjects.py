"""Datasets that take time, and show how much each part takes.

They have `read(i)`, then `transform(sample)`.

Run in the process that is measured and in its workers. Guarantees that what is read
depends on the index alone.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar

import numpy as np
from payloads import Endless

import mpiter

# What the store takes for a sample.
ANSWER_S = 0.003
_MEAN = np.array([125.3, 123.0, 113.9], np.float32)
_DEVIATION = np.array([63.0, 62.1, 66.7], np.float32)


class Cifar(Endless):
    """Ten thousand small images, made up: `dataset[i]` is `transform(read(i))`."""

    says: ClassVar[str] = "random images of CIFAR-10's shape"

    def __init__(self) -> None:
        self._images = np.random.default_rng(0).integers(
            0, 256, (10_000, 32, 32, 3), np.uint8
        )

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))

    def read(self, index: int) -> Any:
        return self._images[index % len(self._images)], np.int64(index % 10)

    def transform(self, sample: Any) -> Any:
        image, label = sample
        rng = mpiter.get_rng()
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
        top = rng.integers(0, 9)
        left = rng.integers(0, 9)
        flip = rng.integers(0, 2)
        cropped = padded[top : top + 32, left : left + 32]
        turned = cropped[:, ::-1] if flip else cropped
        return ((turned - _MEAN) / _DEVIATION).transpose(2, 0, 1), label


class Store(Cifar):
    """The same, from a store that takes its time."""

    says = f"the same from a store that takes {1e3 * ANSWER_S:g} ms a sample"

    def read(self, index: int) -> Any:
        time.sleep(ANSWER_S)
        return super().read(index)


SUBJECTS: dict[str, type[Cifar]] = {"cifar": Cifar, "store": Store}
