"""What peers load: samples from memory, and the digest that proves what arrived.

Runs in the process that is measured and, pickled or inherited, in its workers.
Guarantees: 64 distinct float32 images, or JPEG files, in memory behind a long virtual length, so neither storage nor
the page cache is measured; no `__getitems__` and no slicing, so every loader fetches sample by sample through
`dataset[i]`; the label *is* the index (int64), so a digest notices a lost, repeated or misplaced sample. Which samples
straggle is a function of the index alone: all loaders meet the same ones.
"""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from photographs import SMALL, photograph

Array = np.ndarray[Any, Any]
DISTINCT = 64
LENGTH = 1 << 20  # long enough that no peer meets an epoch boundary (and its restart) inside the timed part
STRAGGLER_PERIOD = 1 << 16


class Images:
    """`dataset[i]` is `(images[i % 64], np.int64(i))`; the image is a view, so fetching costs about a microsecond."""

    def __init__(self, shape: tuple[int, ...], length: int = LENGTH, seed: int = 0) -> None:
        self.images = np.random.default_rng(seed).random((DISTINCT, *shape), dtype=np.float32)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        return self.images[index % DISTINCT], np.int64(index)


class Stragglers(Images):
    """The same images, each computed for a while; one in fifty, at a fixed pseudo-random place, fifty times as long."""

    def __init__(self, shape: tuple[int, ...], work_s: float, length: int = LENGTH, seed: int = 0) -> None:
        super().__init__(shape, length, seed)
        slow = np.random.default_rng(1).permutation(STRAGGLER_PERIOD) < STRAGGLER_PERIOD // 50
        self.work_s = np.where(slow, 50 * work_s, work_s).tolist()

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        work(self.work_s[index % STRAGGLER_PERIOD])
        return super().__getitem__(index)


class Photographs(Images):
    """JPEG files in memory, each decoded and scaled when it is asked for."""

    def __init__(self, shape: tuple[int, ...], length: int = LENGTH, seed: int = 0) -> None:
        super().__init__((), length, seed)
        self.shape = shape
        self.files = [photograph(np.random.default_rng((seed, number)), SMALL) for number in range(DISTINCT)]

    def __getitem__(self, index: int) -> tuple[Array, np.int64]:
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index % DISTINCT])) as file:
            scaled = file.convert("RGB").resize(self.shape[1::-1])
        return np.asarray(scaled, np.float32), np.int64(index)


def work(cpu_s: float) -> None:
    """Compute for so many CPU seconds of this thread: a preempted worker is not let off, as it would be by a sleep."""
    clock = time.thread_time
    end = clock() + cpu_s
    while clock() < end:
        pass


@dataclass(frozen=True)
class Case:
    """One dataset and its batch size; with `work_s` every sample costs that much CPU, one in fifty 50 times as much."""

    name: str
    batch_size: int
    shape: tuple[int, ...]
    work_s: float = 0.0
    is_decoded: bool = False  # from JPEG

    def dataset(self, length: int = LENGTH, seed: int = 0) -> Images:
        if self.is_decoded:
            return Photographs(self.shape, length, seed)
        if self.work_s:
            return Stragglers(self.shape, self.work_s, length, seed)
        return Images(self.shape, length, seed)

    @property
    def checked_length(self) -> int:
        """Four whole batches and a half one: the short last batch is checked too."""
        return 4 * self.batch_size + self.batch_size // 2


CASES = {
    case.name: case
    for case in (
        Case("16x8", 16, (8,)),
        Case("128x8", 128, (8,)),
        Case("28x28", 128, (28, 28)),
        Case("3x64x64", 128, (3, 64, 64)),
        Case("3x224x224", 64, (3, 224, 224)),
        # 20 µs a sample, 1 ms the slow ones; a transport may still matter: the limit is 3 to 5 times the peers here
        Case("straggler", 32, (28, 28), work_s=0.00002),
        Case("jpeg", 32, (224, 224, 3), is_decoded=True),
        # 0.2 ms and 10 ms: the work itself leaves twice the peers at most; only on request (--cases)
        Case("straggler_heavy", 8, (28, 28), work_s=0.0002),
    )
}


class Digest:
    """A running digest of samples in order: dtype, shape and every byte of the image, and the label's value."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, samples: Iterable[tuple[Array, Any]]) -> None:
        for image, label in samples:
            image = np.ascontiguousarray(image)
            self._hash.update(f"{image.dtype.str}{image.shape}{np.int64(label)}".encode())
            self._hash.update(image.data)

    def add_columns(self, columns: tuple[Array, Array]) -> None:
        images, labels = columns
        self.add(zip(images, labels.tolist(), strict=True))

    def hex(self) -> str:
        return self._hash.hexdigest()


def expected_digest(case: Case, seed: int = 0) -> str:
    """The digest of the in-process loop over the checked samples, in order."""
    dataset, digest = case.dataset(case.checked_length, seed), Digest()
    digest.add(dataset[index] for index in range(len(dataset)))
    return digest.hex()
