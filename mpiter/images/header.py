"""What the first bytes of a file say: its kind, its size, how it is to be turned, and whether it is an ordinary one.

Pure.  An *ordinary* picture is one that every decoder reads alike: JPEG in YCbCr or grey of 8 bits, PNG in RGB or grey
of 8 bits of none but plain chunks.  What is not, or cannot be told here, is Pillow's.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

_ALONE = {0x01, *range(0xD0, 0xD8)}  # markers of JPEG without a length
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = {0xC0, 0xC1}
_ORDINARY_FRAMES = {*_SEQUENTIAL, 0xC2}  # which is progressive; the others are lossless, or not Huffman's
# of PNG: they change no pixel, and have so many bytes at least
_PLAIN_CHUNKS = {b"IHDR": 13, b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9}
_PLAIN_CHUNKS |= dict.fromkeys((b"sBIT", b"bKGD", b"tIME", b"tEXt"), 0)
EXIF_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class Header:
    """Of one file; a size of 0 means that it is not known."""

    kind: str  # "jpeg", "png" or ""
    height: int = 0
    width: int = 0
    channels: int = 0
    is_ordinary: bool = False
    orientation: int = 1  # as EXIF counts; of JPEG only
    scan: int = 0  # where the pixels of a sequential JPEG begin

    def upright(self) -> tuple[int, int]:
        """Height and width when it has been turned."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def header_of(data: bytes) -> Header:
    """Never raises: of what it cannot read it says nothing."""
    try:
        if data[:3] == b"\xff\xd8\xff":
            return _jpeg(data)
        if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
            return _png(data)
    except (IndexError, ValueError):
        pass
    return Header("")


def _jpeg(data: bytes) -> Header:
    at, frame, orientation, adobe = 2, 0, 1, 1
    bits = height = width = channels = 0
    names = b""
    while data[at + 1] != 0xDA:  # where the pixels begin
        if data[at] != 0xFF:
            return Header("jpeg")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _ALONE:
            at += 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if length < 2:
            return Header("jpeg")
        if marker in _FRAMES:
            frame, bits, channels = marker, data[at + 4], data[at + 9]
            height, width = int.from_bytes(data[at + 5 : at + 7], "big"), int.from_bytes(data[at + 7 : at + 9], "big")
            names = data[at + 10 : at + 10 + 3 * channels : 3]
        elif marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            orientation = _orientation(data[at + 10 : at + 2 + length])
        elif marker == 0xEE and data[at + 4 : at + 9] == b"Adobe":
            adobe = data[at + 15]
        at += 2 + length
    is_ycc = channels == 3 and adobe == 1 and names != b"RGB"
    ordinary = frame in _ORDINARY_FRAMES and bits == 8 and (channels == 1 or is_ycc) and height > 0 and width > 0
    return Header("jpeg", height, width, channels, ordinary, orientation, scan=at if frame in _SEQUENTIAL else 0)


def _orientation(tiff: bytes) -> int:
    """The tag of the first directory, 1 where there is none."""
    order = {b"II": "little", b"MM": "big"}.get(tiff[:2])
    if order is None:
        return 1

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)  # type: ignore[arg-type]

    directory = number(4, 4)
    for at in range(directory + 2, directory + 2 + 12 * min(number(directory, 2), 1000), 12):
        if number(at, 2) == EXIF_ORIENTATION and number(at + 2, 2) == 3:
            found = number(at + 8, 2)
            return found if 1 <= found <= 8 else 1
    return 1


def _png(data: bytes) -> Header:
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    bits, colour = data[24], data[25]
    channels = {0: 1, 2: 3}.get(colour, 0)
    at, ordinary = 8, bits == 8 and channels > 0
    while ordinary and (kind := data[at + 4 : at + 8]) not in (b"IEND", b""):
        length = int.from_bytes(data[at : at + 4], "big")
        end = at + 8 + length
        ordinary = kind == b"IDAT" or (
            length >= _PLAIN_CHUNKS.get(kind, length + 1)
            and zlib.crc32(data[at + 4 : end]) == int.from_bytes(data[end : end + 4], "big")
        )
        at = end + 4
    return Header("png", height, width, channels, ordinary)
