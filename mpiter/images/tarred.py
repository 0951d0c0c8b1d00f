"""The pictures of tar shards with their classes, for an ``ImageFolder``."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, SupportsIndex, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..datasets.columns import offered
from ..errors import DamagedFile, OptionError
from ..order.order import Indices, Order
from .decoding import EXTENSIONS, is_picture
from .places import Classed

T = TypeVar("T")
# The field of classes.
_CLASS = "cls"


class Shards(Protocol):
    """Samples of several members, each of which has a number."""

    def __len__(self) -> int: ...

    @property
    def fields(self) -> Sequence[str]:
        """The names of the fields that samples have."""

    def sample_keys(self) -> Iterator[str]:
        """Yield the names of all samples; their folders are part of these."""

    def words(self, sample: int) -> str:
        """Return in words which sample this is."""

    def find(self, fields: Collection[str]) -> Indices:
        """Return a member of each sample in one of these fields; -1 for none."""

    def fetch(self, member: int) -> bytes:
        """Read the bytes of a member."""

    def name(self, member: int) -> str:
        """Return the name of a member."""

    def source(self, member: int) -> str:
        """Return in words where a member lies."""


class HasShards(Protocol):
    """What has such samples, as ``mpiter.files.Tar``."""

    def mpiter_members(self) -> Shards:
        """Return what reads single members."""

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Order:
        """Return the order of the first epoch."""


def in_shards(given: HasShards) -> Classed:
    """Return a picture of each sample, and its class."""
    if offered(given, "mpiter_members") is None:
        raise OptionError(
            "ImageFolder takes the path of a folder, or mpiter.files.Tar(…) of tar "
            f"shards, and not {type(given).__name__} {given!r:.60}.  A list of "
            "pictures is an ImageList(…); pictures in a column are decoded by a "
            "dataset of yours."
        )
    shards = given.mpiter_members()
    words = repr(given)
    place = InShards(shards, _pictures_of(shards, words), words)
    numbers = shards.find([_CLASS])
    if (numbers >= 0).any():
        labels = Labels(partial(_class_of, shards, numbers), len(numbers), -1)
        return Classed(place, [], labels, given.mpiter_order)
    classes, by_folder = _by_folder(shards, words)
    return Classed(place, classes, by_folder, given.mpiter_order)


class InShards:
    """A picture of each sample."""

    root = ""

    def __init__(self, shards: Shards, pictures: Indices, words: str) -> None:
        self._shards = shards
        self._pictures = pictures
        self._words = words
        name_of = partial(_name_of, shards, pictures)
        self.paths: Sequence[str] = Told(name_of, len(pictures), "")

    def __str__(self) -> str:
        return self._words

    def source(self, index: int) -> str:
        return self._shards.source(_member(self._shards, self._pictures, index))

    def fetch(self, index: int, source: str) -> bytes:
        return self._shards.fetch(_member(self._shards, self._pictures, index))


class Told(Sequence[T]):
    """What ``tell`` tells of each sample.

    ``[index]`` raises its error.  One sample doesn't stop many: in a slice, or where
    all are gone through, ``nothing`` stands in place of an error.
    """

    def __init__(self, tell: Callable[[int], T], length: int, nothing: T) -> None:
        self._tell = tell
        self._length = length
        self._nothing = nothing

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return map(self._tell_or_nothing, range(len(self)))

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T | Sequence[T]:
        some = range(len(self))[index]
        if isinstance(some, int):
            return self._tell(some)
        return [self._tell_or_nothing(at) for at in some]

    def _tell_or_nothing(self, index: int) -> T:
        try:
            return self._tell(index)
        except DamagedFile:
            return self._nothing


class Labels(Told[int], np.lib.mixins.NDArrayOperatorsMixin):
    """The classes in members of their own, read one by one.  It serves as an array."""

    # As of an array, ``index`` may also be one, of numbers or of true and false.
    def __getitem__(self, index: Any) -> Any:
        numbers = np.arange(len(self))[index]
        if numbers.ndim:
            some = numbers.tolist()
            return np.array([self._tell_or_nothing(at) for at in some], np.int64)
        return self._tell(int(numbers))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **more: Any) -> Any:
        arrays = [one[:] if isinstance(one, Labels) else one for one in given]
        return getattr(ufunc, method)(*arrays, **more)


def _member(shards: Shards, members: Indices, index: int, what: str = "picture") -> int:
    """Return the number of the member of a sample."""
    member = int(members[index])
    if member < 0:
        raise DamagedFile(f"sample {shards.words(index)} has no {what}.")
    return member


def _name_of(shards: Shards, members: Indices, index: int) -> str:
    return shards.name(_member(shards, members, index))


def _class_of(shards: Shards, members: Indices, index: int) -> int:
    member = _member(shards, members, index, "class (.cls)")
    data = shards.fetch(member)
    try:
        return int(data)
    except ValueError as error:
        raise DamagedFile(f"{shards.source(member)} is no class: {error}.") from error


def _pictures_of(shards: Shards, words: str) -> Indices:
    """Return the member of each sample that is its picture; -1 for none."""
    fields = [name for name in shards.fields if is_picture(f".{name}")]
    # Of "jpg" and "mask.png" the first is the picture.
    plain = [name for name in fields if "." not in name]
    found = shards.find(plain)
    found = np.where(found < 0, shards.find(fields), found)
    if (found < 0).all():
        raise OptionError(f"{words} has no pictures ({', '.join(EXTENSIONS)}).")
    return found


def _by_folder(shards: Shards, words: str) -> tuple[list[str], Any]:
    """Return the classes' names, and for each sample the number of its own.

    They are the folders that would be there if the shards were unpacked into one.
    """
    numbers: dict[str, int] = {}
    came = array("i")
    for key in shards.sample_keys():
        folder, slash, _ = key.removeprefix("./").partition("/")
        if not slash:
            raise OptionError(
                f"sample {key!r} of {words} has no class: neither a member "
                f"{key}.{_CLASS} nor a folder in its name.  Pass the Tar itself, whose "
                "samples are dicts."
            )
        came.append(numbers.setdefault(folder, len(numbers)))
    classes = sorted(numbers)
    sorted_number = {name: number for number, name in enumerate(classes)}
    # What becomes of each number, in the order in which folders came.
    becomes = np.array([sorted_number[name] for name in numbers], np.int32)
    return classes, becomes[np.array(came, np.int64)]
