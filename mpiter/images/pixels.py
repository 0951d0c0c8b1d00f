"""What transforms do with pixels: cut, resize, flip; arrays and images of Pillow's alike, to the same values.

Pure.  What Pillow has resized stays its image until somebody wants an array: it cuts and flips faster than NumPy.
OpenCV is asked for the filters that are its own, and for nothing else.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import numpy as np

from ..errors import OptionError

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "linear", "smooth"]
_PILLOWS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # its numbers
_OPENCVS = ("linear", "smooth")


def filter_named(name: Filter) -> Filter:
    """The same, if there is one of that name."""
    if name not in _PILLOWS and name not in _OPENCVS:
        raise OptionError(f"filter={name!r} is unknown; use one of {', '.join(map(repr, (*_PILLOWS, *_OPENCVS)))}.")
    if name in _OPENCVS and not importlib.util.find_spec("cv2"):
        raise OptionError(f"filter={name!r} is OpenCV's; install opencv-python-headless, or use 'bilinear'.")
    return name


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
    if upside_down:
        return image[::-1]
    return image.take(np.arange(image.shape[1] - 1, -1, -1), axis=1)  # half the time of a view that is copied later


def resized(image: Any, box: tuple[float, float, float, float], size: tuple[int, int], filter: Filter) -> Any:
    """A part of it in this height and width; if it is of whole pixels, what lies around it has no influence."""
    whole = tuple(map(round, box))
    exact = filter in _OPENCVS or all(abs(a - b) < 1e-6 for a, b in zip(whole, box, strict=True))
    (left, top, right, bottom) = whole
    height, width = size_of(image)
    if exact and whole != (0, 0, width, height):
        image = cut(image, (left, top, right, bottom))
    if exact and size == size_of(image):
        return image
    within = None if exact else (max(0, box[0]), max(0, box[1]), min(width, box[2]), min(height, box[3]))
    if filter in _OPENCVS:
        return _by_opencv(plain(image), size, filter == "smooth")
    return as_pillows(image).resize(size[::-1], _PILLOWS[filter], within)


def _by_opencv(image: Any, size: tuple[int, int], smooth: bool) -> Any:
    """Between four pixels each; if they are to stand for more than themselves, of a blurred picture."""
    import cv2

    down, across = (max(1.0, old / new) for old, new in zip(image.shape[:2], size, strict=True))
    if smooth and max(down, across) > 1:
        image = cv2.sepFilter2D(image, -1, _blur(across), _blur(down))
    array = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    return array[:, :, None] if array.ndim == 2 else array


def _blur(shrink: float) -> Any:
    """Weights of neighbours; with the line between two pixels they spread as far as Pillow's "bilinear" does.

    A triangle of half-width n has the variance (n² - 1) / 6; between two whole numbers, a mixture of both.

    >>> _blur(2.0)
    array([0.  , 0.25, 0.5 , 0.25, 0.  ])
    """
    n = int(shrink)
    more = (shrink**2 - n**2) / (2 * n + 1)
    steps = np.abs(np.arange(-n, n + 1))
    narrow, wide = (np.maximum(0, half - steps) / half**2 for half in (n, n + 1))
    return (1 - more) * narrow + more * wide


def as_pillows(image: Any) -> Any:
    """An image of Pillow's."""
    if is_pillows(image):
        return image
    from PIL import Image

    channels = image.shape[2]
    if image.dtype != np.uint8 or channels not in (1, 3, 4):
        raise TypeError(f"transforms resize arrays of uint8 with 1, 3 or 4 channels, not {_described(image)}.")
    return Image.fromarray(np.ascontiguousarray(image[:, :, 0] if channels == 1 else image))


def like(image: Any, example: Any) -> Any:
    """An array if ``example`` is none of Pillow's."""
    return plain(image) if is_pillows(image) and not is_pillows(example) else image


def _described(image: Any) -> str:
    shape = getattr(image, "shape", None)
    return type(image).__name__ if shape is None else f"{image.dtype} of shape {tuple(shape)}"
