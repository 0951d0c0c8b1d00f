"""What a worker does about samples of which it isn't known that they may wait for others.

Runs in workers.  For a while each sample is copied as soon as the dataset returns it; the copies may wait.  The first
ones are compared with what has become of the samples themselves meanwhile: a large array of which several were parts,
and in which nothing has changed, is data from then on.  Where samples share anything else, all are copied for good;
where copies don't help, each is written by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from . import tensors
from .reuse import ARRAYS, Data, Reused, Waiting, of_part

FEW = 16  # samples so large that few are written at once cost more to copy than to write one by one
_TWICE = 2  # as many as are written at once are copied and compared, so that all that comes again has come
_TRIALS = 8  # for datasets that read one array after the other; then all are copied


class Caution:
    """What a worker does, and what it has learnt."""

    def __init__(self) -> None:
        self.is_singly = False  # nobody waits
        self.copies = False
        self._trials = _TRIALS  # that are left
        self._data = Data()
        self._to_compare = 0
        self._compared: list[tuple[Any, Any]] = []  # a sample and its copy

    def collect(self) -> tuple[list[Any], Callable[[Any], object]]:
        """A list for samples that are to be written together, and what takes one in."""
        samples: list[Any] = []
        return samples, functools.partial(self._copy, samples) if self.copies else samples.append

    def _copy(self, samples: list[Any], sample: Any) -> None:
        copy = copied(sample)
        samples.append(copy)
        if len(self._compared) < self._to_compare:
            self._compared.append((sample, copy))

    @property
    def believes(self) -> bool:
        """Is there data that samples are parts of, as it seems?"""
        return bool(self._data) and not self.copies

    def confirm(self, first: Any, copy: Any) -> None:
        """Raises Reused if a sample that has waited longest isn't what it was: its data was a buffer, refilled late."""
        if not all(_are_equal(part, once) for part, once in _arrays(first, copy)):
            self._data.refute()
            raise Reused(self._data, can_be_copied=True)

    def heed(self, found: Reused, stride: int) -> None:
        """Take more care from now on."""
        self._compared = []
        if self.copies or not found.can_be_copied or stride <= FEW:
            self.is_singly = True
            return
        self.copies, self._data, self._trials = True, found.data, self._trials - 1
        self._to_compare = _TWICE * stride if self._trials else 0

    def learn(self) -> None:
        """If enough are there to be compared, find out what is data, and whether that is all that they share."""
        if not self._to_compare or len(self._compared) < self._to_compare:
            return
        shown: dict[int, list[tuple[Any, bool]]] = {}
        for part, copy in chain.from_iterable(_arrays(*pair) for pair in self._compared):
            number = of_part(part)[1]
            if number is not None:
                shown.setdefault(number, []).append((part, _are_equal(part, copy)))
        for parts in shown.values():
            if len(parts) > 1 and all(is_equal for _, is_equal in parts):
                self._data.add(parts[0][0])
        waiting = Waiting(self._data)
        waiting.look_into([sample for sample, _ in self._compared])
        self._compared, self._to_compare = [], 0
        self.copies = not waiting.may_wait()  # then all are copied for good


def _arrays(value: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """The arrays and tensors of a sample, each with that of a copy."""
    kind = type(value)
    if kind is not type(copy):
        return
    if kind is tuple or kind is list:
        yield from chain.from_iterable(map(_arrays, value, copy))
    elif kind is dict:
        yield from chain.from_iterable(_arrays(value[name], copy[name]) for name in value.keys() & copy.keys())
    elif value is not copy:
        yield value, copy


def _are_equal(one: Any, other: Any) -> bool:
    if not isinstance(one, (np.ndarray, np.void)):
        one, other = tensors.as_bytes(one)[0], tensors.as_bytes(other)[0]  # type: ignore[index]
    return bool(one.shape == other.shape and one.tobytes() == other.tobytes())


def copied(sample: Any) -> Any:
    """The sample with memory of its own, as far as one knows how."""
    kind = type(sample)
    if kind is tuple or kind is list:
        return kind([copied(part) for part in sample])
    if kind is dict:
        return {name: copied(value) for name, value in sample.items()}
    if kind in ARRAYS:
        return sample.copy(order="K")
    if kind is np.void:
        return sample.copy()
    return sample.clone() if tensors.as_bytes(sample) is not None else sample
