"""A folder of photographs, some of them broken: decoded no larger than needed, augmented, and normalised.

python examples/image_folder.py [FOLDER]

FOLDER has a folder for each class; without one, some pictures are drawn.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import mpiter
from mpiter.images import Compose, Flip, ImageFolder, Normalize, RandomResizedCrop


def draw_some(root: Path, classes: int = 3, pictures: int = 40) -> None:
    """Large ones, of which every tenth is cut off."""
    rng = np.random.default_rng(0)
    for name in (f"class{number}" for number in range(classes)):
        (root / name).mkdir()
        for number in range(pictures):
            coarse = Image.fromarray(rng.integers(0, 255, (6, 8, 3), np.uint8))
            path = root / name / f"{number:03}.jpg"
            coarse.resize((1024, 768), Image.Resampling.BICUBIC).save(path, quality=88)
            if number % 10 == 7:
                path.write_bytes(path.read_bytes()[:5000])


def main(root: Path) -> None:
    augment = Compose([RandomResizedCrop(128), Flip(), Normalize()])
    photographs = ImageFolder(root, augment, scaled=True)
    print(f"{len(photographs)} pictures of {len(photographs.classes)} classes")
    limit = mpiter.Skip(most=len(photographs) // 5)
    with mpiter.batches(photographs, 16, n_processes=2, seed=0, on_error=limit) as stream:
        for pictures, labels in stream:  # float32, (16, 3, 128, 128) each; train here
            assert len(pictures) == len(labels)
        stats = stream.stats()
    print(f"decoded by {stats.dataset['decoder']}")
    print(f"{stats.samples} in batches, {stats.skipped} left out; the first of these:")
    for index, error in stats.skips[:3]:
        print(f"  {photographs.paths[index]}: {error}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            draw_some(Path(folder))
            main(Path(folder))
