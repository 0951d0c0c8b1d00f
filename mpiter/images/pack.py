"""A folder of many small files made one large one: an uncompressed ZIP archive.

Runs where it is asked for.  Guarantees that the same folder gives the same bytes (names in order, times in UTC); that
the archive has its name only when it is whole and on the disk, until then that name and `.part`; that after an end at
any byte, a power failure included, packing goes on behind the last member that is whole and still like its file; and
that what could not be packed is told.  Assumes that nobody else writes the part, for which it is locked.
"""

from __future__ import annotations

import fcntl
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from .. import machine
from ..errors import MpiterError, OptionError
from ..transport.memory import write_all
from .zipped import LOCAL, LOCAL_MARK, Member, begins_like_ours, end, pread

_AT_ONCE = 1 << 20
Progress = Callable[[int, int, str], None]  # files done, files in all, the name of the next


@dataclass
class Report:
    """What came of it."""

    files: int = 0
    size: int = 0  # of the archive
    resumed: int = 0  # files that an earlier run had packed
    unwanted: int = 0  # files that `only` leaves out
    left_out: list[tuple[str, str]] = field(default_factory=list)  # names, and why


class _LeftOut(Exception):
    """A file can't be packed; the text says why."""


def pack(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    follow: bool = False,
    only: Sequence[str] = (),
    progress: Progress = lambda done, files, name: None,
) -> Report:
    """Pack a folder; if that was begun before, go on.

    Args:
        force: over an archive that is there, which goes when the new one is whole.
        follow: take what links out of the folder lead to as well.
        only: patterns, of which a file's name must match one: `("*.jpg", "*.png")`.
    """
    if not os.fspath(folder):
        raise OptionError("the folder's name is empty; the folder that you are in is '.'.")
    root, path = Path(folder), Path(out)
    if not root.is_dir():
        raise OptionError(f"{root} is not a folder.")
    _refuse(path, force)
    report = Report()
    part = path.with_name(f"{path.name}.part")
    names = _listed(root, follow, only, {os.path.realpath(path), os.path.realpath(part)}, report)
    if all(name.endswith("/") for name in names):
        which = f" whose names match {' or '.join(map(repr, only))}; {report.unwanted:,} do not" if only else ""
        raise OptionError(f"{root} has no files to pack{which}.")
    fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(fd, part)
        _check_is_ours(fd, part)
        packing = _Packing(fd, root, report)
        at_work = packing.keep_whole
        for done, name in enumerate(names):
            progress(done, len(names), name)
            if not at_work(name):
                at_work = packing.add
                at_work(name)
        packing.finish()
        _refuse(path, force)  # one may have come meanwhile
        os.replace(part, path)
    finally:
        os.close(fd)
    machine.write_names(path.parent)
    return report


def _refuse(path: Path, force: bool) -> None:
    if path.is_dir():
        raise OptionError(f"{path} is a folder; name a file.")
    if path.exists() and not path.is_file():
        raise OptionError(f"{path} is a device or a pipe; name a file.")
    if path.exists() and not force:
        raise OptionError(f"{path} exists: name another file, or write over it with --force, from Python force=True.")


def _lock(fd: int, part: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(fd), os.stat(part))
    except (BlockingIOError, FileNotFoundError):
        is_ours = False  # another process writes it, or has just made it the archive
    if not is_ours:
        raise MpiterError(f"{part} is being written by another process; wait for it, or end it.")


def _check_is_ours(fd: int, part: Path) -> None:
    if not begins_like_ours(pread(fd, LOCAL.size, 0)):
        raise OptionError(f"{part} is no archive that was begun here; move it away, or give the archive another name.")


# -- which files -----------------------------------------------------------------------------------------------------


def _listed(root: Path, follow: bool, only: Sequence[str], ours: set[str], report: Report) -> list[str]:
    """The names of the files below a folder, in order, and of folders without files."""
    top, own_names = os.path.realpath(root), set(map(os.path.basename, ours))

    def below(folder: str, prefix: str, around: tuple[str, ...]) -> Iterator[str]:
        try:
            entries = list(os.scandir(folder))
        except OSError as error:
            report.left_out.append((prefix or ".", _reason(error)))
            return
        for entry in entries:
            name = prefix + entry.name
            try:
                yield from kept(entry, name, around)
            except (_LeftOut, OSError) as why:
                report.left_out.append((os.fsencode(name).decode(errors="replace"), _reason(why)))

    def kept(entry: os.DirEntry[str], name: str, around: tuple[str, ...]) -> Iterator[str]:
        _check_name(name)
        if entry.is_symlink():
            _check_link(entry.path, top, follow)
        if entry.is_dir():
            real = os.path.realpath(entry.path)
            if real in around:
                raise _LeftOut("a link to a folder that it is in")
            is_empty = True
            for each in below(entry.path, f"{name}/", (*around, real)):
                is_empty = False
                yield each
            if is_empty:
                yield f"{name}/"  # a class without files is a class
        elif not entry.is_file():
            raise _LeftOut("neither a file nor a folder")
        elif only and not any(fnmatchcase(entry.name, pattern) for pattern in only):
            report.unwanted += 1
        elif os.path.basename(name) not in own_names or os.path.realpath(entry.path) not in ours:
            yield name

    return sorted(below(str(root), "", (top,)))


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _LeftOut("its name is not UTF-8") from None


def _check_link(path: str, top: str, follow: bool) -> None:
    real = os.path.realpath(path)
    if not os.path.exists(real):
        raise _LeftOut("a link that leads nowhere")
    if not follow and os.path.commonpath([real, top]) != top:
        raise _LeftOut("a link out of the folder (--follow takes it, from Python follow=True)")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# -- the archive -----------------------------------------------------------------------------------------------------


class _Packing:
    """The part on its way; what is written lies behind what is whole."""

    def __init__(self, fd: int, root: Path, report: Report) -> None:
        self._fd, self._root, self._report = fd, root, report
        self._at, self._members, self._index = 0, 0, bytearray()

    def keep_whole(self, name: str) -> bool:
        """Take a file over as an earlier run packed it, or left it out; False behind the last one."""
        member = self._whole(name)
        if member is not None:
            self._keep(member)
            self._report.resumed += not name.endswith("/")
            return True
        has_more = self._at < os.fstat(self._fd).st_size and not name.endswith("/")
        why = _why_unreadable(self._root / name) if has_more else None
        if why is not None:
            self._report.left_out.append((name, why))
        return why is not None

    def _whole(self, name: str) -> Member | None:
        """The member at this place, if it is this file's, all of it."""
        head = pread(self._fd, LOCAL.size, self._at)
        if len(head) < LOCAL.size or not head.startswith(LOCAL_MARK):
            return None
        crc = LOCAL.unpack(head)[6]
        try:
            about = os.stat(self._root / name)
        except OSError:
            return None
        member = _member(name, about, crc)
        wanted = member.local()
        if pread(self._fd, len(wanted), self._at) != wanted:
            return None
        found, at, last = 0, self._at + len(wanted), self._at + len(wanted) + member.size
        while at < last and (data := pread(self._fd, min(_AT_ONCE, last - at), at)):
            found, at = zlib.crc32(data, found), at + len(data)
        return member if (at, found) == (last, crc) else None

    def add(self, name: str) -> bool:
        """Pack a file, or note why not."""
        try:
            self._keep(self._written(name))
        except _LeftOut as why:
            self._report.left_out.append((name, str(why)))
        return True

    def _keep(self, member: Member) -> None:
        self._index += member.central(self._at)
        self._at += len(member.local()) + member.size
        self._members += 1
        self._report.files += not member.name.endswith(b"/")

    def _written(self, name: str) -> Member:
        """A member that lies there, whole."""
        member = Member(name.encode(), 0.0, 0) if name.endswith("/") else self._copied(name)
        write_all(self._fd, memoryview(member.local()), self._at)  # last: until then it is no member
        return member

    def _copied(self, name: str) -> Member:
        try:
            source = open(self._root / name, "rb", buffering=0)  # noqa: SIM115 (a failure here isn't one below)
        except OSError as error:
            raise _LeftOut(_reason(error)) from error
        with source:
            before = os.fstat(source.fileno())
            member = _member(name, before)
            at, crc = self._at + len(member.local()), 0
            last = at + member.size
            while data := _read(source.fileno(), min(_AT_ONCE, last - at + 1)):
                if at + len(data) > last:
                    break
                write_all(self._fd, memoryview(data), at)
                at, crc = at + len(data), zlib.crc32(data, crc)
            after = os.fstat(source.fileno())
        if data or at != last or (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
            raise _LeftOut("it changed while it was packed")
        return replace(member, crc=crc)

    def finish(self) -> None:
        """Add the index; all of it is on the disk then."""
        tail = self._index + end(self._index, self._members, self._at)
        write_all(self._fd, memoryview(tail), self._at)
        os.ftruncate(self._fd, self._at + len(tail))
        os.fsync(self._fd)
        self._report.size = self._at + len(tail)


def _member(name: str, about: os.stat_result, crc: int = 0) -> Member:
    """Of a folder only the name is kept: its time changes with whatever is in it."""
    if name.endswith("/"):
        return Member(name.encode(), 0.0, 0)
    return Member(name.encode(), about.st_mtime, about.st_size, crc)


def _read(fd: int, size: int) -> bytes:
    try:
        return os.read(fd, size)
    except OSError as error:
        raise _LeftOut(_reason(error)) from error


def _why_unreadable(path: Path) -> str | None:
    try:
        with open(path, "rb", buffering=0) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.read(1)
    except OSError as error:
        return _reason(error)
    return None
