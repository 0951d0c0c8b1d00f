"""Dealing the rows of a step to the ranks, such that each has as much to compute.

The dearest rows are dealt first, each to the rank with the least so far.  Each rank
computes all of it and finds the same, so that none talks to another.  What can't be
evened out is logged once.
"""

from __future__ import annotations

import functools
import heapq
import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_log = logging.getLogger("mpiter")


def dealt(
    costs: NDArray[np.float64], counts: Sequence[int], seed: tuple[int, ...]
) -> list[list[int]]:
    """Return the rows that each rank gets, of a step whose rows cost ``costs``.

    ``counts`` has the number of rows for each rank.  Ties are broken by ``seed``, since
    otherwise the same rank would have a little more in each step.
    """
    ties = np.random.default_rng(seed).permutation(len(counts)).tolist()
    loads = [(0.0, ties[rank], rank) for rank in range(len(counts)) if counts[rank]]
    heapq.heapify(loads)
    found: list[list[int]] = [[] for _ in counts]
    each = costs.tolist()
    for row in np.argsort(-costs, kind="stable").tolist():
        load, tie, rank = loads[0]
        mine = found[rank]
        mine.append(row)
        if len(mine) < counts[rank]:
            heapq.heapreplace(loads, (load + each[row], tie, rank))
        else:
            heapq.heappop(loads)
    for mine in found:
        mine.sort()
    return found


@functools.cache
def tell_that_nothing_is_even() -> None:
    """Say, once, that there is nothing to deal."""
    _log.warning(
        "shard: each rank gets one row a step, so their costs can't be evened out; "
        "with a larger batch size they can."
    )
