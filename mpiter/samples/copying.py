"""Samples by reference: notices that a dataset overwrites the memory of earlier samples, and copies samples if so.

Pure.  Without processes a batch's samples are the objects that the dataset returned.  The first sample's bytes, or
some of them, are compared with its bytes when the last sample has come.  From time to time this is done for all
samples, since one may by chance have the same bytes again.  Looks at arrays and tensors, also in tuples, lists, dicts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from . import tensors

_FEW, _LOOKED_AT = 32, 1024  # most parts of a sample, and elements of an array, that are compared
_CONSTANT = {int, float, complex, bool, str, bytes, type(None), np.float32, np.float64, np.int64}


class Refilled(Exception):
    """A dataset has overwritten the memory of an earlier sample."""


class Held:
    """Holds samples as they are, or as copies; ``sealed`` raises Refilled if the memory of one was overwritten."""

    def __init__(self, copies: bool = False) -> None:
        self._values: Any = []
        self._looked: list[tuple[Any, list[bytes]]] = []  # samples and their bytes
        append = self._values.append
        self.add: Callable[[Any], None] = (lambda value: append(copied(value))) if copies else append

    def look(self, value: Any) -> None:
        """Hold a sample, and remember its bytes to compare them later."""
        self._values.append(value)
        self._looked.append((value, glimpse(value)))

    def hold(self, values: Any) -> None:
        """Hold all samples at once; ``values`` has them in columns."""
        self._values = values

    def sealed(self) -> Held:
        if any(glimpse(value) != looked for value, looked in self._looked):
            raise Refilled
        return self

    def open(self) -> Any:
        return self._values


@dataclass(frozen=True, slots=True)
class Copies:
    """Wraps a dataset and returns copies of its samples."""

    dataset: Any

    def __getitem__(self, key: Any) -> Any:
        return copied(self.dataset[key])


def copied(sample: Any) -> Any:
    """Return a copy of a sample: of its arrays, tensors, tuples, lists and dicts; other objects are shared."""
    kind: Any = type(sample)
    if kind is tuple or (isinstance(sample, tuple) and hasattr(kind, "_fields")):
        return tuple.__new__(kind, [copied(part) for part in sample])
    if isinstance(sample, (dict, list)):
        one: Any = copy.copy(sample)  # of the same class
        for at in list(one) if isinstance(one, dict) else range(len(one)):
            one[at] = copied(one[at])
        return one
    if isinstance(sample, np.ndarray) or kind is np.void:
        return sample.copy("K")
    return sample.clone() if tensors.as_bytes(sample) is not None else sample


def glimpse(sample: Any) -> list[bytes]:
    """Return some bytes of each array in a sample, to notice when the dataset overwrites it."""
    if isinstance(sample, (tuple, list, dict)):
        parts = islice(sample.values() if isinstance(sample, dict) else sample, _FEW)
        return [some for part in parts if type(part) not in _CONSTANT for some in glimpse(part)]
    if type(sample) is np.void:  # a record of a structured array
        return [sample.tobytes()]
    array = np.asarray(sample) if isinstance(sample, np.ndarray) else (tensors.as_bytes(sample) or (None,))[0]
    if array is None:
        return []
    if array.size <= _LOOKED_AT:
        return [array.tobytes()]
    elements = array.ravel("K") if array.flags.forc else array.flat  # without copying the whole array
    return [elements[:: 1 + array.size // _LOOKED_AT].tobytes()]
