"""``Tar``: the samples of tar shards as a dataset, by number."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np

from ..amounts import size_of
from ..datasets.columns import Reader
from ..errors import DamagedFile, OptionError, add_note
from ..order.order import Indices, Order, Shuffled
from .decoders import Asked, Field, fields_of
from .grouped import GroupedOrder
from .kept import contents_of_all
from .members import Members
from .paths import Paths, files_of
from .ranges import Ranges

__all__ = ["Tar"]

# A window has so many runs of neighbours.
_RUNS = 16
# Samples that follow each other are read in one go: so many bytes at most, and with
# such gaps between them.
_AT_ONCE = 1 << 22
_GAP = 1 << 16

_log = logging.getLogger("mpiter")


class Tar:
    """A dataset whose samples are those of tar shards, as WebDataset writes them.

    The members of a sample follow each other in a shard, under one name up to the first
    dot behind the last slash.  A sample is a dict: ``__key__`` is that name, and each
    member is a field, called like its extension in small letters.  Where a key comes
    again later, another sample begins.  Members without an extension, hidden ones, and
    those in a folder with a name like ``__this__`` are left out.

    Headers are read once, and kept in a hidden file beside each shard; where none can
    be written, in ``~/.cache/mpiter``.  They are read anew when a shard has another
    size or time.  Members are then read one by one, wherever they lie.

    It brings its order: runs of neighbouring samples come in random order, and samples
    are shuffled within a window of 16 of them; with ``shuffle=False`` of a loader they
    come in the order of the shards.

    A shard that is cut or damaged is told by a warning of the log.  Its samples before
    that place remain; the last one, which may lack members, raises ``DamagedFile``, and
    what follows it isn't there.

    Args:
        paths: a file, a pattern, a folder, an address that fsspec opens, or a list of
            such; files are sorted by name.
        window: the size of the samples that are shuffled among each other, as they lie
            in the shards: bytes, or text such as "64MB".
        shuffle: "window", or "full" for a fully random order, for local disks.
        decode: functions of bytes by extension, such as ``{"json": parse}``, in place
            of those below; None leaves the bytes as they are, and ``decode=False``
            leaves all.  Pictures become arrays (RGB), ``.json`` what is in it, ``.npy``
            an array, ``.txt`` text, ``.cls`` a whole number; all else is bytes.
        index: a folder that keeps what was found in the headers.

    >>> import io, os, tarfile, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with tarfile.open(os.path.join(folder.name, "0.tar"), "w") as shard:
    ...     for name, data in [("a.txt", b"one"), ("a.cls", b"1"), ("b.txt", b"two")]:
    ...         member = tarfile.TarInfo(name)
    ...         member.size = len(data)
    ...         shard.addfile(member, io.BytesIO(data))
    >>> samples = Tar(folder.name)
    >>> len(samples), samples[0]
    (2, {'__key__': 'a', 'txt': 'one', 'cls': 1})
    >>> folder.cleanup()
    """

    def __init__(
        self,
        paths: Paths,
        *,
        window: int | str = "64MB",
        shuffle: Literal["window", "full"] = "window",
        decode: Asked = None,
        index: str | os.PathLike[str] | None = None,
    ) -> None:
        if shuffle not in ("window", "full"):
            raise OptionError(
                f"shuffle={shuffle!r:.60} must be 'window' or 'full'; a loader's "
                "shuffle=False gives samples as they lie."
            )
        self.shuffle = shuffle
        self.window = size_of("window", window)
        self.files = files_of(paths, ".tar")
        folder = None if index is None else Path(index)
        shards = contents_of_all(self.files, folder)
        for file, shard in zip(self.files, shards, strict=True):
            if shard.damage and not len(shard.begins):
                raise DamagedFile(f"{file.path} can't be read: {shard.damage}.")
            if shard.damage:
                _log.warning(
                    "%s is cut or damaged: %s; its samples before that are read",
                    file.path,
                    shard.damage,
                )
        self._members = Members(shards)
        if not len(self._members):
            raise OptionError(
                f"{self.files[0].path} and the other shards have no samples: files "
                "that are named KEY.EXTENSION."
            )
        self._fields: list[Field] = fields_of(self._members.names, decode)
        self._ranges = Ranges(self.files)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.samples([index])[0]

    def mpiter_reader(self) -> Reader:
        return self.samples

    def samples(self, indices: Sequence[int] | Indices) -> list[dict[str, Any]]:
        """Return the samples with these numbers."""
        keys: Indices = np.asarray(indices, np.int64)
        for key in (keys.min(), keys.max()):
            if not 0 <= key < len(self):
                raise IndexError(f"{key} isn't from 0 to before {len(self)}")
        shards, firsts, ends, begins, stops = self._members.spans(keys)
        found: list[dict[str, Any]] = []
        at = 0
        while at < len(shards):
            last = at
            # In order, samples lie side by side.
            while (
                last + 1 < len(shards)
                and shards[last + 1] == shards[at]
                and 0 <= begins[last + 1] - stops[last] <= _GAP
                and stops[last + 1] - begins[at] <= _AT_ONCE
            ):
                last += 1
            data = self._read(shards[at], firsts[at], begins[at], stops[last])
            for one in range(at, last + 1):
                sample = int(keys[one])
                found.append(
                    self._sample(sample, firsts[one], ends[one], data, begins[at])
                )
            at = last + 1
        return found

    def _sample(
        self, number: int, first: int, end: int, data: bytes, base: int
    ) -> dict[str, Any]:
        """Return a sample whose shard has ``data`` at the byte ``base``."""
        members = self._members
        damage = members.damage.get(number)
        if damage is not None:
            self._fail(end - 1, f"is the last one before the damage: {damage}")
        sample: dict[str, Any] = {"__key__": members.key(number)}
        begins = members.begins[first:end].tolist()
        sizes = members.sizes[first:end].tolist()
        fields = members.fields[first:end].tolist()
        for at, begin in enumerate(begins):
            name, decode, is_ours = self._fields[fields[at]]
            size = sizes[at]
            value: Any = data[begin - base : begin - base + size]
            if len(value) < size:
                self._fail_short(first + at, len(value))
            if name in sample:
                self._fail(first + at, "has the name of another one")
            if decode is not None:
                try:
                    value = decode(value)
                except MemoryError:
                    raise
                except Exception as error:
                    if is_ours:
                        self._fail(first + at, f"can't be decoded: {error}", error)
                    add_note(error, f"mpiter: decoding {self.source(first + at)}.")
                    raise
            sample[name] = value
        return sample

    def _read(self, shard: int, member: int, begin: int, end: int) -> bytes:
        try:
            return self._ranges.read(shard, begin, end)
        except Exception as error:
            add_note(error, f"mpiter: reading {self.source(member)}.")
            raise

    def _fail_short(self, member: int, there: int) -> NoReturn:
        size = int(self._members.sizes[member])
        self._fail(member, f"has {size:,} bytes, and the file ends after {there:,}")

    def _fail(
        self, member: int, why: str, cause: BaseException | None = None
    ) -> NoReturn:
        raise DamagedFile(f"{self.source(member)} {why}.") from cause

    def mpiter_words(self, number: Any) -> str:
        """Return in words which sample this is, for errors."""
        members = self._members
        first = int(members.firsts[number])
        path = self.files[members.shard_of(first)].path
        last = ", the last one before its damage" if number in members.damage else ""
        return f"{number} ({members.key(number)!r} of {path}{last})"

    # -- single members ----------------------------------------------------------------

    @property
    def fields(self) -> list[str]:
        """The names of all fields that samples have."""
        return [field.name for field in self._fields]

    def sample_keys(self) -> Iterator[str]:
        """Yield the keys of all samples, without reading these."""
        return self._members.keys()

    def find(self, fields: Collection[str]) -> Indices:
        """Return the number of each sample's first member in one of these fields.

        It is -1 where a sample has none.
        """
        return self._members.find(fields)

    def fetch(self, member: int) -> bytes:
        """Read the bytes of the member with this number."""
        members = self._members
        damage = members.damage.get(members.sample_of(member))
        if damage is not None:
            self._fail(member, f"is the last one before the damage: {damage}")
        begin = int(members.begins[member])
        size = int(members.sizes[member])
        data = self._read(members.shard_of(member), member, begin, begin + size)
        if len(data) < size:
            self._fail_short(member, len(data))
        return data

    def name(self, member: int) -> str:
        """Return the name of a member; its extension is in small letters."""
        return self._members.name(member)

    def source(self, member: int) -> str:
        """Return in words where a member lies."""
        path = self.files[self._members.shard_of(member)].path
        begin = int(self._members.begins[member])
        return f"{path}: member {self.name(member)!r} at byte {begin:,}"

    # -- order -------------------------------------------------------------------------

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Order:
        """Return the order of the first epoch."""
        shuffles = shuffle is not False
        if shuffles and self.shuffle == "full":
            return Shuffled(len(self), seed)
        runs = self._members.runs(max(1, self.window // _RUNS))
        return GroupedOrder(runs, self.window, seed, shuffles)

    def __repr__(self) -> str:
        return (
            f"Tar({len(self.files):,} shards: {len(self):,} samples of "
            f"{', '.join(self.fields):.60})"
        )
