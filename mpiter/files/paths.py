"""Files by their names: paths, patterns, folders, and addresses that fsspec opens."""

from __future__ import annotations

import errno
import glob
import io
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import OptionError

_log = logging.getLogger("mpiter")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# Numbers from one to another, or words.
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class File(NamedTuple):
    """A file, and what changes when its content does."""

    path: str
    size: int
    # The time of its last change, or what its store tells in place of that.
    version: str
    # The folders that it lies in, one behind the other; of a folder that was given,
    # those below.
    folders: str

    @property
    def is_local(self) -> bool:
        return "://" not in self.path

    def open(self) -> Any:
        """Open the file for reading."""
        if self.is_local:
            return open(self.path, "rb")
        system, path = store_of(self.path)
        return system.open(path, "rb")

    def version_now(self) -> tuple[int, int] | None:
        """Return ``version_of`` the file without opening it.

        It is None at a store, and where there is no such file any more.
        """
        if not self.is_local:
            return None
        try:
            return _version_in(os.stat(self.path))
        except OSError:
            return None


class Watched:
    """An opened file, and whether it has failed to hand out bytes."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self.has_failed = False

    def read(self, size: int) -> bytes:
        try:
            found: bytes = self._opened.read(size)
        except BaseException:
            self.has_failed = True
            raise
        # The answer of a store may break off.
        if len(found) < size:
            self.has_failed = True
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


def version_of(opened: Any) -> tuple[int, int]:
    """Return what shows that the content of an opened file has changed.

    That is its size and the time of its last change; at a store, its size alone.
    """
    if isinstance(opened, io.BufferedReader):
        return _version_in(os.fstat(opened.fileno()))
    return int(getattr(opened, "size", 0) or 0), 0


def _version_in(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


class _Chosen:
    """The files with an ending in folders, and what is left out."""

    def __init__(self, ending: str) -> None:
        self._ending = ending
        compressed = [ending + way for way in _COMPRESSED]
        if ending == ".tar":
            compressed.append(".tgz")
        self._compressed = tuple(compressed)
        # Files that would have the ending if they weren't compressed.
        self.left_out: list[str] = []

    def takes(self, name: str, below: Iterable[str]) -> bool:
        """True for a file that lies so ``below`` a folder, if it is one of those.

        What lies below a name that begins with ``.`` or ``_`` isn't: so programs name
        what isn't finished, or isn't data.
        """
        if any(part.startswith((".", "_")) for part in below):
            return False
        small = name.lower()
        if small.endswith(self._compressed):
            self.left_out.append(name)
        return small.endswith(self._ending)

    def why(self) -> str:
        """Say what is left out."""
        if not self.left_out:
            return ""
        return (
            f"{len(self.left_out):,} compressed files, such as {self.left_out[0]}, are "
            "left out: decompress them"
        )


def files_of(paths: Paths, ending: str) -> list[File]:
    """Return the files that ``paths`` name, in the order of their names.

    Of a folder these are the files with this ``ending``, however deep they lie.
    """
    if isinstance(paths, (str, os.PathLike)):
        given = [os.fspath(paths)]
    else:
        given = [os.fspath(path) for path in paths]
    found: list[File] = []
    for path in given:
        if not path:
            raise OptionError("a path is empty; '.' is the current folder.")
        chosen = _Chosen(ending)
        some: list[File] = []
        for one in _without_braces(path):
            some += _at_a_store(one, chosen) if "://" in one else _here(one, chosen)
        why = chosen.why()
        if not some:
            reason = f": {why}" if why else ""
            raise OptionError(f"{path!r} names no {ending} file{reason}.")
        if why:
            _log.warning("in %s %s", path, why)
        found += some
    if not found:
        raise OptionError(f"{paths!r:.60} names no files.")
    return found


def _without_braces(path: str) -> list[str]:
    """Return the paths that one with braces stands for, in a shell and in WebDataset.

    >>> _without_braces("{8..10}-{a,b}")
    ['8-a', '8-b', '9-a', '9-b', '10-a', '10-b']
    >>> _without_braces("{008..010}.tar")
    ['008.tar', '009.tar', '010.tar']
    """
    braces = _BRACES.search(path)
    if braces is None or os.path.exists(path):
        return [path]
    first, last, words = braces.groups()
    if words is None:
        width = 0
        if first.startswith("0") or last.startswith("0"):
            width = max(len(first), len(last))
        step = 1 if int(first) <= int(last) else -1
        numbers = range(int(first), int(last) + step, step)
        choices = [f"{number:0{width}}" for number in numbers]
    else:
        choices = words.split(",")
    before = path[: braces.start()]
    rests = _without_braces(path[braces.end() :])
    return [before + choice + rest for choice in choices for rest in rests]


def _here(path: str, chosen: _Chosen) -> list[File]:
    place = Path(path).expanduser()
    names = [place]
    is_pattern = any(sign in path for sign in "*?[") and not place.exists()
    if is_pattern:
        names = [Path(name) for name in sorted(glob.glob(str(place), recursive=True))]
    found: list[File] = []
    for name in names:
        # Some programs write a table as a folder.
        files = [name]
        if name.is_dir():
            files = sorted(
                one
                for one in name.rglob("*")
                if chosen.takes(one.name, one.relative_to(name).parts)
            )
        for one in files:
            # A path that doesn't exist raises FileNotFoundError, with its name.
            status = os.stat(one)
            if not one.is_dir():
                where = os.path.abspath(one)
                folders = os.path.dirname(where)
                if one != name and not is_pattern:
                    folders = os.path.dirname(one.relative_to(name))
                version = str(status.st_mtime_ns)
                found.append(File(where, status.st_size, version, folders))
    return found


def store_of(path: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise OptionError(
            f"{path!r} is at a store, which fsspec opens: pip install 'mpiter[staging]'"
        ) from error
    system, inner = url_to_fs(path)
    return system, inner


def _at_a_store(path: str, chosen: _Chosen) -> list[File]:
    system, inner = store_of(path)
    scheme, _, _ = path.partition("://")
    # What a store tells of many files at once spares a request for each.
    told: dict[str, Any]
    is_pattern = any(sign in inner for sign in "*?[")
    if is_pattern:
        told = system.glob(inner, detail=True)
    else:
        told = {inner: system.info(inner)}
    # What is told of each, and its folders.
    files: dict[str, tuple[Any, str]] = {}
    for name, entry in sorted(told.items()):
        if entry["type"] != "directory":
            files[name] = entry, name.rpartition("/")[0]
            continue
        for one, its in sorted(system.find(name, detail=True).items()):
            below = one.removeprefix(name)
            parts = below.split("/")
            if chosen.takes(parts[-1], parts):
                path_told = one if is_pattern else below
                files[one] = its, path_told.rpartition("/")[0]
    found = []
    for name, (entry, folders) in files.items():
        version = ""
        for field in ("ETag", "etag", "mtime", "LastModified", "created"):
            if field in entry:
                version = str(entry[field])
                break
        where = name if "://" in name else f"{scheme}://{name}"
        found.append(File(where, int(entry["size"] or 0), version, folders))
    return found


def raise_if_not_the_files(error: Exception) -> None:
    """Raise an error again that says nothing of the file, such as want of memory."""
    theirs = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
    if isinstance(error, OSError) and error.errno in theirs:
        raise error
