"""Photographs, made up: JPEG files that cost what a photograph's do.

They do so to decode and to keep.

Guarantees that a file depends on size, seed and number alone, and is written whole or
not at all. Assumes Pillow; without it what needs photographs is absent.
"""

from __future__ import annotations

import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from driver import Absent

QUALITY = 88
SHAPES = 24
OCTAVES = 12


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a photograph, and the grain of its sensor.

    The grain makes a file as large as a photograph's.
    """

    width: int
    height: int
    grain: float

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


SMALL = Size(500, 375, 14)  # 80 kB
CAMERA = Size(4000, 3000, 8)  # 3.5 MB


def files_of(folder: Path, size: Size, count: int) -> list[str]:
    """Return the paths of so many photographs."""
    return [str(folder / str(size) / f"{number:03}.jpg") for number in range(count)]


def write_files(folder: Path, size: Size, count: int, seed: int = 0) -> list[str]:
    """Write files and return their paths; those that are there are left."""
    paths = files_of(folder, size, count)
    for number, path in enumerate(map(Path, paths)):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_bytes(photograph(np.random.default_rng((seed, number)), size))
            os.replace(part, path)
    return paths


def photograph(rng: np.random.Generator, size: Size) -> bytes:
    """Return a JPEG of noise of all sizes, of things with edges, and of grain.

    Nature has noise of all sizes too.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise Absent("photographs are made by Pillow: pip install Pillow") from error
    width = size.width
    height = size.height

    def noise(cells: int, bands: int) -> Any:
        coarse = rng.standard_normal(
            (bands, max(2, cells * height // width), cells), np.float32
        )
        bands_of = [
            Image.fromarray(band).resize((width, height), Image.Resampling.BICUBIC)
            for band in coarse
        ]
        return np.stack([np.asarray(band) for band in bands_of], axis=-1)

    sheet = Image.new("L", (width, height), 128)
    for _ in range(SHAPES):
        x = rng.integers(width)
        y = rng.integers(height)
        radius = rng.uniform(width / 40, width / 5)
        corners = np.sort(rng.uniform(0, 2 * math.pi, rng.integers(3, 8)))
        points = [
            (x + radius * math.cos(angle), y + radius * math.sin(angle))
            for angle in corners
        ]
        ImageDraw.Draw(sheet).polygon(points, fill=int(rng.integers(60, 200)))
    pixels = (
        np.asarray(sheet, np.float32)[:, :, None] * 0.7
        + 40
        + 18 * noise(4, 3)
        + 6 * noise(32, 3)
    )
    for octave in range(OCTAVES):
        if (cells := 3 << octave) < width / 2:
            pixels += 25 / math.sqrt(cells) * noise(cells, 1)
    pixels += size.grain * rng.standard_normal((height, width, 1), np.float32)
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(
        file, "JPEG", quality=QUALITY
    )
    return file.getvalue()
