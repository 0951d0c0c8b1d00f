"""The course project's dataset of image files, and its augmentation.

A fast decoder reads them, and what the augmentation costs can be chosen.

Runs in the driver (making files), in the process that is measured and in its workers.
Guarantees that the files are always the same ones and every loader reads them by the
same decoder: OpenCV where it is installed, as in the original, else Pillow; and that an
augmentation of cost `n` is the one of cost 1, done `n` times, by Albumentations where
it is installed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from payloads import Endless

try:
    import cv2
except ImportError:
    cv2 = None

Array = np.ndarray[Any, Any]
# The number of files, and their height and width.
FILES = 256
SIZE = (192, 256)
RESIZED = 256
CROPPED = 200
QUALITY = 90


def read(path: str) -> Array:
    if cv2 is not None:
        return np.asarray(cv2.imread(path, cv2.IMREAD_COLOR))
    from PIL import Image

    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


def resize(image: Array) -> Array:
    if cv2 is not None:
        return np.asarray(
            cv2.resize(image, (RESIZED, RESIZED), interpolation=cv2.INTER_LINEAR)
        )
    from PIL import Image

    return np.asarray(
        Image.fromarray(image).resize((RESIZED, RESIZED), Image.Resampling.BILINEAR)
    )


def make_files(folder: Path, count: int = FILES) -> None:
    """Write JPEG files of smooth shapes with a little noise.

    They compress like photographs; those that are there already are left.
    """
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / f"{number:04}.jpg"
        if not path.exists():
            rng = np.random.default_rng(number)
            coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
            smooth = np.kron(coarse, np.ones((SIZE[0] // 6, SIZE[1] // 8, 1), np.uint8))
            noise = rng.integers(0, 24, smooth.shape, np.uint8)
            Image.fromarray(np.minimum(smooth, 231) + noise).save(path, quality=QUALITY)


class Files(Endless):
    """`dataset[i]` reads a file; an endless row of them."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)

    def __getitem__(self, index: int) -> Any:
        return read(self._paths[index % len(self._paths)])


class Augmented(Files):
    """The same, augmented where it is read."""

    def __init__(self, paths: Sequence[str], cost: int) -> None:
        super().__init__(paths)
        self._cost = cost
        self._augment: Callable[[Array], Array] | None = None

    def __getitem__(self, index: int) -> Any:
        if self._augment is None:
            self._augment = augmentation(self._cost)
        return self._augment(super().__getitem__(index))

    def __getstate__(self) -> dict[str, Any]:
        # Each process makes an augmentation of its own.
        return self.__dict__ | {"_augment": None}


def augmentation(cost: int) -> Callable[[Array], Array]:
    """Resize to 256×256 and crop 200×200 at random, `cost` times over."""
    try:
        import albumentations
    except ImportError:
        return _own_augmentation(cost)
    steps = [
        albumentations.Resize(RESIZED, RESIZED),
        albumentations.RandomCrop(CROPPED, CROPPED),
    ]
    composed = albumentations.Compose(steps * cost, seed=0)
    return lambda image: np.asarray(composed(image=image)["image"])


def _own_augmentation(cost: int) -> Callable[[Array], Array]:
    rng = random.Random(0)

    def augment(image: Array) -> Array:
        for _ in range(cost):
            top = rng.randrange(RESIZED - CROPPED + 1)
            left = rng.randrange(RESIZED - CROPPED + 1)
            image = resize(image)[top : top + CROPPED, left : left + CROPPED]
        return image

    return augment
