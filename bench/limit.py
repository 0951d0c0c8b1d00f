"""What the machine allows: the line that every loader is measured against.

Processes fill preallocated shared memory, as fast as they can; nothing is handed over
or consumed.
"""

from __future__ import annotations

import multiprocessing
import time
from mmap import mmap

import numpy as np
from cases import Array, Case, Digest, Images
from loaders import Setup
from measuring import Cpu, CpuWindow

# Processes may take so many seconds to begin.
_PATIENCE_S = 30.0


class Limit:
    """What the machine allows: processes that fill shared slots made before.

    They have no coordination and no consumer.

    Each process owns its slots (as many in all as there are workers and prefetched
    batches), fetches the samples one by one through `dataset[i]` and assigns each to
    its row. The parent only sleeps, and reads the counts.
    """

    def __init__(self, case: Case, setup: Setup) -> None:
        self._dataset = case.dataset()
        self._setup = setup
        slots = -(-(setup.workers + setup.n_prefetch) // setup.workers)
        self._slots = [
            slots_of(slots, setup.batch_size, case.shape) for _ in range(setup.workers)
        ]
        # Each process counts in a cache line of its own.
        self._counts: Array = np.frombuffer(mmap(-1, 64 * setup.workers), np.int64)[::8]
        context = multiprocessing.get_context("fork")
        self._processes = [
            context.Process(target=self._fill, args=(k,), daemon=True)
            for k in range(setup.workers)
        ]
        for process in self._processes:
            process.start()

    def _fill(self, worker: int) -> None:
        dataset = self._dataset
        slots = self._slots[worker]
        batch_size = self._setup.batch_size
        start = worker * batch_size
        stride = self._setup.workers * batch_size
        while True:
            for images, labels in slots:
                fill(dataset, start, images, labels)
                start += stride
                self._counts[worker] += 1

    def filled(self) -> int:
        return int(self._counts.sum())

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    @staticmethod
    def digest(case: Case) -> str:
        """Read one epoch's slots, filled by the same function, to the last byte."""
        dataset = case.dataset(case.checked_length)
        digest = Digest()
        for start in range(0, len(dataset), case.batch_size):
            ((images, labels),) = slots_of(
                1, min(case.batch_size, len(dataset) - start), case.shape
            )
            fill(dataset, start, images, labels)
            digest.add_columns((images, labels))
        return digest.hex()


def filling(
    case: Case, setup: Setup, warm: int, warmup_s: float, seconds: float
) -> tuple[int, float, Cpu]:
    """Measure batches, seconds and processor time in full flow.

    That begins after so many batches and seconds.
    """
    limit = Limit(case, setup)
    try:
        deadline = time.perf_counter() + _PATIENCE_S
        while limit.filled() < warm:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"nothing within {_PATIENCE_S:g} s")
            time.sleep(0.001)
        window = CpuWindow()
        time.sleep(warmup_s)
        window.start()
        filled = limit.filled()
        begin = time.perf_counter()
        time.sleep(seconds)
        batches = limit.filled() - filled
        elapsed = time.perf_counter() - begin
        return batches, elapsed, window.stop()
    finally:
        limit.close()


def fill(dataset: Images, start: int, images: Array, labels: Array) -> None:
    for row in range(len(labels)):
        images[row], labels[row] = dataset[start + row]


def slots_of(
    count: int, rows: int, shape: tuple[int, ...]
) -> list[tuple[Array, Array]]:
    pixels = rows * int(np.prod(shape))
    made = []
    for _ in range(count):
        memory = mmap(-1, 8 * rows + 4 * pixels)
        labels = np.frombuffer(memory, np.int64, rows)
        images = np.frombuffer(memory, np.float32, pixels, offset=8 * rows).reshape(
            rows, *shape
        )
        made.append((images, labels))
    return made
