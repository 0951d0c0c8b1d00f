"""A file of receipts, read: whole, checked, and without an object for each sample.

Pure, but for the file.  Guarantees that what is no such file, or is damaged, is an OptionError that says where; and
that a last record which was torn off with its program is left out.
"""

from __future__ import annotations

import mmap
import os
import zlib
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgpack
import numpy as np

from ...errors import OptionError
from ..receipts import VERSION
from .logs import (
    KINDS,
    LARGEST,
    LENGTHS,
    Kind,
    Log,
    Start,
    Wrong,
    as_digest,
    as_number,
    as_runs,
    as_time,
    as_told,
    as_whole,
    id_of,
    spread,
)

_MOST_ROWS = 1 << 28  # of a batch
_AT_ONCE = 1 << 18  # positions of which the keys are found together
_BEGINNINGS = b"\x97\xa5batch", b"\x95\xa7skipped", b"\x95\xa6failed", b"\x94\xa4from", b"\x93\xa3end"  # of records


def read(path: str | os.PathLike[str]) -> Log | None:
    """What a file holds; None if its program ended before it had noted where it starts."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(name, data, _unpacker(file)).log()
    except OSError as error:
        raise OptionError(f"{name}: the receipts cannot be read ({error.strerror or error}).") from error


def strings(path: str, wanted: set[int]) -> dict[int, str]:
    """Which keys have these numbers."""
    found: dict[int, str] = {}
    with open(path, "rb") as file:
        try:
            for record in _unpacker(file):
                if isinstance(record, list) and record[0] in KINDS:
                    texts = (key for key in record[4] or () if isinstance(key, str))
                    found |= {number: text for text in texts if (number := id_of(text)) in wanted}
        except (ValueError, TypeError, LookupError, msgpack.UnpackException):
            pass  # it has been read before, as far as it goes
    return found


def _unpacker(file: Any) -> msgpack.Unpacker:
    most = os.fstat(file.fileno()).st_size  # of anything: lengths are not believed
    return msgpack.Unpacker(
        file,
        max_buffer_size=1 << 31,
        max_array_len=most,
        max_str_len=most,
        max_bin_len=most,
        max_map_len=64,
        max_ext_len=0,
    )


class _Waiting(NamedTuple):
    """A record whose keys follow from the order, with the checksum before them, and after."""

    number: int
    epoch: int
    positions: list[int]
    before: int
    after: int


class _Reader:
    def __init__(self, name: str, data: mmap.mmap, unpacker: msgpack.Unpacker) -> None:
        self._name, self._data, self._unpacker = name, data, unpacker
        self._number = 0  # of records
        self._chain: int | None = None  # None: not known, since it was not written
        self._bare: list[int] = []  # records without a checksum
        self._waiting: list[_Waiting] = []
        self._rows_waiting = 0
        self._log: Log

    def log(self) -> Log | None:
        header, end = self._header(), self._unpacker.tell()
        if header is None:
            return None
        self._chain = zlib.crc32(self._data[:end])
        try:
            self._log = Log(
                self._name,
                rank=as_whole(header, "rank", high=as_whole(header, "size", 1) - 1),
                size=header["size"],
                time=as_time(header.get("time")),
                loader=str(header.get("loader", ""))[:80],
            )
            self._records(end)
            self._check_waiting()
            if (bare := [number for number in self._bare if number < self._number]) and len(bare) < self._number - 1:
                self._log.breaks.append(f"{self._log.name}: the checksum of record {bare[0]} is missing")
        except Wrong as wrong:
            raise self._damaged(str(wrong)) from None
        return self._log if self._log.starts else None

    def _header(self) -> Mapping[str, Any] | None:
        try:
            header = self._unpacker.unpack()
        except msgpack.OutOfData:
            if self._data[:10] == b"\x85\xa8receipts"[: len(self._data)]:
                return None
            raise self._damaged("it is no log of receipts") from None
        except (ValueError, TypeError, msgpack.UnpackException):
            raise self._damaged("it is no log of receipts") from None
        if not isinstance(header, dict) or "receipts" not in header:
            raise self._damaged("it is no log of receipts")
        if header["receipts"] != VERSION:
            raise self._damaged(f"it has version {header['receipts']!r:.20}, and this mpiter reads version {VERSION}")
        return header

    def _damaged(self, why: str) -> OptionError:
        return OptionError(f"{self._name}: {why} (byte {self._unpacker.tell()}).")

    def _records(self, end: int) -> None:
        """All of them; ``end`` is where the one before ends."""
        raw, record = b"", None
        for found in self._objects():
            begin, end = end, self._unpacker.tell()
            if isinstance(found, int) and not isinstance(found, bool):
                if not raw:
                    raise Wrong("a checksum stands where a record should")
                self._take(record, raw, found)
                raw = b""
                continue
            if raw:
                self._take(record, raw, None)
            record, raw = found, self._data[begin:end]
        if raw:
            self._take(record, raw, None)
        self._log.torn = len(self._data) - end
        tail = self._data[end + 1 :] if self._log.torn else b""
        if any(mark in tail for mark in _BEGINNINGS):
            raise Wrong("it is damaged: what follows cannot be read, and is more than one torn record")

    def _objects(self) -> Iterator[Any]:
        try:
            while True:
                yield self._unpacker.unpack()
        except msgpack.OutOfData:
            return
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException, RecursionError) as error:
            raise Wrong(f"it is damaged: {str(error)[:80] or type(error).__name__}") from None

    # -- a record ------------------------------------------------------------------------------------------------

    def _take(self, record: Any, raw: bytes, told: int | None) -> None:
        self._number += 1
        kind = record[0] if isinstance(record, list) and record and isinstance(record[0], str) else None
        if kind not in LENGTHS or len(record) != LENGTHS[kind]:
            raise Wrong(f"record {self._number} is none: {record!r:.60}")
        if not self._log.starts and kind != "from":
            raise Wrong("its first record must say where the training starts ('from')")
        epoch = as_number(record[1], "epoch")
        implied: list[int] | None = None
        if kind == "from":
            self._check_waiting()
            self._log.starts.append(Start(epoch, as_number(record[2], "place"), as_told(record[3])))
        elif kind == "end":
            self._log.last = max(self._log.last, 0.0 if record[2] is None else as_time(record[2]))
            self._add(Kind.END, epoch, LARGEST, -1, 0, -1, 0)
        else:
            implied = self._take_samples(KINDS[kind], epoch, record)
        self._check(raw, told, epoch, implied)

    def _take_samples(self, kind: Kind, epoch: int, record: list[Any]) -> list[int] | None:
        _, _, place, positions, keys, *more = record
        place = as_number(place, "place")
        fills, contents = more or (0, None)
        told, length = self._log.starts[-1].told, len(keys) if isinstance(keys, list) else None
        if not (keys is None or isinstance(keys, list)) or (positions is None and keys is None):
            raise Wrong(f"record {self._number} has neither positions nor keys")
        runs = as_runs(positions) if positions is not None else [(-1, length or 0)]
        count = sum(many for _, many in runs)
        if count > _MOST_ROWS or length not in (None, count):
            raise Wrong(f"record {self._number} has {length} keys for {count} samples")
        reach = max((first + many for first, many in runs), default=0)
        if keys is None and (told.order is None or reach > (told.length or 0)):
            raise Wrong(f"record {self._number} names no keys, and the order none for its positions")
        fills = as_number(fills, "number of fillings", count)
        at = -1 if keys is None else len(self._log.keys)
        if keys is not None:
            self._add_keys(keys)
        number, row = as_digest(contents), 0
        if len(runs) > 1 or fills:  # of batches cut otherwise no part is the same
            number = 0
        for first, many in runs:
            own = min(many, max(0, count - fills - row))
            for sort, begin, some in ((kind, 0, own), (Kind.FILL, own, many - own)):
                if some:
                    key = at if at < 0 else at + row + begin
                    self._add(sort, epoch, place, first if first < 0 else first + begin, some, key, number)
            row += many
        return None if keys is not None else [number for run in runs for number in run]

    def _add(self, *values: int) -> None:
        kind, epoch, place, first, count, key, digest = values
        row = kind, epoch, place, first, count, key, self._number, len(self._log.starts) - 1, digest
        for column, value in zip(self._log.columns.values(), row, strict=True):
            column.append(value)

    def _add_keys(self, keys: list[Any]) -> None:
        try:
            self._log.keys.extend(array("q", keys))
        except (TypeError, OverflowError):
            if not all(type(key) in (int, str) for key in keys):
                raise Wrong(f"record {self._number} has keys that are neither whole numbers nor strings") from None
            try:
                self._log.keys.extend(id_of(key) if isinstance(key, str) else key for key in keys)
            except OverflowError:
                raise Wrong(f"record {self._number} has a key of more than 64 bits") from None
            self._log.has_text = True

    # -- checksums -----------------------------------------------------------------------------------------------

    def _check(self, raw: bytes, told: int | None, epoch: int, positions: list[int] | None) -> None:
        before, self._chain = self._chain, told
        if told is None:
            self._bare.append(self._number)
        if told is None or before is None:
            return
        now = zlib.crc32(raw, before)
        if positions is None:
            self._compare(self._number, now, told)
            return
        if self._waiting and (self._waiting[0].epoch != epoch or self._rows_waiting > _AT_ONCE):
            self._check_waiting()
        self._waiting.append(_Waiting(self._number, epoch, positions, now, told))
        self._rows_waiting += sum(positions[1::2])

    def _check_waiting(self) -> None:
        waiting, self._waiting, self._rows_waiting = self._waiting, [], 0
        if not waiting:
            return
        told = self._log.starts[-1].told
        pairs = [pair for one in waiting for pair in zip(one.positions[::2], one.positions[1::2], strict=True)]
        keys = told.keys(waiting[0].epoch, spread(*np.array(pairs, np.int64).reshape(-1, 2).T)).astype("<i8")
        end = 0
        for one in waiting:
            begin, end = end, end + sum(one.positions[1::2])
            self._compare(one.number, zlib.crc32(keys[begin:end].data, one.before), one.after)

    def _compare(self, number: int, found: int, told: int) -> None:
        if found != told:
            self._log.breaks.append(f"{self._log.name}: the checksum of record {number} does not follow")
