"""A check for your program's tests: whether a loader resumes exactly."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

__all__ = ["check_resume"]


def check_resume(make_loader: Callable[[], Any], *, batches: int = 20) -> int:
    """Check that a loader resumes exactly from a state saved after any batch; return the number of states tried.

    ``make_loader`` returns a new loader or iterator.  Its first ``batches`` batches, across epochs, are compared with
    those that a new one gives after loading each state that was saved on the way.  Choose a small dataset, so that an
    epoch ends among these batches.

    >>> import mpiter
    >>> from mpiter.testing import check_resume
    >>> check_resume(lambda: mpiter.batches(range(20), 4, n_processes=0, seed=1), batches=8)
    9
    """
    states, whole = [], list[Any]()
    with _closing(make_loader()) as loader:
        states.append(json.dumps(loader.state_dict()))
        for batch in islice(_endless(loader), batches):
            whole.append(copy.deepcopy(batch))
            states.append(json.dumps(loader.state_dict()))
    assert whole, "the loader has given no batch."
    for place, state in enumerate(states):
        with _closing(make_loader()) as loader:
            loader.load_state_dict(json.loads(state))
            wanted = whole[place:]
            for at, batch in enumerate(islice(_endless(loader), len(wanted))):
                assert _same(batch, wanted[at]), (
                    f"resumed after batch {place}, batch {place + at} is another one than without the interruption. "
                    f"Draw a sample's randomness from mpiter.get_rng() or the global generators, which are seeded for "
                    f"each sample, not from a generator of the dataset's own."
                )
                wanted[at] = None
            left = sum(one is not None for one in wanted)
            assert not left, f"resumed after batch {place}, {left} of {len(wanted)} batches did not come."
    return len(states)


@contextlib.contextmanager
def _closing(loader: Any) -> Iterator[Any]:
    try:
        yield loader
    finally:
        getattr(loader, "close", lambda: None)()


def _endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of epoch after epoch, until two are empty: one may be, after a resume at an epoch's end."""
    empty = 0
    while empty < 2:
        empty += 1
        for batch in loader:
            empty = 0
            yield batch


def _same(one: Any, other: Any) -> bool:
    """True if two batches are equal, the dtypes of their arrays too."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if hasattr(one, "__array__"):
        mine, theirs = np.asarray(one), np.asarray(other)
        return mine.dtype == theirs.dtype and np.array_equal(mine, theirs, equal_nan=mine.dtype.kind in "fc")
    return bool(one == other or (one != one and other != other) or pickle.dumps(one) == pickle.dumps(other))
