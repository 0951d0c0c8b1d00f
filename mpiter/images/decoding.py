"""From a file's bytes to a picture: Pillow opens it, a decoder makes the pixels, EXIF's turn; or a ``BrokenImage``.

Runs wherever the dataset does.  Guarantees the same pixels whichever decoder was chosen (``accimage`` apart), and that
a file that Pillow refuses is refused.  Assumes that Pillow is there; its ``MAX_IMAGE_PIXELS`` is the limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import MpiterError
from .decoders import MODES, decoders_for, is_jpeg, is_ordinary, opened
from .pixels import as_pillows, check_is_one
from .transforms import Region

MOST_BYTES = 2 << 30  # three times what the largest picture has that is decoded, without any compression
Wish = Callable[[int, int], Region]
_ORIENTATION = 0x0112  # in EXIF, which counts from 1, upright
_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # its numbers, and Pillow's


class BrokenImage(MpiterError, OSError):
    """A file was read and cannot be decoded: truncated, empty, no picture, or too large; the text says which and why.

    Files that cannot be read raise the system's own ``FileNotFoundError``, ``PermissionError`` and so on, which name
    the path as well. All of them are ``OSError``. ``path`` and ``reason`` say what the text says.

    >>> raise BrokenImage("cat.jpg", "the file is empty")
    Traceback (most recent call last):
    mpiter.images.decoding.BrokenImage: cat.jpg cannot be decoded: the file is empty.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be decoded: {reason}.")
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.reason)


def check_size(path: str, size: int) -> None:
    """Before so many bytes are read."""
    if size > MOST_BYTES:
        raise BrokenImage(path, f"it has {size:,} bytes, and no more than {MOST_BYTES:,} are read of a picture")


class Decoding:
    """Options of decoding, and the decoders that they come to; these are found in each process anew."""

    def __init__(self, decoder: str, mode: str, upright: bool) -> None:
        check_is_one("mode", mode, MODES)
        self._options = decoder, mode, upright
        self._mode, self._upright, self._decoders = mode, upright, decoders_for(decoder)

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoding, self._options

    @property
    def names(self) -> str:
        """The decoders with their versions; the first that takes a file decodes it."""
        return ", ".join(decoder.name for decoder in self._decoders)

    def open(self, data: bytes, path: str, wish: Wish | None = None) -> tuple[Any, Region | None]:
        """An array, or an image of Pillow's where that has decoded or turned it.

        It comes with the region that ``wish`` wants of this height and width; a JPEG is no larger than that needs.
        """
        if not isinstance(data, bytes):
            data = bytes(memoryview(data))  # a database's buffer, say; not None, which is no empty file
        if not data:
            raise BrokenImage(path, "the file is empty")
        with _refusing(path, data):
            image = opened(data)
            turn = _turn_of(image) if self._upright else 1
        height, width = (image.width, image.height) if turn >= 5 else (image.height, image.width)
        region = wish(height, width) if wish is not None else None
        with _refusing(path, data):
            found = self._decoded(data, image, region.factor if region and is_jpeg(image) else 1)
        return as_pillows(found).transpose(_TURNS[turn]) if turn in _TURNS else found, region

    def _decoded(self, data: bytes, image: Any, factor: int) -> Any:
        first, pillow = self._decoders[0], self._decoders[-1]
        if first is not pillow and is_ordinary(image, self._mode):
            try:
                return first.decode(data, image, self._mode, factor)
            except MemoryError:
                raise
            except Exception:
                pass  # Pillow decides
        return pillow.decode(data, image, self._mode, factor)


def _turn_of(image: Any) -> int:
    if not is_jpeg(image):
        image.load()  # which turns TIFF, and finds what stands behind the pixels
    with contextlib.suppress(Exception):  # what isn't EXIF says nothing
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


@contextlib.contextmanager
def _refusing(path: str, data: bytes) -> Iterator[None]:
    """What Pillow raises is a ``BrokenImage`` that says why."""
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
