"""``mpiter pack folder/ out.zip``: a folder of many small files made one large one, an uncompressed ZIP archive.

Guarantees that the same folder gives the same bytes (names in order, times in UTC); that the archive has its name only
when it is whole and on the disk, until then that name and ``.packing``; that after an end at any byte, a power failure
included, whatever is whole in that file and still like the folder's is kept; and that what could not be packed is told.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from .. import machine
from ..errors import MpiterError, OptionError
from ..transport.memory import write_all
from .dataset import Path, walk
from .decoding import check_size
from .packed import LOCAL_BYTES, index_comment, pread
from .store import bytes_at

_FIRST, _LAST = 315532800, 4354819198  # times that the format has room for: 1980 to 2107
_A_FILE, _A_FOLDER = 0o100644 << 16, 0o40755 << 16 | 0x10  # what `unzip` makes of a member


class Report(NamedTuple):
    files: int
    resumed: int  # of the files: those that an earlier run had packed
    left_out: list[tuple[str, str]]  # names, and why


def pack(folder: Path, out: Path, *, force: bool = False, only: Sequence[str] = (), tell: bool = False) -> Report:
    """Pack a folder; if that was begun before, go on.

    ``only`` are patterns, of which a file's name must match one; ``force`` packs over an archive that is there, which
    goes when the new one is whole; ``tell`` says on standard error how far it is.
    """
    root, path = os.fspath(folder), os.fspath(out)
    if not os.path.isdir(root):
        raise OptionError(f"{root!r} is not a folder.")
    _refuse(path, force)
    part, left_out, resumed = f"{path}.packing", list[tuple[str, str]](), 0
    ours = {os.path.relpath(os.path.realpath(each), os.path.realpath(root)) for each in (path, part)}
    names = sorted(set(_listed(root, only, left_out)) - ours)
    if all(name.endswith("/") for name in names):
        raise OptionError(f"{root} has no files to pack{' whose names match ' if only else ''}{' or '.join(only)}.")
    with open(os.open(part, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
        _lock(file.fileno(), part)
        members, at = list[zipfile.ZipInfo](), 0
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
        with zipfile.ZipFile(file, "w") as archive:  # which writes the index, and nothing else
            archive.filelist, archive.start_dir, archive.comment = members, at, index_comment(members)
        file.truncate()
        os.fsync(file.fileno())
        _refuse(path, force)  # one may have come meanwhile
        os.replace(part, path)
    machine.write_names(os.path.dirname(os.path.abspath(path)))
    return Report(sum(not info.is_dir() for info in members), resumed, left_out)


def _refuse(path: str, force: bool) -> None:
    if os.path.exists(path) and not (force and os.path.isfile(path)):
        raise OptionError(f"{path} exists: name another file, or write over a file with --force, in Python force=True.")


def _lock(fd: int, part: str) -> None:
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(part)):  # or another process has just made it the archive
            return
    raise MpiterError(f"{part} is being written by another process; wait for it, or end it.")


def _listed(root: str, only: Sequence[str], left_out: list[tuple[str, str]]) -> Iterator[str]:
    """The names of the files below a folder, and of folders without files, which may be classes."""
    failed = list[OSError]()
    for prefix, folders, files in walk(root, failed):
        found = [prefix + name for name in files if not only or any(fnmatchcase(name, pattern) for pattern in only)]
        yield from found or ([prefix] if prefix and not folders else [])
    left_out += [(error.filename, str(error.strerror)) for error in failed]


def _member(fd: int, at: int, root: str, name: str) -> tuple[zipfile.ZipInfo, bytes | None]:
    """The record of a file or a folder that is to lie there, and its bytes; None if an earlier run has written both."""
    path, info = os.path.join(root, name), zipfile.ZipInfo(name)
    about = os.stat(path)
    info.header_offset, info.external_attr = at, _A_FOLDER
    if not info.is_dir():  # whose time changes with whatever is in it
        info.date_time = time.gmtime(min(max(about.st_mtime, _FIRST), _LAST))[:6]
        info.external_attr, info.file_size, info.compress_size = _A_FILE, about.st_size, about.st_size
    info.CRC = int.from_bytes(pread(fd, LOCAL_BYTES, at)[14:18], "little")
    header = info.FileHeader()
    lies = pread(fd, len(header) + info.file_size, at)
    is_whole = len(lies) == len(header) + info.file_size and lies.startswith(header)
    if is_whole and zlib.crc32(lies[len(header) :]) == info.CRC:
        return info, None
    data = b"" if info.is_dir() else bytes_at(path, lambda size: check_size(path, size))
    if (len(data), os.stat(path).st_mtime_ns) != (info.file_size, about.st_mtime_ns):
        raise OSError("it changed while it was packed")
    info.CRC = zlib.crc32(data)
    return info, data


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    about = "Write the files below a folder into an uncompressed ZIP archive. Interrupted, the same command goes on."
    parser = commands.add_parser("pack", help="make one large file of a folder of small ones", description=about)
    parser.add_argument("folder", help="with the files, and folders of files")
    parser.add_argument("out", help="the archive; OUT.packing while it is written")
    parser.add_argument("--force", action="store_true", help="over an archive that is there")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="files that match; repeatable")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        report = pack(options.folder, options.out, force=options.force, only=options.only, tell=True)
    except (OSError, KeyboardInterrupt):
        if os.path.exists(f"{options.out}.packing"):
            print(f"what was packed lies in {options.out}.packing; the same command goes on", file=sys.stderr)
        raise
    for name, why in report.left_out:
        print(f"left out: {name}: {why}", file=sys.stderr)
    print(f"{options.out}: {report.files:,} files, {report.resumed:,} packed before; {len(report.left_out):,} not")
    return int(bool(report.left_out))
