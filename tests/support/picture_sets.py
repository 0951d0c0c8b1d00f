"""The same few pictures as every kind of dataset: a folder, packed, and staged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import image_files
import numpy as np
from PIL import Image

from mpiter.images import (
    Compose,
    Flip,
    ImageFolder,
    Normalize,
    PackedFolder,
    RandomResizedCrop,
    Resize,
)
from mpiter.images.pack import pack
from mpiter.staging import Staging

CLASSES = 3
EACH = 6
SIDE = 12
LENGTH = CLASSES * EACH
# These files are broken in the folder that ``drawn(broken=True)`` makes.
BROKEN = (4, 11)
AUGMENT = Compose([RandomResizedCrop(SIDE), Flip()])
FORMS: dict[str, dict[str, Any]] = {
    "uint8": {"transform": AUGMENT},
    "float32 CHW": {
        "transform": Compose([RandomResizedCrop(SIDE), Flip(), Normalize()]),
        "layout": "CHW",
    },
    # This one draws no random numbers, so it is the same with any loader.
    "fixed": {"transform": Resize((SIDE, SIDE))},
}


def drawn(folder: Path, broken: bool = False) -> Path:
    """Make a folder of pictures, some JPEG and some PNG.

    If ``broken``, two of them are cut off.
    """
    root = folder / ("broken" if broken else "whole")
    for number in range(LENGTH):
        suffix = "png" if number % 3 == 0 else "jpg"
        path = root / f"class{number // EACH}" / f"{number:02}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image_files.smooth(40 + number, 60 - number, number)).save(path)
        if broken and number in BROKEN:
            path.write_bytes(path.read_bytes()[:300])
    return root


def folder_of(root: Path, place: Path, **form: Any) -> Any:
    return ImageFolder(root, **form)


def packed(root: Path, place: Path, **form: Any) -> Any:
    (place / "packed.zip").unlink(missing_ok=True)
    pack(root, place / "packed.zip")
    return PackedFolder(place / "packed.zip", **form)


def staged(root: Path, place: Path, **form: Any) -> Any:
    return Staging(place / "tier", "10MB").of(ImageFolder(root, **form))


def packed_and_staged(root: Path, place: Path, **form: Any) -> Any:
    return Staging(place / "tier of packed", "10MB").of(packed(root, place, **form))


KINDS = {"folder": folder_of, "packed and staged": packed_and_staged}


def plain(stream: Any, batches: int | None = None) -> list[tuple[Any, list[int]]]:
    """Copy the batches of any loader: their pictures, and their labels."""
    found = []
    for pictures, labels in stream:
        found.append((np.asarray(pictures).copy(), np.asarray(labels).tolist()))
        if len(found) == batches:
            break
    return found


def are_same(some: list[Any], others: list[Any]) -> bool:
    return [(x.dtype, x.shape, x.tobytes(), labels) for x, labels in some] == [
        (x.dtype, x.shape, x.tobytes(), labels) for x, labels in others
    ]
