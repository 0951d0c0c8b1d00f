"""simplejpeg: libjpeg-turbo straight into an array, without the interpreter's lock; JPEG only."""

from __future__ import annotations

from typing import Any

from .header import Header

_SPACES = {"RGB": "RGB", "L": "GRAY"}


class SimpleJpeg:
    """Asked for the slow, exact ways of the library, which are Pillow's."""

    def __init__(self) -> None:
        import simplejpeg

        self._decode = simplejpeg.decode_jpeg
        self.name = f"simplejpeg {simplejpeg.__version__}"

    def takes(self, header: Header, mode: str) -> bool:
        """Not colour as grey, which Pillow computes of RGB."""
        return (
            header.kind == "jpeg" and header.is_ordinary and (mode == "RGB" or (mode == "L" and header.channels == 1))
        )

    def decode(self, data: bytes, header: Header, mode: str, factor: int, place: Any) -> Any:
        array = place((header.height, header.width, 3 if mode == "RGB" else 1)) if factor == 1 else None
        found = self._decode(
            data,
            buffer=array,
            colorspace=_SPACES[mode],
            fastdct=False,
            fastupsample=False,
            min_height=-(-header.height // factor) if factor > 1 else 0,
            min_width=-(-header.width // factor) if factor > 1 else 0,
            min_factor=factor,
        )
        return found if array is None else array


make = SimpleJpeg
