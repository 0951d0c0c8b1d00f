"""Whole batches as rows: one worker fetches all the samples of a batch and collates them there.

Runs in workers.  ``Batched`` is a dataset whose keys are the lists of keys that a sampler has given.  Guarantees that
the samples of a row have randomness of their own each, that ``__getitems__`` is called once for a batch where the
user's dataset has it, and that the user's code sees its own dataset, not this one.  Where failing samples are skipped,
a batch is made of the others; those of a ``__getitems__`` that raises are asked for one by one to find them.  What
``__getitems__`` gives goes to ``collate`` as it is, whatever container that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..datasets.columns import Wrapping
from ..errors import UnevenSamples, name_samples
from ..samples.batch import differing
from ..worker import seeding
from ..worker.here import AllLeftOut, NotOfASample, leave_out, let_pass


class Batched(Wrapping):
    """The batches of ``dataset`` as rows; ``collate`` makes each from its samples, and its errors are no sample's.

    ``stacks`` says that ``collate`` wants samples that are alike, so that one which isn't is at fault; ``alone`` that
    there are no batches, but samples one by one.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], skips: bool, stacks: bool, alone: bool) -> None:
        self.dataset, self._collate, self._skips, self._stacks, self._alone = dataset, collate, skips, stacks, alone

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        samples, keys = self._fetched(keys)
        try:
            return self._collate(samples[0] if self._alone else samples)
        except BaseException as error:
            if isinstance(error, Exception):
                name_samples(error, keys, self._rows_of(error, samples, keys))
            if not self._skips:
                raise
            let_pass(error)
            raise NotOfASample from error

    def _rows_of(self, error: BaseException, samples: Any, keys: Sequence[Any]) -> Sequence[int]:
        """The rows that an error of collating is about, if that is known."""
        if len(keys) == 1:
            return (0,)
        if isinstance(error, UnevenSamples) and error.rows:
            return error.rows
        return differing(samples) if self._stacks else ()

    def _fetched(self, keys: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """The samples, and their keys; where failing ones are skipped, of the others only."""
        reads_many = not self._alone and bool(getattr(self.dataset, "__getitems__", None))
        if reads_many:
            try:
                return self._together(keys), keys
            except BaseException as error:
                if not self._skips:
                    raise
                let_pass(error)
        found, bad = list[Any](), set[int]()
        for at, key in enumerate(keys):
            try:
                seeding.step_to(at)
                found.append(self._together([key]) if reads_many else self.dataset[key])
            except BaseException as error:
                if isinstance(error, Exception) and not self._alone:
                    error.add_note(f"mpiter: dataset[{key!r:.60}], number {at} of the samples of this batch")
                if not self._skips:
                    raise
                leave_out(error, key, at)
                bad.add(at)
        if bad:
            keys = [key for at, key in enumerate(keys) if at not in bad]
            if not keys:
                raise AllLeftOut
        if reads_many:  # only the dataset knows how to join them
            seeding.step_to(0)
            return self._together(keys), keys
        return found, keys

    def _together(self, keys: Sequence[Any]) -> Any:
        """Ask the dataset for all of these at once; the result is a list or anything else that ``collate`` takes."""
        seeding.begin_anew()
        samples = self.dataset.__getitems__(list(keys))
        return list(samples) if isinstance(samples, Iterator) else samples


def unchanged(sample: Any) -> Any:
    """Return a sample as it is, where there are no batches."""
    return sample
