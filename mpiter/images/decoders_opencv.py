"""OpenCV: libjpeg-turbo and libpng behind ``imdecode``; ordinary JPEG and PNG.

It gives what there is of a broken JPEG without a word, so it is asked only for those whose pixels are in one piece,
with nothing amiss between where they begin and where they end: sequential ones of one scan.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from .header import Header

_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # none belongs among the pixels, but restarts
_END = b"\xff\xd9"


class OpenCV:
    """Without EXIF's turns, which are applied elsewhere for all decoders."""

    def __init__(self) -> None:
        import cv2

        self._cv2 = cv2
        self.name = f"opencv {cv2.__version__}"
        self._flags = {
            "RGB": {
                1: cv2.IMREAD_COLOR_RGB if hasattr(cv2, "IMREAD_COLOR_RGB") else cv2.IMREAD_COLOR,
                **{factor: getattr(cv2, f"IMREAD_REDUCED_COLOR_{factor}") for factor in (2, 4, 8)},
            },
            "L": {
                1: cv2.IMREAD_GRAYSCALE,
                **{factor: getattr(cv2, f"IMREAD_REDUCED_GRAYSCALE_{factor}") for factor in (2, 4, 8)},
            },
        }

    def takes(self, header: Header, mode: str) -> bool:
        """Not colour as grey, which Pillow computes of RGB."""
        if header.kind == "jpeg" and not header.scan:
            return False
        return header.is_ordinary and (mode == "RGB" or (mode == "L" and header.channels == 1))

    def decode(self, data: bytes, header: Header, mode: str, factor: int, place: Any) -> Any:
        if header.kind == "jpeg" and not _is_whole(data, header):
            raise ValueError("the pixels are not in one piece")
        flags = self._flags[mode][factor if header.kind == "jpeg" else 1]
        image = self._cv2.imdecode(np.frombuffer(data, np.uint8), flags | self._cv2.IMREAD_IGNORE_ORIENTATION)
        if image is None:
            raise ValueError("OpenCV gives nothing")
        if mode == "L":
            return image[:, :, None]
        has_asked_rgb = factor == 1 and hasattr(self._cv2, "IMREAD_COLOR_RGB")
        return image if has_asked_rgb else self._cv2.cvtColor(image, self._cv2.COLOR_BGR2RGB)


def _is_whole(data: bytes, header: Header) -> bool:
    found = _MARKER.search(data, header.scan + 2)
    return found is not None and found[0] == _END


make = OpenCV
