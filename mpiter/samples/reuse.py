"""Which samples may wait for others, to be written many at once?

Runs in workers.  A dataset may fill the memory of a sample again while that waits.  So samples wait only where it is
known that nothing changes meanwhile: they hold constants, and memory of owners (an array that others are views of, a
list, an object) that belong to one of them only, or are *data*: compared, and found unchanged.  ``Waiting`` looks at
samples that are to be written together.  Where it doesn't know, they are fetched again, with caution.
Assumes that a dataset doesn't write into what it has returned before without returning that once more.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import re
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, repeat
from mmap import mmap
from operator import attrgetter, is_
from pathlib import PurePath
from types import BuiltinFunctionType, EllipsisType, FunctionType, ModuleType
from typing import Any

import numpy as np

from . import tensors
from .classes import is_static, is_written_in_python, slots_in

_PARTS = 16  # data is so many times as large as what a sample shows of it: a buffer isn't
_MOST_DATA = 1024  # arrays
_DEEPEST = 64

ARRAYS = (np.ndarray, np.memmap)
_PLAIN = frozenset((int, float, complex, bool, str, bytes, type(None)))
_CONSTANT: tuple[Any, ...] = (
    *(*_PLAIN, range, slice, type, np.generic, np.dtype, enum.Enum, PurePath, decimal.Decimal, re.Pattern),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
    *(FunctionType, BuiltinFunctionType, ModuleType, EllipsisType),
)
_CONTAINERS = (tuple, frozenset, list, set, deque)
_QUICK = frozenset((tuple, list, dict))
_BUFFERS = (bytearray, array, mmap)
_OWNERS = (list, dict, set, deque, *_BUFFERS)
_base = attrgetter("base")


class Reused(Exception):
    """Samples that waited may have been changed since: they are lost."""

    def __init__(self, data: Data, can_be_copied: bool) -> None:
        super().__init__()
        self.data, self.can_be_copied = data, can_be_copied


class _Unknown(Exception):
    """In whose memory does a value lie?"""


class Data:
    """A worker's arrays in which nothing changes, by number, as long as they are there."""

    def __init__(self) -> None:
        self._owners: dict[int, Any] = {}  # weak references
        self._most = _MOST_DATA

    def __contains__(self, owner: int) -> bool:
        return owner in self._owners and self._owners[owner]() is not None

    def __bool__(self) -> bool:
        return bool(self._owners)

    def refute(self) -> None:
        """Something has changed all the same: nothing is believed any more."""
        self._owners.clear()
        self._most = 0

    def add(self, part: Any) -> bool:
        """Samples have shown ``part`` and others of one array, and nothing has changed.  Is that data?"""
        owner, number, whole = of_part(part)
        if number is None or whole < _PARTS * part.nbytes or len(self._owners) >= self._most:
            return False
        if isinstance(owner, np.ndarray):
            self._owners[number] = weakref.ref(owner, functools.partial(_forget, self._owners, number))
        else:
            self._owners[number] = tensors.weak(owner)
        return True


def _forget(owners: dict[int, Any], number: int, _: object) -> None:
    owners.pop(number, None)


def of_part(part: Any) -> tuple[Any, int | None, int]:
    """What an array or a tensor is a part of, its number and its bytes; no number if that is neither."""
    if isinstance(part, (np.ndarray, np.void)):
        whole = part if part.base is None else part.base
        return (whole, id(whole), whole.nbytes) if isinstance(whole, np.ndarray) else (whole, None, 0)
    storage = tensors.storage(part)
    return (None, None, 0) if storage is None else (storage, tensors.number(part), storage.nbytes())


class Waiting:
    """Samples that are about to be written together, while they are looked at."""

    def __init__(self, data: Data, at_once: bool = False) -> None:
        self._data = data
        self._at_once = at_once  # the dataset has returned all of them in one
        self._columns: list[list[int]] = []  # the owner in each sample, by place
        self._whose: dict[int, int] = {}  # owner -> sample, where they differ in what they are made of
        self._shared: set[int] = set()
        self._are_known = self._can_be_copied = True

    def look(self, values: Sequence[Any]) -> None:
        """At what they have in one place: all of one kind.  The parts of a container are places of their own."""
        first = values[0]
        kind: Any = type(first)
        if kind in _PLAIN or isinstance(first, tuple) or not isinstance(values, (list, tuple)):  # rows of one array
            return
        if kind in ARRAYS or kind is np.void:
            self._look_at_arrays(values)
        elif not _is_constant(kind):
            owners = [*map(id if tensors.number(first) is None else _number, values)]
            if not (owners[0] in self._data and len({*owners}) == 1):
                self._add(owners)

    def _look_at_arrays(self, values: Sequence[Any]) -> None:
        base = values[0].base
        if _are_based_on(base, values):
            if id(base) in self._data:
                return
            if base is None and _owns(values[0]) and _owns(values[-1]):
                self._add([*map(id, values)])
                return
        bases = [*map(_base, values)]
        if {*map(type, bases)} == {np.ndarray} and _are_based_on(None, bases):
            self._add([*map(id, bases)])
        else:
            self.look_into(values)

    def _add(self, owners: list[int]) -> None:
        if owners not in self._columns:  # within a sample they may be the same
            self._columns.append(owners)

    def look_into(self, values: Sequence[Any]) -> None:
        """At what they have in one place, of whatever kinds, as deep as it goes."""
        if not _PLAIN.issuperset(map(type, values)):
            for sample, value in enumerate(values):
                self._look_into(sample, value, _DEEPEST)

    def _look_into(self, sample: int, value: Any, depth: int) -> None:
        kind: Any = type(value)
        if kind not in _QUICK:
            if _is_constant(kind):
                return
            try:
                owner = _owner(value, self._data)
            except _Unknown:
                self._are_known = False
                self._can_be_copied &= kind in ARRAYS
                return
        else:
            owner = None if kind is tuple else id(value)
        if owner in self._whose:  # and so is what it holds
            if self._whose[owner] != sample:
                self._shared.add(owner)
            return
        if owner is not None:
            self._whose[owner] = sample
        for part in _parts(value):
            if depth:
                self._look_into(sample, part, depth - 1)
            else:
                self._are_known = self._can_be_copied = False

    def may_wait(self) -> bool:
        """Is it known that they haven't been changed while they waited?"""
        if not (self._are_known or self._at_once):
            return False
        if not self._whose and len(set().union(*self._columns)) == sum(map(len, self._columns)):
            return True
        for sample, owner in chain.from_iterable(map(enumerate, self._columns)):
            if self._whose.setdefault(owner, sample) != sample:
                self._shared.add(owner)
        return all(map(self._data.__contains__, self._shared))

    def check(self) -> None:
        """Raises Reused unless it is."""
        if not self.may_wait():
            raise Reused(self._data, self._can_be_copied)


def _owner(value: Any, data: Data) -> int | None:
    """The number of what owns the memory of ``value``; None if nothing does that could change.  Raises _Unknown."""
    if isinstance(value, (np.ndarray, np.void)):
        if value.base is not None:
            return id(value.base) if id(value.base) in data else _root(value.base, data)
        if isinstance(value, np.ndarray) and not _owns(value):
            raise _Unknown
        return id(value)
    if isinstance(value, (tuple, frozenset)):
        return None
    if isinstance(value, _OWNERS):
        return id(value)
    if isinstance(value, memoryview):
        return _root(value.obj, data)
    if (number := tensors.number(value)) is not None:
        return number
    kind: Any = type(value)
    if is_written_in_python(kind):
        return id(value)
    raise _Unknown


def _number(tensor: Any) -> int:
    return tensors.number(tensor) or 0


def _root(base: Any, data: Data) -> int | None:
    """What owns the memory that an array or a memoryview has from somebody else."""
    if type(base) is bytes:  # which is written to all the same by arrays that have been unpickled
        return id(base)
    if isinstance(base, (np.ndarray, np.void, memoryview, *_BUFFERS)) or tensors.number(base) is not None:
        return _owner(base, data)
    raise _Unknown  # a library's, which may show the same memory by another object each time


def _are_based_on(base: Any, arrays: Iterable[Any]) -> bool:
    return all(map(is_, map(_base, arrays), repeat(base)))


def _owns(value: Any) -> bool:
    return bool(value.flags.owndata)


@functools.lru_cache(maxsize=1024)
def _is_constant(kind: Any) -> bool:
    return (issubclass(kind, _CONSTANT) and not issubclass(kind, np.void)) or tensors.is_constant(kind)


def _parts(value: Any) -> list[Any]:
    """What it holds that may change."""
    kind: Any = type(value)
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, _CONTAINERS):
        parts = value
    elif isinstance(value, np.ndarray) and value.dtype.hasobject:
        parts = value.ravel().tolist()
    found = [part for part in parts if type(part) not in _PLAIN]
    if kind not in _QUICK and not is_static(kind):
        found += getattr(value, "__dict__", {}).values()
        for _, slot in chain.from_iterable(map(slots_in, kind.__mro__)):
            with suppress(AttributeError):  # nothing is there yet
                found.append(slot.__get__(value))
    return found
