"""A sample that travels through a room comes back as it was.

It is writable and private, and fills its own row only.
"""

from __future__ import annotations

import contextlib
import pickle
import threading

import numpy as np
import pytest
from datasets import Built
from hypothesis import given, settings
from hypothesis import strategies as st
from journeys import CANARY, CELLS, Journey
from samples import Point, arrays_in, assert_same, leaves, like, samples

import mpiter
from mpiter.datasets import ship
from mpiter.samples.batch import Stacker, collate, columns_of, samples_of
from mpiter.samples.envelope import Sealing
from mpiter.samples.rows import Rows
from mpiter.samples.tree import Aside, Group, describe
from mpiter.worker.board import CELL
from mpiter.worker.sheets import Unsendable


def travelled(batch, **options):
    return Journey(batch, **options).write().read()


def opened(*values):
    """Return what objects become that travel sealed."""
    sealing = Sealing()
    for value in values:
        sealing.add(value)
    return pickle.loads(pickle.dumps(sealing.sealed(), 5)).open()


some_rows = st.integers(1, 4)
ways = st.fixed_dictionaries({"travels": st.booleans(), "copy": st.booleans()})


@settings(max_examples=80)
@given(first=samples, at_once=some_rows, way=ways, seeded=st.booleans(), data=st.data())
def test_batches_of_like_samples_come_back_as_they_were(
    first, at_once, way, seeded, data
):
    batch = [
        first,
        *(like(data.draw, first) for _ in range(data.draw(st.integers(0, 3)))),
    ]
    got = Journey(batch, **way).write(at_once, seeded=seeded).read()
    for one, other in zip(batch, got, strict=True):
        assert_same(one, other)
    for array in arrays_in(got):
        assert array.flags.writeable


@settings(max_examples=50)
@given(batch=st.lists(samples, min_size=1, max_size=4), at_once=some_rows, way=ways)
def test_batches_of_anything_come_back_as_they_were(batch, at_once, way):
    for one, other in zip(
        batch, Journey(batch, **way).write(at_once).read(), strict=True
    ):
        assert_same(one, other)


VALUES = {
    "plain": ["a", None, b"b", 3, "a", 0.5],
    "others": ["a", [1], {"b": 2}, None, (3,), np.arange(3)],
}


@pytest.mark.parametrize("at_once", [1, 4, 6])
@pytest.mark.parametrize("values", VALUES)
def test_rows_read_together_come_back_as_they_were(values, at_once):
    whole = VALUES[values]
    batch = [{"n": np.int64(row), "value": value} for row, value in enumerate(whole)]
    journey = Journey(batch)
    # A sample shows what the others are like, and of these the second is a list.
    for first in range(0, len(batch), at_once):
        some = whole[first : first + at_once]
        sheet = journey.sheet(first, len(some))
        columns = {"n": np.arange(first, first + len(some)), "value": some}
        assert sheet.together(0, Rows(columns, len(some)))
        journey.arrive(first, len(some), sheet)
    contents = journey.contents()
    for one, other in zip(batch, samples_of(contents), strict=True):
        assert_same(one, other)
    for one, other in zip(whole, columns_of(contents)["value"], strict=True):
        assert_same(one, other)


def test_rows_of_two_stretches_are_read_into_one_sheet():
    words = ["a", "b", "c"]
    journey = Journey([{"word": word, "n": 0.5} for word in words])
    sheet = journey.sheet(0, 3)
    assert sheet.together(0, Rows({"word": words[:2], "n": [0.5, 0.5]}, 2))
    assert sheet.together(2, Rows({"word": words[2:], "n": [0.5]}, 1))
    journey.arrive(0, 3, sheet)
    assert [sample["word"] for sample in journey.read()] == words


def test_rows_read_together_share_nothing_that_can_be_changed():
    shared = [1]
    journey = Journey([{"value": shared, "n": 0.5}] * 2)
    sheet = journey.sheet(0, 2)
    assert sheet.together(0, Rows({"value": [shared, shared], "n": [0.5, 0.5]}, 2))
    journey.arrive(0, 2, sheet)
    one, other = journey.read()
    one["value"].append(2)
    assert other["value"] == [1]


@settings(max_examples=80)
@given(leaf=leaves)
def test_every_leaf_comes_back_alone(leaf):
    assert_same(leaf, travelled([leaf])[0])
    assert_same(leaf, opened(leaf)[0])


@settings(max_examples=40)
@given(first=samples, at_once=some_rows, travels=st.booleans(), data=st.data())
def test_nothing_is_written_beyond_the_rows_own_share(first, at_once, travels, data):
    batch = [like(data.draw, first) for _ in range(3)] + [data.draw(samples)]
    journey = Journey(batch, first=first, spare=2, travels=travels)
    journey.write(at_once, start=1)
    ours = np.zeros(len(journey.memory.map), bool)
    for leaf, at in journey.layout.leaves:
        size = leaf.size(1)
        ours[at + size : at + 5 * size] = True
    written = np.frombuffer(journey.memory.map, np.uint8) != CANARY
    assert not (written & ~ours).any()


@pytest.mark.parametrize("travels", [False, True])
def test_a_sample_that_cannot_be_sent_leaves_no_trace(travels):
    """The board names the row, and the worker goes on with the next one."""
    batch = [(1, "a"), (2, [np.ones(5000), threading.Lock()]), (3, np.ones(5000))]
    journey = Journey(batch, travels=travels)
    keys = iter(range(3))
    sheet = journey.sheet(0, 3)
    with pytest.raises(Unsendable) as caught:
        sheet.fetch(batch, keys, 0, False)
    assert "cannot pickle" in str(caught.value.__cause__)
    assert CELLS[CELL.row] == 1
    sheet.fetch(batch, keys, 2, False)
    journey.arrive(0, 3, sheet)
    first, last = samples_of(journey.contents(frozenset({1})))
    assert first == batch[0]
    assert_same(last, batch[2])


def test_samples_are_private_to_their_batch():
    mine = [(np.zeros(3), np.zeros(2), [np.zeros(1)], np.ma.zeros(2)) for _ in range(2)]
    got = travelled(mine)
    for array in arrays_in(got):
        array[...] = 1
    assert not any(array.any() for array in arrays_in(mine))
    assert not np.shares_memory(got[0][0], got[1][0])


@pytest.mark.parametrize("shape", [(2, 3), (4,)], ids=["fits", "odd"])
def test_a_read_only_array_comes_back_writable(shape):
    frozen = np.ones(shape)
    frozen.flags.writeable = False
    for value in travelled([np.zeros((2, 3)), frozen]):
        value[...] = 5
    assert frozen.sum() == frozen.size


def test_a_copy_does_not_see_the_room_any_more():
    journey = Journey(
        [(np.ones(3), "text", np.ones(2)), (np.ones(4), "odd", np.ones(2))], copy=True
    ).write()
    got = journey.read()
    journey.memory.map[:] = bytes(len(journey.memory.map))
    assert all(array.all() for array in arrays_in(got))


@settings(max_examples=50)
@given(first=samples, count=st.integers(1, 3), data=st.data())
def test_columns_hold_what_the_samples_hold(first, count, data):
    batch = [first, *(like(data.draw, first) for _ in range(count))]
    if isinstance(describe(first), Group) or isinstance(first, np.ndarray):
        assert_rows_same(batch, columns_of(Journey(batch).write().contents()))


def assert_rows_same(batch, columns):
    first = batch[0]
    if isinstance(describe(first), Aside) or not isinstance(describe(first), Group):
        assert len(columns) == len(batch)
        for row, sample in enumerate(batch):
            if isinstance(columns, list):
                assert_same(sample, columns[row])
            elif isinstance(columns, np.ndarray):
                # The index with ``...`` keeps the dtype of an array without dimensions.
                assert_same(np.asarray(sample, columns.dtype), columns[row, ...])
    else:
        assert type(columns) is type(first)
        for of_samples, column in zip(
            zip(*map(parts, batch), strict=True), parts(columns), strict=True
        ):
            assert_rows_same(of_samples, column)


def parts(container):
    if isinstance(container, dict):
        return list(container.values())
    return list(container)


def test_columns_of_samples_that_disagree_are_lists():
    batch = [(np.zeros(2), 1), (np.zeros(3), 2), (np.zeros(2), 1 << 80)]
    images, labels = columns_of(Journey(batch).write().contents())
    assert [image.shape for image in images] == [(2,), (3,), (2,)]
    assert labels == [1, 2, 1 << 80]
    with pytest.raises(
        TypeError, match="the samples of this batch are built differently"
    ):
        collate([(1, 2), (1, 2, 3)])
    with pytest.raises(
        TypeError, match="the samples of this batch are built differently"
    ):
        collate([{1: 2}, {True: 2}])


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (True, np.True_), (1, np.int64(1)), (0.5, np.float64(0.5))],
)
def test_a_number_of_another_type_is_never_cast(one, other):
    for first, second in [(one, other), (other, one)]:
        got = travelled([{"n": first}, {"n": second}])
        assert [type(sample["n"]) for sample in got] == [type(first), type(second)]


def test_keys_that_python_calls_equal_keep_their_types_and_their_order():
    batch = [
        {1: 0, "b": 1},
        {True: 0, "b": 1},
        {1.0: 0, "b": 1},
        {"b": 1, 1: 0},
        {1: 0, np.str_("b"): 1},
    ]
    for sent, got in zip(batch, travelled(batch), strict=True):
        assert_same(sent, got)


def test_cycles_deep_nesting_and_what_unfolds_without_end_come_back():
    cycle = [1]
    deep = 0
    folded = np.zeros(1)
    cycle.append(cycle)
    for _ in range(100):
        deep = [deep]
    for _ in range(30):
        folded = (folded, folded)
    got = travelled([(1, cycle)])[0]
    assert got[1][1] is got[1]
    assert travelled([deep, deep]) == [deep, deep]
    assert travelled([list(range(300))]) == [list(range(300))]
    got = travelled([folded])[0]
    while isinstance(got, tuple):
        assert got[0] is got[1]
        got = got[0]


def test_only_the_rows_that_do_not_fit_are_odd_whatever_their_size():
    batch = [np.ones((count, 4)) for count in (2, 0, 2, 100, 5000)]
    contents = Journey(batch).write().contents()
    assert list(contents.odd) == [1, 3, 4]
    for sent, got in zip(batch, samples_of(contents), strict=True):
        assert_same(sent, got)


def test_what_plain_pickle_cannot_send_comes_back_and_so_does_what_stands_beside_it():
    def function():
        return 7

    array = np.arange(100)
    sent = [array, (array, function, array + 1), array]
    for got in (opened(*sent), travelled(sent)):
        assert got[1][1]() == 7
        assert all(
            (found == array).all()
            for found in (got[0], got[1][0], got[1][2] - 1, got[2])
        )


def test_rows_have_nothing_in_common_even_if_they_came_from_one_object():
    shared = {"of all samples"}
    got = travelled([(shared, "x", shared) for _ in range(3)])
    assert [sample[0] is sample[2] for sample in got] == [True] * 3
    assert len({id(sample[0]) for sample in got}) == 3


LIBRARIES = {
    "StringDType": lambda: np.array(
        ["a", "long enough to lie elsewhere", ""], np.dtypes.StringDType()
    ),
    "matrix": lambda: np.matrix([[1, 2], [3, 4]]),
    "ml_dtypes": lambda: np.arange(4).astype(pytest.importorskip("ml_dtypes").bfloat16),
    "Pillow": lambda: pytest.importorskip("PIL.Image").fromarray(
        np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    ),
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.torch] * (kind == "ml_dtypes"))
        for kind in LIBRARIES
    ],
)
def test_what_libraries_make_comes_back(kind):
    if kind == "StringDType" and not hasattr(getattr(np, "dtypes", None), kind):
        pytest.skip("StringDType came with NumPy 2.0; run this with a newer NumPy")
    sent = LIBRARIES[kind]()
    got = travelled([(sent, 1), (sent, 2)])[1][0]
    assert type(got) is type(sent)
    assert getattr(got, "dtype", None) == getattr(sent, "dtype", None)
    assert np.asarray(got).tolist() == np.asarray(sent).tolist()


@pytest.mark.torch
def test_torch_tensors_come_back_as_tensors():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: pip install 'mpiter[torch]'"
    )
    plain = [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.zeros(0, 2),
        torch.tensor([True]),
        torch.ones(2).byte(),
    ]
    special = [
        torch.ones(2, requires_grad=True),
        torch.ones(2).bfloat16(),
        torch.tensor(3),
        torch.eye(2).to_sparse(),
    ]
    special += [
        torch.nn.Parameter(torch.ones(1)),
        torch.ones(2, dtype=torch.complex64).conj(),
    ]
    got = travelled([(*plain, *special)] * 2)
    for sent, received in zip((*plain, *special), got[1], strict=True):
        assert type(received) is type(sent)
        assert received.dtype == sent.dtype
        assert received.layout == sent.layout
        assert received.requires_grad == sent.requires_grad
        assert torch.equal(received.to_dense(), sent.to_dense())
    columns = columns_of(Journey([(plain[0], 1)] * 3).write().contents())
    assert type(columns[0]) is torch.Tensor
    assert columns[0].shape == (3, 3, 2)
    got[0][0][...] = 7
    assert plain[0].max() == 5


@pytest.mark.parametrize("text", [np.bytes_(b"a\0\0"), np.str_("a\0")])
def test_numpys_text_keeps_the_zeros_at_its_end(text):
    """NumPy neither compares nor pickles them."""
    plain = bytes if isinstance(text, bytes) else str.__str__
    for sample in ([text], {text: 1}, np.array([text], object)):
        with contextlib.closing(ship.Shipment((sample, None))) as shipment:
            for got in (travelled([sample, sample])[1], shipment.open(pytest.fail)[0]):
                (part,) = got
                assert (type(part), plain(part)) == (type(text), plain(text))


VARIED = [
    *(
        1,
        2.0,
        True,
        1 << 70,
        "a",
        None,
        np.float32(1),
        np.int64(1),
        np.zeros(2),
        np.zeros(3),
        np.zeros(2, "f4"),
    ),
    *(
        (1, 2),
        (1, "a"),
        (1.0, 2),
        (np.zeros(2), 1),
        (np.zeros(3), 1),
        (np.zeros(2), None),
        [1, 2],
        [1],
        [1, 2, 3],
    ),
    *(
        {"a": 1},
        {"a": 1.0},
        {"b": 1},
        {"a": np.zeros(2)},
        Point(1, 2),
        np.str_("ab"),
        np.bytes_(b"abc"),
    ),
]


@settings(max_examples=50)
@given(
    batches=st.lists(
        st.lists(st.sampled_from(VARIED), min_size=1, max_size=3),
        min_size=2,
        max_size=6,
    )
)
def test_a_batch_is_stacked_in_the_same_way_whatever_came_before_it(batches):
    stacks = Stacker()
    for batch in batches:
        try:
            alone = collate(batch)
        except TypeError:
            with pytest.raises(TypeError):
                collate(batch, stacks=stacks)
            continue
        assert_same(collate(batch, stacks=stacks), alone)


@pytest.mark.parametrize("serializer", ["slots", "packed"])
def test_a_leaf_whose_shape_varies_steps_aside_after_a_while(serializer):
    dataset = Built(
        lambda index: (np.full(3 if index % 3 == 0 else 4, index), index), 200
    )
    options = {
        "n_processes": 1,
        "shuffle": False,
        "repeat": False,
        "serializer": serializer,
    }
    with mpiter.MultiprocessIterator(dataset, 4, **options) as it:
        batches = [next(it) for _ in range(20)]
        odd = it.stats().odd_rows
        batches += it
        assert it.stats().odd_rows == odd > 0
    for index, got in enumerate(sample for batch in batches for sample in batch):
        assert_same(dataset[index], got)
    assert isinstance(batches[-1].columns[0], list)
    assert isinstance(batches[-1].columns[1], np.ndarray)
