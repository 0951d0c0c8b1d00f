"""Transforms of pictures, ours and other people's: arrays of height, width, channels, of uint8.

They draw from ``mpiter.get_rng()``, so that a sample's draws depend on its place in the order and on no worker.  One
that offers ``region`` and ``apply`` says beforehand which part of a picture it wants, and how large: a decoder may then
decode fewer pixels.  Albumentations' and torchvision's are known by their modules' names.
"""

from __future__ import annotations

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
from .pixels import Filter, as_pillows, check_is_one, filter_named, plain, resized, size_of

Size = int | tuple[int, int]  # height and width
Pair = tuple[float, float]
LAYOUTS = ("HWC", "CHW")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as everybody takes them
_TRIES = 10  # for a region that lies within the picture, as torchvision has it


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a picture, in pixels of the whole, and the size that it is wanted in.

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
        """How many times fewer rows and columns suffice: 1, 2, 4 or 8."""
        least = min(self.height // max(1, self.size[0]), self.width // max(1, self.size[1]))
        return next((factor for factor in (8, 4, 2) if factor <= least), 1)

    def box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom in a picture that was decoded to so many rows and columns."""
        down, across = height / self.of[0], width / self.of[1]
        right, bottom = self.left + self.width, self.top + self.height
        return self.left * across, self.top * down, right * across, bottom * down


class Resize:
    """Resize to ``(height, width)``, or to so many pixels on the shorter side.

    >>> Resize(8).region(16, 32).size
    (8, 16)
    """

    def __init__(self, size: Size, filter: Filter = "bilinear") -> None:
        self.size: Size = _size(size) if isinstance(size, Iterable) else _size(size)[0]
        self._filter = filter_named(filter)

    def region(self, height: int, width: int) -> Region:
        """All of it."""
        size = self.size
        if isinstance(size, int):
            short = min(height, width)
            size = (max(1, size * height // short), max(1, size * width // short))
        return Region(0, 0, height, width, (height, width), size)

    def apply(self, image: Any, region: Region) -> Any:
        """To a picture that has been decoded for it."""
        return resized(image, region.box(*size_of(image)), region.size, self._filter)

    def __call__(self, image: Any) -> Any:
        return self.apply(image, self.region(*size_of(image)))


class RandomResizedCrop(Resize):
    """A random part of the picture, of a share of its area within ``scale`` and of a shape within ``ratio``, resized.

    The distribution is torchvision's.

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
        """Drawn anew each time."""
        rng, of = get_rng(), (height, width)
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
                return Region(top, left, h, w, of, self._size)
        h, w = height, width  # the middle, as near to it in shape as may be
        if width / height < self.ratio[0]:
            h = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = min(width, max(1, round(height * self.ratio[1])))
        return Region((height - h) // 2, (width - w) // 2, h, w, of, self._size)


class Crop:
    """A part of ``size``, at random or in the middle, after so many black pixels have been put around the picture.

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
    """The mirror image, with this probability; "vertical": upside down.

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
        return image.take(np.arange(image.shape[1] - 1, -1, -1), axis=1)  # half the time of a view that is copied later


class Normalize:
    """float32, ``(pixel / 255 - mean) / std`` of each channel; ``layout="CHW"``: channels first.

    The last of a pipeline.  Without it pixels stay uint8 and the device may do the same with a quarter of the traffic.

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
    """One after the other: these, and Albumentations' and torchvision's.

    >>> from mpiter.images import Flip, Resize
    >>> Compose([Resize(8), Flip()]).region(16, 32).size
    (8, 16)
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        flat = (step for one in transforms for step in (one._steps if type(one) is Compose else [one]))
        self._steps: list[Any] = list(map(adapted, flat))
        if not self._steps:
            raise OptionError("Compose needs a transform, at least.")
        for before, after in pairwise(self._steps):  # what takes channels for rows would give other pixels
            if getattr(before, "layout", "HWC") == "CHW" and type(after) is not OnArrays:
                raise OptionError(
                    f"{type(after).__name__} takes height, width, channels, and {type(before).__name__} before it puts "
                    f"channels first; put that last, or give it layout='HWC'."
                )
        self.layout = next((step.layout for step in reversed(self._steps) if hasattr(step, "layout")), "HWC")
        if hasattr(self._steps[0], "region"):
            self.region = self._steps[0].region

    def apply(self, image: Any, region: Region) -> Any:
        """To a picture that has been decoded for the region."""
        return reduce(_then, self._steps[1:], self._steps[0].apply(image, region))

    def __call__(self, image: Any) -> Any:
        return reduce(_then, self._steps, image)


def _then(image: Any, step: Any) -> Any:
    return step(image)


def adapted(transform: Any) -> Any:
    """A function of an array or of an image of Pillow's, with the ``region``, ``apply`` and ``layout`` that it has."""
    if isinstance(transform, type) or not (callable(transform) or hasattr(transform, "region")):
        raise OptionError(f"transform={transform!r:.60} is no function; pass one of a picture, or a Compose.")
    library = type(transform).__module__.partition(".")[0]
    if library == "mpiter" or isinstance(transform, OnArrays):
        return transform
    return {"albumentations": Albumentation, "torchvision": Torchvision}.get(library, OnArrays)(transform)


class OnArrays:
    """A function of the user's, or what has ``region`` and ``apply``; it gets arrays."""

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
    """Called with ``image=``, gives a dict; has generators of its own, which each sample seeds."""

    def __call__(self, image: Any) -> Any:
        rng, transform = get_rng(), self._transform
        if hasattr(transform, "set_random_state"):  # older ones draw from the global generators
            transform.set_random_state(rng, random.Random(int(rng.integers(1 << 62))))
        return transform(image=plain(image))["image"]


class Torchvision(OnArrays):
    """Takes images of Pillow's, and tensors, which come of those before it; draws from torch's generator."""

    def __call__(self, image: Any) -> Any:
        return self._transform(as_pillows(image) if isinstance(image, np.ndarray) else image)


def _size(size: Any) -> tuple[int, int]:
    """Height and width."""
    both = tuple(size) if isinstance(size, Iterable) else (size, size)
    if len(both) != 2 or not all(isinstance(side, (int, np.integer)) and side > 0 for side in both):
        raise OptionError(f"size={size!r:.80} must be a whole number of pixels, or two: (height, width).")
    return int(both[0]), int(both[1])
