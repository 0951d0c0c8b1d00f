"""accimage, where it is installed (conda-forge has it): JPEG by Intel's libraries, from files only.

Its pixels are not quite Pillow's, so ``auto`` leaves it alone.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from .header import Header


class Accimage:
    """Gets the bytes as a file in memory."""

    def __init__(self) -> None:
        import accimage

        self._image = accimage.Image
        self.name = f"accimage {getattr(accimage, '__version__', '')}".strip()

    def takes(self, header: Header, mode: str) -> bool:
        return header.kind == "jpeg" and header.is_ordinary and mode == "RGB" and hasattr(os, "memfd_create")

    def decode(self, data: bytes, header: Header, mode: str, factor: int, place: Any) -> Any:
        image = self._opened(data)
        planes = np.empty((image.channels, image.height, image.width), np.uint8)
        image.copyto(planes)
        return np.ascontiguousarray(planes.transpose(1, 2, 0))

    def _opened(self, data: bytes) -> Any:
        descriptor = os.memfd_create("mpiter-image", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(data)
            return self._image(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)


make = Accimage
