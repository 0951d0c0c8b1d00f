"""The parts that ranks take of one order make up that order.

They are planned here for every rank, and put together again.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mpiter.order.cursor import Cursor, Pace, Share, batches_of
from mpiter.order.order import Sequential, Shuffled

EPOCHS = 2

# These are a length, a batch size, a number of ranks, and a position.
SIZES = st.tuples(st.integers(1, 30), st.integers(1, 5), st.integers(1, 6)).flatmap(
    lambda sizes: st.tuples(*map(st.just, sizes), st.integers(0, sizes[0] - 1))
)


def planned(
    pace: Pace, cursor: Cursor, most: int = 100
) -> tuple[list[list[tuple[int, int]]], list[Cursor]]:
    """Return (epoch, position) of each row of the next batches.

    The place after each batch comes with it.
    """
    batches = []
    places = []
    while len(batches) < most and (plan := pace.step(cursor)) is not None:
        rows: list[tuple[int, int]] = []
        for stretch in plan.stretches:
            assert stretch.row == len(rows), "rows follow one another"
            order = cursor.order.later(stretch.epoch - cursor.epoch)
            expected = order.take(
                stretch.position, stretch.position + len(stretch.indices)
            )
            assert stretch.indices.tolist() == expected.tolist()
            rows += [
                (stretch.epoch, stretch.position + at)
                for at in range(len(stretch.indices))
            ]
        assert len(rows) == plan.rows > 0
        cursor = plan.after
        batches.append(rows)
        places.append(cursor)
    return batches, places


def by_rank(sizes, **options):
    length, batch_size, ranks, position = sizes
    exact = options.pop("exact", False)
    most = options.pop("most", 100)
    paces = [
        Pace(batch_size, share=Share(rank, ranks, exact), **options)
        for rank in range(ranks)
    ]
    return [
        planned(pace, Cursor(position, 0, False, Shuffled(length, 3)), most)
        for pace in paces
    ]


def all_rows(found):
    return sorted(row for batches, _ in found for batch in batches for row in batch)


def wanted(length, position):
    return [(0, at) for at in range(position, length)] + [
        (1, at) for at in range(length)
    ]


@settings(max_examples=40)
@given(SIZES)
def test_filled_up_all_ranks_get_as_many_batches_of_one_size_and_stand_at_one_place(
    sizes,
):
    found = by_rank(sizes, wrap=False, epochs=EPOCHS)
    assert len({tuple(map(len, batches)) for batches, _ in found}) == 1
    assert (
        len(
            {
                tuple((place.epoch, place.position) for place in places)
                for _, places in found
            }
        )
        == 1
    )
    rows = all_rows(found)
    once = wanted(sizes[0], sizes[3])
    assert set(once) <= set(rows)
    assert len(rows) - len(once) <= EPOCHS * (sizes[2] - 1), (
        "each epoch is filled up by fewer than there are ranks"
    )


@settings(max_examples=40)
@given(SIZES)
def test_exact_parts_are_each_sample_once(sizes):
    found = by_rank(sizes, wrap=False, epochs=EPOCHS, exact=True)
    assert all_rows(found) == wanted(sizes[0], sizes[3])


@settings(max_examples=40)
@given(SIZES)
def test_drop_last_leaves_out_the_short_step_for_all(sizes):
    found = by_rank(sizes, wrap=False, epochs=EPOCHS, drop_last=True)
    assert {len(batch) for batches, _ in found for batch in batches} <= {sizes[1]}
    assert len({len(batches) for batches, _ in found}) == 1
    rows = all_rows(found)
    assert len(rows) == len(set(rows))
    left_out = len(wanted(sizes[0], sizes[3])) - len(rows)
    assert left_out < EPOCHS * sizes[1] * sizes[2]


@settings(max_examples=40)
@given(SIZES)
def test_what_runs_on_from_epoch_to_epoch_is_cut_without_a_seam(sizes):
    found = by_rank(sizes, wrap=True, most=7)
    rows = all_rows(found)
    first = sizes[3]
    assert rows == [
        divmod(at, sizes[0]) for at in range(first, first + 7 * sizes[1] * sizes[2])
    ]


@settings(max_examples=40)
@given(SIZES, st.booleans(), st.booleans())
def test_batches_are_counted_as_they_come(sizes, drop_last, exact):
    length, batch_size, ranks, _ = sizes
    for rank in range(ranks):
        share = Share(rank, ranks, exact)
        batches, _ = planned(
            Pace(batch_size, False, 1, drop_last, share),
            Cursor(0, 0, False, Sequential(length)),
        )
        assert batches_of(length, batch_size, drop_last, share) == len(batches)


@settings(max_examples=40)
@given(
    SIZES,
    st.sampled_from(
        [{"wrap": True}, {"wrap": False}, {"wrap": False, "drop_last": True}]
    ),
    st.booleans(),
)
def test_what_lies_ahead_of_a_rank_is_what_will_be_planned_for_it(
    sizes, options, exact
):
    length, batch_size, ranks, position = sizes
    for rank in range(ranks):
        pace = Pace(
            batch_size,
            epochs=None if options["wrap"] else EPOCHS,
            share=Share(rank, ranks, exact),
            **options,
        )
        cursor = Cursor(position, 0, False, Shuffled(length, 3))
        batches, _ = planned(pace, cursor, 20)
        keys = [
            int(cursor.order.later(epoch).take(at, at + 1)[0])
            for batch in batches
            for epoch, at in batch
        ]
        found: list[int] = []
        while len(found) < len(keys) and len(
            piece := pace.beyond(cursor, len(found), min(len(found) + 7, len(keys)))
        ):
            found += piece
        assert found == keys


@settings(max_examples=60)
@given(
    st.integers(1, 60),
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 4)),
        min_size=1,
        max_size=4,
    ),
)
def test_any_number_of_ranks_goes_on_from_any_place_and_nothing_comes_twice_or_never(
    length, sittings
):
    """Each run has its own number of ranks, batch size and number of steps.

    The last one goes on to the epoch's end.
    """
    cursor = Cursor(0, 0, False, Shuffled(length, 3))
    rows = []
    for number, (ranks, batch_size, steps) in enumerate(sittings):
        is_last = number == len(sittings) - 1
        paces = [
            Pace(batch_size, False, 1, False, Share(rank, ranks, exact=True))
            for rank in range(ranks)
        ]
        found = [planned(pace, cursor, 100 if is_last else steps) for pace in paces]
        rows += all_rows(found)
        cursor = found[0][1][-1] if found[0][1] else cursor
        if cursor.epoch:
            break
    assert sorted(rows) == [(0, at) for at in range(length)]
