"""Other people's transforms as they are: Albumentations' and torchvision's are known by their modules' names.

Runs wherever the dataset does.  Albumentations has generators of its own, which each sample seeds; torchvision draws
from torch's, which the engine seeds.  Neither is imported here.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from ..errors import OptionError
from ..worker.seeding import get_rng
from .pixels import as_pillows, is_pillows, plain, size_of


def adapted(transform: Any) -> Any:
    """Something that takes a picture, and maybe Pillow's own images."""
    if isinstance(transform, type) or not (callable(transform) or hasattr(transform, "region")):
        raise OptionError(
            f"transform={transform!r:.60} is no function; pass one of a picture, or a Compose of several."
        )
    library = type(transform).__module__.partition(".")[0]
    if library == "albumentations":
        return Albumentation(transform)
    if library == "torchvision":
        return Torchvision(transform)
    return transform if library == "mpiter" else OnArrays(transform)


class OnArrays:
    """A function of the user's, that gets arrays, or what has ``region`` and ``apply``; what it offers, this offers."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform
        for name in ("region", "layout"):
            if hasattr(transform, name):
                setattr(self, name, getattr(transform, name))

    def __call__(self, image: Any) -> Any:
        image = plain(image) if is_pillows(image) else image
        if callable(self._transform):
            return self._transform(image)
        return self._transform.apply(image, self._transform.region(*size_of(image)))

    def apply(self, image: Any, region: Any) -> Any:
        return self._transform.apply(plain(image) if is_pillows(image) else image, region)


class Albumentation:
    """Called with ``image=``, gives a dict."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, image: Any) -> Any:
        rng, transform = get_rng(), self._transform
        if hasattr(transform, "set_random_state"):
            transform.set_random_state(rng, random.Random(int(rng.integers(1 << 62))))
        elif hasattr(transform, "set_random_seed"):  # older; before it drew from the global generators
            transform.set_random_seed(int(rng.integers(1 << 31)))
        return transform(image=plain(image) if is_pillows(image) else image)["image"]


class Torchvision:
    """Takes images of Pillow's, and tensors, which come of those before it."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, image: Any) -> Any:
        return self._transform(as_pillows(image) if isinstance(image, np.ndarray) else image)
