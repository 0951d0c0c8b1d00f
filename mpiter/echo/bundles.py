"""A dataset whose items are bundles: what was read once, transformed several times.

Runs in workers.  Guarantees that ``read`` is called once, that each transform begins with what was read, and has
randomness of its own, keyed by (seed, epoch, position, repeat), the first being that of a sample without echo.
"""

from __future__ import annotations

import copy
from typing import Any

from ..datasets.access import Wrapping
from ..samples.caution import copied
from ..worker import seeding

_FAR = 1 << 48  # positions, so that a repeat's place is no other sample's


class Key(int):
    """An index, and how often the sample is wanted."""

    repeats: int

    def __new__(cls, index: int, repeats: int) -> Key:
        key = super().__new__(cls, index)
        key.repeats = repeats
        return key

    def __reduce__(self) -> Any:
        return Key, (int(self), self.repeats)


class Bundles(Wrapping):
    """The samples of ``dataset``, ``width`` of each; beyond those that are wanted, the last one again."""

    def __init__(self, dataset: Any, width: int) -> None:
        self.dataset, self._width = dataset, width

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: int) -> tuple[Any, ...]:
        last = getattr(key, "repeats", 1) - 1
        found = self.dataset.read(int(key))
        made = []
        try:
            for repeat in range(last):
                made.append(copied(self._transformed(_once_more(found), repeat)))  # what it returns may be a buffer
            made.append(self._transformed(found, last))
        finally:
            seeding.step_to(0, seeds=False)
        return (*made, *[made[-1]] * (self._width - len(made)))

    def _transformed(self, found: Any, repeat: int) -> Any:
        if repeat:
            seeding.step_to(repeat * _FAR)
        return self.dataset.transform(found)


def _once_more(found: Any) -> Any:
    try:
        return copy.deepcopy(found)
    except Exception as error:
        raise TypeError(
            f"what read(i) returned is copied for each use of it, and a {type(found).__name__} cannot be: {error}; "
            f"have read(i) return arrays, say, or pass at='augmented'."
        ) from error
