"""Two thousand small files made one large one, which is read as the folder was.

python examples/packed_folder.py [FOLDER]

FOLDER has a folder for each class; without one, some pictures are drawn.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import mpiter
from mpiter.images import ImageFolder, PackedFolder, RandomResizedCrop


def draw_some(root: Path, classes: int = 4, pictures: int = 500) -> None:
    """Small ones, some notes beside them, and a link that leads out of the folder."""
    rng = np.random.default_rng(0)
    elsewhere = root.parent / "elsewhere.jpg"
    Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8)).save(elsewhere)
    for name in (f"class{number}" for number in range(classes)):
        (root / name).mkdir(parents=True)
        for number in range(pictures - 1):
            Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8)).save(root / name / f"{number:03}.jpg")
        (root / name / "linked.jpg").symlink_to(elsewhere)
        (root / name / "notes.txt").write_text("no picture")


def pack(folder: Path, out: Path) -> None:
    """As in a shell: mpiter pack FOLDER OUT --only '*.jpg' --follow --force"""
    command = [sys.executable, "-m", "mpiter", "pack", str(folder), str(out)]
    command += ["--only", "*.jpg", "--only", "*.png"]  # and no notes
    command += ["--force"]  # an archive that is there already is replaced, once this one is whole
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="", flush=True)


def epoch(dataset: ImageFolder | PackedFolder) -> float:
    """What training would see, in a number: order and crops follow from the seed, so it is the same or isn't."""
    with mpiter.batches(dataset, 50, n_processes=2, seed=0) as stream:
        return sum(
            float((pictures.mean((1, 2, 3)) * (step + labels)).sum()) for step, (pictures, labels) in enumerate(stream)
        )


def main(folder: Path, out: Path) -> None:
    pack(folder, out)
    crop = RandomResizedCrop(32)
    loose = ImageFolder(folder, crop)
    packed = PackedFolder(out, crop, extensions=(".jpg", ".png"))
    assert packed.classes == loose.classes
    same = epoch(loose) == epoch(packed)
    print(f"{len(packed)} pictures, {'the same pixels in the same order' if same else 'and they differ'}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary, "pictures")
        if not sys.argv[1:]:
            draw_some(given)
        main(given, Path(temporary, "pictures.zip"))
