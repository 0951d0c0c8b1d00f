"""What transforms do with pixels: arrays of height, width, channels; an image of Pillow's too where that is resized.

Pure.  Pillow resizes; OpenCV is asked for the filters that are its own, and for nothing else: what has an alpha
channel, or pixels that OpenCV doesn't resize, is Pillow's then too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np

from ..errors import OptionError

Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "linear", "smooth"]
_PILLOWS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # its numbers
_OPENCVS = ("linear", "smooth")
_OPENCV_TYPES = {np.dtype(name) for name in ("uint8", "uint16", "int16", "float32", "float64")}
_PILLOW_TYPES = {np.dtype(name) for name in ("bool", "uint8", "uint16", "int32", "float32")}  # of a single channel
_HALVED_FROM = 4.0  # times that a picture shrinks: from there on blurring all of it takes longer than Pillow's way


def check_is_one(option: str, value: str, of: Iterable[str]) -> None:
    """An option that is one of a few words."""
    if value not in of:
        raise OptionError(f"{option}={value!r} is unknown; use one of {', '.join(map(repr, of))}.")


def filter_named(name: Filter) -> Filter:
    """The same, if there is one of that name."""
    check_is_one("filter", name, (*_PILLOWS, *_OPENCVS))
    if name in _OPENCVS and not importlib.util.find_spec("cv2"):
        raise OptionError(f"filter={name!r} is OpenCV's; install opencv-python-headless, or use 'bilinear'.")
    return name


def is_pillows(image: Any) -> bool:
    return hasattr(image, "getbands")


def size_of(image: Any) -> tuple[int, int]:
    """Height and width."""
    if is_pillows(image):
        return image.height, image.width
    if getattr(image, "ndim", 0) != 3:
        raise TypeError(f"transforms take arrays of height, width, channels, not {type(image).__name__}.")
    height, width, _ = image.shape
    return height, width


def plain(image: Any) -> Any:
    """An array of height, width, channels."""
    image = _with_channels(np.array(image)) if is_pillows(image) else image
    size_of(image)
    return image


def resized(image: Any, box: tuple[float, float, float, float], size: tuple[int, int], filter: Filter) -> Any:
    """A part of it in this height and width; if it is of whole pixels, what lies around it has no influence."""
    whole = left, top, right, bottom = tuple(map(round, box))
    exact = filter in _OPENCVS or all(abs(a - b) < 1e-6 for a, b in zip(whole, box, strict=True))
    height, width = size_of(image)
    if exact and whole != (0, 0, width, height):
        image = image.crop(whole) if is_pillows(image) else image[top:bottom, left:right]
    if exact and size == size_of(image):
        return plain(image)
    within = None if exact else (max(0, box[0]), max(0, box[1]), min(width, box[2]), min(height, box[3]))
    if filter in _OPENCVS:
        image = plain(image)
        has_alpha = image.dtype == np.uint8 and image.shape[2] in (2, 4)  # what is transparent would colour what is not
        if image.dtype in _OPENCV_TYPES and not has_alpha:
            return _by_opencv(image, size, filter == "smooth")
    return plain(as_pillows(image).resize(size[::-1], _PILLOWS.get(filter, _PILLOWS["bilinear"]), within))


def _by_opencv(image: Any, size: tuple[int, int], smooth: bool) -> Any:
    """Between four pixels each; if they are to stand for more than themselves, of a blurred picture."""
    import cv2

    down, across = (old / new for old, new in zip(image.shape[:2], size, strict=True))
    n, m = 1, 1  # pixels each way whose mean one is
    while smooth and max(down, across) >= _HALVED_FROM:
        rows, columns = 1 + (down >= _HALVED_FROM), 1 + (across >= _HALVED_FROM)
        height, width = image.shape[0] // rows, image.shape[1] // columns
        image = image[: height * rows, : width * columns]
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        n, m, down, across = n * rows, m * columns, down / rows, across / columns
    if smooth and max(down, across) > 1:
        image = cv2.sepFilter2D(image, -1, _blur(across, m), _blur(down, n))
    if n == m == 1:
        return _with_channels(cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR))
    places = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2]])  # halves may lack the last pixel
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return _with_channels(cv2.warpAffine(image, places, size[::-1], flags=how, borderMode=cv2.BORDER_REPLICATE))


def _with_channels(image: Any) -> Any:
    """Pillow and OpenCV leave the axis of a single channel out."""
    return image[:, :, None] if image.ndim == 2 else image


def _blur(shrink: float, mean_of: int) -> Any:
    """Weights of neighbours; with the line between two pixels they spread as far as Pillow's "bilinear" does.

    A triangle of half-width n has the variance (n² - 1) / 6; between two whole numbers, a mixture of both.  The mean of
    k pixels in a row has (1 - 1 / k²) / 12 already.
    """
    square = max(1.0, shrink**2 - (1 - 1 / mean_of**2) / 2)
    n = int(square**0.5)
    more = (square - n**2) / (2 * n + 1)
    steps = np.abs(np.arange(-n, n + 1))
    narrow, wide = (np.maximum(0, half - steps) / half**2 for half in (n, n + 1))
    return (1 - more) * narrow + more * wide


def as_pillows(image: Any) -> Any:
    """An image of Pillow's."""
    if is_pillows(image):
        return image
    from PIL import Image

    channels = image.shape[2]
    if image.dtype not in _PILLOW_TYPES or not 1 <= channels <= (4 if image.dtype == np.uint8 else 1):
        raise TypeError(
            f"Pillow resizes uint8 of up to 4 channels, uint16, int32, float32 or bool of one, not {image.dtype} of "
            f"shape {image.shape}; OpenCV's filters, 'smooth' and 'linear', take more channels, and floats."
        )
    return Image.fromarray(np.ascontiguousarray(image[:, :, 0] if channels == 1 else image))
