"""The iterators' state machine is compared with Chainer's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter.order.order import Shuffled


def place(it):
    return (
        it.epoch,
        it.current_position,
        it.is_new_epoch,
        it.epoch_detail,
        it.previous_epoch_detail,
    )


lengths = st.integers(1, 12)
sizes = st.integers(1, 30)


class Recorder:
    """An order sampler that rotates the order, and keeps what it was given."""

    def __init__(self, length):
        self.length = length
        self.calls = []

    def __call__(self, order, position):
        self.calls.append((list(order), position))
        return np.roll(np.arange(self.length) * 2, -len(self.calls))


@pytest.mark.parametrize("later", [[0, 1], [0, 1, 2, 3], []])
def test_an_order_of_another_length_is_a_value_error(later):
    it = mpiter.SerialIterator(
        [1, 2, 3], 2, order_sampler=lambda order, at: later if at else [0, 1, 2]
    )
    it.next()
    with pytest.raises(
        ValueError, match="does not match the size of the previous order"
    ):
        it.next()


def test_nothing_is_handed_out_of_an_empty_dataset_and_repeating_it_is_refused():
    with pytest.warns(RuntimeWarning, match="the dataset is empty"):
        it = mpiter.SerialIterator([], 2, repeat=False)
    assert list(it) == []
    assert it.epoch_detail == 0.0
    with pytest.raises(ValueError, match="the dataset is empty"):
        mpiter.SerialIterator([], 2)


CHOICES = {
    "sequential": {"shuffle": False},
    "shuffled": {"shuffle": True},
    "sampled": {"order_sampler": lambda order, position: np.roll(order, 1)},
}


@pytest.mark.filterwarnings("ignore:there is no batch in an epoch")
@settings(max_examples=50)
@given(
    kind=st.sampled_from(list(CHOICES)),
    n=st.integers(0, 12),
    batch_size=sizes,
    epochs=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_a_number_of_epochs_is_cut_epoch_by_epoch(
    kind, n, batch_size, epochs, drop_last
):
    expected = []
    for epoch in range(epochs):
        order = np.arange(n)
        if kind == "sampled":
            order = np.roll(order, epoch + 1)
        elif kind == "shuffled":
            order = Shuffled(n, 5, epoch).take(0, n)
        for at in range(0, n, batch_size):
            if not drop_last or at + batch_size <= n:
                expected.append(order[at : at + batch_size].tolist())
    options = {
        "n_processes": 0,
        "epochs": epochs,
        "drop_last": drop_last,
        "seed": 5,
        **CHOICES[kind],
    }
    with mpiter.batches(range(n), batch_size, **options) as it:
        assert len(it) == len(expected)
        assert [batch.tolist() for batch in it] == expected
        assert not expected or it.epoch == epochs


@pytest.mark.chainer
@settings(max_examples=50)
@given(
    n=lengths,
    batch_size=sizes,
    repeat=st.booleans(),
    shuffle=st.sampled_from([False, "sampler"]),
)
def test_every_step_is_the_step_of_chainers_own_iterator(
    n, batch_size, repeat, shuffle
):
    def sampler():
        return {"order_sampler": Recorder(n)} if shuffle else {"shuffle": False}

    theirs = pytest.importorskip(
        "chainer.iterators", reason="Chainer is not installed: run `python3 tests`"
    )
    them = theirs.SerialIterator(range(2 * n), batch_size, repeat=repeat, **sampler())
    ours = mpiter.SerialIterator(range(2 * n), batch_size, repeat=repeat, **sampler())
    for _ in range(8):
        assert place(ours) == place(them)
        try:
            expected = them.next()
        except StopIteration:
            expected = None
        if expected is None:
            with pytest.raises(StopIteration):
                ours.next()
        else:
            assert list(ours.next()) == expected
    assert place(ours) == place(them)
    if shuffle:
        assert [
            (o, int(at)) for o, at in ours.order_sampler.calls
        ] == them.order_sampler.calls
