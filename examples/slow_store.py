"""A store that takes 10 ms for each file, staged to a local folder while the first epoch goes on.

python examples/slow_store.py [FOLDER [CAPACITY]]

FOLDER is where copies are kept (a temporary one unless it is named), CAPACITY how much: "200GB".
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np

import mpiter
from mpiter.staging import Staging


class Store:
    """A hundred and twenty files, as if far away."""

    def __len__(self) -> int:
        return 120

    def source(self, index: int) -> str:
        return f"far://away/{index:03}.bin"

    def fetch(self, index: int) -> bytes:
        time.sleep(0.01)
        return np.full(20_000, index, np.uint8).tobytes()

    def __getitem__(self, index: int) -> np.ndarray:
        return np.frombuffer(self.fetch(index), np.uint8)


def main(folder: str, capacity: str = "200GB") -> None:
    staging = Staging(folder, capacity)
    files = staging.of(Store())
    with mpiter.batches(files, 8, n_processes=2, seed=0) as stream:
        for epoch in range(1, 4):
            before, began = staging.stats(), time.perf_counter()
            samples = sum(len(batch) for batch in stream)  # train here
            took, seen = time.perf_counter() - began, staging.stats().since(before)
            print(f"epoch {epoch}: {seen.hit_rate:.0%} of {samples} samples were local; {took:.2f} s")
    print(staging.stats())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(*sys.argv[1:3])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
