"""Whole batches as rows: one worker fetches all the samples of a batch and collates them there.

Runs in workers.  ``Batched`` is a dataset whose keys are the lists of keys that a sampler has given.  Guarantees that
the samples of a row have randomness of their own each, that ``__getitems__`` is called once for a batch where the
user's dataset has it, and that the user's code sees its own dataset, not this one.  Where failing samples are skipped,
a batch is made of the others; those of a ``__getitems__`` that raises are asked for one by one to find them.  What
``__getitems__`` gives goes to ``collate`` as it is, whatever container that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import getitem
from typing import Any

from ..datasets.access import Wrapping
from ..errors import UnevenSamples, name_samples
from ..samples.batch import differing
from ..worker import forks, parts, seeding


class Batched(Wrapping):
    """The batches of ``dataset``, each made by ``collate`` of its samples; an error of that is no sample's.

    ``stacks`` says that ``collate`` wants samples that are alike, so that one which isn't is at fault; ``alone`` that
    there are no batches, but samples one by one.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], skips: bool, stacks: bool, alone: bool) -> None:
        self.dataset, self._collate, self._skips, self._stacks, self._alone = dataset, collate, skips, stacks, alone

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        samples, keys = self._samples(keys)
        try:
            return forks.called(self._collate, samples[0] if self._alone else samples)
        except BaseException as error:
            if isinstance(error, Exception):
                name_samples(error, keys, self._rows_of(error, samples, keys))
            if not self._skips:
                raise
            parts.let_pass(error)
            raise parts.NotOfASample from error

    def _rows_of(self, error: BaseException, samples: Any, keys: Sequence[Any]) -> Sequence[int]:
        """The rows that an error of collating is about, if that is known."""
        if len(keys) == 1:
            return (0,)
        if isinstance(error, UnevenSamples) and error.rows:
            return error.rows
        return differing(samples) if self._stacks else ()

    @property
    def _reads_many(self) -> bool:
        return not self._alone and bool(getattr(self.dataset, "__getitems__", None))

    def _samples(self, keys: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """The samples, and the keys of those that have not failed."""
        if self._reads_many:
            try:
                return self._together(keys), keys
            except BaseException as error:
                if not self._skips:
                    raise
                parts.let_pass(error)
                if getattr(self.dataset, "repeatable", True) is False:
                    for at, key in enumerate(keys):
                        parts.leave_out(error, key, at)
                    raise parts.AllLeftOut from error
        return self._good_ones(keys) if self._skips else (self._each(keys), keys)

    def _together(self, keys: Sequence[Any]) -> Any:
        """What the dataset gives for all of these, as it is: a list, or whatever else ``collate`` takes."""
        seeding.begin_anew()
        samples = forks.called(self.dataset.__getitems__, list(keys))
        return forks.called(list, samples) if isinstance(samples, Iterator) else samples

    def _good_ones(self, keys: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """The samples that don't fail, each asked for by itself, if need be as all that is read at once."""
        good, found, reads_many = [], list[Any](), self._reads_many
        for at, key in enumerate(keys):
            try:
                seeding.step_to(at)
                found.append(self._together([key]) if reads_many else forks.called(getitem, self.dataset, key))
                good.append(key)
            except BaseException as error:
                self._note(error, key, at)
                parts.leave_out(error, key, at)
        if reads_many:
            if not all(isinstance(some, (list, tuple)) for some in found):  # only the dataset can join them
                seeding.step_to(0)
                return self._together(good), good
            found = [sample for some in found for sample in some]
        if not found and len(good) < len(keys):
            raise parts.AllLeftOut
        return found, good

    def _each(self, keys: Sequence[Any]) -> list[Any]:
        found, born = list[Any](), forks.generation
        try:
            for key in keys:
                seeding.step_to(len(found))
                found.append(self.dataset[key])
                if forks.generation != born:
                    forks.end_child(born)
        except BaseException as error:
            forks.end_child(born, error)
            self._note(error, keys[len(found)], len(found))
            raise
        return found

    def _note(self, error: BaseException, key: Any, at: int) -> None:
        if isinstance(error, Exception) and not self._alone:
            error.add_note(f"mpiter: dataset[{key!r:.60}], number {at} of the samples of this batch")


def unchanged(sample: Any) -> Any:
    """What becomes of a sample where there are no batches."""
    return sample
