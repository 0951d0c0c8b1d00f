"""Stores of files to stage from, which log what is read.

Every worker can import this module.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np


class Store:
    """A dataset over a folder of files, each of its own bytes.

    ``reads`` counts all reads.
    """

    def __init__(self, folder: Path, samples: int = 40, size: int = 1000) -> None:
        self.root = str(folder / "store")
        self.samples = samples
        self.size = size
        self.log = str(folder / "reads")
        if not os.path.exists(self.root):
            os.makedirs(self.root)
            for index in range(samples):
                Path(self.source(index)).write_bytes(content(index, size))

    def __len__(self) -> int:
        return self.samples

    def source(self, index: int) -> str:
        return os.path.join(self.root, f"{index:04}.bin")

    def fetch(self, index: int) -> bytes:
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, f"{index}\n".encode())
        os.close(log)
        with open(self.source(index), "rb") as file:
            return file.read()

    def __getitem__(self, index: int) -> Any:
        return index, np.frombuffer(self.fetch(index), np.uint8).astype(np.int64).sum()

    def reads(self) -> collections.Counter[int]:
        """Return how often each sample was read."""
        path = Path(self.log)
        if not path.exists():
            return collections.Counter()
        return collections.Counter(map(int, path.read_text().split()))

    def is_right(self, index: int, total: int) -> bool:
        right = np.frombuffer(content(index, self.size), np.uint8).astype(np.int64)
        return int(right.sum()) == total


class Watched(Store):
    """A store that counts how many samples were copied ahead.

    An echo uses its ``read`` and ``transform``.
    """

    def __init__(self, folder: Path, samples: int = 40, size: int = 1000) -> None:
        super().__init__(folder, samples, size)
        self._copied = threading.Semaphore(0)

    def fetch(self, index: int) -> bytes:
        data = super().fetch(index)
        if threading.current_thread().name.startswith("mpiter-staging"):
            self._copied.release()
        return data

    def read(self, index: int) -> Any:
        return super().__getitem__(index)

    def transform(self, sample: Any) -> Any:
        return sample

    def wait_until_copied(self, samples: int) -> None:
        """Wait until so many samples have been copied, without reading any."""
        for _ in range(samples):
            assert self._copied.acquire(timeout=20)


def content(index: int, size: int) -> bytes:
    return np.random.default_rng(index).bytes(size)


def bytes_below(folder: Path) -> int:
    """Return the bytes of all copies in a tier, unfinished ones included.

    A copy that is renamed meanwhile counts once.
    """
    sizes = {}
    for path in folder.glob("mpiter-staged-*/*/*/*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values())
