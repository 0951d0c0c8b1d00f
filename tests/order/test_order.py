"""The order of an epoch is a bijection that is evaluated at any position.

It exists for every length, and its format is pinned.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter.order.order import Sampled, SamplerOfTheMoment, Shuffled, shuffled

seeds = st.integers(-(1 << 127), (1 << 128) - 1)
epochs = st.integers(0, 1 << 40)


@settings(max_examples=40)
@given(
    length=st.sampled_from([1, 2, 3, 4095, 4096, 4097, 4160, 4161, 16385, 65536])
    | st.integers(1, 9000),
    seed=seeds,
    epoch=epochs,
)
def test_every_epoch_visits_each_index_exactly_once(length, seed, epoch):
    order = Shuffled(length, seed, epoch)
    assert np.array_equal(np.sort(order.take(0, length)), np.arange(length))
    assert len(order) == length
    assert order.take(0, 1).dtype == np.int64


@settings(max_examples=30)
@given(length=st.integers(1, 50_000), seed=seeds, data=st.data())
def test_take_does_not_depend_on_what_was_taken_before(length, seed, data):
    order = Shuffled(length, seed)
    whole = Shuffled(length, seed).take(0, length)
    for _ in range(6):
        start = data.draw(st.integers(0, length))
        stop = data.draw(st.integers(start, length + 10))
        assert np.array_equal(order.take(start, stop), whole[start:stop])


@pytest.mark.parametrize("length", [10**12, 2**61 + 12345, 2**62 - 1])
def test_a_trillion_samples_cost_what_a_thousand_cost(length):
    order = Shuffled(length, 3)
    places = [0, 1, 12345, length // 2, length - 40]
    found = np.concatenate([order.take(at, at + 40) for at in places])
    again = np.concatenate([Shuffled(length, 3).take(at, at + 40) for at in places])
    assert np.array_equal(found, again)
    # The first two places overlap by 39 positions.
    assert len(set(found.tolist())) == 5 * 40 - 39
    assert found.min() >= 0
    assert found.max() < length


@settings(max_examples=30)
@given(length=st.integers(30, 9000), seed=seeds, epoch=epochs)
def test_epochs_and_seeds_differ(length, seed, epoch):
    order = Shuffled(length, seed, epoch)
    following = order.following(0).take(0, length)
    assert not np.array_equal(order.take(0, length), following)
    assert np.array_equal(following, Shuffled(length, seed, epoch + 1).take(0, length))
    other = seed + 1 if seed < 0 else seed - 1
    assert not np.array_equal(
        order.take(0, length), Shuffled(length, other, epoch).take(0, length)
    )


def chi_square(counts):
    counts = np.asarray(counts, float)
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


# These are upper 1e-4 quantiles of chi-square for n! − 1 degrees of freedom.  The seeds
# are fixed, so these tests always give the same result.
_CRITICAL = {2: 15.2, 3: 25.8, 5: 183.2}


@pytest.mark.parametrize("length", [2, 3, 5])
def test_every_permutation_is_equally_likely(length):
    number = {p: at for at, p in enumerate(permutations(range(length)))}
    counts = np.zeros(len(number))
    for draw in range(10 * len(number) + 600):
        counts[
            number[
                tuple(Shuffled(length, draw // 4, draw % 4).take(0, length).tolist())
            ]
        ] += 1
    assert chi_square(counts) < _CRITICAL[length]


def test_long_epochs_are_even_too():
    length = 5000
    parts = 20
    counts = np.zeros((parts, parts))
    for seed in range(100):
        taken = Shuffled(length, seed).take(0, length)
        np.add.at(
            counts, (np.arange(length) * parts // length, taken * parts // length), 1
        )
    # The sum of every row and column is fixed, which takes away a degree of freedom.
    freedom = (parts - 1) ** 2
    assert abs(chi_square(counts) - freedom) < 5 * np.sqrt(2 * freedom)


def test_neighbours_in_the_order_are_independent():
    length = 50
    draws = 2000
    taken = np.array([Shuffled(length, seed).take(0, length) for seed in range(draws)])
    gaps = (taken[:, 1:] - taken[:, :-1]) % length
    counts = np.bincount(gaps.ravel(), minlength=length)[1:]
    assert chi_square(counts) < 48 + 5 * np.sqrt(2 * 48)


GOLDEN = {
    (10, 0, 0): [7, 3, 5, 4, 1, 2, 9, 8, 0, 6],
    (10, 0, 1): [5, 2, 1, 7, 8, 6, 0, 9, 4, 3],
    (10, -1, 0): [9, 6, 2, 3, 4, 7, 8, 0, 1, 5],
    (4096, 1, 0): [3218, 1119, 2999, 1643, 3861, 1624, 527, 2423, 2301, 3641],
    (4097, 1, 0): [189, 1388, 872, 1608, 632, 3015, 378, 50, 3389, 3233],
    (10, (1 << 128) - 1, 0): [9, 6, 2, 3, 4, 7, 8, 0, 1, 5],
    (1000, 42, 3): [499, 521, 531, 999, 524, 740, 769, 482, 840, 823],
    (10**12, 7, 0): [
        865223822624,
        76084553136,
        187737774367,
        679585948704,
        258238277130,
    ],
}


@pytest.mark.parametrize(("length", "seed", "epoch"), list(GOLDEN))
def test_the_order_is_a_format_and_stays_as_it_is(length, seed, epoch):
    """If this fails, saved states would go on in another order.

    Then mend the code, or refuse such states by another VERSION.
    """
    expected = GOLDEN[length, seed, epoch]
    found = Shuffled(length, seed, epoch).take(0, 10).tolist()
    assert found[: len(expected)] == expected


@pytest.mark.parametrize(
    "returned",
    [[[1, 2]], 5, ["a", "b"], [0.5, 1.0], [True, False], [None, 1]],
    ids=lambda value: f"{value!r}",
)
def test_what_an_order_sampler_returns_is_checked(returned):
    with pytest.raises(
        mpiter.OptionError,
        match=r"order_sampler returned .* return a 1-D array of integer indices",
    ):
        Sampled(returned, SamplerOfTheMoment(None))


def test_a_sampler_that_shuffles_in_place_cannot_change_what_is_planned():
    mine = np.arange(5)

    def sampler(order, position):
        order[:] = 0
        mine[:] = [4, 3, 2, 1, 0]
        return mine

    order = Sampled(mine, SamplerOfTheMoment(sampler))
    following = order.following(0)
    mine[:] = -1
    assert following.take(0, 5).tolist() == [4, 3, 2, 1, 0]
    assert order.take(0, 5).tolist() == [0, 1, 2, 3, 4]


def drawing(seed):
    """Return an order sampler that draws each order, as ShuffleOrderSampler does."""
    random = np.random.RandomState(seed)
    return SamplerOfTheMoment(lambda order, position: random.permutation(len(order)))


def first_of(sampling, length=12):
    return Sampled(sampling.sampler(np.arange(length), 0), sampling)


def chain(order, count):
    found = []
    for _ in range(count):
        found.append(order.array().tolist())
        order = order.following(0)
    return found


@settings(max_examples=40)
@given(ahead=st.integers(0, 5), done=st.integers(0, 5))
def test_starting_over_reads_a_sampler_on_however_far_the_loop_has_asked_ahead(
    ahead, done
):
    wanted = chain(first_of(drawing(4)), 20)
    order = first_of(drawing(4))
    for _ in range(done):
        order = order.following(0)
    chain(order, ahead + 1)
    assert chain(order.over_again(12), 5) == wanted[done + 1 : done + 6]


def test_going_back_finds_the_same_orders_again():
    order = first_of(drawing(4))
    assert chain(order, 4) == chain(order, 4)
    assert chain(order.instead(order.array()), 4) == chain(order, 4)


def test_going_back_to_another_epoch_asks_the_sampler_for_what_comes_after_that_one():
    first = first_of(SamplerOfTheMoment(lambda order, position: np.roll(order, 1)), 4)
    wanted = chain(first, 4)
    assert chain(first.following(0).instead(first.array()), 4) == wanted


def test_starting_over_asks_with_a_range_as_chainer_does():
    sampling = SamplerOfTheMoment(lambda order, position: np.roll(order, 1))
    order = first_of(sampling, 5)
    assert order.following(0).over_again(5).array().tolist() == [4, 0, 1, 2, 3]
    order.following(0).following(0)
    assert order.following(0).over_again(5).array().tolist() == [4, 0, 1, 2, 3]
    assert order.over_again(7).array().tolist() == [6, 0, 1, 2, 3, 4, 5]


@settings(max_examples=20)
@given(
    st.integers(4097, 10**5), st.integers(1, 64), st.integers(1, 50), st.integers(0, 49)
)
def test_a_rank_that_jumps_over_the_others_parts_reads_what_one_alone_reads(
    length, each, ranks, rank
):
    order = Shuffled(length, 7)
    alone = Shuffled(length, 7).array()
    for start in range(rank * each, length, ranks * each):
        assert (
            order.take(start, start + each).tolist()
            == alone[start : start + each].tolist()
        )
        if start > 40 * ranks * each:
            break


def test_what_a_rank_jumps_over_is_not_evaluated(monkeypatch):
    evaluated = []

    def counting(positions, length, keys):
        evaluated.append(len(positions))
        return shuffled(positions, length, keys)

    monkeypatch.setattr("mpiter.order.order.shuffled", counting)
    taken = 0
    order = Shuffled(10**9, 7)
    for start in range(128 * 77, 10**9, 128 * 4096):
        taken += len(order.take(start, start + 128))
    assert sum(evaluated) < 1.1 * taken + 2 * (1 << 14)


def test_an_index_beyond_any_dataset_is_refused():
    with pytest.raises(mpiter.OptionError, match="beyond any dataset"):
        mpiter.batches(
            range(2),
            2,
            n_processes=0,
            order_sampler=lambda order, at: np.array([2**64 - 1, 1], np.uint64),
        )
