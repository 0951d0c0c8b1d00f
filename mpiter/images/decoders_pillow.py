"""Pillow, or Pillow-SIMD in its place: takes everything, and has the last word on what a file is.

Runs wherever the dataset does.  Differs from ``Image.convert`` in one thing: grey of 16 bits becomes 8 by its upper
byte, as in 16-bit colour, where Pillow makes 255 of all that is beyond.  Grey of 32 bits is taken for such.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from .header import Header

_BY_PROGRAMS = {"EPS"}  # Pillow has Ghostscript run PostScript, whatever the file is called


class Pillow:
    """Gives images of its own, which transforms take too."""

    is_pillow = True

    def __init__(self) -> None:
        import PIL
        from PIL import Image

        self._image = Image
        Image.init()
        self._formats = [name for name in Image.ID if name not in _BY_PROGRAMS]
        self.name = f"{'pillow-simd' if '.post' in PIL.__version__ else 'pillow'} {PIL.__version__}"

    def takes(self, header: Header, mode: str) -> bool:
        return True

    def decode(self, data: bytes, header: Header, mode: str, factor: int, place: Any) -> Any:
        with self._image.open(io.BytesIO(data), formats=self._formats) as image:
            self._limit(image)
            if factor > 1 and header.kind == "jpeg":
                image.draft(image.mode, (image.width // factor, image.height // factor))
            return self._in_mode(image, mode)

    def _limit(self, image: Any) -> None:
        """Where Pillow only warns."""
        most = self._image.MAX_IMAGE_PIXELS
        if most is not None and image.width * image.height > most:
            raise self._image.DecompressionBombError(f"it has {image.width:,} × {image.height:,} pixels")

    def _in_mode(self, image: Any, mode: str) -> Any:
        if image.mode.startswith("I"):  # I;16 of whatever byte order, or I, which has PGM of 16 bits as well
            wide = np.asarray(image).clip(0, 0xFFFF).astype(np.uint16)
            if mode == "I;16":
                return self._made(wide, image)
            image = self._made((wide >> 8).astype(np.uint8), image)
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")  # as Pillow wishes
        if mode == "I;16":
            grey = np.asarray(image.convert("L")).astype(np.uint16)
            return self._made(grey * 257, image)  # 255 is as white as 65535
        image.load()
        return image if image.mode == mode else image.convert(mode)  # a copy would cost as much as resizing

    def _made(self, array: Any, of: Any) -> Any:
        """An image that still says how it is to be turned."""
        image = self._image.fromarray(array)
        image.info = {name: value for name, value in of.info.items() if name != "transparency"}  # of other pixels
        return image


make = Pillow
