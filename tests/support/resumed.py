"""A stream of samples by number goes on from its state, whatever reads it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import mpiter


def assert_resumes(
    stream: Callable[..., Any],
    numbers_of: Callable[[Iterable[Any]], list[int]],
    saved: int,
) -> None:
    """Go on after ``saved`` batches with other workers, and in three ranks.

    ``stream`` takes a number of workers and options; ``numbers_of`` returns the samples
    of batches.
    """
    with stream(0, epochs=2) as it:
        wanted = numbers_of(it)
    with stream(1, epochs=2) as it:
        had = numbers_of(itertools.islice(it, saved))
        state = it.state_dict()
    with stream(2, epochs=2) as it:
        it.load_state_dict(state)
        assert had + numbers_of(it) == wanted
    rest = list[int]()
    for rank in range(3):
        shard = mpiter.Shard(rank, 3, exact=True)
        with stream(0, epochs=2, shard=shard) as it:
            it.load_state_dict(state)
            rest += numbers_of(it)
    assert sorted(rest) == sorted(wanted[len(had) :])
