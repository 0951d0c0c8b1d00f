"""Slow reading, quick training: each sample that was read is augmented and used as often as that costs nothing.

python examples/echo.py
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

import mpiter
from mpiter.echo import Echo

READ_S, STEP_S = 6e-3, 16e-3
SAMPLES, BATCH_SIZE, EPOCHS = 160, 16, 3


class Store:
    """Far away: what is read takes its time."""

    def __len__(self) -> int:
        return SAMPLES

    def read(self, index: int) -> Any:
        time.sleep(READ_S)
        return np.full((8, 8), index, np.float32), index % 10

    def transform(self, sample: Any) -> Any:
        image, label = sample
        return np.roll(image, mpiter.get_rng().integers(8), axis=0), label

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))


def main() -> None:
    logging.basicConfig(format="%(message)s")
    for name, echo in (
        ("without", None),
        ("twice, augmented anew", Echo(factor=2, at="example", shuffle_buffer=64)),
        ("twice, as it was", Echo(factor=2, at="augmented", shuffle_buffer=64)),
        ("each batch twice", Echo(factor=2, at="batch")),
        ("auto", Echo(factor="auto", shuffle_buffer=64)),
    ):
        with mpiter.batches(Store(), BATCH_SIZE, n_processes=2, epochs=EPOCHS, seed=0, echo=echo) as stream:
            began = time.monotonic()
            for images, labels in stream:
                assert len(images) == len(labels)
                time.sleep(STEP_S)  # train here
            stats, seconds = stream.stats(), time.monotonic() - began
        rate = stats.batches / seconds
        print(f"{name}: {stats.fresh_samples} fresh samples, {stats.batches} steps, {rate:.0f} a second")


if __name__ == "__main__":
    main()
