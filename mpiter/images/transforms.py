"""Transforms of pictures (uint8 arrays of height, width, channels), and adapters for those of other packages.

They draw from ``mpiter.get_rng()``, so a sample's draws depend on its place in the order, not on the worker.  A
transform with ``region`` and ``apply`` tells before decoding which part of a picture it needs, and in what size; then
fewer pixels may be decoded.  Albumentations' and torchvision's transforms are recognized by their modules' names.
Pillow resizes; with filter="smooth" OpenCV does, except pictures with alpha or of dtypes that OpenCV can't resize.
"""

from __future__ import annotations

import importlib.util
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from ..errors import OptionError
from ..worker.seeding import get_rng

Size = int | tuple[int, int]  # height and width
Pair = tuple[float, float]
LAYOUTS = ("HWC", "CHW")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, the usual ones
Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "smooth"]
_PILLOWS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers
_OPENCV_TYPES = {np.dtype(name) for name in ("uint8", "uint16", "int16", "float32", "float64")}
_PILLOW_TYPES = {np.dtype(name) for name in ("bool", "uint8", "uint16", "int32", "float32")}  # with a single channel
_HALVED_FROM = 4.0  # if a picture shrinks so much, it is halved first: blurring all of it takes longer than Pillow
_TRIES = 10  # to draw a region that lies within the picture, as in torchvision


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a picture, in pixels of the whole picture, and the size to which that part will be resized.

    >>> Region(0, 100, 2000, 2000, of=(3000, 4000), size=(224, 224)).factor
    8
    """

    top: int
    left: int
    height: int
    width: int
    of: tuple[int, int]  # height and width of the whole
    size: tuple[int, int]  # height and width that the part will have

    @property
    def factor(self) -> int:
        """The factor (1, 2, 4 or 8) by which the decoder may reduce rows and columns."""
        least = min(self.height // max(1, self.size[0]), self.width // max(1, self.size[1]))
        return next((factor for factor in (8, 4, 2) if factor <= least), 1)

    def box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Return left, top, right and bottom in the picture as decoded to ``height`` rows and ``width`` columns."""
        down, across = height / self.of[0], width / self.of[1]
        right, bottom = self.left + self.width, self.top + self.height
        return self.left * across, self.top * down, right * across, bottom * down


class Resize:
    """Resizes to ``(height, width)``; a single number is the length of the shorter side.

    >>> Resize(8).region(16, 32).size
    (8, 16)
    """

    def __init__(self, size: Size, filter: Filter = "bilinear") -> None:
        self.size: Size = _size(size) if isinstance(size, Iterable) else _size(size)[0]
        check_is_one("filter", filter, (*_PILLOWS, "smooth"))
        if filter == "smooth" and not importlib.util.find_spec("cv2"):
            raise OptionError("filter='smooth' is OpenCV's; install opencv-python-headless, or use 'bilinear'.")
        self._filter = filter

    def region(self, height: int, width: int) -> Region:
        """Return the whole picture as the region that is needed."""
        size = self.size
        if isinstance(size, int):
            short = min(height, width)
            size = (max(1, size * height // short), max(1, size * width // short))
        return Region(0, 0, height, width, (height, width), size)

    def apply(self, image: Any, region: Region) -> Any:
        """Transform a picture that was decoded for the region."""
        return resized(image, region.box(*size_of(image)), region.size, self._filter)

    def __call__(self, image: Any) -> Any:
        return self.apply(image, self.region(*size_of(image)))


class RandomResizedCrop(Resize):
    """Cuts out a random part, with a share of the area in ``scale`` and width / height in ``ratio``, and resizes it.

    Regions have the same distribution as torchvision's.

    >>> RandomResizedCrop(8).region(16, 32).size
    (8, 8)
    """

    def __init__(
        self, size: Size, scale: Pair = (0.08, 1.0), ratio: Pair = (3 / 4, 4 / 3), filter: Filter = "bilinear"
    ) -> None:
        super().__init__(size, filter)
        self.size = self._size = _size(size)
        self.scale, self.ratio = scale, ratio

    def region(self, height: int, width: int) -> Region:
        """Draw a random region of a picture."""
        rng, of = get_rng(), (height, width)
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
                return Region(top, left, h, w, of, self._size)
        h, w = height, width  # the middle, as near to the ratio as possible
        if width / height < self.ratio[0]:
            h = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = min(width, max(1, round(height * self.ratio[1])))
        return Region((height - h) // 2, (width - w) // 2, h, w, of, self._size)


class Crop:
    """Cuts out a part of ``size``, random or central, after adding a black border of ``padding`` pixels on all sides.

    >>> Crop(8, "random", padding=2).size
    (8, 8)
    """

    def __init__(self, size: Size, at: Literal["center", "random"] = "center", padding: int = 0) -> None:
        check_is_one("at", at, ("center", "random"))
        self.size, self.at, self.padding = _size(size), at, padding

    def __call__(self, image: Any) -> Any:
        around = (self.padding, self.padding)
        image = np.pad(plain(image), (around, around, (0, 0))) if self.padding else plain(image)
        (height, width), (h, w) = size_of(image), self.size
        if h > height or w > width:
            raise ValueError(f"Crop({self.size}) of a picture of {height, width}: it is too small; put Resize before.")
        top, left = (height - h) // 2, (width - w) // 2
        if self.at == "random":
            rng = get_rng()
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
        return image[top : top + h, left : left + w]


class Flip:
    """Mirrors the picture with probability ``p``: left to right, or with "vertical" upside down.

    >>> import numpy as np
    >>> Flip(p=1)(np.arange(3, dtype=np.uint8).reshape(1, 3, 1)).ravel()
    array([2, 1, 0], dtype=uint8)
    """

    def __init__(self, p: float = 0.5, direction: Literal["horizontal", "vertical"] = "horizontal") -> None:
        if not 0 <= p <= 1:
            raise OptionError(f"p={p!r} must be a probability from 0 to 1.")
        check_is_one("direction", direction, ("horizontal", "vertical"))
        self.p, self.direction = p, direction

    def __call__(self, image: Any) -> Any:
        image = plain(image)
        if get_rng().random() >= self.p:
            return image
        if self.direction == "vertical":
            return image[::-1]
        return image.take(np.arange(image.shape[1] - 1, -1, -1), axis=1)  # faster than copying a reversed view


class Normalize:
    """Computes ``(pixel / 255 - mean) / std`` of each channel, as float32; ``layout="CHW"`` puts channels first.

    Must come last.  Without it pixels stay uint8, a quarter of the bytes, and the device may compute the same.

    >>> import numpy as np
    >>> Normalize(mean=(0.5,), std=(0.5,))(np.full((2, 2, 1), 255, np.uint8)).shape
    (1, 2, 2)
    """

    def __init__(
        self, mean: Sequence[float] = MEAN, std: Sequence[float] = STD, layout: Literal["CHW", "HWC"] = "CHW"
    ) -> None:
        check_is_one("layout", layout, LAYOUTS)
        if np.ndim(mean) != 1 or np.shape(mean) != np.shape(std) or not all(std):
            raise OptionError(f"mean={mean!r} and std={std!r} must be as many numbers, and no std 0.")
        self.layout = layout
        shape = (-1, 1, 1) if layout == "CHW" else (1, 1, -1)
        means, stds = (np.asarray(given, np.float64).reshape(shape) for given in (mean, std))
        self._scale, self._shift = (1 / (255 * stds)).astype(np.float32), (-means / stds).astype(np.float32)

    def __call__(self, image: Any) -> Any:
        pixels = plain(image)
        if pixels.dtype != np.uint8 or pixels.shape[2] != self._scale.size:
            raise TypeError(
                f"Normalize takes uint8 of {self._scale.size} channels, not {pixels.dtype} of {pixels.shape[2]}."
            )
        pixels = pixels.transpose(2, 0, 1) if self.layout == "CHW" else pixels
        out = np.multiply(pixels, self._scale, dtype=np.float32, order="C")
        out += self._shift
        return out


class Compose:
    """Applies transforms one after the other, Albumentations' and torchvision's included.

    >>> from mpiter.images import Flip, Resize
    >>> Compose([Resize(8), Flip()]).region(16, 32).size
    (8, 16)
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        flat = (step for one in transforms for step in (one._steps if type(one) is Compose else [one]))
        self._steps: list[Any] = list(map(adapted, flat))
        if not self._steps:
            raise OptionError("Compose needs a transform, at least.")
        for before, after in pairwise(self._steps):  # a step that takes channels for rows would give wrong pixels
            if getattr(before, "layout", "HWC") == "CHW" and type(after) is not OnArrays:
                raise OptionError(
                    f"{type(after).__name__} takes height, width, channels, and {type(before).__name__} before it puts "
                    f"channels first; put that last, or give it layout='HWC'."
                )
        self.layout = next((step.layout for step in reversed(self._steps) if hasattr(step, "layout")), "HWC")
        if hasattr(self._steps[0], "region"):
            self.region = self._steps[0].region

    def apply(self, image: Any, region: Region) -> Any:
        """Transform a picture that was decoded for the region."""
        return reduce(_then, self._steps[1:], self._steps[0].apply(image, region))

    def __call__(self, image: Any) -> Any:
        return reduce(_then, self._steps, image)


def _then(image: Any, step: Any) -> Any:
    return step(image)


def adapted(transform: Any) -> Any:
    """Return ``transform`` as an object that takes arrays and Pillow's images; its ``region`` stays available."""
    if isinstance(transform, type) or not (callable(transform) or hasattr(transform, "region")):
        raise OptionError(f"transform={transform!r:.60} is no function; pass one of a picture, or a Compose.")
    library = type(transform).__module__.partition(".")[0]
    if library == "mpiter" or isinstance(transform, OnArrays):
        return transform
    return {"albumentations": Albumentation, "torchvision": Torchvision}.get(library, OnArrays)(transform)


class OnArrays:
    """Wraps the user's function, or an object with ``region`` and ``apply``, so that it always gets arrays."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform
        for name in ("region", "layout"):
            if hasattr(transform, name):
                setattr(self, name, getattr(transform, name))

    def __call__(self, image: Any) -> Any:
        if callable(self._transform):
            return self._transform(plain(image))
        return self.apply(image, self._transform.region(*size_of(image)))

    def apply(self, image: Any, region: Any) -> Any:
        return self._transform.apply(plain(image), region)


class Albumentation(OnArrays):
    """Wraps a transform of Albumentations, and seeds its generators for each sample."""

    def __call__(self, image: Any) -> Any:
        rng, transform = get_rng(), self._transform
        if hasattr(transform, "set_random_state"):  # older versions draw from the global generators
            transform.set_random_state(rng, random.Random(int(rng.integers(1 << 62))))
        return transform(image=plain(image))["image"]


class Torchvision(OnArrays):
    """Wraps a transform of torchvision, which takes Pillow's images or tensors and draws from torch's generator."""

    def __call__(self, image: Any) -> Any:
        return self._transform(as_pillows(image) if isinstance(image, np.ndarray) else image)


def _size(size: Any) -> tuple[int, int]:
    """Return ``size``, which may be one number, as height and width."""
    both = tuple(size) if isinstance(size, Iterable) else (size, size)
    if len(both) != 2 or not all(isinstance(side, (int, np.integer)) and side > 0 for side in both):
        raise OptionError(f"size={size!r:.80} must be a whole number of pixels, or two: (height, width).")
    return int(both[0]), int(both[1])


# -- pixels ----------------------------------------------------------------------------------------------------------


def check_is_one(option: str, value: str, of: Iterable[str]) -> None:
    """Refuse a ``value`` that isn't among those of the option."""
    if value not in of:
        raise OptionError(f"{option}={value!r} is unknown; use one of {', '.join(map(repr, of))}.")


def is_pillows(image: Any) -> bool:
    return hasattr(image, "getbands")


def size_of(image: Any) -> tuple[int, int]:
    """Return the height and the width."""
    if is_pillows(image):
        return image.height, image.width
    if getattr(image, "ndim", 0) != 3:
        raise TypeError(f"transforms take arrays of height, width, channels, not {type(image).__name__}.")
    height, width, _ = image.shape
    return height, width


def plain(image: Any) -> Any:
    """Return ``image``, an array or Pillow's, as an array of height, width, channels."""
    image = _with_channels(np.array(image)) if is_pillows(image) else image
    size_of(image)
    return image


def resized(image: Any, box: tuple[float, float, float, float], size: tuple[int, int], filter: Filter) -> Any:
    """Resize the part ``box`` (left, top, right, bottom) of a picture to ``size`` (height, width)."""
    whole = left, top, right, bottom = tuple(map(round, box))
    exact = filter == "smooth" or all(abs(a - b) < 1e-6 for a, b in zip(whole, box, strict=True))
    height, width = size_of(image)
    if exact and whole != (0, 0, width, height):
        image = image.crop(whole) if is_pillows(image) else image[top:bottom, left:right]
    if exact and size == size_of(image):
        return plain(image)
    within = None if exact else (max(0, box[0]), max(0, box[1]), min(width, box[2]), min(height, box[3]))
    if filter == "smooth":
        image = plain(image)
        has_alpha = image.dtype == np.uint8 and image.shape[2] in (2, 4)  # colours of transparent pixels would show
        if image.dtype in _OPENCV_TYPES and not has_alpha:
            return _by_opencv(image, size)
    return plain(as_pillows(image).resize(size[::-1], _PILLOWS.get(filter, _PILLOWS["bilinear"]), within))


def _by_opencv(image: Any, size: tuple[int, int]) -> Any:
    """Resize by OpenCV: blur the picture according to how much it shrinks, then interpolate between four pixels."""
    import cv2

    down, across = (old / new for old, new in zip(image.shape[:2], size, strict=True))
    n, m = 1, 1  # rows and columns of pixels whose mean each pixel is
    while max(down, across) >= _HALVED_FROM:
        rows, columns = 1 + (down >= _HALVED_FROM), 1 + (across >= _HALVED_FROM)
        height, width = image.shape[0] // rows, image.shape[1] // columns
        image = image[: height * rows, : width * columns]
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
        n, m, down, across = n * rows, m * columns, down / rows, across / columns
    if max(down, across) > 1:
        image = cv2.sepFilter2D(image, -1, _blur(across, m), _blur(down, n))
    if n == m == 1:
        return _with_channels(cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR))
    places = np.array([[across, 0, (across - 1) / 2], [0, down, (down - 1) / 2]])  # halving may drop the last one
    how = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return _with_channels(cv2.warpAffine(image, places, size[::-1], flags=how, borderMode=cv2.BORDER_REPLICATE))


def _with_channels(image: Any) -> Any:
    """Add the axis of a single channel, which Pillow and OpenCV leave out."""
    return image[:, :, None] if image.ndim == 2 else image


def _blur(shrink: float, mean_of: int) -> Any:
    """Return the weights of a blur that, with linear interpolation after it, spreads as far as Pillow's "bilinear".

    A triangle of half-width n has the variance (n² - 1) / 6; the mean of k pixels in a row has (1 - 1 / k²) / 12.
    """
    square = max(1.0, shrink**2 - (1 - 1 / mean_of**2) / 2)
    n = int(square**0.5)
    more = (square - n**2) / (2 * n + 1)
    steps = np.abs(np.arange(-n, n + 1))
    narrow, wide = (np.maximum(0, half - steps) / half**2 for half in (n, n + 1))
    return (1 - more) * narrow + more * wide


def as_pillows(image: Any) -> Any:
    if is_pillows(image):
        return image
    from PIL import Image

    channels = image.shape[2]
    if image.dtype not in _PILLOW_TYPES or not 1 <= channels <= (4 if image.dtype == np.uint8 else 1):
        raise TypeError(
            f"Pillow resizes uint8 of up to 4 channels, uint16, int32, float32 or bool of one, not {image.dtype} of "
            f"shape {image.shape}; OpenCV's filter, 'smooth', takes more channels, and floats."
        )
    return Image.fromarray(np.ascontiguousarray(image[:, :, 0] if channels == 1 else image))
