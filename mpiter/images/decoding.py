"""Decodes a file's bytes: Pillow reads the header, simplejpeg or it makes the pixels.

simplejpeg gets only *ordinary* JPEG, which it decodes as Pillow does; what it fails at,
Pillow decodes.  So both give the same pixels, and refuse the same files with the same
``BrokenImage``.  Pillow's ``MAX_IMAGE_PIXELS`` is the limit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MpiterError, OptionError
from .transforms import Picture, check_is_one

# The endings of pictures' names.
EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".ppm",
    ".bmp",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
)

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage


def is_picture(name: str) -> bool:
    """True if a file of this name is decoded as a picture."""
    return name.lower().endswith(EXTENSIONS)


class BrokenImage(MpiterError, OSError):
    """Raised for a file that was read but cannot be decoded.

    It is truncated, empty, too large, or no picture.  A file that cannot be read raises
    ``FileNotFoundError``, ``PermissionError`` and so on, which name the path too.  All
    of these are ``OSError``.  The message names the file and the reason, which are
    also ``path`` and ``reason``.

    >>> raise BrokenImage("cat.jpg", "the file is empty")
    Traceback (most recent call last):
    mpiter.images.decoding.BrokenImage: cat.jpg cannot be decoded: the file is empty.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be decoded: {reason}.")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class Decoding:
    """Decodes files to one mode.

    simplejpeg decodes where it gives Pillow's pixels, else Pillow.
    """

    def __init__(self, decoder: str, mode: str) -> None:
        check_is_one("mode", mode, ("RGB", "RGBA", "L", "I;16"))
        check_is_one("decoder", decoder, ("auto", "pillow", "simplejpeg"))
        if importlib.util.find_spec("PIL") is None:
            raise OptionError(
                "pictures need Pillow, which is not installed: pip install Pillow."
            )
        self._mode = mode
        self.has_simplejpeg = False
        if decoder != "pillow":
            # It isn't installed, or lacks the library that it needs.
            with contextlib.suppress(ImportError):
                self.has_simplejpeg = bool(importlib.import_module("simplejpeg"))
        if decoder == "simplejpeg" and not self.has_simplejpeg:
            raise OptionError(
                "decoder='simplejpeg' cannot be imported; pip install 'mpiter[images]'."
            )

    def open(self, data: bytes, path: str) -> Picture:
        """Return the picture: an array, or Pillow's image if Pillow has decoded it."""
        # A user's `fetch` may return any buffer, such as a database's.
        data = bytes(memoryview(data))
        if not data:
            raise BrokenImage(path, "the file is empty")
        try:
            image = _opened(data)
            if self.has_simplejpeg and _is_ordinary(image, self._mode):
                import simplejpeg

                space = "RGB" if self._mode == "RGB" else "GRAY"
                # What simplejpeg can't decode, Pillow tries below: it decodes some of
                # that, and refuses the rest with the reason that users see.
                with contextlib.suppress(ValueError, RuntimeError, OSError):
                    # Its fast modes, which are off, make other pixels than Pillow.
                    return simplejpeg.decode_jpeg(data, space)
            return _in_mode(image, self._mode)
        except MemoryError:
            # The file may be whole, so it isn't called broken.
            raise
        except Exception as error:
            name = type(error).__name__
            reason = f"{type(error).__name__}: {error}".rstrip(".")
            if name == "UnidentifiedImageError":
                reason = (
                    "Pillow can't identify it (damaged, or no picture); it begins "
                    f"with {data[:8]!r}"
                )
            elif name.startswith("DecompressionBomb"):
                reason += "; PIL.Image.MAX_IMAGE_PIXELS may be raised"
            raise BrokenImage(path, reason) from error


@functools.cache
def _formats() -> list[str]:
    """Return Pillow's formats, JPEG first.

    PostScript is left out, since Pillow would run Ghostscript on any such file.
    """
    from PIL import Image

    Image.init()
    others = [name for name in Image.ID if name not in ("JPEG", "EPS")]
    return ["JPEG", *others]


def _opened(data: bytes) -> PillowImage:
    """Return Pillow's image of a file, with its pixels not decoded yet."""
    from PIL import Image

    image = Image.open(io.BytesIO(data), formats=_formats())
    most = Image.MAX_IMAGE_PIXELS
    pixels = image.width * image.height
    # Pillow itself raises only at twice this size, and warns below.
    if most is not None and pixels > most:
        raise Image.DecompressionBombError(
            f"it has {image.width:,} × {image.height:,} pixels"
        )
    return image


def _is_ordinary(image: PillowImage, mode: str) -> bool:
    """True for JPEG that all decoders decode alike to ``mode``.

    That is grey as "L" or "RGB", and as "RGB" colour that is stored as YCbCr.
    """
    if image.format not in ("JPEG", "MPO"):
        return False
    if image.mode not in ("L", "RGB"):
        return False
    if image.mode == "L":
        return mode in ("L", "RGB")
    # Adobe's marker may say that RGB itself is stored; so may the components' names.
    if image.info.get("adobe_transform", 1) != 1:
        return False
    names = bytes(component[0] for component in image.layer)
    return mode == "RGB" and names != b"RGB"


def _in_mode(image: PillowImage, mode: str) -> PillowImage:
    """Convert ``image`` as Pillow does, but for 16-bit grey.

    That keeps its upper byte, as 16-bit colour does.
    """
    from PIL import Image

    # The mode is I;16 in either byte order, or I, as which Pillow opens 16-bit PGM.
    if image.mode.startswith("I"):
        values = np.asarray(image)
        grey = values.clip(0, 0xFFFF).astype(np.uint16)
        if mode != "I;16":
            grey = (grey >> 8).astype(np.uint8)
        image = Image.fromarray(grey)
    # A palette's transparent colours would be lost otherwise; Pillow recommends this.
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    if mode == "I;16" and image.mode != mode:
        values = np.asarray(image.convert("L"))
        grey = values.astype(np.uint16)
        # White, which is 255, becomes 65535.
        return Image.fromarray(grey * 257)
    image.load()
    # Converting to the same mode would copy, which takes as long as resizing.
    if image.mode == mode:
        return image
    return image.convert(mode)
