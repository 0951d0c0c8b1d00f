"""The check that users' tests may call: it passes where all is well, and names the cause where it isn't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from datasets import Random, Squares

import mpiter
from mpiter.testing import check_resume

LOADERS: dict[str, Callable[[], Any]] = {
    "batches without workers": lambda: mpiter.batches(Random(10), 3, n_processes=0, seed=1),
    "an endless iterator": lambda: mpiter.MultiprocessIterator(Random(10), 3, n_processes=1, seed=1),
    "an iterator of one epoch": lambda: mpiter.SerialIterator(Random(10), 3, repeat=False, seed=1),
    "a loader": lambda: mpiter.DataLoader(Random(10), 3, shuffle=True, seed=1),
}


class Own(Squares):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(8)
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        return self.rng.random(3)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_every_place_can_be_resumed_from(make: Callable[[], Any]) -> None:
    tried = check_resume(make, batches=7)
    assert tried in (5, 8)  # an iterator of one epoch has four batches


def test_a_generator_of_the_datasets_own_is_told() -> None:
    with pytest.raises(AssertionError, match=r"resumed after batch \d+, batch \d+ is another one"):
        check_resume(lambda: mpiter.batches(Own(), 2, n_processes=0, seed=1), batches=6)


def test_batches_that_do_not_come_are_told() -> None:
    class Forgetful:
        """Forgets its place when it loads a state: it is at its end."""

        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Any:
            while self.left:
                self.left -= 1
                yield self.left

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            self.left = 0

    with pytest.raises(AssertionError, match="resumed after batch 0, 3 of 3 batches did not come"):
        check_resume(Forgetful)
