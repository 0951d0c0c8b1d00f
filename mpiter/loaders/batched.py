"""Whole batches as rows: one worker fetches all the samples of a batch and collates them there.

Runs in workers.  ``Batched`` is a dataset whose keys are the lists of keys that a sampler has given.  Guarantees that
the samples of a row have randomness of their own each, that ``__getitems__`` is called once for a batch where the
user's dataset has it, and that the user's code sees its own dataset, not this one.  Where failing samples are skipped,
a batch is made of the others; those of a ``__getitems__`` that raises are asked for one by one to find them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..datasets.access import Wrapping
from ..worker import parts, seeding


class Batched(Wrapping):
    """The batches of ``dataset``, each made by ``collate`` of its samples."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], skips: bool = False) -> None:
        self.dataset, self._collate, self._skips = dataset, collate, skips

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        samples = self._samples(keys)
        if not self._skips:
            return self._collate(samples)
        if keys and not samples:
            raise parts.AllLeftOut
        try:
            return self._collate(samples)
        except Exception as error:
            raise parts.NotOfASample from error

    def _samples(self, keys: Sequence[Any]) -> Any:
        if getattr(self.dataset, "__getitems__", None):
            try:
                return list(self.dataset.__getitems__(list(keys)))
            except Exception as error:
                if not self._skips:
                    raise
                if getattr(self.dataset, "repeatable", True) is False:
                    for at, key in enumerate(keys):
                        parts.leave_out(error, key, at)
                    return []
                seeding.begin_anew()
        elif not self._skips:
            return [self._sample(at, key) for at, key in enumerate(keys)]
        found = []
        for at, key in enumerate(keys):
            try:
                found.append(self._sample(at, key))
            except BaseException as error:
                parts.leave_out(error, key, at)
        return found

    def _sample(self, at: int, key: Any) -> Any:
        seeding.step_to(at)
        try:
            many = getattr(self.dataset, "__getitems__", None)
            return self.dataset[key] if many is None else next(iter(many([key])))
        except Exception as error:
            error.add_note(f"mpiter: dataset[{key!r:.60}], number {at} of the samples of this batch")
            raise


class Single(Batched):
    """The samples of ``dataset`` one by one, each passed through ``collate``: no batches."""

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        try:
            sample = self.dataset[keys[0]]
        except BaseException as error:
            if not self._skips:
                raise
            parts.leave_out(error, keys[0], 0)
            raise parts.AllLeftOut from error
        return self._collate(sample)


def unchanged(sample: Any) -> Any:
    """What becomes of a sample where there are no batches."""
    return sample
