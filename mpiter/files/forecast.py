"""Which groups will be needed next, so that they can be decoded ahead.

That follows from the order that the groups bring.  Where samples come in another one,
or two iterators take turns, nothing is foretold: what would be decoded isn't needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..worker.here import SeedWords
from .grouped import GroupedOrder, Groups

# After so many batches that aren't where the order has them no more are looked at.
_MISSES = 3


class Forecast:
    """Foretells the groups that come after those of a batch.

    ``window`` is the size of a window.
    """

    def __init__(self, groups: Groups, window: int) -> None:
        self._groups = groups
        self._window = window
        # The seed of the batch before.
        self._seed: int | None = None
        self._order: GroupedOrder | None = None
        self._epoch = 0
        self._misses = 0
        # The epoch and the groups of the batch before, and whether it was in order.
        self._had: tuple[int, bool, Sequence[int]] | None = None
        # The groups that were foretold for it.
        self._coming: Sequence[int] = ()

    def after(
        self,
        groups: Sequence[int],
        key: int,
        place: SeedWords,
        in_order: bool,
        workers: int,
    ) -> Sequence[int]:
        """Return the groups that are needed after ``groups``, those of a batch.

        ``key`` is the batch's first sample, and ``place`` its place in the order.  In
        order, each of so many ``workers`` decodes another one.
        """
        seed, epoch, position = place
        is_another = seed != self._seed
        self._seed = seed
        if is_another:
            self._order = None
            self._had = None
            return ()
        if in_order and key != position:
            return ()
        # Batch after batch is from the same groups.
        has = epoch, in_order, groups
        if has != self._had:
            if in_order:
                self._coming = self._groups.behind(groups[-1], self._window)[:workers]
            else:
                self._coming = self._after_some(groups, key, seed, epoch, position)
            # At the end, since workers that are threads share this.
            self._had = has
        return self._coming

    def _after_some(
        self, groups: Sequence[int], key: int, seed: int, epoch: int, position: int
    ) -> Sequence[int]:
        """Return the groups that come after those of a batch in random order."""
        if self._order is None or epoch != self._epoch:
            self._order = GroupedOrder(self._groups, self._window, seed, True, epoch)
            self._epoch = epoch
            self._misses = 0
        if self._misses >= _MISSES:
            return ()
        coming = self._order.window_after(groups)
        if coming is not None:
            is_known = not coming or coming == self._coming
            # Another order may happen to have a batch from the same groups.
            if is_known or self._order.at(position) == key:
                return coming
        self._misses += 1
        return ()
