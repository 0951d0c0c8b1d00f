"""Samples by reference: notices that a dataset overwrites earlier samples' memory.

If it does, samples are copied.  Pure.  Without processes a batch's samples are the
objects that the dataset returned.  The first sample's bytes, or some of them, are
compared with its bytes when the last sample has come.  From time to time this is done
for all samples, since one may by chance have the same bytes again.  Looks at arrays and
tensors, also in tuples, lists, dicts.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .kinds import CONSTANT, kind_of
from .leaf import added

# Parts of a container that are compared at the most.
_FEW = 32
# Parts of all containers in a sample that are compared, or a little more.
_PARTS = 1024
# Elements of an array that is compared as a whole.
_SMALL = 1024
# Of a larger array so many runs of so many elements are compared.
_RUNS = 16
_RUN = 16
# Each look has the next of these numbers.
_numbers = itertools.count()


class Refilled(Exception):
    """A dataset has overwritten the memory of an earlier sample."""


class Held:
    """Holds copies of values, as nothing looks whether they are overwritten later."""

    def __init__(self) -> None:
        self._values: list[Any] = []

    def add(self, value: object) -> None:
        self._values.append(copied(value))

    def add_together(self, columns: Sequence[Sequence[object]]) -> bool:
        return False

    def sealed(self) -> Held:
        return self

    def open(self) -> list[Any]:
        return self._values


@dataclass(frozen=True, slots=True)
class Copies:
    """Wraps a dataset and returns copies of its samples."""

    dataset: Any

    def __getitem__(self, key: object) -> Any:
        return copied(self.dataset[key])


def copied(sample: Any, within: frozenset[type] = frozenset()) -> Any:
    """Return a copy of a sample: of its arrays, tensors, tuples, lists and dicts.

    Other objects are shared.  ``within`` are the types of values with leaves that the
    sample is a part of.
    """
    kind: Any = type(sample)
    if kind is tuple or (isinstance(sample, tuple) and hasattr(kind, "_fields")):
        return tuple.__new__(kind, [copied(part, within) for part in sample])
    if isinstance(sample, (dict, list)):
        # The copy is of the same class, which may be derived from dict or list.
        one: Any = copy.copy(sample)
        if isinstance(one, dict):
            places: Any = list(one)
        else:
            places = range(len(one))
        for at in places:
            one[at] = copied(one[at], within)
        return one
    if kind in added:
        one = added[kind]
        one.check_outside(within)
        parts = one.split(sample)
        return one.join([copied(part, within | {kind}) for part in parts])
    leaf = kind_of(kind)
    if leaf is None:
        return sample
    return leaf.copied(sample)


class Look:
    """Some bytes of each array in a sample, to notice when the dataset overwrites it.

    Of a large array each look has other elements, so that a change of a single one is
    seen sooner or later.
    """

    def __init__(self, sample: object) -> None:
        self._sample = sample
        self._arrays, self._is_fixed = _arrays_in(sample)
        self._number = next(_numbers)
        self._bytes = self._some_of_each(self._arrays)

    def _some_of_each(self, arrays: list[Any]) -> list[bytes]:
        return [_some_of(array, self._number) for array in arrays]

    def has_changed(self) -> bool:
        """Return True if the sample has other bytes now."""
        # A list or a dict may hold other arrays by now, while a tuple holds the same.
        if self._is_fixed:
            arrays = self._arrays
        else:
            arrays, _ = _arrays_in(self._sample)
        return self._some_of_each(arrays) != self._bytes


def bytes_in(sample: object) -> int:
    """Return the number of bytes of the arrays and tensors in a sample."""
    arrays, _ = _arrays_in(sample)
    return sum(array.nbytes for array in arrays)


def _arrays_in(
    sample: object,
    within: frozenset[type] = frozenset(),
) -> tuple[list[Any], bool]:
    """Return the arrays in a sample, and whether it will always have these.

    They are on the sample's memory.  ``within`` is that of ``copied``.
    """
    found: list[Any] = []
    is_fixed = True
    rest = [sample]
    # Most samples are one, and looking takes as long as fetching some samples.
    if type(sample) is tuple:
        rest = [*sample[:_FEW]]
    # The list of what is left to look at grows meanwhile.
    for part in rest:
        kind = type(part)
        if kind in CONSTANT:
            continue
        leaf = kind_of(kind)
        if leaf is not None:
            array, stays = leaf.memory(part)
            if array is not None:
                found.append(array)
                is_fixed = is_fixed and stays
            continue
        if kind in added:
            # Its parts may be made anew each time.
            is_fixed = False
            one = added[kind]
            one.check_outside(within)
            inner, _ = _arrays_in(one.split(part), within | {kind})
            found += inner
            continue
        if isinstance(part, (tuple, list, dict)):
            is_fixed = is_fixed and isinstance(part, tuple)
            # A list may even hold itself, so there must be an end.
            if len(rest) < _PARTS:
                held = part.values() if isinstance(part, dict) else part
                rest += islice(held, _FEW)
    return found, is_fixed


def _some_of(array: Any, number: int) -> bytes:
    """Return the bytes of an array, or of a large one those of some elements.

    ``number`` says which elements.
    """
    size: int = array.size
    if size <= _SMALL:
        return array.tobytes()  # type: ignore[no-any-return]
    step = size // _RUNS
    at = number // 2 * _RUN % step
    # An array that doesn't lie in one piece would be copied to make it flat.
    if not array.flags.forc:
        return array.flat[at::step].tobytes()  # type: ignore[no-any-return]
    # Neighbours lie in one line of memory, which may be in no cache yet: fetching one
    # takes as long as looking at all elements in it.  Every other time the runs begin a
    # little later, to reach the last elements.
    flat = array.ravel("K")
    first = size % _RUNS * (number % 2)
    runs = flat[first : first + _RUNS * step].reshape(_RUNS, step)
    return runs[:, at : at + _RUN].tobytes()  # type: ignore[no-any-return]
