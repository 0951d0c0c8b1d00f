"""The same few pictures as every dataset that there is of them: folders, packed,
staged; to go through every door.
"""

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
# In the folder that `drawn` spoils.
BROKEN = (4, 11)
AUGMENT = Compose([RandomResizedCrop(SIDE), Flip()])
FORMS: dict[str, dict[str, Any]] = {
    "uint8": {"transform": AUGMENT},
    "float32 CHW": {
        "transform": Compose([RandomResizedCrop(SIDE), Flip(), Normalize()]),
        "layout": "CHW",
    },
    # Draws nothing, so that it is the same with any loader.
    "fixed": {"transform": Resize((SIDE, SIDE))},
}


def drawn(folder: Path, broken: bool = False) -> Path:
    """A folder of pictures, some JPEG and some PNG; two of them cut off if it is to be
    ``broken``.
    """
    root = folder / ("broken" if broken else "whole")
    for number in range(LENGTH):
        path = (
            root
            / f"class{number // EACH}"
            / f"{number:02}.{'png' if number % 3 == 0 else 'jpg'}"
        )
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
    """Batches of any loader, as copies: pictures, and their labels."""
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
