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
from mpiter.images import Compose, Crop, Flip, ImageFolder, ImageList, Normalize, RandomResizedCrop, Resize

SIDE = 128


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


def train(root: Path) -> ImageFolder:
    """Augmented float32, channels first; broken files are left out, up to a limit, and listed."""
    augment = Compose(
        [
            RandomResizedCrop(SIDE, scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3), filter="bilinear"),
            Flip(p=0.5, direction="horizontal"),
            Crop(SIDE, at="random", padding=8),
            Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), layout="CHW"),
        ]
    )
    photographs = ImageFolder(
        root,
        augment,
        extensions=(".jpg", ".jpeg"),
        decoder="auto",  # the fastest that is installed; all give the same pixels
        scaled=True,  # decoded no larger than the first transform wants
        upright=True,  # turned as the camera says
    )
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
    return photographs


def validate(photographs: ImageFolder) -> None:
    """Every tenth of a list, grey, from the middle; uint8, which the device may normalise."""
    pairs = [(path, photographs.class_to_idx[Path(path).parts[0]]) for path in photographs.paths[::10]]
    middle = Compose([Resize(SIDE, filter="bicubic"), Crop(SIDE, at="center")])
    held_out = ImageList(pairs, middle, root=photographs.root, mode="L", layout="CHW", dtype="uint8")
    with mpiter.batches(held_out, 16, n_processes=2, shuffle=False, on_error="skip") as stream:
        for pictures, _ in stream:
            assert (pictures.dtype, pictures.shape[1:]) == (np.uint8, (1, SIDE, SIDE))
        print(f"{stream.stats().samples} held out, in grey")


def main(root: Path) -> None:
    validate(train(root))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            draw_some(Path(folder))
            main(Path(folder))
