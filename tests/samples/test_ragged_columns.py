"""Arrays that differ in their first dimension only share one array of the slot."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journeys import Journey
from samples import assert_same

import mpiter
from mpiter.engine.delivery import OBJECTS, Room
from mpiter.engine.ledger import Ledger
from mpiter.order.cursor import Plan, Stretch
from mpiter.rules import Rules
from mpiter.samples.batch import columns_of, samples_of, settle_as
from mpiter.samples.jagged import Jagged
from mpiter.samples.kinds import Array
from mpiter.samples.ragged import Ragged, widened
from mpiter.samples.tree import Layout

dtypes = st.sampled_from(["i4", ">f8", "?", "c16", "M8[s]", "U3", "S2", "V5"])
lengths = st.lists(st.integers(0, 9), min_size=2, max_size=7)


@st.composite
def batches(draw: Any) -> list[Any]:
    """Draw arrays of several lengths, in samples of the same form."""
    dtype = np.dtype(draw(dtypes))
    shape = draw(st.sampled_from([(), (3,), (2, 2)]))
    seed = draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    arrays = []
    for length in draw(lengths):
        numbers = rng.integers(0, 9, (length, *shape))
        if dtype.kind == "V":
            arrays.append(numbers.astype("S5").view(dtype))
        else:
            arrays.append(numbers.astype(dtype))
    build = draw(st.sampled_from(FORMS))
    return [build(at, array) for at, array in enumerate(arrays)]


FORMS = [
    lambda at, array: array,
    lambda at, array: (at, array, str(at)),
    lambda at, array: {"x": array, "y": [array[:1], np.float32(at)]},
]


def in_ragged_room(batch: list[Any], **options: Any) -> Journey:
    """Return the journey of a batch whose layout is known from one like it."""
    journey = Journey(batch, **options).write()
    journey.contents()
    journey.begin_anew(batch)
    return journey


def is_ragged(journey: Journey) -> bool:
    return journey.layout.is_ragged


@settings(max_examples=80)
@given(
    batch=batches(),
    at_once=st.integers(1, 4),
    travels=st.booleans(),
    copies=st.booleans(),
)
def test_rows_of_all_lengths_come_back_as_they_were(batch, at_once, travels, copies):
    journey = in_ragged_room(batch, travels=travels, copy=copies).write(at_once)
    contents = journey.contents()
    for sent, got in zip(batch, samples_of(contents), strict=True):
        assert_same(sent, got)


@settings(max_examples=80)
@given(lengths=lengths, at_once=st.integers(1, 4), order=st.permutations(range(7)))
def test_the_blocks_of_a_batch_become_one_array_without_gaps(lengths, at_once, order):
    rows = [np.arange(length) + 100 * at for at, length in enumerate(lengths)]
    journey = in_ragged_room(rows)
    for block in order:
        some = rows[block * at_once : (block + 1) * at_once]
        if some:
            journey.fetch(block * at_once, some)
    contents = journey.contents()
    memory = np.frombuffer(journey.memory.map, np.uint8)
    found = columns_of(contents, settle_as("jagged"))
    if len(set(lengths)) == 1:
        assert_same(found, np.stack(rows))
        return
    assert_same(found.values, np.concatenate(rows))
    assert found.offsets.tolist() == [0, *np.cumsum(lengths)]
    # What came as an object, since a block had no room for it, is copied.
    if not contents.odd and len(found.values):
        assert np.shares_memory(found.values, memory)
        assert np.shares_memory(found.offsets, memory)


@pytest.mark.parametrize("lengths", [(1, 0, 3), (2, 2, 2)])
@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_lists_that_lie_in_one_piece_are_written_if_they_fit(lengths, dtype):
    offsets = np.cumsum([4, *lengths])
    lists = Jagged(np.arange(20, dtype=dtype), offsets)
    for kind in (Ragged(np.dtype("i4"), (), room=3), Array(np.dtype("i4"), (2,))):
        memory = np.zeros(1000, np.uint8)
        column = kind.column(memory, 0, 4, 4)
        fits = dtype == "i4" and (kind.is_ragged or lengths == (2, 2, 2))
        assert kind.write(column, 1, lists) == fits
        if fits and kind.is_ragged:
            assert column.starts[1:4].tolist() == [
                0,
                lengths[0],
                lengths[0] + lengths[1],
            ]
            assert column.values[: column.at[0]].tolist() == [*range(4, offsets[-1])]
        elif fits:
            assert column[1:].ravel().tolist() == [*range(4, 10)]


def test_lists_in_one_piece_for_which_there_is_no_room_are_not_written():
    kind = Ragged(np.dtype("i8"), (), room=1)
    column = kind.column(np.zeros(1000, np.uint8), 0, 2, 2)
    assert not kind.write(column, 0, Jagged(np.arange(4), np.array([0, 2, 4])))
    assert kind.write(column, 0, Jagged(np.arange(4), np.array([0, 0, 2])))


def test_rows_that_failed_or_are_odd_leave_no_trace():
    rows = [np.arange(n) for n in (3, 1, 4, 2)]
    for way in ("list", "jagged"):
        journey = in_ragged_room(rows)
        sheet = journey.sheet(0, 4)
        sent = [rows[0], None, "odd", rows[3]]
        sheet.fetch(sent, iter([0]), 0, False)
        sheet.fetch(sent, iter([2, 3]), 2, False)
        journey.arrive(0, 4, sheet)
        samples = samples_of(journey.contents(failed=frozenset({1})))
        assert [str(one) for one in samples] == ["[0 1 2]", "odd", "[0 1]"]
        assert is_ragged(journey), way


def test_rows_fetched_again_after_a_death_are_written_over_those_of_the_dead_worker():
    rows = [np.full(n, n) for n in (3, 1, 4, 2)]
    journey = in_ragged_room(rows)
    journey.sheet(0, 4).fetch([*rows[:2], rows[3]], iter(range(3)), 0, False)
    for row in range(4):
        journey.fetch(row, rows[row : row + 1])
    found = columns_of(journey.contents(), settle_as("jagged"))
    assert found.values.tolist() == [3] * 3 + [1] + [4] * 4 + [2] * 2


def test_rows_of_a_worker_that_may_still_write_are_sent_as_objects():
    layout = Layout(Ragged(np.dtype("i8"), (), 4), 4)
    room = Room(layout, b"brief", None, 64)
    ledger = Ledger(Rules(1, shares_memory=True))
    ledger.enter(Plan(0, 4, (Stretch(0, 0, 0, np.arange(4)),), None, None), room)
    block = ledger.cut(0, 1, 0, 0, 0.0)
    assert (block.brief, block.address) == (b"brief", 64)
    ledger.recall([0], is_lost=True)
    again = ledger.cut(1, 1, 0, 0, 0.0)
    assert (again.brief, again.address) == (OBJECTS.brief, None)


def test_only_arrays_that_differ_in_their_first_dimension_are_ragged_together():
    def leaf(dtype, *shape):
        return Array(np.dtype(dtype), shape)

    assert widened(leaf("i4", 2), leaf("i4", 3)) == Ragged(np.dtype("i4"))
    assert widened(leaf("i4", 2, 5), leaf("i4", 3, 5)).shape == (5,)
    for other in (leaf("i8", 3), leaf(">i4", 3), leaf("i4", 3, 1), leaf("i4")):
        assert widened(leaf("i4", 2), other) is None
    assert widened(leaf("i4"), leaf("i4", 2)) is None
    assert widened(leaf("S0", 1), leaf("S0", 2)) is None


# -- through loaders -------------------------------------------------------------------


class Lengths:
    """Arrays of 1 to 30 numbers, each of which is the sample's index."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> Any:
        return np.full(1 + index * 7 % 30, index, np.int32), index


class Growing(Lengths):
    """Arrays that become longer from batch to batch, and one that is very long."""

    def __getitem__(self, index: int) -> Any:
        return np.full(1 + index // 4 + 5000 * (index == 200), index, np.int32), index


def killing(folder: Path) -> Any:
    class Killing(Lengths):
        """Kills its worker once, in the middle of a batch."""

        def __getitem__(self, index: int) -> Any:
            if index == 205:
                try:
                    os.mkdir(folder / "killed")
                except FileExistsError:
                    return super().__getitem__(index)
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    return Killing()


def assert_rows(dataset: Any, stream: Any) -> int:
    """Check all rows of all batches; return the number of jagged batches."""
    seen = 0
    jagged = 0
    for rows, numbers in stream:
        assert len(rows) == len(numbers)
        jagged += isinstance(rows, Jagged)
        for row, number in zip(rows, numbers.tolist(), strict=True):
            assert_same(dataset[number][0], row)
        seen += len(rows)
    assert seen == len(dataset)
    return jagged


WAYS = {
    "processes": {"n_processes": 2},
    "sent": {"n_processes": 2, "serializer": "packed"},
    "threads": {"n_processes": 2, "backend": "thread"},
    "copies": {"n_processes": 1, "copy": True},
    "no workers": {"n_processes": 0},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_jagged_batches(way):
    with mpiter.batches(
        Lengths(), 16, shuffle=False, ragged="jagged", **WAYS[way]
    ) as stream:
        assert assert_rows(Lengths(), stream) == 25
        # The first ones are sent as objects, until the layout is known.
        assert stream.stats().odd_rows < 200


def test_the_values_of_a_batch_are_the_slots_memory_and_stay_while_a_row_does():
    with mpiter.batches(Lengths(), 16, n_processes=1, ragged="list") as stream:
        batches = [rows for rows, _ in stream]
        # A slice of one array, which the rows of the batch share.
        late = batches[-1]
        assert len({id(row.base) for row in late}) <= len(late)
        assert all(row.flags.writeable for row in late)
        late[0][:] = -1
        assert not any((row == -1).any() for row in late[1:])
        del batches, late
        assert stream.stats().leased_batches == 0


def test_growing_rows_get_more_room_and_a_single_long_one_does_not():
    with mpiter.batches(
        Growing(), 8, n_processes=1, shuffle=False, ragged="jagged", n_prefetch=1
    ) as stream:
        assert_rows(Growing(), stream)
        assert stream.stats().odd_rows < len(Growing()) / 2


def test_a_sample_that_fails_is_left_out_of_a_jagged_batch():
    class Failing(Lengths):
        def __getitem__(self, index):
            if index % 16 == 3:
                raise ValueError(index)
            return super().__getitem__(index)

    with mpiter.batches(
        Failing(), 16, n_processes=1, shuffle=False, ragged="jagged", on_error="skip"
    ) as stream:
        for rows, numbers in stream:
            assert isinstance(rows, Jagged)
            assert len(rows) == len(numbers) == 15
            for row, number in zip(rows, numbers, strict=True):
                assert_same(Lengths()[number][0], row)


@pytest.mark.death
def test_no_row_is_lost_when_a_worker_dies_within_a_jagged_batch(tmp_path):
    with mpiter.batches(
        killing(tmp_path), 16, n_processes=2, shuffle=False, ragged="jagged"
    ) as stream:
        assert assert_rows(Lengths(), stream) == 25
        assert stream.stats().restarts == 1


# -- the object ------------------------------------------------------------------------


def test_rows_can_be_taken_cut_walked_through_and_sent():
    rows = Jagged.of([np.arange(3), np.arange(0), np.arange(2)])
    assert [row.tolist() for row in rows] == [[0, 1, 2], [], [0, 1]]
    assert rows[-1].tolist() == [0, 1]
    assert rows.lengths.tolist() == [3, 0, 2]
    assert np.shares_memory(rows[1:][1], rows.values)
    assert [row.tolist() for row in rows[1:]] == [[], [0, 1]]
    assert len(rows[3:]) == len(rows[2:1]) == 0
    assert repr(rows[1:]) == "Jagged(2 rows of int64, lengths 0, 2)"
    for again in (pickle.loads(pickle.dumps(rows)), copy.deepcopy(rows)):
        assert_same(again.values, rows.values)
        assert_same(again.offsets, rows.offsets)
    with pytest.raises(IndexError, match="no row 3 among 3"):
        rows[3]
    with pytest.raises(IndexError, match="no row -4 among 3"):
        rows[-4]
    with pytest.raises(IndexError, match="step 1"):
        rows[::2]
    with pytest.raises(ValueError, match="there are no rows"):
        Jagged.of([])
    points = Jagged.of(np.zeros((2, 4, 3), "f4"))
    assert repr(points) == "Jagged(2 rows of 3 float32, lengths 4, 4)"
    assert Jagged.of(points) is points
    many = Jagged.of([np.zeros(1)] * 9)
    assert repr(many) == f"Jagged(9 rows of float64, lengths {'1, ' * 8}…)"
