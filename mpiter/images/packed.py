"""Packed folders: the samples of an ``ImageFolder`` out of one ZIP archive.

Runs wherever the dataset does.  ``zipfile`` reads the index, once; from then on that is names in shared memory and an
array.  Each process opens the file for itself and reads by ``pread``, which moves nothing for anybody else.  Guarantees
that what was cut, damaged or replaced since the index was read is an error, never other pixels.
"""

from __future__ import annotations

import contextlib
import operator
import os
import weakref
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import MpiterError
from .dataset import ImageFolder, Path
from .decoding import BrokenImage, check_size

LOCAL_BYTES = 30  # of the record before a member's data; its name and an extra field follow
_NO_CLASSES = {"", "__MACOSX"}  # a name that begins with a slash, and what macOS adds to its archives
_INDEX_OF = b"mpiter pack, index "
_state = operator.attrgetter("st_size", "st_mtime_ns")  # which change when a file is written to


class BadArchive(MpiterError, ValueError):
    """A file is no ZIP archive, or not all of one, or has changed; the text says which, and what to do.

    >>> from mpiter.images import PackedFolder
    >>> PackedFolder("/dev/null")
    Traceback (most recent call last):
    mpiter.images.packed.BadArchive: /dev/null is no whole ZIP archive: File is not a zip file. ...
    """


class PackedFolder(ImageFolder):
    """The pictures of an ``ImageFolder`` that was packed by ``mpiter pack folder/ out.zip``, with its options.

    Any ZIP archive will do whose members are stored or deflated. Each worker reads at random from the one file, and
    each picture's checksum is compared.

    >>> import tempfile, zipfile
    >>> with zipfile.ZipFile(tempfile.mktemp(), "w") as archive:
    ...     archive.writestr("cat/1.jpg", b"...")
    >>> pets = PackedFolder(archive.filename)
    >>> pets.classes, pets.fetch(0)
    (['cat'], b'...')
    """

    def __init__(self, root: Path, transform: Any = None, **options: Any) -> None:
        self.root = os.fspath(root)
        self._fd = self._opened()
        self._state = _state(os.fstat(self._fd))
        self._members = self._index()
        super().__init__(root, transform, **options)
        found = [self._members[name] for name in self.paths]
        for info in found:
            if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                what = f"{self.root}/{info.filename} is encrypted, or compressed by method {info.compress_type}"
                raise BadArchive(f"{what}, which can't be read here; pack the folder with `mpiter pack`.")
        figures = [(i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type) for i in found]
        self._figures = np.array(figures, np.uint64)
        del self._members  # an object for each picture

    def _found(self, root: str) -> tuple[Iterable[str], Iterable[str]]:
        """The classes, and the names of all members."""
        return {name.partition("/")[0] for name in self._members if "/" in name} - _NO_CLASSES, self._members

    def _index(self) -> dict[str, zipfile.ZipInfo]:
        """The members by name."""
        try:
            with open(self._fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                if archive.comment.startswith(_INDEX_OF) and archive.comment != index_comment(members):
                    raise zipfile.BadZipFile("its index is damaged")
                if any(not 0 <= each.header_offset <= self._state[0] - each.compress_size for each in members):
                    raise zipfile.BadZipFile("its index names places beyond its ends")
                return archive.NameToInfo
        except Exception as error:  # zipfile raises half a dozen kinds over damaged bytes
            raise BadArchive(
                f"{self.root} is no whole ZIP archive: {error}. Copy it again; `mpiter pack FOLDER OUT.zip` makes one."
            ) from error

    def fetch(self, index: int) -> bytes:
        """The file's bytes."""
        start, packed, size, crc, method = self._figures[index].tolist()
        check_size(self.source(index), max(packed, size))
        if self._fd < 0:
            self._fd = self._opened()
        head = pread(self._fd, LOCAL_BYTES, start).ljust(LOCAL_BYTES)
        names = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:], "little")
        data = pread(self._fd, packed, start + LOCAL_BYTES + names)
        if method == zipfile.ZIP_DEFLATED:
            deflated, data = data, b""
            with contextlib.suppress(zlib.error):
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(deflated, size + 1)
        if not head.startswith(b"PK\3\4") or len(data) != size or zlib.crc32(data) != crc:
            if _state(os.fstat(self._fd)) != self._state:
                raise BadArchive(f"{self.root} has changed since its index was read; make the dataset anew.")
            what = "it is cut short" if len(data) < size else "its checksum differs"
            raise BrokenImage(self.source(index), f"{what}; copy or pack {self.root} again")
        return data

    def _opened(self) -> int:
        """The file, open as long as the dataset lives; a pipe isn't waited for."""
        fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, fd)
        return fd

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": -1}


def pread(fd: int, size: int, offset: int) -> bytes:
    """So many bytes, or those up to the end of the file."""
    data = os.pread(fd, size, offset)
    while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
        data += more  # a network's file system may give fewer than were asked for
    return data


def index_comment(members: Iterable[zipfile.ZipInfo]) -> bytes:
    """The comment of an archive of ours: a checksum of its index, as the format has checksums of members only."""
    told = [(each.filename, each.header_offset, each.file_size, each.CRC) for each in members]
    return _INDEX_OF + b"%08x" % zlib.crc32(repr(told).encode())
