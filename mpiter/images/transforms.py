"""Transforms of pictures: arrays of height, width, channels, of uint8, or images of Pillow's.

Run wherever the dataset does.  They draw from ``mpiter.get_rng()``, so that a sample's draws depend on its place in the
order and on no worker.  One that offers ``region`` and ``apply`` says beforehand which part of a picture it wants, and
how large: a decoder may then decode fewer pixels.  Pillow does the resizing, OpenCV where the filter is its own.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, SupportsIndex

import numpy as np

from ..errors import OptionError
from ..worker.seeding import get_rng
from .adapt import Albumentation, Torchvision, adapted
from .pixels import Filter, cut, filter_named, flipped, like, plain, resized, size_of

_TRIES = 10  # for a region that lies within the picture, as torchvision has it


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a picture, and the size that it is wanted in.

    Attributes:
        top, left, height, width: of the part, in pixels of the whole picture.
        of: height and width of the whole picture.
        size: height and width that it will have.

    >>> Region(0, 100, 2000, 2000, of=(3000, 4000), size=(224, 224)).factor
    8
    """

    top: int
    left: int
    height: int
    width: int
    of: tuple[int, int]
    size: tuple[int, int]

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

    >>> import numpy as np
    >>> Resize(8)(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 16, 3)
    """

    def __init__(self, size: int | tuple[int, int], filter: Filter = "bilinear") -> None:
        both = _size("size", size)
        self.size: int | tuple[int, int] = both if isinstance(size, Iterable) else both[0]
        self._filter = filter_named(filter)

    def __call__(self, image: Any) -> Any:
        return like(self.apply(image, self.region(*size_of(image))), image)

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


class RandomResizedCrop:
    """A random part of the picture, of a share of its area within ``scale`` and of a shape within ``ratio``, resized.

    The distribution is torchvision's.

    >>> import numpy as np
    >>> RandomResizedCrop(8)(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 8, 3)
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        filter: Filter = "bilinear",
    ) -> None:
        self.size, self.scale, self.ratio = _size("size", size), _range("scale", scale), _range("ratio", ratio)
        self._filter = filter_named(filter)

    def __call__(self, image: Any) -> Any:
        return like(self.apply(image, self.region(*size_of(image))), image)

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
                return Region(top, left, h, w, of, self.size)
        h, w = height, width  # the middle, as near to it in shape as may be
        if width / height < self.ratio[0]:
            h = min(height, max(1, round(width / self.ratio[0])))
        elif width / height > self.ratio[1]:
            w = min(width, max(1, round(height * self.ratio[1])))
        return Region((height - h) // 2, (width - w) // 2, h, w, of, self.size)

    def apply(self, image: Any, region: Region) -> Any:
        """To a picture that has been decoded for it."""
        return resized(image, region.box(*size_of(image)), region.size, self._filter)


class Crop:
    """A part of ``size``, at random or in the middle, after so many black pixels have been put around the picture.

    >>> import numpy as np
    >>> Crop(8)(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 8, 3)
    """

    def __init__(
        self, size: int | tuple[int, int], at: Literal["center", "random"] = "center", padding: int = 0
    ) -> None:
        if at not in ("center", "random"):
            raise OptionError(f"at={at!r} is unknown; use 'center' or 'random'.")
        if not isinstance(padding, SupportsIndex) or padding < 0:
            raise OptionError(f"padding={padding!r:.80} must be a whole number of pixels from 0 on.")
        self.size, self.at, self.padding = _size("size", size), at, padding

    def __call__(self, image: Any) -> Any:
        if self.padding:
            around = (self.padding, self.padding)
            image = np.pad(plain(image), (around, around, (0, 0)))
        (height, width), (h, w) = size_of(image), self.size
        if h > height or w > width:
            raise ValueError(
                f"Crop({self.size}) of a picture of {(height, width)}: it is too small; put Resize before."
            )
        top, left = (height - h) // 2, (width - w) // 2
        if self.at == "random":
            rng = get_rng()
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
        return cut(image, (left, top, left + w, top + h))


class Flip:
    """The mirror image, with this probability; "vertical": upside down.

    >>> import numpy as np
    >>> Flip(p=1)(np.arange(3, dtype=np.uint8).reshape(1, 3, 1)).ravel()
    array([2, 1, 0], dtype=uint8)
    """

    def __init__(self, p: float = 0.5, direction: Literal["horizontal", "vertical"] = "horizontal") -> None:
        if not 0 <= p <= 1:
            raise OptionError(f"p={p!r} must be a probability from 0 to 1.")
        if direction not in ("horizontal", "vertical"):
            raise OptionError(f"direction={direction!r} is unknown; use 'horizontal' or 'vertical'.")
        self.p, self.direction = p, direction

    def __call__(self, image: Any) -> Any:
        return flipped(image, self.direction == "vertical") if get_rng().random() < self.p else image


class Normalize:
    """float32, ``(pixel / 255 - mean) / std`` of each channel; ``layout="CHW"``: channels first.

    The last of a pipeline.  Without it pixels stay uint8 and the device may do the same with a quarter of the traffic.

    >>> import numpy as np
    >>> Normalize(mean=(0.5,), std=(0.5,))(np.full((2, 2, 1), 255, np.uint8)).shape
    (1, 2, 2)
    """

    def __init__(
        self,
        mean: Sequence[float] = (0.485, 0.456, 0.406),
        std: Sequence[float] = (0.229, 0.224, 0.225),
        layout: Literal["CHW", "HWC"] = "CHW",
    ) -> None:
        if layout not in ("CHW", "HWC"):
            raise OptionError(f"layout={layout!r} is unknown; use 'HWC' or 'CHW'.")
        if np.ndim(mean) != 1 or np.shape(mean) != np.shape(std) or not all(std):
            raise OptionError(f"mean={mean!r} and std={std!r} must be as many numbers, and no std 0.")
        self.layout = layout
        scale = 1 / (255 * np.asarray(std, np.float64))
        shift = -np.asarray(mean, np.float64) / np.asarray(std, np.float64)
        shape = (-1, 1, 1) if layout == "CHW" else (1, 1, -1)
        self._scale, self._shift = (x.astype(np.float32).reshape(shape) for x in (scale, shift))

    def __call__(self, image: Any) -> Any:
        pixels = plain(image)
        if pixels.dtype != np.uint8 or pixels.shape[2] != self._scale.size:
            raise TypeError(
                f"Normalize takes uint8 of {self._scale.size} channels, not {pixels.dtype} of {pixels.shape[2]}; give "
                f"as many means as there are channels, and put it last."
            )
        pixels = pixels.transpose(2, 0, 1) if self.layout == "CHW" else pixels
        out = np.multiply(pixels, self._scale, dtype=np.float32, order="C")
        out += self._shift
        return out


class Compose:
    """One after the other: these, and Albumentations' and torchvision's.

    >>> import numpy as np
    >>> from mpiter.images import Flip, Normalize, RandomResizedCrop
    >>> pipeline = Compose([RandomResizedCrop(8), Flip(), Normalize()])
    >>> pipeline(np.zeros((16, 32, 3), np.uint8)).shape
    (3, 8, 8)
    """

    def __init__(self, transforms: Iterable[Any]) -> None:
        self.transforms = tuple(transforms)
        self._steps = tuple(map(adapted, self.transforms))
        if not self._steps:
            raise OptionError("Compose needs a transform, at least.")
        _check_order(self._leaves())
        self.layout = next((step.layout for step in reversed(self._steps) if hasattr(step, "layout")), "HWC")
        if hasattr(self._steps[0], "region"):
            self.region, self.apply = self._steps[0].region, self._apply

    def __call__(self, image: Any) -> Any:
        return like(self._through(self._steps, image), image)

    def _apply(self, image: Any, region: Region) -> Any:
        return self._through(self._steps[1:], self._steps[0].apply(image, region))

    def _leaves(self) -> Iterator[Any]:
        for step in self._steps:
            yield from step._leaves() if isinstance(step, Compose) else (step,)

    def _through(self, steps: Sequence[Any], image: Any) -> Any:
        for step in steps:
            image = step.apply(image, step.region(*size_of(image))) if hasattr(step, "region") else step(image)
        return image


_TAKE_ROWS_FIRST = (Resize, RandomResizedCrop, Crop, Flip, Albumentation, Torchvision)


def _check_order(steps: Iterable[Any]) -> None:
    """Refuse what would take channels for rows, and give other pixels without a word."""
    for before, after in pairwise(steps):
        if getattr(before, "layout", "HWC") == "CHW" and isinstance(after, _TAKE_ROWS_FIRST):
            raise OptionError(
                f"{type(after).__name__} takes height, width, channels, and {type(before).__name__} before it puts "
                f"channels first; put that last, or give it layout='HWC'."
            )


def _size(name: str, size: Any) -> tuple[int, int]:
    """Height and width."""
    try:
        height, width = map(operator.index, size if isinstance(size, Iterable) else (size, size))
        if min(height, width) > 0:
            return height, width
    except (TypeError, ValueError):
        pass
    raise OptionError(f"{name}={size!r:.80} must be a whole number of pixels, or two: (height, width).")


def _range(name: str, pair: Any) -> tuple[float, float]:
    try:
        low, high = map(float, pair)
        if 0 < low <= high:
            return low, high
    except (TypeError, ValueError):
        pass
    raise OptionError(f"{name}={pair!r:.80} must be two numbers above 0, the smaller first.")
