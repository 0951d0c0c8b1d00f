"""A sample's journey through a room: whatever goes in comes back as it was, writable, private, within its own row."""

from __future__ import annotations

import collections
import dataclasses
import pickle
import threading
import tracemalloc
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Plain, Point, arrays_in, assert_same, leaves, like, samples

from mpiter.datasets import ship
from mpiter.samples import envelope
from mpiter.samples.batch import Stacker, collate, columns_of, samples_of
from mpiter.samples.envelope import Apart, open_envelope, opened, seal
from mpiter.samples.fitting import Fitting, collect
from mpiter.samples.jsonable import decoded, encoded
from mpiter.samples.layout import Layout, Pen, RowState
from mpiter.samples.leaves import Aside
from mpiter.samples.rows import Rows
from mpiter.samples.tree import Group, describe, merge
from mpiter.transport.transport import LoosePen
from mpiter.transport.transports import RowPen, _PrivateRoom

CANARY = 0xA5


class Journey:
    """What a worker and the consumer do with one batch, without either."""

    def __init__(self, batch, first=None, margin=0, extra_rows=0, together=False):
        self.together = together
        tree = describe(batch[0] if first is None else first)
        self.layout = pickle.loads(pickle.dumps(Layout(tree, len(batch) + extra_rows, margin)))
        self.batch, self.room = batch, bytearray([CANARY]) * (self.layout.size + 64)
        self.larges = {}

    @property
    def pen(self):
        return Pen(self.layout, memoryview(self.room)[: self.layout.size], together=self.together)

    def write(self, at_once=1, start=0):
        for row in range(0, len(self.batch), at_once):
            self.larges.update(self.pen.write(start + row, self.batch[row : row + at_once]))
        return self

    def contents(self, copy=False):
        room = memoryview(self.room)[: self.layout.size]
        return collect(self.layout, room, len(self.batch), self.larges, frozenset(), copy)

    def read(self, copy=False):
        return samples_of(self.contents(copy))


def travelled(batch, **options):
    at_once = options.pop("at_once", 1)
    return Journey(batch, **options).write(at_once).read()


margins = st.sampled_from([0, 256, 4096])


@settings(max_examples=200)
@given(first=samples, margin=margins, at_once=st.integers(1, 4), copy=st.booleans(), data=st.data())
def test_batches_of_like_samples_come_back_as_they_were(first, margin, at_once, copy, data):
    batch = [first, *(like(data.draw, first) for _ in range(data.draw(st.integers(0, 3))))]
    got = Journey(batch, margin=margin).write(at_once).read(copy)
    for one, other in zip(batch, got, strict=True):
        assert_same(one, other)
    for array in arrays_in(got):
        assert array.flags.writeable


@settings(max_examples=200)
@given(batch=st.lists(samples, min_size=1, max_size=4), margin=margins, at_once=st.integers(1, 4))
def test_batches_of_anything_come_back_as_they_were(batch, margin, at_once):
    for one, other in zip(batch, travelled(batch, margin=margin, at_once=at_once), strict=True):
        assert_same(one, other)


@settings(max_examples=200)
@given(leaf=leaves)
def test_every_leaf_comes_back_alone(leaf):
    assert_same(leaf, travelled([leaf])[0])
    assert_same(leaf, open_envelope(memoryview(seal([leaf]).part(0, 1).bytes()))[0])


@settings(max_examples=100)
@given(first=samples, margin=margins, at_once=st.integers(1, 3), data=st.data())
def test_nothing_is_written_beyond_the_rows_own_share(first, margin, at_once, data):
    batch = [like(data.draw, first) for _ in range(3)] + [data.draw(samples)]
    journey = Journey(batch, first=first, margin=margin, extra_rows=2)
    layout, start = journey.layout, 1
    journey.write(at_once, start=start)
    ours = np.zeros(len(journey.room), bool)
    for row in range(start, start + 4):
        ours[row] = True
        ours[layout.lengths_at + 4 * row : layout.lengths_at + 4 * row + 4] = True
        ours[layout.margin_at + margin * row : layout.margin_at + margin * (row + 1)] = True
        for shape, dtype, at in layout.leaves:
            size = dtype.itemsize * int(np.prod(shape))
            ours[at + size * row : at + size * (row + 1)] = True
    written = np.frombuffer(journey.room, np.uint8) != CANARY
    assert not (written & ~ours).any()


def test_the_state_is_written_last_so_that_a_row_that_fails_half_way_is_not_done():
    journey = Journey([(np.zeros(3), 1)])
    journey.room[0] = RowState.TODO

    class Unsendable:
        def __reduce__(self):
            raise TypeError("no")

    with pytest.raises(TypeError):
        journey.pen.write(0, [(np.ones(3), Unsendable())])
    assert journey.room[0] == RowState.TODO


def test_samples_are_private_to_whoever_received_them():
    mine = [(np.zeros(3), np.zeros(2), [np.zeros(1)], np.ma.zeros(2)) for _ in range(2)]
    got = travelled(mine, at_once=2)
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
    journey = Journey([(np.ones(3), "text", np.ones(2)), (np.ones(4), "odd", np.ones(2))], margin=4096).write()
    got = journey.read(copy=True)
    journey.room[:] = bytes(len(journey.room))
    assert all(array.all() for array in arrays_in(got))


@settings(max_examples=100)
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
            elif isinstance(columns, np.ndarray):  # … keeps the dtype of what has no dimensions
                assert_same(np.asarray(sample, columns.dtype), columns[row, ...])
    else:
        assert type(columns) is type(first)
        for of_samples, column in zip(zip(*map(parts, batch), strict=True), parts(columns), strict=True):
            assert_rows_same(of_samples, column)


def parts(container):
    if dataclasses.is_dataclass(container):
        return [getattr(container, field.name) for field in dataclasses.fields(container)]
    return list(container.values()) if isinstance(container, dict) else list(container)


def test_columns_of_samples_that_disagree_are_lists():
    batch = [(np.zeros(2), 1), (np.zeros(3), 2), (np.zeros(2), 1 << 80)]
    images, labels = columns_of(Journey(batch).write().contents())
    assert [image.shape for image in images] == [(2,), (3,), (2,)]
    assert labels == [1, 2, 1 << 80]
    with pytest.raises(TypeError, match="the samples of this batch are built differently"):
        collate([(1, 2), (1, 2, 3)])
    with pytest.raises(TypeError, match="the samples of this batch are built differently"):
        collate([{1: 2}, {True: 2}])


trees = samples.map(describe)


@settings(max_examples=200)
@given(sample=samples, other=samples, data=st.data())
def test_a_merged_tree_fits_both_and_merging_again_changes_nothing(sample, other, data):
    one = describe(sample)
    assert merge(one, one) == one
    for second in (other, like(data.draw, sample)):
        merged = merge(one, describe(second))
        if merged is None:
            assert isinstance(one, Group)
            continue
        assert merge(merged, one) == merged == merge(merged, describe(second))
        layout = Layout(merged, 2)
        pen = Pen(layout, memoryview(bytearray(layout.size)))
        pen.write(0, [sample, second])
        assert bytes(pen.states) == bytes([RowState.DONE] * 2)


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (True, np.True_), (1, np.int64(1)), (0.5, np.float64(0.5))]
)
def test_a_number_of_another_type_is_never_cast(one, other):
    for first, second in [(one, other), (other, one)]:
        got = travelled([{"n": first}, {"n": second}], at_once=2)
        assert [type(sample["n"]) for sample in got] == [type(first), type(second)]


def test_keys_that_python_calls_equal_keep_their_types_and_their_order():
    batch = [{1: 0, "b": 1}, {True: 0, "b": 1}, {1.0: 0, "b": 1}, {"b": 1, 1: 0}, {1: 0, np.str_("b"): 1}]
    for sent, got in zip(batch, travelled(batch, at_once=5), strict=True):
        assert_same(sent, got)


class WithSlot:
    __slots__ = ("extra",)


@dataclasses.dataclass(slots=True)
class SlotBelow(WithSlot):
    a: int


@dataclasses.dataclass
class IsDict(dict):
    a: int


def test_a_dataclass_that_is_more_than_its_fields_keeps_the_rest():
    slotted, mapping, loose = SlotBelow(1), IsDict(1), Plain(1, 2)
    slotted.extra, mapping["k"], loose.more = 5, 6, 7
    got = travelled([(slotted, mapping, loose)])[0]
    assert (got[0].extra, got[1]["k"], got[2].more) == (5, 6, 7)


def test_a_dataclass_is_not_constructed_again():
    @dataclasses.dataclass
    class Counting:
        a: int

        def __post_init__(self):
            made.append(self)

    made = []
    sample = Counting(1)
    layout = Layout(describe(sample), 1)  # not pickled: the class is local
    pen = Pen(layout, memoryview(bytearray(layout.size)))
    pen.write(0, [sample])
    assert made == [sample]


def test_cycles_and_deep_nesting_come_back():
    cycle = [1]
    cycle.append(cycle)
    got = travelled([(1, cycle)])[0]
    assert got[1][1] is got[1]
    deep = 0
    for _ in range(100):
        deep = [deep]
    assert travelled([deep, deep]) == [deep, deep]


def test_what_unfolds_without_end_is_sent_as_an_object():
    folded = np.zeros(1)
    for _ in range(30):
        folded = (folded, folded)
    assert isinstance(describe(folded), Aside)
    got = travelled([folded])[0]
    while isinstance(got, tuple):
        assert got[0] is got[1]
        got = got[0]
    assert isinstance(describe([[0] * 200] * 200), Aside)


def test_a_long_list_is_data_and_not_structure():
    assert isinstance(describe(list(range(300))), Aside)
    assert travelled([list(range(300))]) == [list(range(300))]


@pytest.mark.parametrize("margin", [0, 1 << 15])
def test_an_odd_row_lies_in_its_margin_or_goes_along(margin):
    batch = [np.zeros(2), np.arange(3000.0), np.zeros(2)]
    journey = Journey(batch, margin=margin).write(3)
    assert bool(journey.larges) == (not margin)
    contents = journey.contents()
    assert list(contents.odd) == [1]
    for one, other in zip(batch, samples_of(contents), strict=True):
        assert_same(one, other)


def test_rows_that_are_written_together_share_an_envelope_across_their_margins():
    batch = [(1, "a" * 500), (2, "b"), (3, "c")]
    journey = Journey(batch, margin=256).write(at_once=3)
    assert not journey.larges
    assert list(journey.pen.lengths) == [journey.pen.lengths[0], *np.frombuffer(bytes([CANARY] * 8), np.int32)]
    assert journey.read() == batch


def test_of_rows_that_do_not_fit_together_only_the_large_ones_go_along():
    batch = [(1, "a"), (2, "b" * 5000), (3, "c")]
    journey = Journey(batch, margin=256).write(at_once=3)
    assert list(journey.larges) == [1]
    assert journey.read() == batch


def test_where_there_is_no_margin_rows_go_along_together():
    batch = [(n, "a" * n) for n in range(7)]
    journey = Journey(batch, together=True).write(at_once=4)
    assert list(journey.larges) == [0, 4]
    assert journey.read() == batch


def test_not_so_many_go_along_together_that_one_of_them_keeps_much_memory():
    batch = [bytes(1 << 20) for _ in range(8)]
    journey = Journey(batch, together=True).write(at_once=8)
    assert list(journey.larges) == [0, 2, 4, 6]
    assert journey.read() == batch


def test_rows_that_do_not_fit_together_are_pickled_once_all_the_same():
    class Counted:
        def __init__(self, size):
            self.size = size

        def __reduce__(self):
            pickled.append(self)
            return bytes, (bytes(self.size),)

    pickled = []
    sizes = [10, 10, 10_000, 10, 20_000]
    journey = Journey([Counted(size) for size in sizes], margin=256).write(at_once=5)
    assert list(journey.larges) == [2, 4]
    assert [len(found) for found in journey.read()] == sizes
    assert len(pickled) == len(sizes)


def test_only_what_plain_pickle_cannot_send_is_sent_by_value(monkeypatch):
    asked = []

    class ByValue(envelope._ByValue):
        def dump(self, value):
            asked.append(value)
            super().dump(value)

    monkeypatch.setattr(envelope, "_ByValue", ByValue)
    function, array = (lambda: 7), np.arange(100)
    sent = [array, (function, array), array]
    got = open_envelope(memoryview(seal(sent).part(0, 3).bytes()))
    assert asked == [sent[1]]
    assert got[1][0]() == 7
    assert all((found == array).all() for found in (got[0], got[1][1], got[2]))


@pytest.mark.parametrize("given_up", range(4))
def test_a_row_that_was_given_up_is_not_read_though_somebody_had_written_it(given_up):
    fitting = Fitting(1 << 20, True, pickle.dumps)
    fitting.begin((0, "a name"))
    fitting.make_room(4)
    room = _PrivateRoom(fitting, 4)
    pen = Pen(fitting.layout, room._memory)
    pen.write(0, [(row, f"old {row}") for row in range(4)])  # by a worker that died before it could say so
    others = [row for row in range(4) if row != given_up]
    for row in others:
        pen.write(row, [(row, f"new {row}")])
    room.fail(given_up)
    assert samples_of(room.contents()) == [(row, f"new {row}") for row in others]


@pytest.mark.parametrize("margin", [0, 4096])
def test_rows_have_nothing_in_common_even_if_they_came_from_one_object(margin):
    shared = {"of all samples"}
    got = travelled([(shared, "x", shared) for _ in range(3)], margin=margin, at_once=3)
    assert [sample[0] is sample[2] for sample in got] == [True] * 3
    assert len({id(sample[0]) for sample in got}) == 3


def test_an_empty_array_does_not_make_its_neighbours_travel_in_line():
    batch = [np.ones((count, 4), np.float32) for count in (0, 500, 0, 100)]
    journey = Journey(batch, first=object(), margin=4096).write(at_once=4)
    got = journey.read()
    for sent, arrived in zip(batch, got, strict=True):
        assert_same(sent, arrived)
        assert not sent.size or np.shares_memory(arrived, np.frombuffer(journey.room, np.uint8))


def test_what_can_only_be_held_does_not_make_its_neighbours_be_held():
    layout = Layout(describe(object()), 3, margin=512)
    pen = Pen(layout, memoryview(bytearray(layout.size)), Apart)
    lock, lists = threading.Lock(), [["one"], ["two"]]
    larges = dict(pen.write(0, [lists[0], lock, lists[1]]))
    assert [*larges] == [1]
    assert opened(larges[1])[0] == (lock,)
    assert pen.asides(0)[0] == (lists[0],)
    assert pen.asides(0)[0][0] is not lists[0]
    assert pen.asides(2) == [(lists[1],)]


@pytest.mark.parametrize("sealer", [seal, Apart])
def test_samples_that_lie_in_columns_may_be_odd(sealer):
    layout = Layout(describe((0, "a name")), 3, margin=512)
    pen = Pen(layout, memoryview(bytearray(layout.size)), sealer)
    assert not pen.write(0, Rows((np.arange(3.0), ["a", "b", "c"]), 3))
    assert [pen.asides(row) for row in range(3)] == [[(0.0, "a")], [(1.0, "b")], [(2.0, "c")]]


def test_string_dtype_arrays_come_back():
    if not hasattr(np.dtypes if hasattr(np, "dtypes") else np, "StringDType"):
        pytest.skip("StringDType came with NumPy 2.0; run this with a newer NumPy")
    sent = np.array(["a", "long enough to lie elsewhere", ""], np.dtypes.StringDType())
    got = travelled([(sent, 1), (sent, 2)], at_once=2)[1][0]
    assert got.dtype == sent.dtype
    assert got.tolist() == sent.tolist()


def test_matrices_come_back_as_matrices():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        sent = np.matrix([[1, 2], [3, 4]])
        got = travelled([sent])[0]
    assert type(got) is np.matrix
    assert got.tolist() == sent.tolist()


def test_dtypes_whose_name_says_less_than_they_are_go_as_objects():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: pip install ml_dtypes")
    sent = np.arange(4).astype(ml_dtypes.bfloat16)
    got = travelled([sent])[0]
    assert got.dtype == sent.dtype
    assert got.tobytes() == sent.tobytes()


def test_pil_images_come_back():
    images = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'mpiter[images]'")
    sent = images.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    got = travelled([(sent, 1), (sent, 2)])[1][0]
    assert type(got) is type(sent)
    assert np.array_equal(np.asarray(got), np.asarray(sent))


@pytest.mark.torch
def test_torch_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'mpiter[torch]'")
    plain = [
        torch.arange(6.0).reshape(2, 3).t(),
        torch.zeros(0, 2),
        torch.tensor([True]),
        torch.ones(2, dtype=torch.int8),
    ]
    special = [
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor(3),
        torch.eye(2).to_sparse(),
    ]
    special += [torch.nn.Parameter(torch.ones(1)), torch.ones(2, dtype=torch.complex64).conj()]
    got = travelled([(*plain, *special)] * 2, at_once=2)
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


def test_containers_of_any_kind_keep_their_exact_type():
    batch = [Point(1, collections.OrderedDict(b=1, a=2)), Point(1, {"b": 1, "a": 2}), (1, {})]
    for sent, got in zip(batch, travelled(batch, at_once=3), strict=True):
        assert_same(sent, got)


def test_the_order_of_arrays_survives_what_plain_pickle_cannot_send():
    sent = (np.zeros(3), lambda: 1, np.ones(3))
    got = travelled([sent])[0]
    assert got[0].tolist() == [0, 0, 0]
    assert got[1]() == 1
    assert got[2].tolist() == [1, 1, 1]
    sealed = open_envelope(memoryview(seal([sent]).part(0, 1).bytes()))[0]
    assert sealed[2].tolist() == [1, 1, 1]


def test_a_large_sample_is_planned_without_a_copy_of_it():
    tracemalloc.start()
    try:
        for sample in (np.zeros(1 << 20), (np.zeros(1 << 20), "a name")):
            fitting = Fitting(1 << 30, True, pickle.dumps)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            fitting.begin(sample)
            assert tracemalloc.get_traced_memory()[1] - before < 1 << 20
            assert bool(fitting.layout.margin) == isinstance(sample, tuple)
    finally:
        tracemalloc.stop()


def test_a_large_sample_travels_beside_the_pickle_of_its_answer():
    large = np.zeros(1 << 20)
    pen = LoosePen()
    pen.write(0, [large])
    odd = RowPen(Pen(Layout(describe(0), 1), memoryview(bytearray(1 << 20))))
    odd.write(0, [large])
    for payload in (pen.payload(), odd.payload()):
        beside: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(payload, 5, buffer_callback=beside.append)
        assert len(pickled) < 4096
        ((_, sent),) = pickle.loads(pickled, buffers=beside)
        assert (opened(sent)[0] == large).all()


@given(value=st.binary(max_size=4).map(np.bytes_) | st.text(max_size=4).map(np.str_), zeros=st.integers(0, 3))
def test_numpys_bytes_and_strings_keep_the_zeros_at_their_end(value, zeros):
    long = type(value)(value + value[:0].ljust(zeros, b"\0" if isinstance(value, bytes) else "\0"))
    for sample in (long, [long], {"a": (long, 1)}, {long: 1}, np.array([long, 0], object)):
        plain = repr(plain_text(sample))
        assert repr(plain_text(travelled([sample, sample])[1])) == plain
        shipment = ship.Shipment((sample, None))
        try:
            assert repr(plain_text(shipment.open()[0])) == plain
        finally:
            shipment.close()
        if not isinstance(sample, np.ndarray):
            assert repr(plain_text(decoded(encoded(sample)))) == plain


def plain_text(value):
    """NumPy's own text as Python's, with its type: NumPy doesn't compare the zeros at its end."""
    if isinstance(value, (np.bytes_, np.str_)):
        return type(value).__name__, bytes(value) if isinstance(value, bytes) else str.__str__(value)
    if isinstance(value, dict):
        return [(plain_text(key), plain_text(part)) for key, part in value.items()]
    return [plain_text(part) for part in value] if isinstance(value, (list, tuple, np.ndarray)) else value


VARIED = [
    *(1, 2.0, True, 1 << 70, "a", None, np.float32(1), np.int64(1), np.zeros(2), np.zeros(3), np.zeros(2, "f4")),
    *((1, 2), (1, "a"), (1.0, 2), (np.zeros(2), 1), (np.zeros(3), 1), (np.zeros(2), None), [1, 2], [1], [1, 2, 3]),
    *({"a": 1}, {"a": 1.0}, {"b": 1}, {"a": np.zeros(2)}, Point(1, 2), np.str_("ab"), np.bytes_(b"abc")),
]


@settings(max_examples=300)
@given(batches=st.lists(st.lists(st.sampled_from(VARIED), min_size=1, max_size=3), min_size=2, max_size=6))
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
