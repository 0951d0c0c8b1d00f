"""Samples by reference: notices that a dataset overwrites the memory of earlier
samples, and copies samples if so.

Pure.  Without processes a batch's samples are the objects that the dataset returned.
The first sample's bytes, or some of them, are compared with its bytes when the last
sample has come.  From time to time this is done for all samples, since one may by
chance have the same bytes again.  Looks at arrays and tensors, also in tuples, lists,
dicts.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from . import tensors

# Parts of a container that are compared, at the most.
_FEW = 32
# Of all containers in a sample, or a little more.
_PARTS = 1024
# Elements of an array that is compared as a whole.
_SMALL = 1024
# Of a larger one so many runs of so many elements are compared.
_RUNS = 16
_RUN = 16
_numbers = itertools.count()  # of looks
_CONSTANT = {
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    np.float32,
    np.float64,
    np.int64,
}


class Refilled(Exception):
    """A dataset has overwritten the memory of an earlier sample."""


class Held:
    """Holds samples as they are, or as copies; ``sealed`` raises Refilled if the memory
    of one was overwritten.
    """

    def __init__(self, copies: bool = False) -> None:
        self._values: Any = []
        self._looks: list[Look] = []
        append = self._values.append
        self.add: Callable[[Any], None]
        if copies:
            self.add = lambda value: append(copied(value))
        else:
            self.add = append

    def look(self, value: Any) -> None:
        """Hold a sample, and remember its bytes to compare them later."""
        self._values.append(value)
        self._looks.append(Look(value))

    def hold(self, values: Any) -> None:
        """Hold all samples at once; ``values`` has them in columns."""
        self._values = values

    def sealed(self) -> Held:
        if any(look.has_changed() for look in self._looks):
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
    """Return a copy of a sample: of its arrays, tensors, tuples, lists and dicts; other
    objects are shared.
    """
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
    if tensors.as_bytes(sample) is not None:
        return sample.clone()
    return sample


class Look:
    """Some bytes of each array in a sample, to notice when the dataset overwrites it.

    Of a large array each look has other elements, so that a change of a single one is
    seen sooner or later.
    """

    def __init__(self, sample: Any) -> None:
        self._sample = sample
        self._arrays, self._is_fixed = _arrays_in(sample)
        self._number = next(_numbers)
        self._bytes = [_some_of(array, self._number) for array in self._arrays]

    def has_changed(self) -> bool:
        """Return True if the sample has other bytes now."""
        # A list or a dict may have other arrays by now; those of a tuple are known.
        if self._is_fixed:
            arrays = self._arrays
        else:
            arrays = _arrays_in(self._sample)[0]
        return [_some_of(array, self._number) for array in arrays] != self._bytes


def bytes_in(sample: Any) -> int:
    """Return the number of bytes of the arrays and tensors in a sample."""
    return sum(array.nbytes for array in _arrays_in(sample)[0])


def _arrays_in(sample: Any) -> tuple[list[Any], bool]:
    """Return the arrays in a sample, on its memory, and whether it will always have
    these.
    """
    found = list[Any]()
    is_fixed = True
    rest = [sample]
    for part in rest:  # which grows meanwhile
        if type(part) in _CONSTANT:
            continue
        if isinstance(part, np.ndarray):
            found.append(np.asarray(part))
        elif type(part) is np.void:  # a record of a structured array
            found.append(part)
        elif isinstance(part, (tuple, list, dict)):
            is_fixed = is_fixed and isinstance(part, tuple)
            if len(rest) < _PARTS:  # a list may even hold itself
                rest += islice(part.values() if isinstance(part, dict) else part, _FEW)
        elif (array := tensors.as_array(part)) is not None:
            found.append(array)
        elif (raw := tensors.as_bytes(part)) is not None:
            # A tensor of a dtype that NumPy lacks; these may be the bytes of a copy.
            found.append(raw[0])
            is_fixed = False
    return found, is_fixed


def _some_of(array: Any, number: int) -> bytes:
    """Return the bytes of an array, or of a large one those of some elements:
    ``number`` says which.
    """
    size: int = array.size
    if size <= _SMALL:
        return array.tobytes()  # type: ignore[no-any-return]
    step = size // _RUNS
    at = number // 2 * _RUN % step
    # To make it flat would copy all of it.
    if not array.flags.forc:
        return array.flat[at::step].tobytes()  # type: ignore[no-any-return]
    # Neighbours lie in one line of memory, which may be in no cache yet: fetching one
    # takes as long as looking at all elements in it.  Every other time the runs begin a
    # little later, to reach the last elements.
    flat = array.ravel("K")
    first = size % _RUNS * (number % 2)
    runs = flat[first : first + _RUNS * step].reshape(_RUNS, step)
    return runs[:, at : at + _RUN].tobytes()  # type: ignore[no-any-return]
