"""Saved states: a way back that checks everything first, changes nothing when it refuses, and never unpickles."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter import StateError


def make(n=10, batch_size=3, repeat=True, shuffle=None, **options):
    return mpiter.SerialIterator(list(range(100, 100 + n)), batch_size, repeat=repeat, shuffle=shuffle, **options)


def rotate(order, position):
    return np.roll(order, 1)


KINDS = {
    "shuffled": lambda **more: make(seed=4, **more),
    "sequential": lambda **more: make(shuffle=False, **more),
    "sampled": lambda **more: make(order_sampler=rotate, **more),
}


def place(it):
    return it.epoch, it.current_position, it.is_new_epoch, it.epoch_detail, it.previous_epoch_detail, it.seed


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


@settings(max_examples=80)
@given(
    kind=st.sampled_from(list(KINDS)),
    n=st.integers(1, 12),
    batch_size=st.integers(1, 15),
    repeat=st.booleans(),
    steps=st.integers(0, 8),
)
def test_a_state_goes_through_json_and_resumes_exactly(kind, n, batch_size, repeat, steps):
    options = {"n": n, "batch_size": batch_size, "repeat": repeat}
    it, other = KINDS[kind](**options), KINDS[kind](**options)
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
        "order": {"kind": "shuffled"},
        "dataset_length": 10,
        "wrap": True,
        "drop_last": False,
    }


def test_numpy_numbers_among_the_options_do_not_spoil_the_state():
    it = make(batch_size=np.int64(3), repeat=1, seed=np.int64(5))
    it.next()
    make(seed=6).load_state_dict(through_json(it.state_dict()))


@pytest.mark.parametrize("seed", [0, -1, (1 << 128) - 1, -(1 << 127)])
def test_any_seed_that_is_accepted_can_be_restored(seed):
    it = make(seed=seed)
    other = make(seed=1)
    other.load_state_dict(through_json(it.state_dict()))
    assert other.seed == seed
    assert advance(other, 3) == advance(it, 3)


def test_a_state_stays_small_however_long_the_dataset():
    long = mpiter.SerialIterator(range(10**12), 3, seed=0)
    long.next()
    assert len(json.dumps(long.state_dict())) < 300


def test_a_state_taken_after_the_last_batch_resumes_with_nothing_left():
    it = make(repeat=False, seed=0)
    advance(it, 4)
    other = make(repeat=False, seed=0)
    other.load_state_dict(it.state_dict())
    assert list(other) == []


touched: list[str] = []


def went_off():
    touched.append("unpickled")


class Bomb:
    """Whoever unpickles this has lost."""

    def __reduce__(self):
        return went_off, ()


BOMB = pickle.dumps(Bomb())

WRONG = {
    "nothing": None,
    "a list": [],
    "text": "state",
    "pickled bytes": BOMB,
    "an object": Bomb(),
    "an empty dict": {},
    "a Chainer snapshot": {"current_position": 3, "epoch": 0, "is_new_epoch": False, "order": [1]},
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("wrong", list(WRONG))
def test_what_is_no_state_is_refused(kind, wrong):
    refused(KINDS[kind](), WRONG[wrong])


def refused(it, state, match=None):
    """The state is refused, the iterator as it was, and nothing was unpickled."""
    first = it.next()
    twin = copy.copy(it)
    before, saved = place(it), it.state_dict()
    with pytest.raises(StateError, match=match):
        it.load_state_dict(state)
    assert place(it) == before
    assert it.state_dict() == saved
    assert list(first) is not None
    assert advance(it, 4) == advance(twin, 4)
    assert not touched


VALUES = [
    *(
        None,
        True,
        -1,
        1 << 60,
        0.5,
        float("nan"),
        float("inf"),
        -2.0,
        "",
        "x",
        "0x10",
        "1e3",
        " 1",
        "٣",
        "9" * 50,
        BOMB,
    ),
    *(
        [],
        [1],
        {},
        {"kind": []},
        {"kind": np.zeros(2)},
        {"kind": "pickled"},
        Bomb(),
        np.int64(1),
        np.zeros(2),
        np.float64(1),
    ),
]


LEGAL = [("previous_epoch_detail", 0.5), ("is_new_epoch", True), ("previous_epoch_detail", -1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_key_must_be_there_and_of_its_kind(kind):
    state = KINDS[kind]().state_dict()
    for key in state:
        refused(KINDS[kind](), {name: value for name, value in state.items() if name != key}, key)
        it = KINDS[kind]()
        before = place(it), it.state_dict()
        for value in VALUES:
            is_legal = repr((key, value)) in map(repr, LEGAL) or repr(value) == repr(state[key])
            if not is_legal:
                with pytest.raises(StateError):
                    it.load_state_dict({**state, key: value})
        assert (place(it), it.state_dict()) == before
        refused(it, {**state, key: BOMB})


@pytest.mark.parametrize("saved", list(KINDS))
@pytest.mark.parametrize("loading", list(KINDS))
def test_an_order_of_another_kind_is_refused(saved, loading):
    if saved != loading:
        refused(KINDS[loading](), KINDS[saved]().state_dict(), f"saved with a '{saved}' order, .* a '{loading}' one")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"n": 11}, "saved with dataset_length=11, this iterator has dataset_length=10"),
        ({"repeat": False}, "saved with wrap=False, this iterator has wrap=True"),
    ],
)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_state_of_another_iterator_is_refused(kind, other, text):
    refused(KINDS[kind](), KINDS[kind](**other).state_dict(), text)


@pytest.mark.parametrize(
    "indices",
    [[], [0] * 9, [0] * 11, ["0"] * 10, [0.0] * 10, [True] * 10, [1 << 70] * 10, [None] * 10, [[0]] * 10, BOMB],
)
def test_a_foreign_order_is_refused(indices):
    it = KINDS["sampled"]()
    refused(it, {**it.state_dict(), "order": {"kind": "sampled", "indices": indices}})


def test_a_place_beyond_the_last_epoch_is_refused():
    it = make(repeat=False, seed=0)
    refused(it, {**it.state_dict(), "epoch": 2}, "'epoch' is 2, not within 0 … 1")
    it = make(repeat=False, seed=0)
    refused(it, {**it.state_dict(), "epoch": 1, "position": 3}, "'position' is 3, not within 0 … 0")


def test_a_closed_iterator_refuses_a_state():
    it = mpiter.batches([1, 2, 3], 2, n_processes=0)
    state = it.state_dict()
    it.close()
    with pytest.raises(mpiter.errors.IteratorClosed):
        it.load_state_dict(state)
