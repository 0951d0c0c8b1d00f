"""``Tar``: the samples of tar shards as a dataset, by number."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..amounts import size_of
from ..datasets.columns import Reader
from ..errors import DamagedFile, OptionError, add_note
from ..order.order import Indices, Order, Shuffled
from .decoders import Asked, Field, fields_of
from .grouped import GroupedOrder
from .headers import Contents
from .kept import contents_of_all
from .paths import Paths, files_of
from .shards import Shards, Span

__all__ = ["Tar"]

# A window has so many runs of neighbours.
_RUNS = 16

_log = logging.getLogger("mpiter")


class Tar:
    """A dataset whose samples are those of tar shards, as WebDataset writes them.

    The members of a sample follow each other in a shard, under one name up to the first
    dot behind the last slash.  A sample is a dict: ``__key__`` is that name, and each
    member is a field, called like its extension in small letters.  Where a key comes
    again later, another sample begins.  Members without an extension, hidden ones, and
    those in a folder with a name like ``__this__`` are left out; so are links, unless
    they lead to a file of the same shard.

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
        paths: a file, a pattern, braces such as ``{000..147}.tar``, a folder, an
            address that fsspec opens, or a list of such; files are sorted by name.
        window: the size of the samples that are shuffled among each other, as they lie
            in the shards: bytes, or text such as "64MB".
        shuffle: "window", or "full" for a fully random order, for local disks.
        decode: functions of bytes by extension, such as ``{"json": parse}``, in place
            of those below; None or False leaves the bytes as they are, and
            ``decode=False`` leaves all.  Pictures become arrays (RGB), ``.json`` what
            is in it, ``.npy`` an array, ``.txt`` text, ``.cls`` a whole number; all
            else is bytes.
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
        self._refuse_unreadable(shards)
        for file, shard in zip(self.files, shards, strict=True):
            if shard.damage:
                _log.warning(
                    "%s is cut or damaged: %s; its samples before that are read",
                    file.path,
                    shard.damage,
                )
        self._warn_of_lost(shards)
        self._shards = Shards(self.files, shards)
        if not len(self):
            raise OptionError(
                f"{self.files[0].path} and the other shards have no samples: files "
                "that are named KEY.EXTENSION."
            )
        self._fields: list[Field] = fields_of(self._shards.fields, decode)

    def _refuse_unreadable(self, shards: Sequence[Contents]) -> None:
        """Raise an error if nothing of a shard can be read."""
        bad = [
            f"{file.path} can't be read: {shard.damage}"
            for file, shard in zip(self.files, shards, strict=True)
            if shard.damage and not len(shard.begins)
        ]
        if bad:
            others = f" (and {len(bad) - 1:,} more so)" if len(bad) > 1 else ""
            raise DamagedFile(f"{bad[0]}{others}.  Leave it out of the list of shards.")

    def _warn_of_lost(self, shards: Sequence[Contents]) -> None:
        """Tell of the links that lead to no file, once for all shards."""
        lost = sum(len(shard.lost) for shard in shards)
        if not lost:
            return
        path, name = next(
            (file.path, shard.lost[0])
            for file, shard in zip(self.files, shards, strict=True)
            if shard.lost
        )
        _log.warning(
            "tar: %s links lead to no file in their shard, and are left out; the first "
            "is %r of %s.  tar --dereference writes files in place of links",
            f"{lost:,}",
            name,
            path,
        )

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.samples([operator.index(index)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples with these numbers."""
        return self.samples(indices)

    def mpiter_reader(self) -> Reader:
        return self.samples

    def samples(self, indices: Sequence[int] | Indices) -> list[dict[str, Any]]:
        """Return the samples with these numbers."""
        if not len(indices):
            return []
        keys: Indices = np.asarray(indices)
        if keys.dtype.kind not in "iu":
            raise TypeError(f"{indices!r:.60} aren't whole numbers")
        keys = keys.astype(np.int64, copy=False)
        for key in (keys.min(), keys.max()):
            if not 0 <= key < len(self):
                raise IndexError(f"{key} isn't from 0 to before {len(self)}")
        return [self._sample(span, values) for span, values in self._shards.read(keys)]

    def _sample(self, span: Span, values: Sequence[bytes]) -> dict[str, Any]:
        """Return a sample, decoded."""
        sample: dict[str, Any] = {"__key__": self._shards.key(span.sample)}
        numbers = self._shards.numbers[span.first : span.end].tolist()
        for at, value in enumerate(values):
            name, decode, is_ours = self._fields[numbers[at]]
            member = span.first + at
            if name in sample:
                self._shards.fail(member, "has the name of another one")
            if decode is None:
                sample[name] = value
                continue
            try:
                sample[name] = decode(value)
            except MemoryError:
                raise
            except Exception as error:
                if is_ours:
                    self._shards.fail(member, f"can't be decoded: {error}", error)
                where = self._shards.source(member)
                add_note(error, f"mpiter: decoding {where}.")
                raise
        return sample

    @property
    def fields(self) -> list[str]:
        """The names of all fields that samples have."""
        return self._shards.fields

    def mpiter_words(self, number: Any) -> str:
        """Return in words which sample this is, for errors."""
        return self._shards.words(int(number))

    def mpiter_members(self) -> Shards:
        """Return what reads single members, for an ``ImageFolder``."""
        return self._shards

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Order:
        """Return the order of the first epoch."""
        shuffles = shuffle is not False
        if shuffles and self.shuffle == "full":
            return Shuffled(len(self), seed)
        runs = self._shards.runs(max(1, self.window // _RUNS))
        return GroupedOrder(runs, self.window, seed, shuffles)

    def __repr__(self) -> str:
        return (
            f"Tar({len(self.files):,} shards: {len(self):,} samples of "
            f"{', '.join(self.fields):.60})"
        )
