"""The order of samples that lie in groups, each of which is read as a whole.

The groups of an epoch come in random order, and samples are shuffled within a *window*
of some groups that follow each other.  So only the groups of a window are in use at a
time.  Pure: what comes at a place follows from the seed, the epoch and the groups.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..order.keyed import key_of, lots, permutation
from ..order.order import Indices, Order, shuffled

# The most groups of a window.  A process has a descriptor for each of three windows, of
# every dataset that it reads, and many systems allow 1,024.
MOST = 64
# Places that are evaluated at once.
_BLOCK = 1 << 14
# The words that a shuffle is keyed by.
_WORDS = np.arange(8, dtype=np.int64)


class Groups:
    """The groups of a dataset: how many samples and how many bytes each has."""

    def __init__(self, counts: Sequence[int], sizes: Sequence[int]) -> None:
        self.counts: Indices = np.array(counts, np.int64)
        self.sizes: Indices = np.array(sizes, np.int64)
        # The first sample of each group, and the number of all samples.
        self.begins: Indices = np.concatenate(([0], np.cumsum(self.counts)))

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def samples(self) -> int:
        return int(self.begins[-1])

    def behind(self, group: int, most: int) -> list[int]:
        """Return the groups that follow a group: one, or some of ``most`` bytes."""
        ends = np.cumsum(self.sizes[group + 1 : group + 1 + MOST])
        count = int(np.searchsorted(ends, most, side="right"))
        return [*range(group + 1, group + 1 + min(max(1, count), len(ends)))]

    def holding(self, sample: int) -> int:
        """Return the group of a sample."""
        # For a single one it takes a third of the time that NumPy takes.
        return bisect.bisect_right(self.begins, sample) - 1


class GroupedOrder(Order):
    """The order of one epoch."""

    def __init__(
        self,
        groups: Groups,
        window: int,
        seed: int,
        shuffles: bool,
        epoch: int = 0,
    ) -> None:
        self._groups = groups
        self._window = window
        self._seed = seed
        self._shuffles = shuffles
        self._epoch = epoch
        # The number of the last block of places, and the samples in them.
        self._last: tuple[int, Indices] | None = None
        # The window that was laid out last.
        self._window_before: _Window | None = None
        if not shuffles:
            return
        # The groups in the order in which they come, and the place where each begins.
        self._came = permutation(len(groups), key_of(seed, epoch, "groups"))
        # The turn of each group.
        self._turns = np.argsort(self._came)
        self._places = np.concatenate(([0], np.cumsum(groups.counts[self._came])))
        # The first group of each window, and the number of all groups.
        self._firsts = _windows(groups.sizes[self._came], window)

    def __len__(self) -> int:
        return self._groups.samples

    def later(self, epochs: int) -> GroupedOrder:
        if not epochs:
            return self
        epoch = self._epoch + epochs
        return GroupedOrder(
            self._groups, self._window, self._seed, self._shuffles, epoch
        )

    def at(self, place: int) -> int:
        """Return the sample at a place."""
        if not 0 <= place < len(self):
            return -1
        return int(self._evaluated(place, place + 1)[0])

    def window_after(self, groups: Sequence[int]) -> list[int] | None:
        """Return the groups of the window that comes after those of some groups.

        None if these are further apart than two windows that follow each other: then
        another order has chosen them.
        """
        windows = np.searchsorted(self._firsts, self._turns[groups], side="right") - 1
        last = int(windows.max())
        if last - int(windows.min()) > 1:
            return None
        if last + 2 >= len(self._firsts):
            return []
        first, stop = self._firsts[last + 1 : last + 3].tolist()
        return list(self._came[first:stop].tolist())

    def take(self, start: int, stop: int) -> Indices | range:
        if not self._shuffles:
            return range(start, stop)
        found = np.empty(stop - start, np.int64)
        at = start
        while at < stop:
            first, keys = self._block(at // _BLOCK)
            until = min(stop, first + len(keys))
            found[at - start : until - start] = keys[at - first : until - first]
            at = until
        return found

    def _block(self, number: int) -> tuple[int, Indices]:
        """Return the first place of a block of places, and the samples in them.

        NumPy takes little longer for a whole block than for a batch.
        """
        if self._last is None or self._last[0] != number:
            start = number * _BLOCK
            stop = min(start + _BLOCK, len(self))
            self._last = (number, self._evaluated(start, stop))
        return number * _BLOCK, self._last[1]

    def _evaluated(self, start: int, stop: int) -> Indices:
        found = np.empty(stop - start, np.int64)
        at = start
        while at < stop:
            # The group at this place, and the window that it is in.
            group = int(np.searchsorted(self._places, at, side="right")) - 1
            window = int(np.searchsorted(self._firsts, group, side="right")) - 1
            begin, end = self._places[self._firsts[window : window + 2]].tolist()
            until = min(stop, end)
            places = self._shuffled(
                window, np.arange(at - begin, until - begin), end - begin
            )
            found[at - start : until - start] = self._keys(window, places)
            at = until
        return found

    def _shuffled(self, window: int, places: Indices, length: int) -> Indices:
        """Return the places that take these places in a window of ``length``."""
        key = key_of(self._seed, self._epoch, "window", window)
        return shuffled(places, length, lots(_WORDS, key))

    def _keys(self, window: int, places: Indices) -> Indices:
        """Return the samples at places of a window before it is shuffled."""
        found = self._window_before
        if found is None or found.number != window:
            found = self._laid_out(window)
            self._window_before = found
        # To look a group up takes NumPy a sixth of the time that a search takes.
        return places + found.shifts[found.turns[places]]

    def _laid_out(self, window: int) -> _Window:
        """Return where the samples of a window lie."""
        first, stop = self._firsts[window : window + 2].tolist()
        came = self._came[first:stop]
        turns = np.arange(stop - first, dtype=np.uint8)
        begins = self._places[first:stop] - self._places[first]
        return _Window(
            window,
            np.repeat(turns, self._groups.counts[came]),
            self._groups.begins[came] - begins,
        )


class _Window(NamedTuple):
    """Where the samples of a window lie."""

    number: int
    # Of each place the turn of its group; there are few groups in a window.
    turns: NDArray[np.uint8]
    # What is added to the places in each group for the samples' numbers.
    shifts: Indices


def _windows(sizes: NDArray[np.int64], most: int) -> Indices:
    """Return the first group of each window of at most so many bytes, and the end.

    A window has one group at least, and at most ``MOST``.
    """
    firsts = [0]
    held = 0
    for group, size in enumerate(sizes.tolist()):
        is_full = held > 0 and held + size > most
        if is_full or group - firsts[-1] == MOST:
            firsts.append(group)
            held = 0
        held += size
    firsts.append(len(sizes))
    return np.array(firsts, np.int64)
