"""The pictures of tar shards with their classes, for an ``ImageFolder``."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol, overload

import numpy as np

from ..datasets.columns import in_words
from ..errors import DamagedFile, OptionError
from ..order.order import Indices, Order
from .decoding import EXTENSIONS, is_picture

# The field of classes.
_CLASS = "cls"


class Shards(Protocol):
    """Samples of several members, as ``mpiter.files.Tar`` has them."""

    def __len__(self) -> int: ...

    @property
    def fields(self) -> Sequence[str]:
        """The names of the fields that samples have."""

    def sample_keys(self) -> Iterator[str]:
        """Yield the names of all samples; their folders are part of these."""

    def find(self, fields: Collection[str]) -> Indices:
        """Return a member of each sample in one of these fields; -1 for none."""

    def fetch(self, member: int) -> bytes:
        """Read the bytes of a member."""

    def name(self, member: int) -> str:
        """Return the name of a member."""

    def source(self, member: int) -> str:
        """Return in words where a member lies."""

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Order:
        """Return the order of the first epoch."""


class Tarred:
    """A picture of each sample, and its class."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self._pictures = _pictures_of(shards)
        # The names of the classes, where they have some.
        self.classes: list[str] = []
        self.labels: Any
        numbers = shards.find([_CLASS])
        if (numbers >= 0).any():
            self.labels = _Labels(shards, numbers)
        else:
            self.classes, self.labels = _by_folder(shards)

    def names(self) -> Sequence[str]:
        return _Names(self.shards, self._pictures)

    def source(self, index: int) -> str:
        return self.shards.source(_member(self.shards, self._pictures, index))

    def fetch(self, index: int) -> bytes:
        return self.shards.fetch(_member(self.shards, self._pictures, index))


class _Labels:
    """The classes in members of their own, read one by one."""

    def __init__(self, shards: Shards, members: Indices) -> None:
        self._shards = shards
        self._members = members

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, index: int) -> int:
        member = _member(self._shards, self._members, index, "class (.cls)")
        data = self._shards.fetch(member)
        try:
            return int(data)
        except ValueError as error:
            where = self._shards.source(member)
            raise DamagedFile(f"{where} is no class: {error}.") from error


class _Names(Sequence[str]):
    """The names of the pictures."""

    def __init__(self, shards: Shards, members: Indices) -> None:
        self._shards = shards
        self._members = members

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        return self._shards.name(_member(self._shards, self._members, index))


def _member(shards: Shards, members: Indices, index: int, what: str = "picture") -> int:
    """Return the number of the member of a sample."""
    member = int(members[index])
    if member < 0:
        raise DamagedFile(f"sample {in_words(shards, index)} has no {what}.")
    return member


def _pictures_of(shards: Shards) -> Indices:
    """Return the member of each sample that is its picture; -1 for none."""
    fields = [name for name in shards.fields if is_picture(f".{name}")]
    # Of "jpg" and "mask.png" the first is the picture.
    plain = [name for name in fields if "." not in name]
    found = shards.find(plain)
    found = np.where(found < 0, shards.find(fields), found)
    if (found < 0).all():
        raise OptionError(
            f"{shards!r} has no pictures ({', '.join(EXTENSIONS)} in small letters)."
        )
    return found


def _by_folder(shards: Shards) -> tuple[list[str], Any]:
    """Return the classes' names, and for each sample the number of its own.

    They are the folders that would be there if the shards were unpacked into one.
    """
    numbers: dict[str, int] = {}
    came = array("i")
    for key in shards.sample_keys():
        folder, slash, _ = key.removeprefix("./").partition("/")
        if not slash:
            raise OptionError(
                f"sample {key!r} of {shards!r} has no class: neither a member "
                f"{key}.{_CLASS} nor a folder in its name.  Pass the Tar itself, whose "
                "samples are dicts."
            )
        came.append(numbers.setdefault(folder, len(numbers)))
    classes = sorted(numbers)
    sorted_number = {name: number for number, name in enumerate(classes)}
    # What becomes of each number, in the order in which folders came.
    becomes = np.array([sorted_number[name] for name in numbers], np.int32)
    return classes, becomes[np.array(came, np.int64)]
