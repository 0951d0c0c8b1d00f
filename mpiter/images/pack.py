"""Packed folders: the pictures of an ``ImageFolder`` in one ZIP archive.

``mpiter pack`` writes the archive, ``PackedFolder`` reads it.  If the archive is
cut, damaged or replaced, ``PackedFolder`` raises an error.  ``pack`` guarantees that
the same folder gives the same bytes; that until the archive is whole and on the disk,
its name ends with ``.packing``; and that after an interruption anywhere, the members
that are whole there and equal the folder's files aren't written again.
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
from .dataset import Form, ImageFolder, Path
from .decoding import BrokenImage
from .places import bytes_at, walk

# The fixed part of a member's record; its name, an extra field and the data follow.
_LOCAL_BYTES = 30
# Folders that are no classes: that of names which begin with a slash, and the one that
# macOS adds to archives.
_NO_CLASSES = {"", "__MACOSX"}
_INDEX_OF = b"mpiter pack, index "


class PackedFolder(ImageFolder):
    """The pictures of an ``ImageFolder``, from one archive; it has the same options.

    ``mpiter pack folder/ out.zip`` writes the archive, but ``root`` may be any ZIP
    archive whose members are stored or deflated.  Each worker reads single members of
    it, and compares each picture's checksum.

    >>> import tempfile, zipfile
    >>> with zipfile.ZipFile(tempfile.mktemp(), "w") as archive:
    ...     archive.writestr("cat/1.jpg", b"...")
    >>> pets = PackedFolder(archive.filename)
    >>> pets.classes, pets.fetch(0)
    (['cat'], b'...')
    """

    def __init__(
        self,
        root: Path,
        transform: Any = None,
        **options: Unpack[Form],
    ) -> None:
        self.root = os.fspath(root)
        self._fd = self._opened()
        self._members = self._index()
        super().__init__(root, transform, **options)
        figures = list[tuple[int, int, int, int, int]]()
        for name in self.paths:
            found = self._members[name]
            figures.append(
                (
                    found.header_offset,
                    found.compress_size,
                    found.file_size,
                    found.CRC,
                    found.compress_type,
                )
            )
        self._figures = np.array(figures, np.uint64)
        # The members take much more memory than their figures.
        del self._members

    def _found(self, root: str) -> tuple[Iterable[str], Iterable[str]]:
        classes = set[str]()
        for name in self._members:
            folder, slash, _ = name.partition("/")
            if slash:
                classes.add(folder)
        return classes - _NO_CLASSES, self._members

    def _index(self) -> dict[str, zipfile.ZipInfo]:
        try:
            with (
                open(self._fd, "rb", closefd=False) as file,
                zipfile.ZipFile(file) as archive,
            ):
                members = archive.infolist()
                comment = archive.comment
                # ZIP has no checksum of its index, so `pack` writes one.
                is_whole = True
                if comment.startswith(_INDEX_OF):
                    is_whole = comment == _index_comment(members)
                end = os.fstat(self._fd).st_size
                for each in members:
                    # No member may reach beyond the end.
                    latest = end - each.compress_size
                    if not 0 <= each.header_offset <= latest:
                        is_whole = False
                if not is_whole:
                    raise zipfile.BadZipFile("its index is damaged")
                methods = {each.compress_type for each in members}
                if not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                    raise zipfile.BadZipFile(
                        "it has members that are neither stored nor deflated"
                    )
                return archive.NameToInfo
        except Exception as error:
            # zipfile raises errors of many types for damaged bytes.
            reason = (
                f"it cannot be read as a ZIP archive: {error}; copy it again, or "
                "`mpiter pack FOLDER OUT.zip`"
            )
            raise BrokenImage(self.root, reason) from error

    def fetch(self, index: int) -> bytes:
        """Read the bytes of the picture."""
        start, packed, size, crc, method = self._figures[index].tolist()
        # A copy, such as a worker's, opens the archive at its first picture.
        if self._fd < 0:
            self._fd = self._opened()
        head = _pread(self._fd, _LOCAL_BYTES, start).ljust(_LOCAL_BYTES)
        name_bytes = int.from_bytes(head[26:28], "little")
        extra_bytes = int.from_bytes(head[28:], "little")
        at = start + _LOCAL_BYTES + name_bytes + extra_bytes
        data = _pread(self._fd, packed, at)
        if method == zipfile.ZIP_DEFLATED:
            deflated = data
            # What cannot be inflated stays empty, and is refused below.  A byte more
            # than `size` shows data that are too long without inflating all of them.
            data = b""
            with contextlib.suppress(zlib.error, OverflowError):
                inflating = zlib.decompressobj(-zlib.MAX_WBITS)
                data = inflating.decompress(deflated, size + 1)
        is_member = head.startswith(b"PK\3\4") and len(data) == size
        if not is_member or zlib.crc32(data) != crc:
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
    # A network file system may return fewer bytes than were asked for.
    while len(data) < size:
        had = len(data)
        more = os.pread(fd, size - had, offset + had)
        if not more:
            break
        data += more
    return data


def _index_comment(members: Iterable[zipfile.ZipInfo]) -> bytes:
    """Return the comment that ``pack`` gives an archive: a checksum of its index."""
    index = [
        (each.filename, each.header_offset, each.file_size, each.CRC)
        for each in members
    ]
    checksum = zlib.crc32(repr(index).encode())
    return _INDEX_OF + b"%08x" % checksum


# ZIP has the times from 1980 to 2107.
_FIRST = 315532800
_LAST = 4354819198
# The modes with which `unzip` creates a member.
_A_FILE = 0o100644 << 16
_A_FOLDER = 0o40755 << 16 | 0x10


class Report(NamedTuple):
    """What ``pack`` has done."""

    files: int
    resumed: int  # files that an earlier run had packed
    left_out: list[tuple[str, str]]  # names, and the reasons


def pack(folder: Path, out: Path, *, tell: bool = False) -> Report:
    """Pack the files below ``folder`` into ``out``.

    If an earlier run was interrupted, this one continues.  ``tell`` prints the progress
    to standard error.
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
    real_part = os.path.realpath(part)
    real_root = os.path.realpath(root)
    # The archive that is being written may lie in the folder itself.
    ours = os.path.relpath(real_part, real_root)
    listed = _listed(root, left_out)
    names = sorted(name for name in listed if name != ours)
    if all(name.endswith("/") for name in names):
        raise OptionError(f"{root} has no files to pack.")
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(part, flags, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Any other error says that this file system has no locks.  The archive is
            # packed all the same.
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
            # A name that isn't UTF-8 raises a UnicodeError.
            except (OSError, UnicodeError) as error:
                why = getattr(error, "strerror", None) or str(error)
                left_out.append((name, why))
                continue
            header = info.FileHeader()
            if data is not None:
                member = memoryview(header + data)
                write_all(file.fileno(), member, at)
            resumed += data is None and not info.is_dir()
            members.append(info)
            at += len(header) + info.file_size
        # The members are there already: this writes only the index, behind them.
        with zipfile.ZipFile(file, "w") as archive:
            archive.filelist = members
            archive.start_dir = at
            archive.comment = _index_comment(members)
        # An earlier run may have written more, of files that are gone.
        file.truncate()
        # Only what is on the disk may have the archive's name.
        os.fsync(file.fileno())
        os.replace(part, path)
    parent = os.path.dirname(os.path.abspath(path))
    machine.sync_folder(parent)
    files = sum(not info.is_dir() for info in members)
    return Report(files, resumed, left_out)


def _listed(root: str, left_out: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the names of the files below ``root``, and of empty folders."""

    def leave_out(error: OSError) -> None:
        left_out.append((error.filename, str(error.strerror)))

    for prefix, folders, files in walk(root, leave_out):
        for name in files:
            yield prefix + name
        # An empty folder may be a class.
        if prefix and not folders and not files:
            yield prefix


def _member(
    fd: int,
    at: int,
    root: str,
    name: str,
) -> tuple[zipfile.ZipInfo, bytes | None]:
    """Return the ZIP record of the file ``name``, and the bytes to write.

    It is the record for offset ``at`` of ``fd``.  The bytes are None if an earlier run
    has already written them.
    """
    path = os.path.join(root, name)
    info = zipfile.ZipInfo(name)
    about = os.stat(path)
    info.header_offset = at
    info.external_attr = _A_FOLDER
    # A folder's time is left out, since it changes with what lies in the folder.
    if not info.is_dir():
        changed_s = min(max(about.st_mtime, _FIRST), _LAST)
        info.date_time = time.gmtime(changed_s)[:6]
        info.external_attr = _A_FILE
        info.file_size = about.st_size
        info.compress_size = about.st_size
    # If an earlier run has written this member, its header there equals the one that is
    # made with the checksum there, and the data have that checksum.
    local = _pread(fd, _LOCAL_BYTES, at)
    info.CRC = int.from_bytes(local[14:18], "little")
    header = info.FileHeader()
    size = len(header) + info.file_size
    written = _pread(fd, size, at)
    is_whole = len(written) == size and written.startswith(header)
    if is_whole:
        data = written[len(header) :]
        if zlib.crc32(data) == info.CRC:
            return info, None
    data = b""
    if not info.is_dir():
        data = bytes_at(path)
    changed_ns = os.stat(path).st_mtime_ns
    if len(data) != info.file_size or changed_ns != about.st_mtime_ns:
        raise OSError("it changed while it was packed")
    info.CRC = zlib.crc32(data)
    return info, data


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = (
        "Write the files below a folder into an uncompressed ZIP archive. "
        "Interrupted, the same command goes on."
    )
    parser = commands.add_parser(
        "pack",
        help="make one large file of a folder of small ones",
        description=about,
    )
    parser.add_argument("folder", help="with the files, and folders of files")
    parser.add_argument("out", help="the archive; OUT.packing while it is written")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        report = pack(options.folder, options.out, tell=True)
    except OSError as error:
        # An error of writing names no file.
        error.filename = error.filename or options.out
        raise
    for name, why in report.left_out:
        print(f"left out: {name}: {why}", file=sys.stderr)
    print(
        f"{options.out}: {report.files:,} files, {report.resumed:,} packed before; "
        f"{len(report.left_out):,} not"
    )
    return int(bool(report.left_out))
