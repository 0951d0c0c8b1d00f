"""From a file's bytes to a picture: the header first, then whoever takes it, then EXIF's turn; or a ``BrokenImage``.

Runs wherever the dataset does.  Guarantees the same pixels whichever decoder was chosen (``accimage`` apart), and that
a file that Pillow refuses is refused.  Assumes that Pillow is there; its ``MAX_IMAGE_PIXELS`` is the limit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import OptionError
from .broken import BrokenImage
from .decoders import MODES, Decoder, Place, decoders_for
from .header import EXIF_ORIENTATION, Header, header_of
from .pixels import is_pillows, plain, size_of
from .transforms import Region

Wish = Callable[[int, int], Region]  # height, width → what is wanted of it


def nowhere(shape: tuple[int, ...]) -> None:
    """Decoders find memory themselves."""


class Decoding:
    """Options of decoding, and the decoders that they come to; these are found in each process anew."""

    def __init__(self, decoder: str, mode: str, upright: bool) -> None:
        if mode not in MODES:
            raise OptionError(f"mode={mode!r} is unknown; use one of {', '.join(map(repr, MODES))}.")
        self._options = decoder, mode, upright
        self._decoder, self._mode, self._upright = decoder, mode, upright
        self._decoders: tuple[Decoder, ...] = decoders_for(decoder)

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoding, self._options

    @property
    def names(self) -> str:
        """Who decodes, with versions; the first that takes a file."""
        return ", ".join(decoder.name for decoder in self._decoders)

    def open(
        self, data: bytes, path: str, wish: Wish | None = None, place: Place = nowhere
    ) -> tuple[Any, Region | None]:
        """An array, or an image of Pillow's where that has decoded it; no larger than ``wish`` wants, with the wish."""
        if not isinstance(data, bytes):
            data = bytes(memoryview(data))  # a database's buffer, say; not None, which is no empty file
        if not data:
            raise BrokenImage(path, "the file is empty")
        header = header_of(data)
        _limit(header, path)
        region, factor = None, 1
        if wish is not None and header.kind == "jpeg" and header.height and header.width:
            region = wish(*(header.upright() if self._upright else (header.height, header.width)))
            factor = region.factor
        image = self._decode(data, header, factor, path, place)
        if self._upright:
            image = _turned(image, header)
        if wish is not None and region is None:
            region = wish(*size_of(image))
        return image, region

    def _decode(self, data: bytes, header: Header, factor: int, path: str, place: Place) -> Any:
        pillow = self._decoders[-1]
        decoder = next(decoder for decoder in self._decoders if decoder.takes(header, self._mode))
        if decoder is not pillow:
            try:
                return decoder.decode(data, header, self._mode, factor, place)
            except MemoryError:
                raise
            except Exception:
                pass  # Pillow decides
        try:
            return pillow.decode(data, header, self._mode, factor, nowhere)
        except MemoryError:
            raise
        except Exception as error:
            raise BrokenImage(path, _reason(error, data)) from error


def _limit(header: Header, path: str) -> None:
    """Refuse what nobody means to decode, before anybody does."""
    from PIL import Image

    most, pixels = Image.MAX_IMAGE_PIXELS, header.height * header.width
    if most is not None and pixels > most:
        raise BrokenImage(
            path,
            f"it has {header.width:,} × {header.height:,} pixels, more than PIL.Image.MAX_IMAGE_PIXELS = {most:,}, "
            f"which may be raised",
        )


def _reason(error: Exception, data: bytes) -> str:
    """Why Pillow refuses."""
    if type(error).__name__ == "UnidentifiedImageError":
        return f"it is no picture that Pillow knows, and begins with {data[:8]!r}"
    if isinstance(error, Warning) or type(error).__name__ == "DecompressionBombError":
        return f"{str(error).rstrip('.')}; PIL.Image.MAX_IMAGE_PIXELS may be raised"
    return f"{type(error).__name__}: {str(error).rstrip('.')}"


def _turned(image: Any, header: Header) -> Any:
    """As EXIF says that it is to be looked at."""
    orientation = header.orientation
    if header.kind != "jpeg" and is_pillows(image):
        with contextlib.suppress(Exception):  # what isn't EXIF says nothing
            orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    if orientation not in _TURNS:
        return image
    return np.ascontiguousarray(_TURNS[orientation](plain(image)))


_TURNS: dict[int, Callable[[Any], Any]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a.swapaxes(0, 1)[::-1],
}
