"""A store that takes 10 ms for each file, staged to a local folder while the first epoch goes on.

Then with room for half of it: what is local is drawn first, while the rest is fetched.

python examples/slow_store.py [FOLDER [CAPACITY]]

FOLDER is where copies are kept (a temporary one unless it is named), CAPACITY how much: "200GB".
"""

from __future__ import annotations

import sys
import tempfile
import time

import numpy as np

import mpiter
from mpiter.staging import ResidentFirst, Staging


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


def all_of_it(folder: str, capacity: str) -> None:
    """Copied by eight threads of this process, up to a thousand samples beyond what the workers are asked for."""
    staging = Staging(folder, capacity, ahead=1000, workers=8)
    files = staging.of(Store())
    with mpiter.batches(files, 8, n_processes=2, seed=0) as stream:
        for epoch in range(1, 4):
            before, began = staging.stats(), time.perf_counter()
            samples = sum(len(batch) for batch in stream)  # train here
            took, seen = time.perf_counter() - began, staging.stats().since(before)
            print(f"epoch {epoch}: {seen.hit_rate:.0%} of {samples} samples were local; {took:.2f} s")
    print(staging.stats())


def half_of_it(folder: str) -> None:
    """Local ones first, within half an epoch."""
    files = Staging(folder, capacity=60 * 20_100).of(Store())
    for index in range(60):
        files[index]  # which stays there
    sampler = ResidentFirst(files, window=60, seed=0)
    with mpiter.batches(files, 8, n_processes=2, order_sampler=sampler) as stream:
        numbers = {int(number) for batch in stream for number in batch[:, 0]}
    print(f"half of it: {len(numbers)} samples in an order that has {sampler.entropy:.0%} of a shuffle's entropy")


def main(folder: str, capacity: str = "200GB") -> None:
    all_of_it(folder, capacity)
    with tempfile.TemporaryDirectory() as temporary:
        half_of_it(temporary)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(*sys.argv[1:3])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
