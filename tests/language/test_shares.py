"""Shares are exact at every border of a block, whatever the weights and the place."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpiter.language.fit import best_fit
from mpiter.language.shares import BLOCK, Course, Segment, Shares

weights = st.lists(st.integers(1, 10**6), min_size=1, max_size=40)


def course(shares: Shares, components: int, key: int | None = 5) -> Course:
    lock = None if key is None else np.uint64(key)
    return Course([Segment(0, (0,) * components, shares)], None, lock)


@settings(max_examples=60, deadline=None)
@given(weights, st.integers(0, 10**12))
def test_each_component_is_within_two_samples_of_its_weight(found, place):
    shares = Shares([*map(Fraction, found)])
    total = sum(found)
    before = shares.before(place)
    assert sum(before) == place
    for count, weight in zip(before, found, strict=True):
        assert abs(count - Fraction(place * weight, total)) < 2


@settings(max_examples=40, deadline=None)
@given(weights, st.integers(0, 10**12), st.integers(1, 600))
def test_one_component_goes_on_at_each_place(found, start, places):
    shares = Shares([*map(Fraction, found)])
    counts = shares.before_each(np.arange(start, start + places + 1))
    moved = np.diff(counts, axis=0)
    assert (moved >= 0).all()
    assert (moved.sum(axis=1) == 1).all()
    assert counts[0].tolist() == shares.before(start)
    assert counts[-1].tolist() == shares.before(start + places)


@settings(max_examples=40, deadline=None)
@given(weights, st.integers(0, 10**12), st.integers(1, 700), st.sampled_from([5, None]))
def test_any_stretch_is_what_single_places_are(found, start, places, key):
    laid = course(Shares([*map(Fraction, found)]), len(found), key)
    which, before = laid.at(start, start + places)
    counts = laid.counts(start)
    for component, number in zip(which.tolist(), before.tolist(), strict=True):
        assert number == counts[component]
        counts[component] += 1
    assert counts == laid.counts(start + places)


def test_blocks_have_exact_counts_and_are_shuffled():
    shares = Shares([Fraction(3), Fraction(1)])
    laid = course(shares, 2)
    which, _ = laid.at(0, 8 * BLOCK)
    blocks = which.reshape(8, BLOCK)
    assert (blocks.sum(axis=1) == BLOCK // 4).all()
    assert len({block.tobytes() for block in blocks}) == 8


def test_weights_of_any_denominator_are_exact_far_away():
    odd = [Fraction("0.3333333333333333"), Fraction("0.6666666666666667")]
    shares = Shares(odd)
    place = 10**12 + 7
    [first, _] = shares.before(place)
    assert abs(first - odd[0] * place) < 1
    [row] = shares.before_each(np.array([place]))
    assert row[0] == first


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=300), st.integers(50, 200))
def test_best_fit_fills_rows_and_leaves_none_that_would_fit_together(found, capacity):
    lengths = np.array(found)
    row_of, rows = best_fit(lengths, capacity)
    filled = np.bincount(row_of, weights=lengths, minlength=rows)
    assert len(row_of) == len(lengths)
    assert (filled <= capacity).all()
    assert (filled > 0).all()
    # Two half-empty rows would have been one.
    assert sum(filled <= capacity / 2) <= 1


@pytest.mark.parametrize("components", [2, 39])
def test_a_batch_far_away_needs_no_more_than_one_near_by(components):
    laid = course(Shares([Fraction(at + 1) for at in range(components)]), components)
    for start in (0, 10**12):
        which, _ = laid.at(start, start + 128)
        assert len(which) == 128
