"""A tier: a folder of copies, one file each, which all of the user's processes share.

Guarantees, even if processes are killed at any moment, that a reader never gets half a
copy; that only one thread of one process at a time copies a sample; that all copies,
unfinished ones included, stay within the capacity; and that only copies are deleted.
Nothing waits for the disk: a copy damaged by a power failure is found by its checksum.

    TIER/mpiter-staged-UID/
        copies/ab/cdef…       a copy, named by a hash of its source; has a checksum
        copies/ab/cdef….part  a copy that is being written
        claim-abc             locked while a copy whose name begins with ab/c is made
        ledger                the bytes in all copies, and the number of copies

A file's length or name changes only while the ledger is locked, so the ledger has the
total.  After a kill it may be too high, never too low; the next ``Folder`` corrects it.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator

from ..errors import OptionError
from ..machine import locked_within, opened_to_lock

# At a copy's end stand a mark, the checksum and the number of bytes.
_TAIL = struct.Struct("<4sIQ")
# The ledger has the bytes of all copies, and their number.
_LEDGER = struct.Struct("<qq")
_NAME = "[0-9a-f]" * 2 + "/" + "[0-9a-f]" * 30
_PART = ".part"


class Folder:
    """This user's folder of copied samples, of at most ``capacity`` bytes.

    It lies in the folder ``tier``, on a fast disk.
    """

    def __init__(self, tier: str, capacity: int) -> None:
        within = os.path.abspath(tier)
        self.path = os.path.join(within, f"mpiter-staged-{os.getuid()}")
        self.capacity = capacity
        self._copies = os.path.join(self.path, "copies")
        os.makedirs(tier, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        # Where all may write, such as in /dev/shm, another user could have put a link
        # or a folder of theirs in its place.
        found = os.lstat(self.path)
        is_folder = stat.S_ISDIR(found.st_mode)
        is_ours = found.st_uid == os.getuid()
        is_open = found.st_mode & 0o077
        if not is_folder or not is_ours or is_open:
            raise OptionError(
                f"{self.path} is not a folder that only you may use; take another tier."
            )
        os.makedirs(self._copies, exist_ok=True)
        self._count()

    def key(self, source: str | bytes | os.PathLike[str]) -> str:
        """Return the name of the copy of the sample that comes from ``source``."""
        name = os.fsencode(source)
        if b"://" not in name:
            name = os.path.abspath(name)
        digest = hashlib.blake2b(name, digest_size=16).hexdigest()
        return f"{digest[:2]}/{digest[2:]}"

    def held(self) -> set[str]:
        """Return the keys of all copies."""
        return set(glob.glob(_NAME, root_dir=self._copies))

    def has(self, key: str) -> bool:
        path = os.path.join(self._copies, key)
        return os.path.exists(path)

    def get(self, key: str) -> bytes | None:
        """Return the copy's bytes, or None if there is no copy that can be used.

        It may be damaged, or can't be read.
        """
        path = os.path.join(self._copies, key)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size - _TAIL.size
                data = file.read(max(0, size))
                tail = file.read()
        except OSError:
            return None
        if tail != _tail(data):
            return None
        return data

    @contextlib.contextmanager
    def claim(self, key: str, patience: float = 0.0) -> Iterator[bool]:
        """Lock for making a copy; the context's value is True if that succeeded.

        It is False if others held the lock for ``patience`` seconds.  The system frees
        the lock even if its process is killed.  Samples whose keys begin alike share a
        lock.
        """
        name = f"claim-{key[:2]}{key[3]}"
        with opened_to_lock(os.path.join(self.path, name)) as fd:
            yield locked_within(fd, patience)

    def keep(self, key: str, data: bytes) -> bool:
        """Write the copy, which the caller has claimed.

        Return False if the capacity is used up.
        """
        path = os.path.join(self._copies, key)
        tail = _tail(data)
        part = path + _PART
        size = len(data) + len(tail)
        # A tier that was deleted isn't made again: then this raises.
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        # A copy that is there is damaged, else nobody would make another.
        self._delete(path)
        # A process that was killed may have left a part.
        self._delete(part)
        with self._changing() as ledger:
            used, _ = _totals(ledger)
            if used + size > self.capacity:
                return False
            # The room is booked before the file grows, so that a kill in between leaves
            # a total that is too high, never too low.
            _add(ledger, size, 1)
            try:
                fd = os.open(part, os.O_WRONLY | os.O_CREAT, 0o600)
                os.close(fd)
                os.truncate(part, size)
            except OSError:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
                _add(ledger, -size, -1)
                raise
        try:
            with open(part, "r+b") as file:
                file.writelines((data, tail))
            with self._changing():
                os.replace(part, path)
        except BaseException:
            self._delete(part)
            raise
        return True

    def _delete(self, path: str) -> None:
        if os.path.exists(path):
            with self._changing() as ledger:
                size = os.stat(path).st_size
                os.unlink(path)
                _add(ledger, -size, -1)

    def used(self) -> tuple[int, int]:
        """Return the bytes of all copies, and their number.

        Raise an OSError if the tier was deleted.
        """
        with self._changing() as ledger:
            return _totals(ledger)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[int]:
        """Lock the ledger; the context's value is its descriptor."""
        path = os.path.join(self.path, "ledger")
        with opened_to_lock(path) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd

    def _count(self) -> None:
        """Write the true size and number of copies to the ledger.

        Unfinished copies of killed processes are deleted.
        """
        with self._changing() as ledger:
            sizes = list[int]()
            for key in self.held():
                path = os.path.join(self._copies, key)
                sizes.append(os.stat(path).st_size)
            for part in glob.glob(_NAME + _PART, root_dir=self._copies):
                path = os.path.join(self._copies, part)
                with self.claim(part) as is_left_over:
                    # Whoever writes a part holds its claim until it is whole.
                    if is_left_over:
                        os.unlink(path)
                    else:
                        sizes.append(os.stat(path).st_size)
            size, copies = _totals(ledger)
            _add(ledger, sum(sizes) - size, len(sizes) - copies)


def _totals(ledger: int) -> tuple[int, int]:
    # A new ledger is empty.
    found = os.pread(ledger, _LEDGER.size, 0)
    totals = found.ljust(_LEDGER.size, b"\0")
    size, copies = _LEDGER.unpack(totals)
    return size, copies


def _add(ledger: int, size: int, copies: int) -> None:
    """Change the totals: before a copy is written, and after one is deleted."""
    size_now, copies_now = _totals(ledger)
    totals = _LEDGER.pack(size_now + size, copies_now + copies)
    os.pwrite(ledger, totals, 0)


def _tail(data: bytes) -> bytes:
    return _TAIL.pack(b"mpst", zlib.crc32(data), len(data))
