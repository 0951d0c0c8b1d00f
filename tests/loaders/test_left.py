"""``len()`` is the number of batches of the next ``for``.

So a progress bar ends where the batches do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mpiter

EPOCH = 5  # batches
MAKERS: dict[str, Callable[[], Any]] = {
    "loader": lambda: mpiter.DataLoader(range(10), 2),
    "sampler": lambda: mpiter.DataLoader(range(10), 2, sampler=range(10)),
    "batch_sampler": lambda: mpiter.DataLoader(
        range(10), batch_sampler=[[i] for i in range(EPOCH)]
    ),
    "batches": lambda: mpiter.batches(range(10), 2, n_processes=0),
    "two epochs": lambda: mpiter.batches(
        range(10), 4, n_processes=0, epochs=2, drop_last=True
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("taken", [0, 2, 5])
def test_after_a_resume_the_length_is_what_is_left(kind: str, taken: int) -> None:
    one = MAKERS[kind]()
    other = MAKERS[kind]()
    whole = len(one)
    batches = iter(one)
    for _ in range(min(taken, whole)):
        next(batches)
    assert len(one) == whole
    other.load_state_dict(one.state_dict())
    told = len(other)
    seen = [len(other) for _ in other]
    assert len(seen) == told
    # While the epoch lasts, the length stays the same.
    assert set(seen[:-1]) <= {told}
    assert len(other) == whole == len(list(other))


def test_an_iterator_of_a_resumed_loader_knows_what_is_left_of_its_epoch() -> None:
    one = mpiter.DataLoader(range(10), 2)
    other = mpiter.DataLoader(range(10), 2)
    next(iter(one))
    other.load_state_dict(one.state_dict())
    assert len(iter(other)) == EPOCH - 1
    assert len(iter(other)) == EPOCH
