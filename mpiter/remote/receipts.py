"""``receipts="folder"``: a log of what this rank was handed, batch by batch, for ``mpiter audit`` to judge.

Runs in the consumer's thread, or in that of any other loader: ``begin``, ``handed``, ``end`` are all that it takes.
A rank writes a file of its own, a new one each time its program starts; docs/receipts.md has the format.  Each record
goes to the system before the batch goes to the user, so a trainer that is killed leaves behind what it was handed.
Guarantees that a disk which is full ends the log, with one warning, and never the training; a folder that cannot be
written to is refused when the loader is made.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from numbers import Integral
from typing import Any, Literal, Self

import msgpack
import numpy as np

from ..errors import OptionError
from ..order.ranks import Shard
from ..order.share import Share

__all__ = ["Receipts"]

VERSION = 1
ENDING = ".receipts"
_log = logging.getLogger("mpiter")
_Place = tuple[str, tuple[int, int, int]]  # a folder; the process, and its rank and size
_writing: weakref.WeakValueDictionary[_Place, Receipts] = weakref.WeakValueDictionary()  # the last: one warning will do


class Receipts:
    """Writes down what one rank of a training is handed, into a folder that all ranks and restarts share.

    Args:
        folder: made if there is none.  One for each loader: what comes later stands for a restart of what is there.
        rank: which of the ``size`` programs this is; None: as their launcher says.
        contents: a hash of the samples' bytes goes along with each batch.

    ``mpiter``'s own take it, or the folder alone, as ``receipts=``; for any other loader:

    >>> import tempfile
    >>> from mpiter.remote.audit import audit
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Receipts(folder, rank=0, size=1) as receipts:
    ...         receipts.begin(epoch=0, place=0, length=4)  # where the training starts, or goes on
    ...         receipts.handed(0, 0, keys=[2, 0])  # epoch, place before the batch, its samples
    ...         receipts.handed(0, 1, keys=[3, 1])
    ...         receipts.end(0)
    ...     audit(folder).is_sound
    True
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int | None = None,
        size: int | None = None,
        *,
        contents: bool = False,
        loader: str = "mpiter",
    ) -> None:
        self.folder, self.contents, self.loader = os.path.realpath(folder), bool(contents), loader
        self._given = None if rank is None and size is None else Shard(rank, size)
        self._shard = self._given or Shard()
        try:
            os.makedirs(self.folder, exist_ok=True)
        except (OSError, ValueError) as error:
            raise OptionError(f"receipts={os.fspath(folder)!r:.200}: the folder cannot be made ({error}).") from error
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise OptionError(f"receipts={os.fspath(folder)!r:.200}: this program may not write there.")
        self._lock = threading.RLock()
        self._packer = msgpack.Packer()
        self._writer = (-1, 0, 0)  # the process, and its rank and size: another one takes another file
        self._file = ""
        self._descriptor: int | None = None
        self._release: Any = None
        self._chain = 0
        self._is_named = self._is_broken = self._is_half_written = False

    def __reduce__(self) -> Any:
        given = () if self._given is None else (self._given.rank, self._given.size)
        return _again, (self.folder, given, self.contents, self.loader)

    def sit(self, shard: Shard | None) -> Share:
        """Which of how many notes here: as the constructor was told, else as ``shard`` says, else the launcher."""
        if self._given is None and shard is not None:
            self._shard = shard
        return self._shard.share()

    # -- what a loader says --------------------------------------------------------------------------------------

    def begin(
        self,
        epoch: int,
        place: int,
        *,
        length: int | None = None,
        order: Literal["shuffled", "sequential"] | None = None,
        seed: int | None = None,
        step: int | None = None,
    ) -> None:
        """The training goes on from here: what was noted before at this place, or beyond it, is void.

        A *place* is a number that grows from batch to batch, and that a saved state brings back: of samples, or of
        batches.  ``length`` promises that each epoch has each of the samples 0 to ``length - 1`` once.  ``order``
        and ``seed`` name an order of mpiter's.  ``step``: of the last samples, fewer than so many are left out.
        """
        self._is_named = order is not None
        told = {"length": length, "order": order, "seed": None if seed is None else str(seed), "step": step}
        with self._lock:
            self._find_file()
            self._write(["from", int(epoch), int(place), told])

    def handed(
        self,
        epoch: int,
        place: int,
        keys: Any,
        *,
        positions: Sequence[int] | None = None,
        fills: int = 0,
        contents: bytes | None = None,
    ) -> None:
        """A batch: its place (before it), and the ``keys`` of its samples, which are whole numbers or strings.

        ``positions`` says where in the order of all ranks these lie, as first, count, first, count, …  The last
        ``fills`` samples come a second time, to fill up an epoch's last step.
        """
        self._note(["batch", int(epoch), int(place), positions, None, fills, contents], keys)

    def skipped(self, epoch: int, place: int, keys: Any, *, positions: Sequence[int] | None = None) -> None:
        """These samples were left out because they failed."""
        self._note(["skipped", int(epoch), int(place), positions, None], keys)

    def failed(self, epoch: int, place: int, keys: Any, *, positions: Sequence[int] | None = None) -> None:
        """In the place of a batch of these came an error."""
        self._note(["failed", int(epoch), int(place), positions, None], keys)

    def end(self, epoch: int) -> None:
        """The epoch was gone through to its end."""
        with self._lock:
            self._write(["end", int(epoch), time.time()])

    def close(self) -> None:
        """Give the file back; whoever notes more opens it again."""
        with self._lock:
            self._descriptor = None
            if self._release is not None:
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the file ------------------------------------------------------------------------------------------------

    def _note(self, record: list[Any], keys: Any) -> None:
        with self._lock:
            if self._is_named and record[3] is not None:  # the order says which keys these are
                self._write(record, np.ascontiguousarray(keys, "<i8"))
            else:
                record[4] = plain(keys)
                self._write(record)

    def _write(self, record: list[Any], keys: Any = b"") -> None:
        """Append a record, and after it a checksum of all so far and of the keys that follow from the order."""
        if self._is_broken:
            return
        if not self._file:
            raise OptionError("receipts begin with begin(epoch, place): where does the training start?")
        data = self._packer.pack(record)
        self._is_half_written = True  # if Ctrl-C comes now
        self._chain = zlib.crc32(keys, zlib.crc32(data, self._chain))
        self._append(data + self._packer.pack(self._chain))
        self._is_half_written = False

    def _append(self, data: bytes) -> None:
        try:
            if self._descriptor is None:
                self._take_place()
                self._descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                self._release = weakref.finalize(self, os.close, self._descriptor)
            if os.write(self._descriptor, data) < len(data):
                raise OSError("the disk is full")
        except OSError as error:
            self._is_broken = True
            _log.warning("the receipts %s cannot be written, and end here: %s", self._file, str(error))

    def _take_place(self) -> None:
        """The audit takes whoever else writes here as this rank for an earlier start, or for a later one."""
        place = self.folder, self._writer
        if _is_taken(place):
            gc.collect()  # by a loader that nobody holds any more, perhaps: a notebook's cell is run again
            if _is_taken(place):
                _log.warning(
                    "two loaders of this program write receipts into %s, and the audit will take one for the other's "
                    "restart: give each a folder of its own.",
                    self.folder,
                )
        _writing[place] = self

    def _find_file(self) -> None:
        share = self._shard.share()
        if self._writer == (writer := (os.getpid(), share.rank, share.size)) and not self._is_half_written:
            return
        self.close()  # of a forked process it is the parent's descriptor too, which stays open there
        now = time.time_ns()
        self._file = os.path.join(self.folder, f"rank-{share.rank}-of-{share.size}-{now:x}-{os.getpid()}{ENDING}")
        self._writer, self._is_broken, self._is_half_written = writer, False, False
        header = {"receipts": VERSION, "rank": share.rank, "size": share.size, "time": now / 1e9}
        data = self._packer.pack(header | {"loader": self.loader})
        self._chain = zlib.crc32(data)
        self._append(data)


def _is_taken(place: _Place) -> bool:
    last = _writing.get(place)
    return last is not None and last._descriptor is not None


def _again(folder: str, given: tuple[int, int] | tuple[()], contents: bool, loader: str) -> Receipts:
    return Receipts(folder, *given, contents=contents, loader=loader)


def plain(keys: Any) -> list[int | str]:
    """Keys as they are written: whole numbers of 64 bits and strings as they are, others as text."""
    return keys.tolist() if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu" else [*map(_plain, keys)]


def _plain(key: Any) -> int | str:
    if isinstance(key, str):
        return key if key.isascii() else key.encode(errors="backslashreplace").decode()  # a lone surrogate is no UTF-8
    if isinstance(key, Integral) and not isinstance(key, bool) and -(1 << 63) <= (number := int(key)) < 1 << 63:
        return number
    return repr(key)[:200]


def digest(values: Iterable[Any]) -> bytes:
    """A hash of samples: of the bytes of arrays, of numbers and strings, in whatever containers."""
    found = blake2b(digest_size=8)
    _feed(found, list(values))
    return found.digest()


def _feed(found: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        found.update(f"{value.dtype.str}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).data.cast("B") if value.size else b"")
    elif isinstance(value, dict):
        _feed(found, list(value.items()))
    elif hasattr(value, "__array__") and not isinstance(value, (np.ndarray, np.generic)):  # tensors, say
        _feed(found, np.asarray(value))
    elif isinstance(value, (str, bytes, int, float, complex, np.generic)) or value is None:
        found.update(f"{type(value).__name__}{value!r}".encode())
    elif isinstance(value, (list, tuple)):
        found.update(b"(")
        for one in value:
            _feed(found, one)
        found.update(b")")
    else:  # nothing is known of it that would be the same in another process
        found.update(type(value).__name__.encode())
