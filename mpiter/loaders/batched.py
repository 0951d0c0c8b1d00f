"""Whole batches as rows: one worker fetches all the samples of a batch and collates them there.

Runs in workers.  ``Batched`` is a dataset whose keys are the lists of keys that a sampler has given.  Guarantees that
the samples of a row have randomness of their own each, that ``__getitems__`` is called once for a batch where the
user's dataset has it, and that the user's code sees its own dataset, not this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..datasets.access import Wrapping
from ..worker import seeding


class Batched(Wrapping):
    """The batches of ``dataset``, each made by ``collate`` of its samples."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any]) -> None:
        self.dataset, self._collate = dataset, collate

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        return self._collate(self._samples(keys))

    def _samples(self, keys: Sequence[Any]) -> Any:
        if getattr(self.dataset, "__getitems__", None):
            return list(self.dataset.__getitems__(list(keys)))
        return [self._sample(at, key) for at, key in enumerate(keys)]

    def _sample(self, at: int, key: Any) -> Any:
        seeding.step_to(at)
        try:
            return self.dataset[key]
        except Exception as error:
            error.add_note(f"mpiter: dataset[{key!r:.60}], number {at} of the samples of this batch")
            raise


class Single(Batched):
    """The samples of ``dataset`` one by one, each passed through ``collate``: no batches."""

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        return self._collate(self.dataset[keys[0]])


def unchanged(sample: Any) -> Any:
    """What becomes of a sample where there are no batches."""
    return sample
