"""The ZIP format, as far as a packed folder needs it: the records, written, and the index of an archive, read.

Pure but for `Index.read`, which reads the end of a file.  Runs where a folder is packed and where a packed one is
opened.  Guarantees that the same member gives the same bytes, that a size, an offset or a number of members that is too
large for the old format goes into the ZIP64 fields, and that an index is a handful of arrays, however many members.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import MpiterError

Array = np.ndarray[Any, Any]

STORED, DEFLATED = 0, 8
LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
LOCAL_MARK, _CENTRAL_MARK, _END_MARK = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_END64_MARK, _LOCATOR_MARK = b"PK\6\6", b"PK\6\7"

TOO_LARGE, TOO_MANY = 0xFFFFFFFF, 0xFFFF  # for the old format: these say that the figure stands elsewhere
_BEYOND = 1 << 62  # the end of any file
_IN_UTF8, _ENCRYPTED = 0x800, 0x1
_OLD, _NEW = 20, 45  # the versions that readers need: 2.0, and 4.5 for ZIP64
_UNIX = 3 << 8
_A_FILE, _A_FOLDER = 0o100644 << 16, 0o40755 << 16 | 0x10  # what `unzip` makes of a member
_LONGEST_COMMENT = 0xFFFF
_INDEX_OF = b"mpiter pack, index "


class BadArchive(MpiterError, ValueError):
    """A file is no ZIP archive, or not all of one, or has changed; the text says which, and what to do.

    >>> from mpiter.images import PackedFolder
    >>> PackedFolder("/dev/null")
    Traceback (most recent call last):
    mpiter.images.zipped.BadArchive: /dev/null is no ZIP archive: ...
    """


# -- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Member:
    """A stored file, or a folder."""

    name: bytes  # in UTF-8; a folder's ends with a slash
    when: float  # seconds since 1970
    size: int
    crc: int = 0

    def local(self) -> bytes:
        """The record that stands before the data."""
        is_large = self.size >= TOO_LARGE
        extra = _zip64(self.size, self.size) if is_large else b""
        version = _NEW if is_large else _OLD
        return LOCAL.pack(LOCAL_MARK, version, *self._about(), len(self.name), len(extra)) + self.name + extra

    def central(self, offset: int) -> bytes:
        """The record in the index."""
        is_large = self.size >= TOO_LARGE
        far = [offset] if offset >= TOO_LARGE else []
        extra = _zip64(*([self.size, self.size] if is_large else []), *far)
        version = _NEW if extra else _OLD
        at = min(offset, TOO_LARGE)
        lengths = len(self.name), len(extra), 0
        kind = _A_FOLDER if self.name.endswith(b"/") else _A_FILE
        head = _CENTRAL.pack(_CENTRAL_MARK, _UNIX | version, version, *self._about(), *lengths, 0, 0, kind, at)
        return head + self.name + extra

    def _about(self) -> tuple[int, ...]:
        """Flags, method, time, date, checksum, both sizes."""
        flags = 0 if self.name.isascii() else _IN_UTF8
        size = min(self.size, TOO_LARGE)
        return flags, STORED, *_clock(self.when), self.crc, size, size


def begins_like_ours(head: bytes) -> bool:
    """Whether an archive of ours, ended at any byte, may begin so: with zeros too, and with no member at all."""
    mark, version, _, method, *_ = LOCAL.unpack(head[: LOCAL.size].ljust(LOCAL.size, b"\0"))
    begun = mark.rstrip(b"\0")
    is_marked = LOCAL_MARK.startswith(begun) or _END_MARK.startswith(begun)
    return is_marked and method == STORED and version in (0, _OLD, _NEW)


def end(index: bytes | bytearray, members: int, offset: int) -> bytes:
    """What stands behind an index of so many members, which begins there; its checksum is the archive's comment."""
    size, comment = len(index), _comment(index)
    said = min(members, TOO_MANY), min(size, TOO_LARGE), min(offset, TOO_LARGE)
    old = _END.pack(_END_MARK, 0, 0, said[0], *said, len(comment)) + comment
    if said == (members, size, offset) and members != TOO_MANY and TOO_LARGE not in said:
        return old
    new = _END64.pack(_END64_MARK, _END64.size - 12, _UNIX | _NEW, _NEW, 0, 0, members, members, size, offset)
    return new + _LOCATOR.pack(_LOCATOR_MARK, 0, offset + size, 1) + old


def _comment(index: bytes | bytearray) -> bytes:
    """The format has checksums of members only."""
    return _INDEX_OF + b"%08x" % zlib.crc32(index)


def _zip64(*figures: int) -> bytes:
    return struct.pack(f"<HH{len(figures)}Q", 1, 8 * len(figures), *figures) if figures else b""


def _clock(when: float) -> tuple[int, int]:
    """Time and date as the format has them, two seconds apart; in UTC, so that they don't depend on who packs."""
    year, month, day, hour, minute, second, *_ = time.gmtime(min(max(when, 315532800), 4354819198))  # 1980 to 2107
    return hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day


# -- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """Where the members of an archive lie: an array for each figure, and the index as it is, with the names."""

    raw: Array  # bytes
    names_at: Array  # where in them the names begin…
    name_lengths: Array  # …and how long they are
    flags: Array
    methods: Array
    crcs: Array
    packed_sizes: Array
    sizes: Array
    offsets: Array  # of the local records

    def __len__(self) -> int:
        return len(self.offsets)

    def raw_name(self, member: int) -> bytes:
        start = int(self.names_at[member])
        return self.raw[start : start + int(self.name_lengths[member])].tobytes()

    def name(self, member: int) -> str:
        """As `zipfile` says it."""
        return self.raw_name(member).decode("utf-8" if self.flags[member] & _IN_UTF8 else "cp437", "surrogateescape")

    def are_readable(self) -> Array:
        """Of each member, whether it is stored or deflated, and in the clear."""
        readable: Array = np.isin(self.methods, (STORED, DEFLATED)) & (self.flags & _ENCRYPTED == 0)
        return readable

    def why_unreadable(self, member: int) -> str:
        """What of a member can't be read here."""
        method = int(self.methods[member])
        return "is encrypted" if self.flags[member] & _ENCRYPTED else f"is compressed by method {method}"

    @classmethod
    def read(cls, fd: int, path: str) -> Index:
        """Of an open file."""
        length = os.fstat(fd).st_size
        members, size, offset, shift, comment = _found(fd, length, path)
        raw = pread(fd, size, offset + shift)
        if len(raw) != size:
            raise _torn(path, "its index is cut short")
        if comment.startswith(_INDEX_OF) and comment != _comment(raw):
            raise _torn(path, "its index is damaged")
        return cls._parsed(raw, members, shift, path)

    @classmethod
    def _parsed(cls, raw: bytes, members: int, shift: int, path: str) -> Index:
        at = np.empty(members, np.int64)
        position, lengths = 0, struct.Struct("<3H")
        try:
            for member in range(members):
                at[member] = position
                position += _CENTRAL.size + sum(lengths.unpack_from(raw, position + 28))
        except struct.error:
            raise _torn(path, "its index ends too early") from None
        if position > len(raw):
            raise _torn(path, "its index ends too early")
        data = np.frombuffer(raw, np.uint8)
        if not (_field(data, at, 0, "<u4") == int.from_bytes(_CENTRAL_MARK, "little")).all():
            raise _torn(path, "its index is damaged")
        sizes, packed, offsets = (_field(data, at, where, "<u4").astype(np.int64) for where in (24, 20, 42))
        names_at, name_lengths = at + _CENTRAL.size, _field(data, at, 28, "<u2")
        for member in np.flatnonzero((sizes == TOO_LARGE) | (packed == TOO_LARGE) | (offsets == TOO_LARGE)).tolist():
            start = int(names_at[member]) + int(name_lengths[member])
            extra = raw[start : start + int(_field(data, at[member : member + 1], 30, "<u2")[0])]
            _widen(extra, (sizes, packed, offsets), member, path)
        return cls(
            data,
            names_at,
            name_lengths,
            _field(data, at, 8, "<u2"),
            _field(data, at, 10, "<u2"),
            _field(data, at, 16, "<u4"),
            packed,
            sizes,
            offsets + shift,
        )


def _field(data: Array, at: Array, where: int, kind: str) -> Array:
    """A figure of all records."""
    width = np.dtype(kind).itemsize
    return data[at[:, None] + np.arange(where, where + width)].view(kind)[:, 0]


def _widen(extra: bytes, figures: tuple[Array, ...], member: int, path: str) -> None:
    """Take from the ZIP64 field what the old ones have no room for; in this order, and only those."""
    wanted = [figure for figure in figures if figure[member] == TOO_LARGE]
    position = 0
    while position + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, position)
        if kind == 1 and size >= 8 * len(wanted) and position + 4 + size <= len(extra):
            for figure, value in zip(wanted, struct.unpack_from(f"<{len(wanted)}Q", extra, position + 4), strict=True):
                figure[member] = min(value, _BEYOND)
            return
        position += 4 + size
    raise _torn(path, "a size in its index is missing")


def _found(fd: int, length: int, path: str) -> tuple[int, int, int, int, bytes]:
    """Number of members, size and place of the index, how many bytes were put before the archive, its comment."""
    start = max(0, length - _END.size - _LONGEST_COMMENT)
    tail = pread(fd, length - start, start)
    where = tail.rfind(_END_MARK)
    while where >= 0 and where + _END.size + int.from_bytes(tail[where + 20 : where + 22], "little") != len(tail):
        where = tail.rfind(_END_MARK, 0, where)  # this one stands in the comment
    if where < 0:
        if pread(fd, 4, 0) == LOCAL_MARK:
            raise _torn(path, "its end is missing")
        raise BadArchive(f"{path} is no ZIP archive: it doesn't end like one. `mpiter pack FOLDER OUT.zip` makes one.")
    _, _, _, _, members, size, offset, _ = _END.unpack_from(tail, where)
    stands = start + where  # where the index ends
    if where >= _LOCATOR.size and tail[where - _LOCATOR.size :].startswith(_LOCATOR_MARK):
        stands -= _LOCATOR.size + _END64.size
        record = pread(fd, _END64.size, stands)
        if len(record) < _END64.size or not record.startswith(_END64_MARK):
            raise _torn(path, "its end is damaged")
        *_, members, size, offset = _END64.unpack(record)
    shift = stands - size - offset
    if shift < 0 or size < members * _CENTRAL.size:
        raise _torn(path, "its index is cut short")
    return members, size, offset, shift, tail[where + _END.size :]


def pread(fd: int, size: int, offset: int) -> bytes:
    """So many bytes, or those up to the end of the file."""
    data = os.pread(fd, size, offset)
    while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
        data += more  # 2 GB at most come at a time
    return data


def _torn(path: str, what: str) -> BadArchive:
    return BadArchive(f"{path} is not a whole ZIP archive: {what}. Copy or pack it again.")
