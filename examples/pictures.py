"""The demo's pictures, and the dataset that decodes and augments them.

In a module of its own, so that workers can import it whatever the demo is started as.
"""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import mpiter

NAMES = ("circle", "square", "triangle", "cross")
PICTURES = 1720
# The accuracy is measured on these, which are among the pictures and are never learnt.
HELD_OUT = 440
# Pixels a side, in the file and as the classifier sees them.
SIDE = 224
SMALL = 32


def draw(number: int, noise: np.ndarray) -> Image.Image:
    """Draw picture `number`: a bright shape on a dark ground, under noise.

    Its place and size are random.
    """
    rng = np.random.default_rng(number)
    picture = Image.new("RGB", (SIDE, SIDE), tuple(rng.integers(0, 90, 3).tolist()))
    pen = ImageDraw.Draw(picture)
    colour = tuple(rng.integers(130, 256, 3).tolist())
    x, y = (SIDE / 2 + rng.uniform(-0.1, 0.1, 2) * SIDE).tolist()
    r = float(rng.uniform(0.18, 0.28) * SIDE)
    match NAMES[number % len(NAMES)]:
        case "circle":
            pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        case "square":
            pen.rectangle((x - r, y - r, x + r, y + r), fill=colour)
        case "triangle":
            pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=colour)
        case "cross":
            pen.rectangle((x - r, y - r / 4, x + r, y + r / 4), fill=colour)
            pen.rectangle((x - r / 4, y - r, x + r / 4, y + r), fill=colour)
    noisy = np.asarray(picture, np.int16) + noise
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def write(folder: Path, step: Callable[[], None]) -> bool:
    """Fill the folder unless it is complete already; tell whether it had to."""
    complete = folder / "complete.json"
    recipe = json.dumps([PICTURES, SIDE, NAMES])
    if complete.exists() and complete.read_text() == recipe:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    noises = np.random.default_rng(0).normal(0, 12, (8, SIDE, SIDE, 3)).astype(np.int16)

    def write_one(number: int) -> None:
        picture = draw(number, noises[number % len(noises)])
        picture.save(folder / f"{number:05}.jpg", quality=90)
        step()

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write_one, range(PICTURES)))
    complete.write_text(recipe)
    return True


class Shapes:
    """The dataset: sample i is (pixels, label).

    The pixels are decoded from a file, in grey, and augmented with mpiter.get_rng().
    """

    def __init__(self, folder: Path, numbers: range, augment: bool = True) -> None:
        self.folder = folder
        self.numbers = numbers
        self.augment = augment

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.int32]:
        number = self.numbers[i]
        with Image.open(self.folder / f"{number:05}.jpg") as file:
            picture = file.convert("L")
        box = self.crop() if self.augment else (0, 0, SIDE, SIDE)
        small = picture.resize((SMALL, SMALL), Image.Resampling.BILINEAR, box)
        pixels = np.asarray(small, np.float32)
        if self.augment and mpiter.get_rng().random() < 0.5:
            pixels = pixels[:, ::-1]
        return np.ascontiguousarray(pixels) / 255 - 0.5, np.int32(number % len(NAMES))

    def crop(self) -> tuple[float, float, float, float]:
        """Return a random window, nearly as large as the picture."""
        rng = mpiter.get_rng()
        side = SIDE * rng.uniform(0.85, 1.0)
        left, top = rng.uniform(0, SIDE - side, 2)
        return left, top, left + side, top + side
