"""The iterators' state machine against a plain model of Chainer's, written from its contract."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter.order.cursor import Cursor, Pace, step
from mpiter.order.order import Given, Sampled, SamplerOfTheMoment, Sequential, Shuffled


class Model:
    """What Chainer's contract says, one index at a time; slow and obvious."""

    def __init__(self, orders, batch_size, repeat):
        self.orders, self.batch_size, self.repeat = orders, batch_size, repeat
        self.epoch = self.position = 0
        self.is_new_epoch = False
        self.previous = None

    @property
    def detail(self):
        return self.epoch + self.position / len(self.orders(0))

    def next(self):
        self.previous = self.detail
        if not self.repeat and self.epoch:
            return None
        batch = []
        self.is_new_epoch = False
        while len(batch) < self.batch_size:
            batch.append(self.orders(self.epoch)[self.position])
            self.position += 1
            if self.position == len(self.orders(self.epoch)):
                self.position, self.epoch, self.is_new_epoch = 0, self.epoch + 1, True
                if not self.repeat:
                    break
        return batch


def place(it):
    return it.epoch, it.current_position, it.is_new_epoch, it.epoch_detail, it.previous_epoch_detail


lengths, sizes = st.integers(1, 12), st.integers(1, 30)


@settings(max_examples=150)
@given(n=lengths, batch_size=sizes, repeat=st.booleans(), shuffle=st.booleans(), steps=st.integers(1, 12))
def test_iterators_step_as_the_model_does(n, batch_size, repeat, shuffle, steps):
    it = mpiter.SerialIterator(list(range(n)), batch_size, repeat=repeat, shuffle=shuffle, seed=1)

    def orders(epoch):
        return Shuffled(n, 1, epoch).take(0, n).tolist() if shuffle else list(range(n))

    model = Model(orders, batch_size, repeat)
    assert place(it) == (0, 0, False, 0.0, None)
    for _ in range(steps):
        expected = model.next()
        if expected is None:
            with pytest.raises(StopIteration):
                it.next()
        else:
            assert list(it.next()) == expected
        assert place(it) == (model.epoch, model.position, model.is_new_epoch, model.detail, model.previous)


class Recorder:
    """An order sampler that rotates, and remembers what it was given."""

    def __init__(self, length):
        self.length, self.calls = length, []

    def __call__(self, order, position):
        self.calls.append((list(order), position))
        return np.roll(np.arange(self.length) * 2, -len(self.calls))


@settings(max_examples=100)
@given(n=lengths, length=lengths, batch_size=sizes, repeat=st.booleans(), steps=st.integers(1, 8))
def test_an_order_sampler_is_called_with_the_order_and_the_position(n, length, batch_size, repeat, steps):
    def order(call):
        return np.roll(np.arange(length) * 2, -call).tolist()

    sampler = Recorder(length)
    it = mpiter.SerialIterator(range(2 * length), batch_size, repeat=repeat, order_sampler=sampler)
    assert sampler.calls == [(list(range(2 * length)), 0)]
    model = Model(lambda epoch: order(epoch + 1), batch_size, repeat)
    for _ in range(steps):
        epoch, position = model.epoch, model.position
        expected = model.next()
        if expected is None:
            with pytest.raises(StopIteration):
                it.next()
        else:
            assert list(it.next()) == expected
            crossed = range(epoch, model.epoch)
            given = [(order(at + 1), position if at == epoch else 0) for at in crossed]
            assert sampler.calls[epoch + 1 :] == given
        assert place(it) == (model.epoch, model.position, model.is_new_epoch, model.detail, model.previous)


@pytest.mark.parametrize("later", [[0, 1], [0, 1, 2, 3], []])
def test_an_order_of_another_length_is_a_value_error(later):
    it = mpiter.SerialIterator([1, 2, 3], 2, order_sampler=lambda order, at: later if at else [0, 1, 2])
    it.next()
    with pytest.raises(ValueError, match="does not match the size of the previous order"):
        it.next()


def test_an_epoch_is_as_long_as_the_order_not_the_dataset():
    it = mpiter.SerialIterator([10, 20], 3, order_sampler=lambda order, at: [0, 0, 1, 1, 0, 1])
    assert list(it.next()) == [10, 10, 20]
    assert it.epoch_detail == 0.5
    assert list(it.next()) == [20, 10, 20]
    assert place(it) == (1, 0, True, 1.0, 0.5)


def test_a_new_order_sampler_governs_from_the_next_epoch_on():
    it = mpiter.SerialIterator([0, 1, 2, 3], 2, order_sampler=lambda order, at: [0, 1, 2, 3])
    it.next()
    it.order_sampler = lambda order, at: [3, 2, 1, 0]
    assert [list(it.next()) for _ in range(3)] == [[2, 3], [3, 2], [1, 0]]


def test_the_end_is_stop_iteration_again_and_again():
    it = mpiter.SerialIterator([1, 2], 2, repeat=False, shuffle=False)
    assert list(it.next()) == [1, 2]
    for _ in range(3):
        with pytest.raises(StopIteration):
            it.next()
        assert place(it) == (1, 0, True, 1.0, 1.0)


def test_nothing_is_handed_out_of_an_empty_dataset_and_repeating_it_is_refused():
    it = mpiter.SerialIterator([], 2, repeat=False)
    assert list(it) == []
    assert it.epoch_detail == 0.0
    with pytest.raises(ValueError, match="the dataset is empty"):
        mpiter.SerialIterator([], 2)


def test_reset_goes_back_to_the_beginning():
    it = mpiter.SerialIterator(list(range(5)), 2, seed=3)
    first = [list(it.next()) for _ in range(4)]
    it.reset()
    assert place(it) == (0, 0, False, 0.0, None)
    assert [list(it.next()) for _ in range(4)] == first


orders = st.sampled_from(["sequential", "shuffled", "sampled"])


def make_order(kind, n):
    if kind == "sampled":
        return Sampled(np.arange(n)[::-1], SamplerOfTheMoment(lambda order, position: np.roll(order, 1)))
    return Sequential(n) if kind == "sequential" else Shuffled(n, 5)


def epochs_of(kind, n, count):
    order, found = make_order(kind, n), []
    for _ in range(count):
        found.append(order.take(0, n).tolist())
        order = order.following(0)
    return found


def plans(kind, n, pace):
    cursor, found = Cursor(0, 0, False, make_order(kind, n)), []
    while (plan := step(cursor, pace, len(found))) is not None:
        found.append(plan)
        assert plan.before is cursor
        cursor = plan.after
    return found


@settings(max_examples=200)
@given(kind=orders, n=st.integers(0, 12), batch_size=sizes, epochs=st.integers(0, 4), drop_last=st.booleans())
def test_a_number_of_epochs_is_cut_epoch_by_epoch(kind, n, batch_size, epochs, drop_last):
    expected = []
    for epoch, order in enumerate(epochs_of(kind, n, epochs)):
        for at in range(0, n, batch_size):
            if not drop_last or at + batch_size <= n:
                expected.append((epoch, at, order[at : at + batch_size]))
    found = plans(kind, n, Pace(batch_size, wrap=False, epochs=epochs, drop_last=drop_last))
    assert [(s.epoch, s.position, s.indices.tolist()) for plan in found for s in plan.stretches] == expected
    assert all(len(plan.stretches) == 1 and plan.rows == len(plan.stretches[0].indices) for plan in found)
    if found:
        assert (found[-1].after.epoch, found[-1].after.position, found[-1].after.is_new_epoch) == (epochs, 0, True)
        assert found[-1].after.epoch_detail == float(epochs)


@settings(max_examples=100)
@given(kind=orders, n=lengths, batch_size=sizes, steps=st.integers(1, 6))
def test_the_stretches_of_a_batch_fill_its_rows_without_gap(kind, n, batch_size, steps):
    cursor, pace = Cursor(0, 0, False, make_order(kind, n)), Pace(batch_size)
    for number in range(steps):
        plan = step(cursor, pace, number)
        row = 0
        for stretch in plan.stretches:
            assert stretch.row == row
            assert len(stretch.indices)
            row += len(stretch.indices)
        assert row == plan.rows == batch_size
        cursor = plan.after


@pytest.mark.filterwarnings("ignore:no batch will come")
@given(n=st.integers(0, 20), batch_size=sizes, epochs=st.integers(0, 3), drop_last=st.booleans())
@settings(max_examples=60)
def test_the_length_of_batches_is_how_many_there_are(n, batch_size, epochs, drop_last):
    it = mpiter.batches(list(range(n)), batch_size, n_processes=0, epochs=epochs, drop_last=drop_last, seed=0)
    assert len(it) == len(list(it))


@pytest.mark.chainer
@settings(max_examples=100)
@given(n=lengths, batch_size=sizes, repeat=st.booleans(), shuffle=st.sampled_from([False, "sampler"]))
def test_every_step_is_the_step_of_chainers_own_iterator(n, batch_size, repeat, shuffle):
    def sampler():
        return {"order_sampler": Recorder(n)} if shuffle else {"shuffle": False}

    theirs = pytest.importorskip("chainer.iterators", reason="Chainer is not installed: run `python3 tests`")
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
        assert [(o, int(at)) for o, at in ours.order_sampler.calls] == them.order_sampler.calls


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "given"])
def test_a_batch_of_countless_epochs_is_not_enumerated_before_somebody_asks(kind):
    orders = {
        "sequential": lambda: Sequential(40),
        "shuffled": lambda: Shuffled(40, 1),
        "given": lambda: Given(np.arange(40), Shuffled(40, 1, 1)),
    }
    order = orders[kind]()
    plan = step(Cursor(10, 0, False, order), Pace(10**12 + 3))
    assert (plan.rows, plan.after.epoch, plan.after.position) == (10**12 + 3, 25 * 10**9, 13)
    stretches = iter(plan.stretches)
    assert next(stretches).indices.tolist() == order.take(10, 40).tolist()
    second = next(stretches)
    assert (second.row, second.epoch, second.position) == (30, 1, 0)
    assert second.indices.tolist() == order.following(10).take(0, 40).tolist()
    expected = Shuffled(40, 1, plan.after.epoch) if kind != "sequential" else order
    assert plan.after.order.take(0, 40).tolist() == expected.take(0, 40).tolist()
