"""The datasets of the loaders' benchmark, in a module of their own that workers can import.

Runs in the process that is measured and in its workers. Needs torch; `Pictures` needs Pillow too.
Guarantees: `dataset[i]` depends on `i` alone (the crops apart), behind a virtual length that no turn reaches the end
of; little is stored, so that neither memory nor the page cache is measured, except in `Big`, where it is the point.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

DISTINCT = 64
SIDE, CROP = 224, 192
BIG = (4000, 62_500)  # float32: a gigabyte, in samples of 250 kB
STRAGGLERS = 1 << 16


class Endless(ABC):
    """So long that its end is not met."""

    def __len__(self) -> int:
        return 1 << 20

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...


class Arrays(Endless):
    """A float32 tensor and an int, like `TensorDataset`; the tensor is a view."""

    def __init__(self, *shape: int) -> None:
        self.images = torch.from_numpy(np.random.default_rng(0).random((DISTINCT, *shape), np.float32))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % DISTINCT], index % 10


class Leaves(Endless):
    """A dict of 100 arrays of 8 float32."""

    def __init__(self) -> None:
        self.names = [f"leaf{number:03}" for number in range(100)]
        self.values = np.random.default_rng(0).random((DISTINCT, 100, 8), np.float32)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return dict(zip(self.names, self.values[index % DISTINCT], strict=True))


class Pictures(Endless):
    """JPEG files, decoded and cropped at random."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(map(str, folder.glob("*.jpg")))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index % len(self.files)]) as file:
            left, top = random.randrange(SIDE - CROP), random.randrange(SIDE - CROP)
            pixels = np.array(file.convert("RGB").crop((left, top, left + CROP, top + CROP)))
        return torch.from_numpy(pixels).permute(2, 0, 1).to(torch.float32).div_(255).contiguous(), index % 10


class Stragglers(Arrays):
    """Each sample is waited for; one in fifty, always the same ones, very long."""

    def __init__(self) -> None:
        super().__init__(28, 28)
        self.is_slow = (np.random.default_rng(1).permutation(STRAGGLERS) < STRAGGLERS // 50).tolist()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.05 if self.is_slow[index % STRAGGLERS] else 0.0002)
        return super().__getitem__(index)


class Big:
    """Rows of one large array; of as many samples, but of next to no memory, when there are few rows."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return BIG[0]

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.rows[index % len(self.rows)], index


@dataclass(frozen=True)
class Case:
    """What is loaded, in which batches, and by how many workers unless that is left to the caller."""

    says: str
    batch_size: int
    dataset: Callable[[Path], Any]  # of the folder in which its files lie
    workers: int | None = None
    context: str | None = None  # how workers start; None: the loader's own default
    is_big: bool = False  # start-up and memory are measured, not the rate
    longer: int = 1  # times, so that what is rare is met often enough


def _in_memory(folder: Path) -> Big:
    rows = np.empty(BIG, np.float32)
    rows[:] = np.arange(BIG[1], dtype=np.float32)
    return Big(rows)


def _mapped(folder: Path) -> Big:
    return Big(np.memmap(folder / "big.f32", np.float32, "r", shape=BIG))


CASES = {
    "28x28": Case("28x28 float32 tensor and int, batches of 64", 64, lambda folder: Arrays(28, 28)),
    "3x64x64": Case("3x64x64 float32 tensor and int, batches of 128", 128, lambda folder: Arrays(3, 64, 64)),
    "leaves": Case("dicts of 100 arrays of 8 float32, batches of 32", 32, lambda folder: Leaves()),
    "jpeg": Case(
        f"{SIDE}x{SIDE} JPEG files, cropped to {CROP}x{CROP}, batches of 32", 32, lambda folder: Pictures(folder)
    ),
    "straggler": Case(
        "0.2 ms of sleep a sample, one in fifty 50 ms; batches of 16, 4 workers",
        16,
        lambda folder: Stragglers(),
        4,
        longer=3,
    ),
    "1 GB fork": Case("1 GB in an ndarray, 8 workers, forked", 16, _in_memory, 8, "fork", True),
    "1 GB forkserver": Case("1 GB in an ndarray, 8 workers of a fork server", 16, _in_memory, 8, "forkserver", True),
    "1 GB memmap": Case("1 GB in an np.memmap, 8 workers of a fork server", 16, _mapped, 8, "forkserver", True),
}


def write_files(folder: Path, cases: list[str]) -> None:
    """What the cases read; once."""
    folder.mkdir(parents=True, exist_ok=True)
    if "jpeg" in cases and not (folder / "complete").exists():
        rng = np.random.default_rng(0)
        for number in range(256):
            coarse = Image.fromarray(rng.integers(0, 256, (14, 14, 3), np.uint8)).resize((SIDE, SIDE))
            grain = rng.integers(-12, 13, (SIDE, SIDE, 3), np.int16)
            pixels = np.clip(np.asarray(coarse, np.int16) + grain, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:03}.jpg", quality=90)
        (folder / "complete").touch()
    big = folder / "big.f32"
    if "1 GB memmap" in cases and not (big.exists() and big.stat().st_size == 4 * BIG[0] * BIG[1]):
        np.tile(np.arange(BIG[1], dtype=np.float32), BIG[0]).tofile(big)
