"""Samples by reference: has a dataset filled their memory again, and how are they copied if it does?

Pure.  Where nobody leaves the process a batch's samples are the very objects that the dataset has returned.  What the
first of them looks like is compared with what it looks like when the last one has come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from sys import getrefcount
from typing import Any

import numpy as np

from . import tensors

_FEW, _LOOKED_AT = 16, 1024  # parts of a sample, and elements of an array, that tell whether it has changed
_HELD = 3  # references: of the list or tuple that holds it, of the variable, of the call that counts them
_CONSTANT = {int, float, complex, bool, str, bytes, type(None), np.float32, np.float64, np.int64}


class Refilled(Exception):
    """A dataset has filled the memory of a sample again."""


class Held:
    """Objects that stay as they are; raises Refilled if the first one has changed by the end."""

    def __init__(self) -> None:
        self._values: Any = []
        self._first: list[bytes] | None = None
        self.add: Callable[[Any], None] = self._values.append

    def begin(self, value: Any) -> None:
        """Take in the first one."""
        self._values.append(value)
        if len(self._values) == 1 and not is_its_own(self._values):
            self._first = glimpse(value)

    def hold(self, values: Any) -> None:
        """Take in all of them, which lie in columns."""
        self._values = values

    def sealed(self) -> Held:
        if self._first is not None and glimpse(self._values[0]) != self._first:
            raise Refilled
        return self

    def open(self) -> Any:
        """The objects: a list, or what lies in columns."""
        return self._values


class HeldCopies(Held):
    """Copies, as far as one knows how to make them."""

    def __init__(self) -> None:
        super().__init__()
        self.add = lambda value: self._values.append(copied(value))


@dataclass(frozen=True, slots=True)
class Copies:
    """A dataset whose samples are copied as they come."""

    dataset: Any

    def __getitem__(self, key: Any) -> Any:
        return copied(self.dataset[key])


def copied(sample: Any) -> Any:
    """The sample with memory of its own, as far as one knows how."""
    kind = type(sample)
    if kind is tuple or kind is list:
        return kind([copied(part) for part in sample])
    if kind is dict:
        return {name: copied(value) for name, value in sample.items()}
    if kind in (np.ndarray, np.memmap):
        return sample.copy(order="K")
    if kind is np.void:
        return sample.copy()
    return sample.clone() if tensors.as_bytes(sample) is not None else sample


def is_its_own(rows: list[Any]) -> bool:
    """Does nobody but this list hold the first sample, so that nobody can fill its arrays again?"""
    sample = rows[0]
    kind = type(sample)
    if getrefcount(sample) > _HELD:
        return False
    if kind is np.ndarray:
        return sample.base is None
    if kind is not tuple:
        return kind in _CONSTANT
    for part in sample:
        if type(part) is np.ndarray:
            if part.base is not None or getrefcount(part) > _HELD:
                return False
        elif type(part) not in _CONSTANT:
            return False
    return True


def glimpse(sample: Any) -> list[bytes]:
    """Some bytes of each array in a sample, which others would hardly have in common with it."""
    kind = type(sample)
    if kind is np.ndarray and sample.size <= _LOOKED_AT:
        return [sample.tobytes()]
    if kind is tuple or kind is list:
        found: list[bytes] = []
        for part in sample[:_FEW]:
            if type(part) not in _CONSTANT:
                found += glimpse(part)
        return found
    if kind is dict:
        return [some for part in islice(sample.values(), _FEW) for some in glimpse(part)]
    if isinstance(sample, np.generic):
        return []
    array = sample if kind is np.ndarray else tensors.as_array(sample)
    if array is None:
        return []
    if array.size <= _LOOKED_AT:
        return [array.tobytes()]
    elements = array.ravel("K") if array.flags.forc else array.flat  # never a copy of all of them
    return [elements[:: 1 + array.size // _LOOKED_AT].tobytes()]
