"""What transforms do with pixels: cut, resize, flip; arrays and images of Pillow's alike, to the same values.

Pure.  What comes back is an array where Pillow isn't needed again, and an image of Pillow's where it was one.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..errors import OptionError

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers


def filter_named(name: str) -> int:
    """Pillow's number for it."""
    if name not in FILTERS:
        raise OptionError(f"filter={name!r} is unknown; use one of {', '.join(map(repr, FILTERS))}.")
    return FILTERS[name]


def is_pillows(image: Any) -> bool:
    """An image of Pillow's, not an array?"""
    return hasattr(image, "getbands")


def size_of(image: Any) -> tuple[int, int]:
    """Height and width."""
    if is_pillows(image):
        return image.height, image.width
    if getattr(image, "ndim", 0) != 3:
        raise TypeError(f"transforms take arrays of height, width, channels, not {_described(image)}.")
    height, width = image.shape[:2]
    return height, width


def plain(image: Any) -> Any:
    """An array of height, width, channels."""
    if not is_pillows(image):
        size_of(image)
        return image
    array = np.array(image)
    return array[:, :, None] if array.ndim == 2 else array


def cut(image: Any, box: tuple[int, int, int, int]) -> Any:
    """Left, top, right, bottom."""
    left, top, right, bottom = box
    return image.crop(box) if is_pillows(image) else image[top:bottom, left:right]


def flipped(image: Any, upside_down: bool) -> Any:
    """The mirror image."""
    if is_pillows(image):
        return image.transpose(1 if upside_down else 0)
    return image[::-1] if upside_down else image[:, ::-1]


def resized(image: Any, box: tuple[float, float, float, float], size: tuple[int, int], filter: int) -> Any:
    """A part of it in this height and width; if it is of whole pixels, what lies around it has no influence."""
    whole = tuple(map(round, box))
    exact = all(abs(a - b) < 1e-6 for a, b in zip(whole, box, strict=True))
    (left, top, right, bottom) = whole
    height, width = size_of(image)
    if exact and whole != (0, 0, width, height):
        image = cut(image, (left, top, right, bottom))
    if exact and size == size_of(image):
        return image
    within = None if exact else (max(0, box[0]), max(0, box[1]), min(width, box[2]), min(height, box[3]))
    if is_pillows(image):
        return image.resize(size[::-1], filter, within)
    return _of_array(image, size, filter, within)


def _of_array(array: Any, size: tuple[int, int], filter: int, within: Any) -> Any:
    from PIL import Image

    channels = array.shape[2]
    if array.dtype != np.uint8 or channels not in (1, 3, 4):
        raise TypeError(f"transforms resize arrays of uint8 with 1, 3 or 4 channels, not {_described(array)}.")
    image = Image.fromarray(np.ascontiguousarray(array[:, :, 0] if channels == 1 else array))
    return plain(image.resize(size[::-1], filter, within))


def _described(image: Any) -> str:
    shape = getattr(image, "shape", None)
    return type(image).__name__ if shape is None else f"{image.dtype} of shape {tuple(shape)}"
