"""Decodes a file's bytes: Pillow reads the header, a decoder makes the pixels.

Runs in the workers, if there are any.  Other decoders get only *ordinary* JPEG, which they decode as Pillow does; what
they fail at, Pillow decodes.  So all decoders give the same pixels (except accimage, which "auto" never takes), and
refuse the same files with the same ``BrokenImage``.  Pillow must be installed; its ``MAX_IMAGE_PIXELS`` is the limit.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import MpiterError, OptionError
from .transforms import check_is_one


class BrokenImage(MpiterError, OSError):
    """Raised for a file that was read but cannot be decoded: it is truncated, empty, too large, or no picture.

    A file that cannot be read raises ``FileNotFoundError``, ``PermissionError`` and so on, which name the path too. All
    of these are ``OSError``. The message names the file and the reason, which are also ``path`` and ``reason``.

    >>> raise BrokenImage("cat.jpg", "the file is empty")
    Traceback (most recent call last):
    mpiter.images.decoding.BrokenImage: cat.jpg cannot be decoded: the file is empty.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be decoded: {reason}.")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


class Decoding:
    """Decodes files by the function ``fast`` where that gives Pillow's pixels (None: nowhere), else by Pillow."""

    def __init__(self, decoder: str, mode: str) -> None:
        check_is_one("mode", mode, MODES)
        self._mode, self.fast = mode, _fast(decoder)

    def open(self, data: bytes, path: str) -> Any:
        """Return the picture, as an array or, if Pillow has decoded it, as Pillow's image."""
        data = bytes(memoryview(data))  # which may be a database's buffer
        if not data:
            raise BrokenImage(path, "the file is empty")
        with _refusing(path, data):
            image = opened(data)
            if self.fast is not None and is_ordinary(image, self._mode):
                with contextlib.suppress(ValueError, RuntimeError, OSError):  # Pillow tries it below
                    return self.fast(data, self._mode)
            return _in_mode(image, self._mode)


@contextlib.contextmanager
def _refusing(path: str, data: bytes) -> Iterator[None]:
    """Turn what Pillow raises into a ``BrokenImage`` that says why."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        name, reason = type(error).__name__, f"{type(error).__name__}: {error}".rstrip(".")
        if name == "UnidentifiedImageError":
            reason = f"it is no picture that Pillow knows, and begins with {data[:8]!r}"
        elif name.startswith("DecompressionBomb"):
            reason += "; PIL.Image.MAX_IMAGE_PIXELS may be raised"
        raise BrokenImage(path, reason) from error


# -- the decoders ---------------------------------------------------------------------------------------------------


MODES = ("RGB", "RGBA", "L", "I;16")


def _fast(decoder: str) -> Any:
    """Return the function that ``decoder`` names, None for Pillow; "auto" is simplejpeg where that is installed."""
    import PIL

    check_is_one("decoder", decoder, ("auto", "pillow", "pillow-simd", "simplejpeg", "accimage"))
    if decoder == "pillow-simd" and ".post" not in PIL.__version__:
        raise OptionError(f"decoder={decoder!r}, and what is installed is pillow {PIL.__version__}.")
    if decoder.startswith("pillow"):
        return None
    try:
        importlib.import_module("accimage" if decoder == "accimage" else "simplejpeg")
    except ImportError as error:
        if decoder == "auto":
            return None
        raise OptionError(f"decoder={decoder!r} cannot be imported; pip install 'mpiter[images]'.") from error
    return _accimage if decoder == "accimage" else _simplejpeg


@functools.cache
def _formats() -> list[str]:
    """Return Pillow's formats, JPEG first, without PostScript, which would run Ghostscript on any file."""
    from PIL import Image

    Image.init()
    return ["JPEG", *(name for name in Image.ID if name not in ("JPEG", "EPS"))]


def opened(data: bytes) -> Any:
    """Return Pillow's image of a file, with its pixels not decoded yet."""
    from PIL import Image

    image, most = Image.open(io.BytesIO(data), formats=_formats()), Image.MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > most:  # Pillow itself would only warn
        raise Image.DecompressionBombError(f"it has {image.width:,} × {image.height:,} pixels")
    return image


def is_ordinary(image: Any, mode: str) -> bool:
    """True for JPEG that all decoders decode alike: grey as "L" or "RGB", and colour stored as YCbCr as "RGB"."""
    if image.format not in ("JPEG", "MPO") or image.mode not in ("L", "RGB"):
        return False
    is_ycc = image.info.get("adobe_transform", 1) == 1 and bytes(each[0] for each in image.layer) != b"RGB"
    return mode in ("L", "RGB") if image.mode == "L" else mode == "RGB" and is_ycc


def _in_mode(image: Any, mode: str) -> Any:
    """Convert ``image`` as Pillow does, except that 16-bit grey keeps its upper byte, as 16-bit colour does."""
    from PIL import Image

    if image.mode.startswith("I"):  # I;16 of any byte order, or I, as which Pillow opens 16-bit PGM
        wide = np.asarray(image).clip(0, 0xFFFF).astype(np.uint16)
        image = Image.fromarray(wide if mode == "I;16" else (wide >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # as Pillow recommends
    if mode == "I;16" and image.mode != mode:
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)  # 255, white, becomes 65535
    image.load()
    return image if image.mode == mode else image.convert(mode)  # convert would copy, which takes as long as resizing


# Each returns an array of height, width, channels.


def _simplejpeg(data: bytes, mode: str) -> Any:
    """Decode by libjpeg-turbo, without the interpreter's lock, in its slow, exact mode, which is Pillow's."""
    import simplejpeg

    return simplejpeg.decode_jpeg(data, "RGB" if mode == "RGB" else "GRAY", fastdct=False, fastupsample=False)


def _accimage(data: bytes, mode: str) -> Any:
    """Decode by Intel's libraries; accimage reads files only, so it gets the bytes as a file in memory."""
    import accimage

    with open(os.memfd_create("mpiter-image"), "wb", buffering=0) as file:
        file.write(data)
        found = accimage.Image(f"/proc/self/fd/{file.fileno()}")
    planes = np.empty((3 if mode == "RGB" else 1, found.height, found.width), np.uint8)
    found.copyto(planes)
    return np.ascontiguousarray(planes.transpose(1, 2, 0))
