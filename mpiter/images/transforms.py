"""Transforms of pictures, and adapters for those of other packages.

A picture is a uint8 array of height, width, channels, or Pillow's image.  They draw
from ``mpiter.get_rng()``, so a sample's draws depend on its place in the order, not on
the worker.  Pillow resizes.  Albumentations' and torchvision's transforms are
recognized by their modules' names.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, Never, TypeAlias, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from ..engine.options import whole
from ..errors import OptionError
from ..worker.seeding import get_rng

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

Array: TypeAlias = NDArray[Any]
Picture: TypeAlias = "Array | PillowImage"
Size = int | tuple[int, int]  # height and width
Pair = tuple[float, float]
# These are ImageNet's, the usual ones.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
# After this many parts that reach beyond the picture its middle is taken, as in
# torchvision.
_TRIES = 10


class Resize:
    """Resizes to ``(height, width)``; one number is the length of the shorter side.

    >>> import numpy as np
    >>> Resize(8)(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 16, 3)
    """

    def __init__(self, size: Size, filter: Filter = "bilinear") -> None:
        check_is_one("filter", filter, get_args(Filter))
        self.size: Size = _size(size)
        if not isinstance(size, Iterable):
            self.size = self.size[0]
        self._filter = filter

    def __call__(self, image: Picture) -> Array:
        height, width = size_of(image)
        size = self.size
        if isinstance(size, int):
            short = min(height, width)
            size = (
                max(1, size * height // short),
                max(1, size * width // short),
            )
        return _resized(image, size, self._filter)


class RandomResizedCrop:
    """Cuts out a random part and resizes it.

    The part has a share of the area in ``scale``, and its width / height lies in
    ``ratio``.  Parts have the same distribution as torchvision's.

    >>> import numpy as np
    >>> RandomResizedCrop(8)(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 8, 3)
    """

    def __init__(
        self,
        size: Size,
        scale: Pair = (0.08, 1.0),
        ratio: Pair = (3 / 4, 4 / 3),
        filter: Filter = "bilinear",
    ) -> None:
        check_is_one("filter", filter, get_args(Filter))
        _check_range("scale", scale)
        _check_range("ratio", ratio)
        are_shares = scale[0] <= 1 and scale[1] > 0
        if not (are_shares and ratio[0] > 0):
            raise OptionError(
                f"scale={scale} must be shares of the area, from 0 to 1, and "
                f"ratio={ratio} be above 0."
            )
        self.size = _size(size)
        self.scale = scale
        self.ratio = ratio
        self._filter = filter

    def __call__(self, image: Picture) -> Array:
        height, width = size_of(image)
        part = _cut(image, *self.part(height, width))
        return _resized(part, self.size, self._filter)

    def part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Draw a part of a picture; return its top, left, height and width."""
        rng = get_rng()
        log_low, log_high = map(math.log, self.ratio)
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(log_low, log_high))
            w = round(math.sqrt(area * ratio))
            h = round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top = int(rng.integers(height - h + 1))
                left = int(rng.integers(width - w + 1))
                return top, left, h, w
        # A very long picture may hold none of the parts that were drawn.  Then its
        # middle is taken, as near to the ratio as possible.
        low, high = self.ratio
        h = min(height, max(1, round(width / low)))
        w = min(width, max(1, round(height * high)))
        top = (height - h) // 2
        left = (width - w) // 2
        return top, left, h, w


class Crop:
    """Cuts out a part of ``size``, random or central.

    Before that a black border of ``padding`` pixels is added on all sides.

    >>> Crop(8, "random", padding=2).size
    (8, 8)
    """

    def __init__(
        self,
        size: Size,
        at: Literal["center", "random"] = "center",
        padding: int = 0,
    ) -> None:
        check_is_one("at", at, ("center", "random"))
        whole("padding", padding, least=0)
        self.size = _size(size)
        self.at = at
        self.padding = padding

    def __call__(self, image: Picture) -> Array:
        image = plain(image)
        if self.padding:
            around = (self.padding, self.padding)
            image = np.pad(image, (around, around, (0, 0)))
        height, width = size_of(image)
        h, w = self.size
        if h > height or w > width:
            raise ValueError(
                f"Crop({self.size}) of a picture of {height, width}: it is too small; "
                "put Resize before."
            )
        top = (height - h) // 2
        left = (width - w) // 2
        if self.at == "random":
            rng = get_rng()
            top = int(rng.integers(height - h + 1))
            left = int(rng.integers(width - w + 1))
        return _cut(image, top, left, h, w)


class Flip:
    """Mirrors the picture left to right with probability ``p``.

    >>> import numpy as np
    >>> Flip(p=1)(np.arange(3, dtype=np.uint8).reshape(1, 3, 1)).ravel()
    array([2, 1, 0], dtype=uint8)
    """

    def __init__(self, p: float = 0.5) -> None:
        if not isinstance(p, Real) or not 0 <= p <= 1:
            raise OptionError(
                f"p={p!r:.60} must be a probability, a number from 0 to 1."
            )
        self.p: float = p

    def __call__(self, image: Picture) -> Array:
        image = plain(image)
        if get_rng().random() >= self.p:
            return image
        # A view with reversed columns would be copied later, which takes longer.
        width = image.shape[1]
        from_right = np.arange(width - 1, -1, -1)
        return image.take(from_right, axis=1)


class Normalize:
    """Computes ``(pixel / 255 - mean) / std`` of each channel, as float32.

    Without it pixels stay uint8, a quarter of the bytes, and the device may compute the
    same.

    >>> import numpy as np
    >>> Normalize(mean=(0.5,), std=(0.5,))(np.full((1, 1, 1), 255, np.uint8)).item()
    1.0
    """

    def __init__(
        self,
        mean: Sequence[float] = MEAN,
        std: Sequence[float] = STD,
    ) -> None:
        means = np.asarray(mean, np.float64).reshape(-1, 1, 1)
        stds = np.asarray(std, np.float64).reshape(-1, 1, 1)
        if means.size != stds.size or not (stds > 0).all():
            raise OptionError(
                "Normalize: mean and std need equal lengths, and each std must be "
                "above 0."
            )
        self._scale = (1 / (255 * stds)).astype(np.float32)
        self._shift = (-means / stds).astype(np.float32)

    def __call__(self, image: Picture) -> Array:
        pixels = plain(image)
        wanted = self._scale.size
        if pixels.dtype != np.uint8 or pixels.shape[2] != wanted:
            raise TypeError(
                f"Normalize takes uint8 of {wanted} channels, not {pixels.dtype} of "
                f"{pixels.shape[2]}: put it behind the transforms of pixels, before "
                "those that make floats, with a mean and a std for each channel."
            )
        # The channels lie one after the other, so that layout="CHW" needs no copy.
        channels = pixels.transpose(2, 0, 1)
        out = np.multiply(
            channels,
            self._scale,
            dtype=np.float32,
            order="C",
        )
        out += self._shift
        return out.transpose(1, 2, 0)


class Compose:
    """Applies transforms one after the other.

    They may be Albumentations' and torchvision's.

    >>> import numpy as np
    >>> from mpiter.images import Flip, Resize
    >>> Compose([Resize(8), Flip()])(np.zeros((16, 32, 3), np.uint8)).shape
    (8, 16, 3)
    """

    def __init__(self, transforms: Iterable[Any], *apart: Never) -> None:
        if apart or not isinstance(transforms, Iterable):
            raise OptionError(
                "Compose takes the transforms in one list: Compose([Resize(256), "
                "Flip()])."
            )
        self._steps = list(map(adapted, transforms))

    def __call__(self, image: Any) -> Any:
        for step in self._steps:
            image = step(image)
        return image


def adapted(transform: object) -> Callable[[Any], Any]:
    """Return ``transform`` as a function that takes arrays and Pillow's images."""
    ours = (Resize, RandomResizedCrop, Crop, Flip, Normalize, Compose)
    if isinstance(transform, ours):
        return transform
    if isinstance(transform, type) or not callable(transform):
        raise OptionError(
            f"transform={transform!r:.60} is no function; pass one of a picture, or a "
            "Compose."
        )
    library = type(transform).__module__.partition(".")[0]
    return partial(_applied, transform, library)


def _applied(transform: Any, library: str, image: object) -> Any:
    """Apply a function of an array, or a transform of torchvision or Albumentations."""
    # torchvision takes Pillow's images, and tensors that a step before has made.  It
    # draws from torch's generator, which mpiter seeds.
    if library == "torchvision":
        if isinstance(image, np.ndarray):
            image = as_pillows(image)
        return transform(image)
    if library != "albumentations":
        return transform(plain(image))
    # Older versions, without this method, draw from the global generators.
    if hasattr(transform, "set_random_state"):
        rng = get_rng()
        seed = int(rng.integers(1 << 62))
        transform.set_random_state(rng, random.Random(seed))
    return transform(image=plain(image))["image"]


def _size(size: object) -> tuple[int, int]:
    """Return ``size``, which may be one number, as height and width."""
    if isinstance(size, Iterable):
        both = tuple(size)
    else:
        both = (size, size)
    is_fit = len(both) == 2
    for side in both:
        if not isinstance(side, (int, np.integer)) or side <= 0:
            is_fit = False
    if not is_fit:
        raise OptionError(
            f"size={size!r:.80} must be a whole number of pixels, or two: (height, "
            "width)."
        )
    return int(both[0]), int(both[1])


def _check_range(name: str, given: Pair) -> None:
    is_pair = (
        isinstance(given, Sequence)
        and len(given) == 2
        and all(isinstance(end, Real) for end in given)
    )
    if not (is_pair and 0 <= given[0] <= given[1]):
        raise OptionError(
            f"{name}={given!r:.60} must be two numbers, the lower first, such as (0.5, "
            "1.0)."
        )


def check_is_one(option: str, value: str, of: Iterable[str]) -> None:
    """Refuse a ``value`` that isn't among those of the option."""
    if value not in of:
        raise OptionError(
            f"{option}={value!r} is unknown; use one of {', '.join(map(repr, of))}."
        )


def is_pillows(image: object) -> TypeGuard[PillowImage]:
    return hasattr(image, "getbands")


def size_of(image: Picture) -> tuple[int, int]:
    """Return the height and the width."""
    if is_pillows(image):
        return image.height, image.width
    if getattr(image, "ndim", 0) != 3:
        shape = getattr(image, "shape", None)
        if shape is None:
            what = type(image).__name__
        else:
            what = f"{type(image).__name__} of shape {tuple(shape)}"
        raise TypeError(
            f"transforms take arrays of height, width, channels, not {what}."
        )
    height, width, _ = image.shape
    return height, width


def plain(image: Picture) -> Array:
    """Return ``image`` as an array of height, width, channels."""
    if is_pillows(image):
        pixels = np.array(image)
        # Grey comes without an axis of channels.
        if pixels.ndim == 2:
            return pixels[:, :, None]
        return pixels
    size_of(image)
    return image


def _cut(
    image: Picture,
    top: int,
    left: int,
    height: int,
    width: int,
) -> Picture:
    if (height, width) == size_of(image):
        return image
    bottom = top + height
    right = left + width
    if is_pillows(image):
        return image.crop((left, top, right, bottom))
    return image[top:bottom, left:right]


def _resized(
    image: Picture,
    size: tuple[int, int],
    filter: Filter,
) -> Array:
    """Resize a picture to ``size`` (height, width)."""
    from PIL import Image

    if size == size_of(image):
        return plain(image)
    height, width = size
    resampling = Image.Resampling[filter.upper()]
    resized = as_pillows(image).resize((width, height), resampling)
    return plain(resized)


def as_pillows(image: Picture) -> PillowImage:
    """Return ``image`` as Pillow's.

    Pillow has no form for some dtypes and numbers of channels; a TypeError says so.
    """
    if is_pillows(image):
        return image
    from PIL import Image

    try:
        pixels = image
        # Pillow's grey has no axis of channels.
        if image.shape[2] == 1:
            pixels = image[:, :, 0]
        return Image.fromarray(np.ascontiguousarray(pixels))
    except TypeError as error:
        raise TypeError(
            f"{error} ({image.dtype} of {image.shape[2]} channels): put what needs "
            "Pillow's pictures, such as Resize, before what makes floats, such as "
            "Normalize."
        ) from error
