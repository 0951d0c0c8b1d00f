"""The order of samples in groups: each comes once, and few groups are open at a time.

A group is open from the place of its first sample to that of its last one.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpiter.files.grouped import MOST, GroupedOrder, Groups

# Samples and bytes of groups.
few = st.tuples(st.integers(1, 40), st.integers(0, 100))
tiny = st.tuples(st.just(4), st.integers(0, 1))
empty = st.tuples(st.just(4), st.just(0))
groups = st.one_of(
    st.lists(few, min_size=1, max_size=20),
    st.lists(tiny, min_size=MOST, max_size=5 * MOST),
    st.lists(empty, min_size=MOST, max_size=5 * MOST),
)


@given(groups, st.integers(1, 1000), st.integers(0, 3), st.integers(0, 2))
def test_each_sample_comes_once_and_few_groups_are_open(
    told: list[tuple[int, int]], window: int, seed: int, epoch: int
) -> None:
    counts, sizes = zip(*told, strict=True)
    found = Groups(counts, sizes)
    order = GroupedOrder(found, window, seed, True).later(epoch)
    keys = np.asarray(order.take(0, len(order)))
    assert sorted(keys.tolist()) == [*range(sum(counts))]
    groups_of = np.searchsorted(found.begins, keys, side="right") - 1
    places = np.arange(len(keys))
    opens = np.full(len(told), len(keys))
    np.minimum.at(opens, groups_of, places)
    closes = np.zeros(len(told), int)
    np.maximum.at(closes, groups_of, places)
    for place in places[:: max(1, len(keys) // 20)]:
        is_open = (opens <= place) & (place <= closes)
        assert is_open.sum() <= MOST
        assert found.sizes[is_open].sum() <= max(window, *sizes)


@given(groups, st.integers(1, 1000), st.data())
def test_the_order_is_the_same_however_it_is_asked(
    told: list[tuple[int, int]], window: int, data: st.DataObject
) -> None:
    counts, sizes = zip(*told, strict=True)
    order = GroupedOrder(Groups(counts, sizes), window, 1, True)
    keys = np.asarray(order.take(0, len(order))).tolist()
    start = data.draw(st.integers(0, len(keys)))
    stop = data.draw(st.integers(start, len(keys)))
    again = GroupedOrder(Groups(counts, sizes), window, 1, True)
    assert np.asarray(again.take(start, stop)).tolist() == keys[start:stop]
    place = data.draw(st.integers(0, len(keys) - 1))
    assert again.at(place) == keys[place]
    assert again.at(len(keys)) == -1
