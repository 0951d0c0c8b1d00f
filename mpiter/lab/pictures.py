"""Image files: made or found, read by the fastest decoder there is, and augmented at a cost that can be chosen.

Runs in the driver (making files), in the process that is measured and in its workers.  Guarantees that generated files
depend on the seed alone; that every loader reads the same files by the same decoder; that an augmentation of cost `n`
is the one of cost 1, done `n` times.
Assumes Pillow or OpenCV; without either, what needs pictures is absent, with a word how to get one.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .payloads import Endless
from .turns import Absent

Array = np.ndarray[Any, Any]
MADE, FEW, SIZE = 256, 64, (192, 256)  # how many files, how many for a short run, and their height and width
RESIZED, CROPPED = 256, 200
QUALITY = 90
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
_REMEDY = "pip install Pillow (or opencv-python-headless)"


class PillowReader:
    """Pillow, RGB."""

    name = "Pillow"

    def __init__(self) -> None:
        from PIL import Image

        self._image = Image

    def read(self, path: str) -> Array:
        with self._image.open(path) as opened:
            return np.asarray(opened.convert("RGB"))

    def resize(self, image: Array, side: int) -> Array:
        return np.asarray(self._image.fromarray(image).resize((side, side), self._image.Resampling.BILINEAR))

    def write(self, path: str, image: Array) -> None:
        self._image.fromarray(image).save(path, quality=QUALITY)


class OpenCvReader:
    """OpenCV, BGR, as the original read them."""

    name = "cv2"

    def __init__(self) -> None:
        import cv2

        self._cv2 = cv2

    def read(self, path: str) -> Array:
        image = self._cv2.imread(path, self._cv2.IMREAD_COLOR)
        if image is None:
            raise OSError(f"{path} is no image that OpenCV can read")
        return np.asarray(image)

    def resize(self, image: Array, side: int) -> Array:
        return np.asarray(self._cv2.resize(image, (side, side), interpolation=self._cv2.INTER_LINEAR))

    def write(self, path: str, image: Array) -> None:
        self._cv2.imwrite(path, image, [self._cv2.IMWRITE_JPEG_QUALITY, QUALITY])


Reader = PillowReader | OpenCvReader


def reader() -> Reader:
    """OpenCV where it is installed, else Pillow."""
    for kind in (OpenCvReader, PillowReader):
        try:
            return kind()
        except ImportError:
            continue
    raise Absent(f"no image library is installed: {_REMEDY}")


def make_files(folder: Path, seed: int, count: int = MADE) -> list[str]:
    """JPEG files of smooth shapes with a little noise, which compress like photographs."""
    writer, rng = reader(), np.random.default_rng(seed)
    height, width = SIZE
    paths = []
    for number in range(count):
        coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
        smooth = np.kron(coarse, np.ones((height // 6, width // 8, 1), np.uint8))
        noise = rng.integers(0, 24, smooth.shape, np.uint8)
        path = str(folder / f"{number:04}.jpg")
        writer.write(path, np.minimum(smooth, 231) + noise)
        paths.append(path)
    return paths


@contextmanager
def provided(options: argparse.Namespace, are_needed: bool = True) -> Iterator[None]:
    """`options.paths`: the user's files, or some made for as long as they are needed; none where none are."""
    options.paths = []
    images: Path | None = getattr(options, "images", None)
    if images is not None:
        options.paths = found_files(images)
        yield
    elif are_needed:
        with tempfile.TemporaryDirectory(prefix="mpiter-lab-") as folder:
            options.paths = make_files(Path(folder), options.seed, FEW if options.small else MADE)
            yield
    else:
        yield


def found_files(folder: Path) -> list[str]:
    paths = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise Absent(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    return paths


class Files(Endless):
    """`dataset[i]` reads a file; an endless row of them."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = list(paths)
        self._reader: Reader | None = None

    def read(self, index: int) -> Array:
        if self._reader is None:
            self._reader = reader()
        return self._reader.read(self._paths[index % len(self._paths)])

    def __getitem__(self, index: int) -> Any:
        return self.read(index)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_reader": None}  # each process has its own


class Augmented(Files):
    """The same, augmented where it is read: `dataset[i]` is `transform(read(i))`."""

    def __init__(self, paths: Sequence[str], cost: int, seed: int) -> None:
        super().__init__(paths)
        self._cost, self._seed = cost, seed
        self._augment: Callable[[Array], Array] | None = None

    def transform(self, image: Array) -> Array:
        if self._augment is None:
            self._augment = augmentation(self._cost, self._seed)
        return self._augment(image)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_augment": None}


def augmentation(cost: int, seed: int) -> Callable[[Array], Array]:
    """Resize to 256×256 and crop 200×200 at random, `cost` times over; by Albumentations where it is installed."""
    try:
        import albumentations
    except ImportError:
        return _own_augmentation(cost, seed)
    steps = [albumentations.Resize(RESIZED, RESIZED), albumentations.RandomCrop(CROPPED, CROPPED)]
    try:
        composed = albumentations.Compose(steps * cost, seed=seed)
    except TypeError:  # before 1.4.19, which drew from the global generators
        random.seed(seed)
        composed = albumentations.Compose(steps * cost)
    return lambda image: np.asarray(composed(image=image)["image"])


def _own_augmentation(cost: int, seed: int) -> Callable[[Array], Array]:
    used, rng = reader(), random.Random(seed)

    def augment(image: Array) -> Array:
        for _ in range(cost):
            top, left = rng.randrange(RESIZED - CROPPED + 1), rng.randrange(RESIZED - CROPPED + 1)
            image = used.resize(image, RESIZED)[top : top + CROPPED, left : left + CROPPED]
        return image

    return augment


def augmenter() -> str:
    """Whose operations they are."""
    try:
        import albumentations
    except ImportError:
        return f"{reader().name} and NumPy"
    return f"Albumentations {albumentations.__version__}"
