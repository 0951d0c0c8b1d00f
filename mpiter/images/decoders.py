"""Who decodes: the interface of a decoder, those that there are by name, and which of them ``auto`` stands for.

Runs wherever the dataset does.  A decoder says what it takes; what it doesn't take, or fails at, is Pillow's, so that
all of them refuse the same files for the same reasons.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import OptionError
from .header import Header

MODES = ("RGB", "RGBA", "L", "I;16")
AUTO = ("simplejpeg", "opencv", "pillow")  # the fastest first; the same pixels, each of them
_MODULES = {"pillow-simd": "pillow"}  # which is Pillow to whoever imports it
NAMES = ("auto", "pillow", "pillow-simd", "simplejpeg", "opencv", "accimage")


Place = Callable[[tuple[int, ...]], Any]  # shape → an array of uint8 to be filled, or None


class Decoder(Protocol):
    """Makes pixels of bytes."""

    name: str  # with the version

    def takes(self, header: Header, mode: str) -> bool:
        """Is this a file that it decodes, to the pixels that Pillow gives?"""

    def decode(self, data: bytes, header: Header, mode: str, factor: int, place: Place) -> Any:
        """The picture as an array of height, width, channels (Pillow: as its own image); may raise anything.

        A ``factor`` of 2, 4 or 8 asks for so many times fewer rows and columns, where that saves work; never for
        another kind than JPEG.  The array may be one that ``place`` gives.
        """


def decoders_for(name: str) -> tuple[Decoder, ...]:
    """The decoders to be asked one after the other, Pillow last."""
    if name not in NAMES:
        raise OptionError(f"decoder={name!r} is unknown; use one of {', '.join(map(repr, NAMES))}.")
    if name == "auto":
        found = [decoder for each in AUTO if (decoder := _decoder(each)) is not None]
    else:
        wanted = _decoder(name)
        if wanted is None:
            raise OptionError(f"decoder={name!r} cannot be imported; install it, or use decoder='auto'.")
        if name == "pillow-simd" and not wanted.name.startswith(name):
            raise OptionError(f"decoder='pillow-simd', and what is installed is {wanted.name}; use decoder='pillow'.")
        found = [wanted]
    if not found or not hasattr(found[-1], "is_pillow"):
        pillow = _decoder("pillow")
        if pillow is None:
            raise OptionError("mpiter.images needs Pillow; pip install 'mpiter[images]'.")
        found.append(pillow)
    return tuple(found)


def _decoder(name: str) -> Decoder | None:
    module = importlib.import_module(f".decoders_{_MODULES.get(name, name)}", __package__)
    try:
        decoder: Decoder = module.make()
    except ImportError:
        return None
    return decoder
