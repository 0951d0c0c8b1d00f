"""Slow reading, quick training: each sample that was read is augmented and used as often as that costs nothing.

python examples/echo.py
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import mpiter
from mpiter.echo import Bundles, Echo

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
    for name, dataset, factor, buffer in (
        ("without", Store(), 1, 64),
        ("twice, augmented anew", Bundles(Store(), 2), 2, 64),
        ("twice, as it was", Store(), 2, 64),
        ("each batch twice", Store(), 2, 0),
    ):
        with mpiter.batches(dataset, BATCH_SIZE, n_processes=2, epochs=EPOCHS, seed=0) as stream:
            began, steps = time.monotonic(), 0
            for images, labels in Echo(stream, factor, shuffle_buffer=buffer, seed=1):
                assert len(images) == len(labels)
                time.sleep(STEP_S)  # train here
                steps += 1
            fetched, seconds = stream.stats().samples, time.monotonic() - began
        print(f"{name}: {fetched} samples fetched, {steps} steps, {steps / seconds:.0f} a second")


if __name__ == "__main__":
    main()
