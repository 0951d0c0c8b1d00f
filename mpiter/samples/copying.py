"""Samples by reference: has a dataset filled their memory again, and how are they copied if it does?

Pure.  Without processes a batch's samples are the very objects that the dataset has returned.  What the first of them
looks like is compared with what it looks like when the last one has come; and, from time to time, so are all of them,
since one of them alone may look again as it did.
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
    """Holds samples as they are, or as copies; raises Refilled if the memory of one was filled again."""

    def __init__(self, copies: bool = False) -> None:
        self._values: Any = []
        self._looked: list[list[bytes]] = []  # what the first one, or each of them, looked like
        append = self._values.append
        self.add: Callable[[Any], None] = (lambda value: append(copied(value))) if copies else append

    def begin(self, value: Any) -> None:
        """Hold the first sample."""
        self._values.append(value)
        if len(self._values) == 1 and not is_its_own(self._values):
            self._looked.append(glimpse(value))

    def look(self, value: Any) -> None:
        """Hold a sample that is to be looked at again."""
        self._values.append(value)
        self._looked.append(glimpse(value))

    def hold(self, values: Any) -> None:
        """Hold all samples, which lie in columns."""
        self._values = values

    def sealed(self) -> Held:
        if any(glimpse(value) != looked for value, looked in zip(self._values, self._looked, strict=False)):
            raise Refilled
        return self

    def open(self) -> Any:
        """The samples: a list, or the columns."""
        return self._values


@dataclass(frozen=True, slots=True)
class Copies:
    """A dataset whose samples are copied as they come."""

    dataset: Any

    def __getitem__(self, key: Any) -> Any:
        return copied(self.dataset[key])


def copied(sample: Any) -> Any:
    """A copy of a sample, if it is of a known kind."""
    kind = type(sample)
    if kind is tuple or kind is list:
        return kind([copied(part) for part in sample])
    if kind is dict:
        return {name: copied(value) for name, value in sample.items()}
    if kind in (np.ndarray, np.memmap, np.void):
        return sample.copy("K")
    return sample.clone() if tensors.as_bytes(sample) is not None else sample


def is_its_own(rows: list[Any]) -> bool:
    """Is this list the only holder of the first sample, so that its arrays can't be filled again?"""
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
    """Some bytes of each array in a sample, to notice when it is filled again."""
    kind, array = type(sample), sample
    if kind is tuple or kind is list or kind is dict:
        parts = islice(sample.values() if kind is dict else sample, _FEW)
        return [some for part in parts if type(part) not in _CONSTANT for some in glimpse(part)]
    if kind is not np.ndarray:
        array = None if isinstance(sample, np.generic) else tensors.as_array(sample)
        if array is None:
            return []
    if array.size <= _LOOKED_AT:
        return [array.tobytes()]
    elements = array.ravel("K") if array.flags.forc else array.flat  # never a copy of all of them
    return [elements[:: 1 + array.size // _LOOKED_AT].tobytes()]
