"""Loading a state checks everything first, and changes nothing if it refuses.

It never unpickles.
"""

from __future__ import annotations

import copy
import itertools
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter import StateError


def make(n=10, batch_size=3, repeat=True, shuffle=None, **options):
    return mpiter.SerialIterator(
        list(range(100, 100 + n)), batch_size, repeat=repeat, shuffle=shuffle, **options
    )


def rotate(order, position):
    return np.roll(order, 1)


KINDS = {
    "shuffled": lambda **more: make(seed=4, **more),
    "sequential": lambda **more: make(shuffle=False, **more),
    "sampled": lambda **more: make(order_sampler=rotate, **more),
}


def place(it):
    return (
        it.epoch,
        it.current_position,
        it.is_new_epoch,
        it.epoch_detail,
        it.previous_epoch_detail,
        it.seed,
    )


def advance(it, steps):
    found = []
    for _ in range(steps):
        try:
            found.append(list(it.next()))
        except StopIteration:
            found.append(None)
    return found


def through_json(state):
    return json.loads(json.dumps(state, allow_nan=False))


@settings(max_examples=50)
@given(
    kind=st.sampled_from(list(KINDS)),
    n=st.integers(1, 12),
    batch_size=st.integers(1, 15),
    repeat=st.booleans(),
    steps=st.integers(0, 8),
)
def test_a_state_goes_through_json_and_resumes_exactly(
    kind, n, batch_size, repeat, steps
):
    options = {"n": n, "batch_size": batch_size, "repeat": repeat}
    it = KINDS[kind](**options)
    other = KINDS[kind](**options)
    advance(it, steps)
    advance(other, 2)
    before = place(it)
    state = through_json(it.state_dict())
    assert place(it) == before
    other.load_state_dict(state)
    assert place(other) == before
    assert other.state_dict() == it.state_dict() == state
    assert advance(other, 6) == advance(it, 6)


def test_the_keys_of_a_state_are_a_format():
    it = make(seed=1 << 100)
    it.next()
    assert it.state_dict() == {
        "mpiter": 2,
        "epoch": 0,
        "position": 3,
        "is_new_epoch": False,
        "previous_epoch_detail": 0.0,
        "seed": "1267650600228229401496703205376",
        "kind": "iterator",
        "order": "shuffled",
        "dataset_length": 10,
        "wrap": True,
        "drop_last": False,
    }


def test_numpy_numbers_among_the_options_do_not_spoil_the_state():
    it = make(batch_size=np.int64(3), repeat=1, seed=np.int64(5))
    it.next()
    make(seed=6).load_state_dict(through_json(it.state_dict()))


@pytest.mark.parametrize(
    "key",
    [
        "epoch",
        "position",
        "is_new_epoch",
        "previous_epoch_detail",
        "seed",
        "order",
        "wrap",
    ],
)
def test_every_key_must_be_there_and_of_its_kind(key):
    state = KINDS["sampled"]().state_dict()
    refused(
        KINDS["sampled"](),
        {name: value for name, value in state.items() if name != key},
        key,
    )
    for wrong in (BOMB, Bomb(), None, np.zeros(2), float("nan"), "9" * 50):
        refused(KINDS["sampled"](), {**state, key: wrong})


@pytest.mark.parametrize("seed", [str(1 << 128), str(-(1 << 127) - 1)])
def test_a_seed_of_more_bits_than_an_order_takes_is_refused(seed):
    state = {**KINDS["shuffled"]().state_dict(), "seed": seed}
    refused(KINDS["shuffled"](), state, "at most 128 are possible")


@pytest.mark.parametrize("detail", [-2.0, 1e300, float("inf"), float("nan")])
def test_a_place_before_the_last_batch_that_cannot_be_is_refused(detail):
    state = {**KINDS["shuffled"]().state_dict(), "previous_epoch_detail": detail}
    refused(KINDS["shuffled"](), state, "previous_epoch_detail")


class Bomb:
    """An object whose unpickling fails the test."""

    def __reduce__(self):
        return pytest.exit, ("unpickled",)


BOMB = pickle.dumps(Bomb())

WRONG = {
    "nothing": None,
    "a list": [],
    "text": "state",
    "pickled bytes": BOMB,
    "an object": Bomb(),
    "an empty dict": {},
    "a Chainer snapshot": {
        "current_position": 3,
        "epoch": 0,
        "is_new_epoch": False,
        "order": [1],
    },
}


@pytest.mark.parametrize("wrong", list(WRONG))
def test_what_is_no_state_is_refused(wrong):
    refused(KINDS["shuffled"](), WRONG[wrong])


def refused(it, state, match=None):
    """Check that the state is refused, and that the iterator stays as it was.

    Nothing may be unpickled.
    """
    first = it.next()
    twin = copy.copy(it)
    before = place(it)
    saved = it.state_dict()
    with pytest.raises(StateError, match=match):
        it.load_state_dict(state)
    assert place(it) == before
    assert it.state_dict() == saved
    assert list(first) is not None
    assert advance(it, 4) == advance(twin, 4)


@pytest.mark.parametrize(("saved", "loading"), list(itertools.permutations(KINDS, 2)))
def test_an_order_of_another_kind_is_refused(saved, loading):
    refused(
        KINDS[loading](),
        KINDS[saved]().state_dict(),
        f"saved with order='{saved}', .* order='{loading}'",
    )


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (
            {"n": 11},
            "saved with dataset_length=11, this iterator has dataset_length=10",
        ),
        ({"repeat": False}, "saved with wrap=False, this iterator has wrap=True"),
    ],
)
def test_a_state_of_another_iterator_is_refused(other, text):
    refused(KINDS["shuffled"](), KINDS["shuffled"](**other).state_dict(), text)


@pytest.mark.parametrize(
    "indices",
    [
        [],
        [0] * 9,
        [0] * 11,
        ["0"] * 10,
        [0.0] * 10,
        [True] * 10,
        [1 << 70] * 10,
        [None] * 10,
        [[0]] * 10,
        BOMB,
    ],
)
def test_a_foreign_order_is_refused(indices):
    it = KINDS["sampled"]()
    refused(it, {**it.state_dict(), "indices": indices})
