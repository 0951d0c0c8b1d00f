"""Each ``for`` over ``batches()`` is a pass over the dataset.

A dataset from which no batch would come is refused.
"""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import mpiter

LENGTH = 10


def passes(**options: Any) -> Any:
    return mpiter.batches(range(LENGTH), 4, **{"n_processes": 0, "seed": 1, **options})


def one(stream: Any) -> list[list[int]]:
    return [batch.tolist() for batch in stream]


@pytest.mark.parametrize(
    ("n_processes", "epochs", "drop_last"), [(0, 1, True), (0, 2, False), (2, 2, True)]
)
def test_each_for_goes_on_with_the_next_epochs(
    n_processes: int, epochs: int, drop_last: bool
) -> None:
    with passes(n_processes=n_processes, epochs=epochs, drop_last=drop_last) as stream:
        found = [one(stream) for _ in range(3)]
        assert stream.epoch == 3 * epochs
        assert {len(batches) for batches in found} == {len(stream)}
    with passes(epochs=3 * epochs, drop_last=drop_last) as stream:
        assert list(itertools.chain(*found)) == one(stream)


def test_a_broken_off_pass_goes_on_and_an_iterator_at_its_end_stays_there() -> None:
    stream = passes()
    first = next(iter(stream)).tolist()
    assert [first, *one(stream)] == one(passes())
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(stream)
    assert len(one(stream)) == 3


@pytest.mark.parametrize("at", [0, 2, 3, 4, 6])
def test_a_state_of_any_pass_goes_on_in_it(at: int) -> None:
    whole = []
    stream = passes()
    state = stream.state_dict()
    for _ in range(3):
        for batch in stream:
            whole.append(batch.tolist())
            if len(whole) == at:
                state = stream.state_dict()
    other = passes()
    other.load_state_dict(state)
    # A pass that has reached its end is over, and the next ``for`` begins another.
    rest = -(-at // 3) * 3 or 3
    assert one(other) == whole[at : rest if rest > at else rest + 3]


def test_a_copy_is_in_the_same_pass() -> None:
    stream = passes()
    one(stream)
    next(iter(stream))
    of_copy = one(copy.copy(stream))
    assert of_copy == one(pickle.loads(pickle.dumps(stream))) == one(stream)


def test_reset_begins_with_the_first_pass() -> None:
    stream = passes()
    first = one(stream)
    one(stream)
    stream.reset()
    assert (one(stream), stream.epoch) == (first, 1)


@pytest.mark.parametrize(
    "data",
    [[], np.empty((0, 3)), (np.empty((0, 2)), np.empty(0))],
    ids=["list", "array", "pair"],
)
def test_an_epoch_without_a_batch_is_warned_of(data: Any) -> None:
    with pytest.warns(
        RuntimeWarning, match="no batch in an epoch: the dataset is empty"
    ):
        assert list(mpiter.batches(data, 2, n_processes=0)) == []


def test_an_epoch_that_drop_last_leaves_out_is_warned_of() -> None:
    with pytest.warns(
        RuntimeWarning, match="drop_last leaves out all 3 samples, since batch_size=4"
    ):
        mpiter.batches([1, 2, 3], 4, n_processes=0, drop_last=True)


def test_what_can_only_be_iterated_over_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        mpiter.OptionError,
        match=r"mpiter\.DataLoader takes what can only be iterated over",
    ):
        mpiter.batches(iter([1, 2]), 2)
