"""Whole batches as rows: one worker fetches a batch's samples and collates them.

Guarantees that each sample fetched by ``[]`` has randomness of its own, that
``__getitems__`` is called once for a batch if the dataset has it, and that the user's
code sees its own dataset, not this one.  If failing samples are skipped and
``__getitems__`` raises, it is called for each key alone, to find those that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..datasets.columns import InBatches
from ..errors import UnevenSamples, name_samples
from ..samples.batch import differing
from ..worker import seeding
from ..worker.here import AllLeftOut, NotOfASample, here, leave_out, let_pass


class Batched(InBatches):
    """A dataset of batches: ``batched[keys]`` fetches samples and collates them.

    ``batch_size`` is None where each list of keys is as long as it is.  ``skips``:
    failing samples are left out.  ``stacks``: ``collate`` needs like samples.
    ``alone``: it gets only one.
    """

    def __init__(
        self,
        dataset: object,
        batch_size: int | None,
        collate: Callable[[Any], Any],
        skips: bool,
        stacks: bool,
        alone: bool,
    ) -> None:
        self.dataset = dataset
        self._batch_size = 1 if alone else batch_size
        self._collate = collate
        self._skips = skips
        self._stacks = stacks
        self._alone = alone
        self._reads_many = not alone and bool(getattr(dataset, "__getitems__", None))

    @property
    def samples_each(self) -> int | None:
        return self._batch_size

    def __getitem__(self, keys: Sequence[Any]) -> Any:
        samples, keys = self._fetched(keys)
        try:
            if self._alone:
                return self._collate(samples[0])
            return self._collate(samples)
        except BaseException as error:
            # The error comes from the collate function, so it doesn't say by itself
            # which samples it is about.
            if isinstance(error, Exception):
                name_samples(error, keys, self._rows_of(error, samples, keys))
            if not self._skips:
                raise
            let_pass(error)
            raise NotOfASample from error

    def _rows_of(
        self,
        error: BaseException,
        samples: object,
        keys: Sequence[Any],
    ) -> Sequence[int]:
        """Return the places in ``keys`` of the samples that an error is about.

        The error is one that ``collate`` has raised.  There are no places if it isn't
        known which samples are meant.
        """
        if len(keys) == 1:
            return (0,)
        if isinstance(error, UnevenSamples) and error.rows:
            return error.rows
        if self._stacks:
            return differing(samples)
        return ()

    def _fetched(self, keys: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Return the samples and their keys, without those that are skipped."""
        frame = here.now
        # Where several samples may be under way, they are read one by one.
        reads_many = self._reads_many and frame.reading is None
        if reads_many:
            try:
                return self._together(keys), keys
            except BaseException as error:
                if not self._skips:
                    raise
                # One sample has made the whole call fail.  The loop below asks for
                # each key alone, so that only that sample is left out.
                let_pass(error)
        found = list[Any]()
        bad = set[int]()
        dataset = self.dataset
        begun: Any = None
        if frame.reading is not None:
            begun = frame.reading(dataset, keys)
        for at, key in enumerate(keys):
            try:
                # This loop runs for each sample, so it calls nothing where nothing is
                # to be seeded.
                if frame.seeds:
                    seeding.step_to(at)
                else:
                    frame.beyond = at
                if reads_many:
                    found.append(self._together([key]))
                elif begun is not None:
                    found.append(begun[at])
                else:
                    found.append(dataset[key])
            except BaseException as error:
                if self._skips:
                    leave_out(error, key, at)
                    bad.add(at)
                    continue
                if isinstance(error, Exception) and not self._alone:
                    error.add_note(
                        f"mpiter: dataset[{key!r:.60}], number {at} of the samples of "
                        "this batch"
                    )
                raise
        if bad:
            keys = [key for at, key in enumerate(keys) if at not in bad]
            if not keys:
                raise AllLeftOut
        if reads_many:
            # What the dataset gave for one key is no list, such as a dict of columns,
            # and only the dataset itself can make such a thing of several keys.
            if not all(isinstance(some, (list, tuple)) for some in found):
                seeding.step_to(0)
                return self._together(keys), keys
            found = [sample for some in found for sample in some]
        return found, keys

    def _together(self, keys: Sequence[Any]) -> Any:
        seeding.begin_anew()
        samples = self.dataset.__getitems__(list(keys))
        # A list is the usual case, and asking whether it is an iterator takes a while.
        if type(samples) is list:
            return samples
        if isinstance(samples, Iterator):
            return list(samples)
        return samples


def unchanged(sample: object) -> Any:
    """Return the sample itself: the ``collate`` of loaders without batches."""
    return sample
