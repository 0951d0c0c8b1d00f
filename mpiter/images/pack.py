"""Packed folders: ``PackedFolder`` reads an ``ImageFolder`` from one ZIP archive,
``mpiter pack`` writes it.

If the archive is cut, damaged or replaced, ``PackedFolder`` raises an error.  ``pack``
guarantees that the same folder gives the same bytes; that until the archive is whole
and on the disk, its name ends with ``.packing``; and that after an interruption
anywhere, the members that are whole there and equal the folder's files aren't written
again.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
import weakref
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Unpack

import numpy as np

from .. import machine
from ..errors import OptionError
from ..transport.memory import write_all
from .dataset import Form, ImageFolder, Path, bytes_at, walk
from .decoding import BrokenImage

# Of the fixed part of a member's record; its name, an extra field and the data follow.
_LOCAL_BYTES = 30
# Of names that begin with a slash, and of files that macOS adds to archives.
_NO_CLASSES = {"", "__MACOSX"}
_INDEX_OF = b"mpiter pack, index "


class PackedFolder(ImageFolder):
    """The pictures of an ``ImageFolder``, from an archive that ``mpiter pack folder/
    out.zip`` wrote; same options.

    ``root`` may be any ZIP archive whose members are stored or deflated. Each worker
    reads single members of it, and compares each picture's checksum.

    >>> import tempfile, zipfile
    >>> with zipfile.ZipFile(tempfile.mktemp(), "w") as archive:
    ...     archive.writestr("cat/1.jpg", b"...")
    >>> pets = PackedFolder(archive.filename)
    >>> pets.classes, pets.fetch(0)
    (['cat'], b'...')
    """

    def __init__(
        self, root: Path, transform: Any = None, **options: Unpack[Form]
    ) -> None:
        self.root = os.fspath(root)
        self._fd = self._opened()
        self._members = self._index()
        super().__init__(root, transform, **options)
        found = (self._members[name] for name in self.paths)
        figures = [
            (i.header_offset, i.compress_size, i.file_size, i.CRC, i.compress_type)
            for i in found
        ]
        self._figures = np.array(figures, np.uint64)
        del self._members  # they take much memory

    def _found(self, root: str) -> tuple[Iterable[str], Iterable[str]]:
        return {
            name.partition("/")[0] for name in self._members if "/" in name
        } - _NO_CLASSES, self._members

    def _index(self) -> dict[str, zipfile.ZipInfo]:
        try:
            with (
                open(self._fd, "rb", closefd=False) as file,
                zipfile.ZipFile(file) as archive,
            ):
                members = archive.infolist()
                differs = archive.comment.startswith(
                    _INDEX_OF
                ) and archive.comment != _index_comment(members)
                end = os.fstat(self._fd).st_size
                if differs or not all(
                    0 <= each.header_offset <= end - each.compress_size
                    for each in members
                ):
                    raise zipfile.BadZipFile("its index is damaged")
                if not {each.compress_type for each in members} <= {
                    zipfile.ZIP_STORED,
                    zipfile.ZIP_DEFLATED,
                }:
                    raise zipfile.BadZipFile(
                        "it has members that are neither stored nor deflated"
                    )
                return archive.NameToInfo
        except Exception as error:
            # Zipfile raises many types for damaged bytes.
            reason = (
                f"it cannot be read as a ZIP archive: {error}; copy it again, or "
                "`mpiter pack FOLDER OUT.zip`"
            )
            raise BrokenImage(self.root, reason) from error

    def fetch(self, index: int) -> bytes:
        """Read the bytes of the picture."""
        start, packed, size, crc, method = self._figures[index].tolist()
        if self._fd < 0:
            self._fd = self._opened()
        head = _pread(self._fd, _LOCAL_BYTES, start).ljust(_LOCAL_BYTES)
        names = int.from_bytes(head[26:28], "little") + int.from_bytes(
            head[28:], "little"
        )
        data = _pread(self._fd, packed, start + _LOCAL_BYTES + names)
        if method == zipfile.ZIP_DEFLATED:
            deflated = data
            data = b""
            with contextlib.suppress(zlib.error, OverflowError):
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(
                    deflated, size + 1
                )
        if (
            not head.startswith(b"PK\3\4")
            or len(data) != size
            or zlib.crc32(data) != crc
        ):
            raise BrokenImage(
                self.source(index),
                f"its checksum differs; copy or pack {self.root} again",
            )
        return data

    def _opened(self) -> int:
        fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, fd)
        return fd

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fd": -1}


def _pread(fd: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes at ``offset``; fewer only at the end of the file."""
    data = os.pread(fd, size, offset)
    while len(data) < size and (
        more := os.pread(fd, size - len(data), offset + len(data))
    ):
        # A network file system may return fewer than were asked for.
        data += more
    return data


def _index_comment(members: Iterable[zipfile.ZipInfo]) -> bytes:
    """Return the comment that ``pack`` gives an archive: a checksum of the index, for
    which ZIP has none.
    """
    told = [
        (each.filename, each.header_offset, each.file_size, each.CRC)
        for each in members
    ]
    return _INDEX_OF + b"%08x" % zlib.crc32(repr(told).encode())


# The range of times in ZIP: 1980 to 2107.
_FIRST = 315532800
_LAST = 4354819198
# The modes with which `unzip` creates a member.
_A_FILE = 0o100644 << 16
_A_FOLDER = 0o40755 << 16 | 0x10


class Report(NamedTuple):
    files: int
    # Files that an earlier run had packed.
    resumed: int
    # Names, and the reasons.
    left_out: list[tuple[str, str]]


def pack(folder: Path, out: Path, *, tell: bool = False) -> Report:
    """Pack the files below ``folder`` into ``out``; continue if an earlier run was
    interrupted.

    ``tell`` prints the progress to standard error.
    """
    root = os.fspath(folder)
    path = os.fspath(out)
    if not os.path.isdir(root):
        raise OptionError(f"{root!r} is not a folder.")
    if os.path.exists(path):
        raise OptionError(f"{path} exists: delete it, or name another file.")
    part = f"{path}.packing"
    left_out = list[tuple[str, str]]()
    resumed = 0
    ours = os.path.relpath(os.path.realpath(part), os.path.realpath(root))
    names = sorted(name for name in _listed(root, left_out) if name != ours)
    if all(name.endswith("/") for name in names):
        raise OptionError(f"{root} has no files to pack.")
    with open(
        os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b"
    ) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Any other: this file system has no locks.
            if isinstance(error, BlockingIOError):
                raise OptionError(
                    f"another `mpiter pack` is writing {part}."
                ) from error
        members = list[zipfile.ZipInfo]()
        at = 0
        for done, name in enumerate(names):
            if tell and done % 1000 == 0:
                print(f"pack {done:,}/{len(names):,}  {name}", file=sys.stderr)
            try:
                info, data = _member(file.fileno(), at, root, name)
            except (OSError, UnicodeError) as error:  # names that aren't UTF-8
                left_out.append((name, getattr(error, "strerror", None) or str(error)))
                continue
            header = info.FileHeader()
            if data is not None:
                write_all(file.fileno(), memoryview(header + data), at)
            resumed += data is None and not info.is_dir()
            members.append(info)
            at += len(header) + info.file_size
        with zipfile.ZipFile(file, "w") as archive:  # only to write the index
            archive.filelist, archive.start_dir, archive.comment = (
                members,
                at,
                _index_comment(members),
            )
        file.truncate()
        os.fsync(file.fileno())
        os.replace(part, path)
    machine.sync_folder(os.path.dirname(os.path.abspath(path)))
    return Report(sum(not info.is_dir() for info in members), resumed, left_out)


def _listed(root: str, left_out: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the names of the files below ``root``, and of folders without files, which
    may be classes.
    """
    for prefix, folders, files in walk(
        root, lambda error: left_out.append((error.filename, str(error.strerror)))
    ):
        yield from [prefix + name for name in files] or (
            [prefix] if prefix and not folders else []
        )


def _member(
    fd: int, at: int, root: str, name: str
) -> tuple[zipfile.ZipInfo, bytes | None]:
    """Return the ZIP record of the file ``name`` for offset ``at`` of ``fd``, and the
    bytes to write there.

    The bytes are None if an earlier run has already written them.
    """
    path = os.path.join(root, name)
    info = zipfile.ZipInfo(name)
    about = os.stat(path)
    info.header_offset = at
    info.external_attr = _A_FOLDER
    # A folder's time changes with its contents.
    if not info.is_dir():
        info.date_time = time.gmtime(min(max(about.st_mtime, _FIRST), _LAST))[:6]
        info.external_attr = _A_FILE
        info.file_size = about.st_size
        info.compress_size = about.st_size
    info.CRC = int.from_bytes(_pread(fd, _LOCAL_BYTES, at)[14:18], "little")
    header = info.FileHeader()
    lies = _pread(fd, len(header) + info.file_size, at)
    is_whole = len(lies) == len(header) + info.file_size and lies.startswith(header)
    if is_whole and zlib.crc32(lies[len(header) :]) == info.CRC:
        return info, None
    if info.is_dir():
        data = b""
    else:
        data = bytes_at(path)
    if (len(data), os.stat(path).st_mtime_ns) != (info.file_size, about.st_mtime_ns):
        raise OSError("it changed while it was packed")
    info.CRC = zlib.crc32(data)
    return info, data


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Write the files below a folder into an uncompressed ZIP archive. "
        "Interrupted, the same command goes on."
    )
    parser = commands.add_parser(
        "pack", help="make one large file of a folder of small ones", description=about
    )
    parser.add_argument("folder", help="with the files, and folders of files")
    parser.add_argument("out", help="the archive; OUT.packing while it is written")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        report = pack(options.folder, options.out, tell=True)
    except OSError as error:
        error.filename = error.filename or options.out  # writing names no file
        raise
    for name, why in report.left_out:
        print(f"left out: {name}: {why}", file=sys.stderr)
    print(
        f"{options.out}: {report.files:,} files, {report.resumed:,} packed before; "
        f"{len(report.left_out):,} not"
    )
    return int(bool(report.left_out))
