"""Which groups will be needed next, so that they can be decoded ahead.

That follows from the order that the groups bring.  Where samples come in another one,
or two iterators take turns, nothing is foretold: what would be decoded isn't needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
        # The seed of the batch before, and what was foretold for it.
        self._seed: int | None = None
        self._before: _Foretold | None = None
        # The order, with its seed and epoch, and how many batches weren't in it.
        self._order: tuple[int, int, GroupedOrder] | None = None
        self._misses = 0

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
        order, each of so many ``workers`` decodes another one.  Workers that are
        threads may call it at the same time.
        """
        seed, epoch, position = place
        if seed != self._seed:
            self._seed = seed
            self._before = None
            return ()
        if in_order and key != position:
            return ()
        before = self._before
        # Batch after batch is from the same groups.
        if before is not None and before[:3] == (epoch, in_order, groups):
            return before.coming
        coming: Sequence[int] | None
        if in_order:
            coming = self._groups.behind(groups[-1], self._window)[:workers]
        else:
            known = () if before is None else before.coming
            coming = self._after_some(groups, key, place, known)
        if coming is None:
            return ()
        self._before = _Foretold(epoch, in_order, groups, coming)
        return coming

    def _after_some(
        self, groups: Sequence[int], key: int, place: SeedWords, known: Sequence[int]
    ) -> Sequence[int] | None:
        """Return the groups that come after those of a batch in random order.

        None if the batch isn't where the order has it.  ``known`` are those that were
        foretold before.
        """
        seed, epoch, position = place
        kept = self._order
        if kept is None or kept[:2] != (seed, epoch):
            order = GroupedOrder(self._groups, self._window, seed, True, epoch)
            kept = seed, epoch, order
            self._order = kept
            self._misses = 0
        if self._misses >= _MISSES:
            return None
        order = kept[2]
        coming = order.window_after(groups)
        if coming is not None:
            is_known = not coming or coming == known
            # Another order may happen to have a batch from the same groups.
            if is_known or order.at(position) == key:
                return coming
        self._misses += 1
        return None


class _Foretold(NamedTuple):
    """What was foretold for a batch."""

    epoch: int
    in_order: bool
    # Those that the batch is from, and those that come after them.
    groups: Sequence[int]
    coming: Sequence[int]
