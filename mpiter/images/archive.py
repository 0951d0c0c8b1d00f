"""A ZIP archive that is read at random: each member with one look at its record and one read of its bytes.

Runs wherever the dataset does.  Guarantees that the index is read once, and travels; that a process opens the file for
itself, or shares an open one by reading at places (`pread`), which moves nothing for anybody else; and that what was
cut, damaged or replaced since the index was read is an error, never other bytes.
"""

from __future__ import annotations

import os
import stat
import zlib
from typing import Any

from .broken import BrokenImage, check_size
from .zipped import DEFLATED, LOCAL, LOCAL_MARK, BadArchive, Index, pread


class Archive:
    """An archive by its path; ``verify``: each member's checksum is compared."""

    def __init__(self, path: str, verify: bool = True) -> None:
        self.path, self._verify = path, verify
        self._file: _File | None = _File(path)
        self._state = self._file.state()
        self.index = Index.read(self._file.fd, path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def data(self, member: int) -> bytes:
        """The bytes of a member."""
        file, index = self._opened(), self.index
        start, size = int(index.offsets[member]), int(index.packed_sizes[member])
        if start + size > self._state[0]:
            raise self._damaged(member, "it lies beyond the end")
        is_deflated = index.methods[member] == DEFLATED
        check_size(self.place(member), max(size, int(index.sizes[member]) if is_deflated else 0))
        head = pread(file.fd, LOCAL.size, start)
        if len(head) < LOCAL.size or not head.startswith(LOCAL_MARK):
            raise self._damaged(member, "its record isn't where the index says")
        *_, name_length, extra_length = LOCAL.unpack(head)
        data = pread(file.fd, size, start + LOCAL.size + name_length + extra_length)
        if len(data) == size and is_deflated:
            data = _inflated(data, int(index.sizes[member]))
        if len(data) != index.sizes[member]:
            raise self._damaged(member, "it is cut short")
        if self._verify and zlib.crc32(data) != index.crcs[member]:
            raise self._damaged(member, "its checksum differs")
        return data

    def place(self, member: int) -> str:
        """Where a member lies, for whoever reads it in a message."""
        return f"{self.path}/{self.index.name(member)}"

    def _opened(self) -> _File:
        file = self._file
        if file is None:
            file = _File(self.path)
            if file.state() != self._state and not self._is_the_same(file):
                raise self._changed()
            self._file = file
        return file

    def _is_the_same(self, file: _File) -> bool:
        """Copied or touched, maybe: the index with its checksums tells."""
        try:
            return bool((Index.read(file.fd, self.path).raw == self.index.raw).all())
        except (BadArchive, ValueError):
            return False

    def _changed(self) -> BadArchive:
        return BadArchive(f"{self.path} has changed since its index was read; make the dataset anew.")

    def _damaged(self, member: int, reason: str) -> Exception:
        if self._opened().state() != self._state:
            return self._changed()
        return BrokenImage(self.place(member), f"{reason}; copy or pack {self.path} again")


class _File:
    """An open file, until nobody has it any more."""

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # else a pipe waits for its other end
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            raise BadArchive(f"{path} is no ZIP archive: it is a folder, a pipe or a device; name a file.")

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def state(self) -> tuple[int, int]:
        """Which changes when somebody writes."""
        about = os.fstat(self.fd)
        return about.st_size, about.st_mtime_ns


def _inflated(data: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error:
        return b""
