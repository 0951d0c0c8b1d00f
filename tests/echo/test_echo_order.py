"""The order in which samples come several times is a pure function, and whoever goes on within it finds the rest."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiter.echo.order import Echoed, Repeats

FACTORS = st.one_of(st.sampled_from([1, 1.5, 2, 3, 4]), st.floats(1, 6))
EPOCHS = st.builds(
    Echoed, st.integers(0, 150), FACTORS, st.integers(0, 5), st.integers(0, 3), st.integers(1, 200)
)  # length, factor, seed, epoch, buffer


def rows(order: Echoed) -> list[tuple[int, int]]:
    positions, repeats = order.take(0, order.total)
    return list(zip(positions.tolist(), repeats.tolist(), strict=True))


@given(EPOCHS)
def test_each_repeat_comes_exactly_once_and_the_first_ones_in_the_epochs_order(order: Echoed) -> None:
    found = rows(order)
    counts = order.repeats.of(np.arange(order.length)).tolist()
    assert sorted(found) == [(position, repeat) for position, count in enumerate(counts) for repeat in range(count)]
    assert [position for position, repeat in found if repeat == 0] == list(range(order.length))


@given(st.integers(1, 300), FACTORS, st.integers(0, 5), st.integers(0, 3))
def test_samples_come_as_often_as_the_factor_says(length: int, factor: float, seed: int, epoch: int) -> None:
    repeats = Repeats(length, factor, seed, epoch)
    counts = repeats.of(np.arange(length))
    assert counts.min() >= int(factor)
    assert counts.max() <= ceil(factor)
    assert abs(repeats.total - factor * length) <= 0.501
    assert [repeats.before(position) for position in range(length + 1)] == [0, *np.cumsum(counts).tolist()]
    assert [repeats.times(position) for position in range(length)] == counts.tolist()


def test_a_fraction_falls_on_other_samples_in_other_epochs() -> None:
    twice = [tuple(np.flatnonzero(Repeats(100, 1.1, 0, epoch).of(np.arange(100)) == 2)) for epoch in range(20)]
    assert len({*twice}) > 5
    assert len({position for some in twice for position in some}) > 50


@given(EPOCHS)
def test_no_more_samples_are_needed_at_a_time_than_the_buffer_holds(order: Echoed) -> None:
    left = dict(enumerate(order.repeats.of(np.arange(order.length)).tolist()))
    held, most = set(), 0
    for position, _ in rows(order):
        held.add(position)
        most = max(most, len(held))
        left[position] -= 1
        if not left[position]:
            held.remove(position)
    streams = order.repeats.most
    assert most <= order.block * (2 * (streams - 1) + 1)


@given(st.integers(10, 300), st.integers(2, 4), st.integers(0, 5), st.integers(1, 400))
def test_repeats_of_a_sample_lie_further_apart_than_a_block(length: int, factor: int, seed: int, buffer: int) -> None:
    order = Echoed(length, factor, seed, 0, buffer)
    last: dict[int, int] = {}
    for row, (position, _) in enumerate(rows(order)):
        assert row - last.get(position, row - order.block - 1) > order.block
        last[position] = row


def test_with_room_for_it_no_batch_has_a_sample_twice() -> None:
    order, batch_size = Echoed(500, 3, 0, 0, buffer=32 * 5), 32
    found = [position for position, _ in rows(order)]
    batches = [found[start : start + batch_size] for start in range(0, len(found), batch_size)]
    assert order.block == batch_size
    assert all(len({*batch}) == len(batch) for batch in batches)


def test_fresh_samples_are_asked_for_at_an_even_rate() -> None:
    repeats = np.array([repeat for _, repeat in rows(Echoed(3000, 3, 0, 0, buffer=300))])
    steady = repeats[600:-600]
    fresh = [int((steady[start : start + 30] == 0).sum()) for start in range(0, len(steady) - 30, 30)]
    assert {*fresh} <= {9, 10, 11}


def test_repeats_are_shuffled_anew_each_time() -> None:
    found = rows(Echoed(1000, 3, 0, 0, buffer=500))
    streams = [[position for position, repeat in found if repeat == stream] for stream in range(3)]
    assert streams[1] != streams[0] != streams[2] != streams[1]
    assert [position for position, repeat in rows(Echoed(1000, 3, 1, 0, buffer=500)) if repeat == 1] != streams[1]


@given(EPOCHS, st.data())
def test_any_part_of_the_order_is_found_by_itself(order: Echoed, data: Any) -> None:
    start = data.draw(st.integers(0, order.total))
    stop = data.draw(st.integers(start, order.total + 5))
    whole = rows(order)
    alone = Echoed(order.length, 1, 0, 0, 1)
    alone.__dict__.update({**order.__dict__, "_begin": 0, "_found": (np.empty(0, np.int64),) * 2})
    positions, repeats = alone.take(start, stop)
    assert list(zip(positions.tolist(), repeats.tolist(), strict=True)) == whole[start:stop]


@given(EPOCHS, st.data())
def test_from_any_row_on_it_is_known_what_is_owed_and_what_is_needed_first(order: Echoed, data: Any) -> None:
    row = data.draw(st.integers(0, order.total))
    before, rest = ([position for position, _ in part] for part in (rows(order)[:row], rows(order)[row:]))
    owed, gone = order.owed(row)
    assert owed == dict(Counter(position for position in rest if position in {*before}))
    assert gone == len({*before}) - len(owed)
    assert order.begun(row) == len({*before})
    head, upto = order.needed(row)
    assert [*head.tolist(), *range(upto, order.length)] == list(dict.fromkeys(rest))


@pytest.mark.parametrize("length", [10**9, 10**12])
def test_an_epoch_of_any_length_costs_no_memory(length: int) -> None:
    order = Echoed(length, 3.5, 0, 0, buffer=1000)
    row = order.total // 2
    positions, repeats = order.take(row, row + 1000)
    assert len({*zip(positions.tolist(), repeats.tolist(), strict=True)}) == 1000
    owed, gone = order.owed(row)
    assert 0 < len(owed) <= 1000
    assert gone + len(owed) == order.begun(row)
