"""Copies in a folder of the local disk: one file each, private to the user, shared by all his processes.

Runs wherever samples are fetched or copied.  A file is a sample's bytes and, behind them, their length and checksum: it
is written under another name and renamed, so that nobody opens half of it, and what a power failure has left of it is
noticed when it is read, and copied again.  So nothing is waited for (``fsync``): the store has it all.  Guarantees that
the bytes of all copies in the folder stay within the capacity, in whatever process they are made, and that nothing is
deleted but what was made here.  What a killed process has left behind is cleared away by the next one that finds
itself alone.

    tier/mpiter-staged-UID/    ledger, claims, open    the bound; who copies what; who is here
        STORE/ab/cdef…         a copy                  by the store's folder, and the checksum of the sample's source
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from ..errors import OptionError
from .claims import Claims
from .ledger import Ledger
from .own import Descriptor, Own

with contextlib.suppress(ImportError):  # Windows, where nobody gets as far as this
    import fcntl

_TAIL = struct.Struct("<4sIQ")  # what stands behind the bytes: a mark, their checksum, their number
_MARK = b"mpst"
_STORE, _FOLDER, _FILE = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{2}"), re.compile("[0-9a-f]{30}")
_PART = ".part"


class Folder:
    """The part of a tier that is ours."""

    def __init__(self, tier: str, capacity: int) -> None:
        owner = os.getuid()
        self.path = os.path.join(os.path.abspath(tier), f"mpiter-staged-{owner}")
        os.makedirs(tier, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        found = os.lstat(self.path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
            raise OptionError(f"{self.path} is not a folder of your own that nobody else may use; take another tier.")
        self.ledger = Ledger(capacity, os.path.join(self.path, "ledger"))
        self.claims = Own(Claims, os.path.join(self.path, "claims"))
        self.enter = Own(_Presence, os.path.join(self.path, "open"))  # be counted among those who are here
        if self.enter().is_alone():
            self.ledger.count_anew(*self._clear())
            self.enter().stay()

    def _clear(self) -> tuple[int, int]:
        """Delete what is unfinished; the bytes and the number of what is whole."""
        size = items = 0
        for file in self.files():
            if file.name.endswith(_PART):
                with contextlib.suppress(OSError):
                    os.unlink(file.path)
                continue
            with contextlib.suppress(OSError):
                size, items = size + file.stat().st_size, items + 1
        return size, items

    def files(self, store: str = "") -> Iterator[os.DirEntry[str]]:
        """What was made here, for one store or all of them."""
        for one in [os.path.join(self.path, store)] if store else _entries(self.path, _STORE):
            for folder in _entries(one, _FOLDER):
                yield from _entries(folder, _FILE)


class FolderShelf:
    """The copies of one dataset: a place for each sample."""

    def __init__(self, folder: Folder, root: Any) -> None:
        self._folder, self.ledger = folder, folder.ledger
        self._store = hashlib.blake2b(where_is(root), digest_size=8).hexdigest()
        self._path = os.path.join(folder.path, self._store)

    def key(self, index: int, source: Any) -> str:
        """Of a sample, by where it comes from."""
        found = hashlib.blake2b(where_is(source), digest_size=16).hexdigest()
        return f"{found[:2]}{os.sep}{found[2:]}"

    def get(self, key: str) -> bytes | None:
        """The copy; None if there is none, or none that is whole and can be read."""
        try:
            self._folder.enter()
            with open(os.path.join(self._path, key), "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size - _TAIL.size
                data, tail = _read(file.fileno(), size), _read(file.fileno(), _TAIL.size)
        except OSError:
            return None
        return data if tail == _tail(data) else None

    def has(self, key: str) -> bool:
        return os.path.exists(os.path.join(self._path, key))

    def put(self, key: str, data: bytes) -> bool:
        """Keep a copy; False if there is no room.  Assumes that ``key`` is claimed."""
        self._folder.enter()
        path = os.path.join(self._path, key)
        try:
            before, items = os.stat(path).st_size, 0  # one that isn't whole
        except FileNotFoundError:
            before, items = 0, 1
        size = len(data) + _TAIL.size - before
        if not self.ledger.reserve(size, items):
            return False
        try:
            self._write(path, data)
        except BaseException:
            self.ledger.reserve(-size, -items)
            raise
        return True

    def _write(self, path: str, data: bytes) -> None:
        part = path + _PART
        try:
            try:
                fd = _create(part)
            except FileNotFoundError:
                for folder in (self._path, os.path.dirname(part)):  # and not the tier, if that is gone
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(folder, 0o700)
                fd = _create(part)
            with open(fd, "wb", buffering=0) as file:
                for piece in (data, _tail(data)):
                    left = memoryview(piece)
                    while left:
                        left = left[file.write(left) :]
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

    @contextlib.contextmanager
    def claim(self, key: str, patience: float = 0.0) -> Iterator[bool]:
        """Is this sample ours to copy, at once or within so many seconds?"""
        with self._folder.claims().claim(int(key.replace(os.sep, "")[:14], 16), patience) as is_ours:
            yield is_ours

    def held(self) -> set[str]:
        """The keys of all copies."""
        names = (file for file in self._folder.files(self._store) if not file.name.endswith(_PART))
        return {file.path[len(self._path) + 1 :] for file in names}


class _Presence(Descriptor):
    """That a process is here: a lock that all who are here share."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.stay()

    def stay(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_SH)

    def is_alone(self) -> bool:
        """Is nobody else here?  Then nobody comes, until it is said that one ``stays``."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.stay()  # trying may have cost the lock
            return False
        return True


def where_is(source: Any) -> bytes:
    """One name for a file, whichever way its path is written; a URL is as it is."""
    if not isinstance(source, (str, bytes, os.PathLike)):
        raise TypeError(f"source(i) of the dataset returned {type(source).__name__}; staging needs a path or a URL.")
    name = os.fsencode(source)
    return name if b"://" in name else os.path.abspath(name)


def _entries(folder: Any, names: re.Pattern[str]) -> Iterator[os.DirEntry[str]]:
    """What is called like this in a folder, or would be when it is whole."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        yield from (one for one in found if names.fullmatch(one.name.removesuffix(_PART)))


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)


def _read(fd: int, size: int) -> bytes:
    data = os.read(fd, max(size, 0))
    while len(data) < size and (more := os.read(fd, size - len(data))):  # beyond 2 GB it comes in parts
        data += more
    return data


def _tail(data: bytes) -> bytes:
    return _TAIL.pack(_MARK, zlib.crc32(data), len(data))
