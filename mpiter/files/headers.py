"""What lies where in a tar shard: its samples, and the members of each.

A sample is what follows each other in a shard under one *key*, the name up to the first
dot behind the last slash; what stands behind that dot is the *field*.  Found in one
pass over the headers, by the standard library's ``tarfile``, which reads all that tar
programs write.  Arrays have it, since a shard may have millions of members.
"""

from __future__ import annotations

import re
import tarfile
from array import array
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from ..order.order import Indices
from .links import CODING, Links
from .paths import File

# Of members that were read, as they come: the bytes until there, and their number.
Tell = Callable[[int, int], None]

_BLOCK = 512
# Members between two words about the progress.
_TELL_EACH = 1000
# How compressed files begin.
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
# Folders whose members are about a shard, or are macOS's: they belong to no sample.
_ABOUT = re.compile(r"(.*/)?(__[^/]*__|__MACOSX)(/|$)")
# In place of the byte where a member begins.
_NOWHERE = -1
# Bytes that are looked at in one go behind an archive's end.
_AT_ONCE = 1 << 16


class Contents(NamedTuple):
    """The samples of a shard."""

    # The names of the fields.
    fields: list[str]
    # For each member the byte where it begins, its bytes, and the number of its field.
    begins: Indices
    sizes: Indices
    numbers: NDArray[np.int32]
    # The first member of each sample, and the number of all.
    firsts: Indices
    # The keys of all samples one after the other, where each begins, and the end.
    keys: NDArray[np.uint8]
    borders: Indices
    # Why the last sample may lack members and none can be read behind it; or nothing.
    damage: str
    # The links in samples that lead to no file of their archive, and are left out.
    lost: list[str]


class _Found:
    """Collects the members of a shard."""

    def __init__(self) -> None:
        self._fields: dict[str, int] = {}
        self._begins = array("q")
        self._sizes = array("q")
        self._numbers = array("i")
        self._firsts = array("q")
        self._keys = bytearray()
        self._borders = array("q")
        self._last_key: str | None = None
        self._links = Links()
        self._lost: list[str] = []
        # The byte behind the last member that was read.
        self.end = 0

    def add(self, member: tarfile.TarInfo) -> None:
        is_link = member.islnk() or member.issym()
        if not is_link and not member.isreg():
            return
        split = _split(member.name)
        if is_link:
            number = None if split is None else len(self._begins)
            self._links.add_link(member, number)
        else:
            self._links.add_file(member)
        if split is None:
            return
        key, field = split
        if key != self._last_key:
            self._last_key = key
            self._firsts.append(len(self._begins))
            self._borders.append(len(self._keys))
            self._keys += key.encode(*CODING)
        # Where a link's bytes lie is known at the archive's end.
        self._begins.append(_NOWHERE if is_link else member.offset_data)
        self._sizes.append(0 if is_link else member.size)
        self._numbers.append(self._fields.setdefault(field, len(self._fields)))

    def end_archive(self) -> None:
        """Have what comes belong to no sample of this archive, and be no link's end."""
        for number, link in self._links.found():
            if link.lies is None:
                self._lost.append(link.name)
            else:
                self._begins[number], self._sizes[number] = link.lies
        self._links = Links()
        self._last_key = None

    def contents(self, damage: str) -> Contents:
        self.end_archive()
        self._firsts.append(len(self._begins))
        self._borders.append(len(self._keys))
        contents = Contents(
            [*self._fields],
            np.array(self._begins, np.int64),
            np.array(self._sizes, np.int64),
            np.array(self._numbers, np.int32),
            np.array(self._firsts, np.int64),
            np.array(self._keys, np.uint8),
            np.array(self._borders, np.int64),
            damage,
            self._lost,
        )
        if self._lost:
            return _without_lost(contents)
        return contents


def _without_lost(found: Contents) -> Contents:
    """Leave out members that lie nowhere, and samples that have no others."""
    is_there = found.begins != _NOWHERE
    before = np.concatenate(([0], np.cumsum(is_there)))
    firsts = before[found.firsts]
    has_some = np.diff(firsts) > 0
    lengths = np.diff(found.borders)
    return found._replace(
        begins=found.begins[is_there],
        sizes=found.sizes[is_there],
        numbers=found.numbers[is_there],
        firsts=np.append(firsts[:-1][has_some], firsts[-1]),
        keys=found.keys[np.repeat(has_some, lengths)],
        borders=np.concatenate(([0], np.cumsum(lengths[has_some]))),
    )


def contents_of(file: File, tell: Tell) -> Contents:
    """Read the headers of a shard."""
    found = _Found()
    with file.open() as opened:
        _refuse_compressed(file, opened)
        damage = ""
        try:
            damage = _read(file, opened, found, tell)
        # The file can't be read, which says nothing about what it has; or it isn't
        # damaged.
        except (OSError, OptionError):
            raise
        # Of damaged bytes tarfile raises errors of many types.
        except Exception as error:
            damage = f"what follows byte {found.end:,} can't be read: {error}"
    return found.contents(damage)


def _read(file: File, opened: BinaryIO, found: _Found, tell: Tell) -> str:
    """Collect the members; return why there are no more, if that isn't the end."""
    damage = ""
    # `cat a.tar b.tar` makes a file of several archives.
    archive: int | None = 0
    while archive is not None and not damage:
        opened.seek(archive)
        end, damage = _read_archive(file, opened, found, tell)
        found.end_archive()
        archive = _behind_zeros(opened, end)
    return damage


def _read_archive(
    file: File, opened: BinaryIO, found: _Found, tell: Tell
) -> tuple[int, str]:
    """Collect the members of the archive that begins here.

    Return the byte where they end, and why, if no mark of an end stands there.
    """
    told = opened.tell()
    count = 0
    with tarfile.open(
        fileobj=opened, mode="r:", encoding=CODING[0], errors=CODING[1]
    ) as tar:
        while True:
            member = tar.next()
            if member is None:
                break
            # It keeps them all otherwise.
            tar.members.clear()  # type: ignore[attr-defined]
            if member.issparse():
                raise OptionError(
                    f"member {member.name!r} of {file.path} is sparse, and its bytes "
                    "don't lie side by side; make the shard without --sparse."
                )
            found.end = end = member.offset_data
            # Some programs tell a size of links, too, whose bytes aren't there.
            if member.isreg():
                found.end = end = member.offset_data + member.size
            found.add(member)
            if member.size < 0 or (file.size and end > file.size):
                return end, (
                    f"its member {member.name!r} at byte {member.offset_data:,} has "
                    f"{member.size:,} bytes, and the file ends at {file.size:,}"
                )
            count += 1
            if count == _TELL_EACH:
                tell(end - told, count)
                told = end
                count = 0
        tell(tar.offset - told, count)
        # tarfile takes a damaged header for the end, and so the end of the file.
        opened.seek(tar.offset)
        block = opened.read(_BLOCK)
    damage = ""
    if len(block) < _BLOCK:
        damage = f"it ends at byte {tar.offset:,} without the mark of an archive's end"
    elif block.count(0) < _BLOCK:
        damage = f"at byte {tar.offset:,} stands no header"
    return tar.offset, damage


def _behind_zeros(opened: BinaryIO, at: int) -> int | None:
    """Return the block behind the zeros that stand at a byte; None for none."""
    opened.seek(at)
    while some := opened.read(_AT_ONCE):
        zeros = len(some) - len(some.lstrip(b"\0"))
        if zeros < len(some):
            return at + zeros // _BLOCK * _BLOCK
        at += len(some)
    return None


def _refuse_compressed(file: File, opened: BinaryIO) -> None:
    begin = opened.read(8)
    opened.seek(0)
    for sign, name in _COMPRESSED.items():
        if begin.startswith(sign):
            raise OptionError(
                f"{file.path} is compressed by {name}, so its members can't be read "
                "one by one: decompress the shard, since pictures gain nothing by it."
            )


def _split(name: str) -> tuple[str, str] | None:
    """Return the key and the field of a member; None if it belongs to no sample."""
    folder, slash, base = name.rpartition("/")
    stem, _, field = base.partition(".")
    # Names without an ending, and hidden files such as those of macOS.
    if not stem or not field or _ABOUT.match(name):
        return None
    return f"{folder}{slash}{stem}", field.lower()


def as_arrays(contents: Contents) -> dict[str, Any]:
    """Return what is written of a shard's contents."""
    arrays: dict[str, Any] = {}
    for name, value in contents._asdict().items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
    joined = "/".join(contents.fields).encode(*CODING)
    arrays["fields"] = np.frombuffer(joined, np.uint8)
    damage = contents.damage.encode(*CODING)
    arrays["damage"] = np.frombuffer(damage, np.uint8)
    lost = "\0".join(contents.lost).encode(*CODING)
    arrays["lost"] = np.frombuffer(lost, np.uint8)
    return arrays


def of_arrays(arrays: dict[str, NDArray[Any]]) -> Contents:
    """Return the contents that were written so."""
    told = dict(arrays)
    # No field has a slash.
    joined = told.pop("fields").tobytes().decode(*CODING)
    damage = told.pop("damage").tobytes().decode(*CODING)
    fields = joined.split("/") if joined else []
    # No name has a zero.
    links = told.pop("lost").tobytes().decode(*CODING)
    lost = links.split("\0") if links else []
    return Contents(fields=fields, damage=damage, lost=lost, **told)
