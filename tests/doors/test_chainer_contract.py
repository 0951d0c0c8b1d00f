"""All our iterators keep what Chainer's own tests check of its iterators."""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
import pickle
import signal

import numpy as np
import pytest
from brought_orders import Thirds
from scripts import Script, run

pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")

from chainer import iterators as theirs
from chainer import serializers

from mpiter import OptionError, StateError
from mpiter import chainer as ours
from mpiter.errors import IteratorClosed

pytestmark = pytest.mark.chainer

WAYS = {
    "multiprocess": (ours.MultiprocessIterator, {"n_processes": 1}),
    "multithread": (ours.MultithreadIterator, {"n_threads": 2}),
    "serial": (ours.SerialIterator, {}),
}
THEIRS = [
    (theirs.MultithreadIterator, True, {"n_threads": 1}),
    (theirs.SerialIterator, False, {}),
]


class Maker:
    """Makes iterators of one way, and finalizes them when the test is over."""

    def __init__(self, cls, options):
        self.cls = cls
        self.options = options
        self.made = contextlib.ExitStack()

    def __call__(self, dataset, batch_size=2, **options):
        return self.made.enter_context(
            self.cls(dataset, batch_size, **self.options, **options)
        )

    def owns(self, iterator):
        return self.made.enter_context(iterator)


@pytest.fixture(params=WAYS)
def make(request):
    maker = Maker(*WAYS[request.param])
    with maker.made:
        yield maker


# No worker has a part in what these tests check.
serially = pytest.mark.parametrize("make", ["serial"], indirect=True)


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_or_tuple_of_arrays_is_a_dataset_of_them(make, kind):
    rows = kind([np.arange(3), np.arange(3) + 5])
    it = make(rows, 2, repeat=False, shuffle=False)
    assert it.dataset is rows
    found = [[sample.tolist() for sample in batch] for batch in it]
    assert found == [[[0, 1, 2], [5, 6, 7]]]
    it.dataset = kind([np.arange(4), np.arange(4)])
    it.reset()
    assert [sample.tolist() for sample in it.next()] == [[0, 1, 2, 3]] * 2


def place(it):
    return it.epoch, it.epoch_detail, it.previous_epoch_detail, it.is_new_epoch


def taken(it, batches):
    return [list(it.next()) for _ in range(batches)]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


# -- epochs ----------------------------------------------------------------------------


def test_repeating_counts_epochs_at_each_step(make):
    it = make([1, 2, 3, 4, 5, 6])
    assert place(it) == (0, 0.0, None, False)
    for round_ in range(3):
        batches = []
        for at, (before, after) in enumerate([(0, 2), (2, 4), (4, 6)]):
            batches.append(it.next())
            assert type(batches[-1]) is list or isinstance(batches[-1], list)
            whole = at == 2
            assert place(it) == (
                round_ + whole,
                round_ + after / 6,
                round_ + before / 6,
                whole,
            )
        assert sorted(flat(batches)) == [1, 2, 3, 4, 5, 6]


def test_one_epoch_that_does_not_divide_ends_at_exactly_one(make):
    it = make([1, 2, 3, 4, 5], repeat=False)
    batches = []
    places = [place(it)]
    for _ in range(3):
        batches.append(list(it.next()))
        places.append(place(it))
    assert list(map(len, batches)) == [2, 2, 1]
    assert sorted(flat(batches)) == [1, 2, 3, 4, 5]
    assert places == [
        (0, 0.0, None, False),
        (0, 0.4, 0.0, False),
        (0, 0.8, 0.4, False),
        (1, 1.0, 0.8, True),
    ]
    for _ in range(2):
        with pytest.raises(StopIteration):
            it.next()
        assert place(it) == (1, 1.0, 1.0, True)
    assert it.current_position == 0


# -- copies and new beginnings ---------------------------------------------------------


def test_a_copy_goes_its_own_way(make):
    it = make([1, 2, 3, 4, 5], repeat=False)
    other = make.owns(copy.copy(it))
    assert type(other) is type(it)
    assert sorted(flat(taken(it, 3))) == [1, 2, 3, 4, 5]
    it.finalize()
    del it
    assert sorted(flat(taken(other, 3))) == [1, 2, 3, 4, 5]
    with pytest.raises(StopIteration):
        other.next()


def test_finalized_is_the_end_for_processes_only(make):
    it = make([1, 2, 3, 4, 5], repeat=False)
    taken(it, 3)
    it.finalize()
    it.finalize()
    if make.cls is ours.MultiprocessIterator:
        with pytest.raises(NotImplementedError):
            it.reset()
    else:
        it.reset()
        assert sorted(flat(taken(it, 3))) == [1, 2, 3, 4, 5]


# -- pickles and snapshots -------------------------------------------------------------


def saved(it):
    target = {}
    serializers.DictionarySerializer(target).save(it)
    return target


def restored(it, target):
    serializers.NpzDeserializer(target).load(it)
    return it


@serially
@pytest.mark.parametrize(
    ("position", "epoch", "guess"),
    [(0, 0, None), (2, 0, 0.0), (4, 0, 2 / 6), (0, 1, 4 / 6)],
)
def test_the_previous_place_is_guessed_where_an_old_snapshot_has_none(
    make, position, epoch, guess
):
    old = saved(make([1, 2, 3, 4, 5, 6], shuffle=False))
    del old["previous_epoch_detail"], old["mpiter_seed"]
    old.update(
        current_position=np.array(position),
        epoch=np.array(epoch),
        is_new_epoch=np.array(bool(epoch)),
    )
    it = restored(make([1, 2, 3, 4, 5, 6], shuffle=False), old)
    assert it.previous_epoch_detail == pytest.approx(guess)
    assert (it.current_position, it.epoch, it.is_new_epoch) == (
        position,
        epoch,
        bool(epoch),
    )
    assert (type(it.current_position), type(it.is_new_epoch)) == (int, bool)


@pytest.mark.parametrize(("cls", "shuffle", "options"), THEIRS)
def test_chainers_snapshots_load_into_ours(make, cls, shuffle, options):
    with cls(list(range(9)), 2, shuffle=shuffle, **options) as it:
        taken(it, 6)
        old = saved(it)
        mine = restored(make(list(range(9)), shuffle=shuffle), old)
        assert place(mine) == place(it)
        # The state holds the order of this epoch, so they agree up to its end.
        assert taken(mine, 3) == taken(it, 3)
        assert place(mine) == place(it)
    assert sorted(flat(taken(mine, 9))) == sorted(list(range(9)) * 2)


@pytest.mark.parametrize(("cls", "shuffle", "options"), THEIRS)
def test_our_snapshots_load_into_chainers(make, cls, shuffle, options):
    it = make(list(range(9)), shuffle=shuffle)
    taken(it, 6)
    with cls(list(range(9)), 2, shuffle=shuffle, **options) as other:
        restored(other, saved(it))
        assert place(other) == place(it)
        assert taken(other, 3) == taken(it, 3)


_HELP = """
import warnings
warnings.simplefilter("ignore")
import numpy, sys
if int(numpy.__version__[0]) >= 2 or sys.version_info >= (3, 12):
    import mpiter.chainer_compat
import chainer
"""
_THEIR_PROCESSES = """
    import chainer_where_it_needs_help
    from chainer import serializers
    from chainer.iterators import MultiprocessIterator

    def place():
        return it.epoch, it.epoch_detail, it.previous_epoch_detail, it.is_new_epoch

    it = MultiprocessIterator(list(range(9)), 2, n_processes=1)
    serializers.load_npz("ours.npz", it)
    print([place(), [it.next() for _ in range(3)]])
    serializers.save_npz("theirs.npz", it)
    print([place(), [it.next() for _ in range(3)]])
    it.finalize()
"""


@pytest.mark.parametrize("make", ["multiprocess"], indirect=True)
def test_our_snapshots_load_into_chainers_processes_and_theirs_into_ours(
    make, tmp_path
):
    """Chainer's own MultiprocessIterator runs in a program of its own.

    It leaves shared memory behind.
    """
    it = make(list(range(9)))
    taken(it, 6)
    serializers.save_npz(str(tmp_path / "ours.npz"), it)
    (tmp_path / "chainer_where_it_needs_help.py").write_text(_HELP)
    loaded, saved = map(ast.literal_eval, run(tmp_path, _THEIR_PROCESSES).lines)
    assert loaded == [place(it), taken(it, 3)]
    other = make(list(range(9)))
    serializers.load_npz(str(tmp_path / "theirs.npz"), other)
    assert saved == [place(other), taken(other, 3)]


def test_after_a_snapshot_of_chainers_everything_else_travels_too(make):
    it = theirs.SerialIterator(list(range(9)), 2)
    taken(it, 2)
    first = restored(make(list(range(9))), saved(it))
    by_state = make(list(range(9)))
    by_snapshot = make(list(range(9)))
    by_state.load_state_dict(first.state_dict())
    restored(by_snapshot, saved(first))
    by_pickle = make.owns(pickle.loads(pickle.dumps(first)))
    by_copy = make.owns(copy.copy(first))
    following = taken(first, 8)
    assert [
        taken(other, 8) for other in (by_state, by_snapshot, by_pickle, by_copy)
    ] == [following] * 4


def test_a_snapshot_that_cannot_be_is_refused(make):
    it = make([1, 2, 3, 4, 5, 6], shuffle=False)
    taken(it, 1)
    for wrong in (
        {"current_position": np.array(6)},
        {"current_position": np.array(-1)},
        {"epoch": np.array(-1)},
        {"previous_epoch_detail": np.array(np.nan)},
        {"mpiter_seed": np.full(17, 127, np.uint8)},
    ):
        with pytest.raises(ValueError, match="snapshot"):
            restored(it, {**saved(it), **wrong})
    assert taken(it, 2) == [[3, 4], [5, 6]]


@serially
def test_a_snapshot_whose_order_does_not_fit_the_dataset_is_refused(make):
    it = make([1, 2, 3])
    for order in ([0, 1, 2, 3], [0, 1, 3], [0]):
        with pytest.raises(
            ValueError, match=r"snapshot of .* order that does not fit the dataset"
        ):
            restored(it, {**saved(it), "order": np.array(order)})
    assert sorted(flat(taken(it, 3))) == [1, 1, 2, 2, 3, 3]


@serially
def test_a_snapshot_without_an_order_is_refused_by_an_iterator_that_shuffles(make):
    with pytest.raises(KeyError, match="order"):
        restored(
            make([1, 2, 3]),
            {k: v for k, v in saved(make([1, 2, 3])).items() if "order" not in k},
        )
    for unshuffled in (
        make([1, 2, 3], shuffle=False),
        theirs.MultithreadIterator([1, 2, 3], 2, shuffle=False),
    ):
        it = make([1, 2, 3])
        with pytest.raises(KeyError, match="order: the snapshot has none"):
            restored(it, saved(unshuffled))
        unshuffled.finalize()
        assert place(it) == (0, 0.0, None, False)
        assert sorted(flat(taken(it, 3))) == [1, 1, 2, 2, 3, 3]


@serially
def test_a_snapshot_from_beyond_the_only_epoch_is_of_the_end(make):
    far = make([1, 2, 3])
    taken(far, 4)
    it = restored(make([1, 2, 3], repeat=False), saved(far))
    with pytest.raises(StopIteration):
        it.next()


# -- changed while in use --------------------------------------------------------------


def test_what_chainers_let_one_change_ours_do_too(make):
    def stream(it, repeat):
        found = taken(it, 2)
        it.batch_size = 3
        found += taken(it, 2)
        it.dataset = list("abcdefg")
        found += taken(it, 3)
        setattr(it, repeat, False)
        assert not it.repeat
        found += [list(batch) for batch in it]
        it.reset()
        return found + [list(batch) for batch in it]

    mine = make([1, 2, 3, 4, 5, 6, 7], shuffle=False)
    found = stream(mine, "repeat")
    assert found == stream(
        theirs.SerialIterator([1, 2, 3, 4, 5, 6, 7], 2, shuffle=False), "_repeat"
    )
    assert (mine.batch_size, mine.dataset, mine.epoch) == (3, list("abcdefg"), 1)


def test_a_dataset_of_another_length_has_an_order_of_its_own(make):
    it = make(list(range(6)))
    taken(it, 1)
    it.dataset = list(range(10))
    assert (it.epoch, it.current_position, it._epoch_size) == (0, 2, 10)
    assert len(flat(taken(it, 4))) == 8
    assert it.is_new_epoch
    assert sorted(flat(taken(it, 5))) == list(range(10))


@pytest.mark.parametrize("make", ["multiprocess", "serial"], indirect=True)
def test_a_change_is_checked_as_the_argument_is(make):
    it = make([1, 2, 3, 4], shuffle=False)
    taken(it, 1)
    for name, wrong in (
        ("batch_size", 0),
        ("batch_size", 1.5),
        ("dataset", 5),
        ("dataset", []),
        ("order_sampler", 5),
    ):
        with pytest.raises(OptionError):
            setattr(it, name, wrong)
    assert taken(it, 1) == [[3, 4]]
    it.finalize()
    if type(it) is not ours.MultiprocessIterator:
        return
    it.batch_size = 3
    with pytest.raises(IteratorClosed):
        it.next()


def test_without_a_sampler_the_dataset_is_read_in_sequence(make):
    it = make([1, 2, 3, 4], order_sampler=lambda order, at: np.array([3, 2, 1, 0]))
    assert taken(it, 1) == [[4, 3]]
    it.order_sampler = None
    assert it.order_sampler is None
    assert taken(it, 3) == [[3, 4], [1, 2], [3, 4]]
    it.order_sampler = lambda order, at: np.array([1, 1, 1, 1])
    assert taken(it, 3) == [[1, 2], [3, 4], [2, 2]]
    it.reset()
    assert taken(it, 1) == [[2, 2]]


@serially
def test_unless_it_shuffles_the_global_generator_is_left_alone(make):
    def next_number(**options):
        np.random.seed(5)
        make([1, 2, 3], **options)
        return np.random.rand()

    np.random.seed(5)
    untouched = np.random.rand()
    assert next_number(shuffle=False) == next_number(seed=3) == untouched
    assert next_number() != untouched


# -- order samplers --------------------------------------------------------------------


def test_the_order_decides_how_long_an_epoch_is(make):
    it = make(
        [1, 2, 3, 4, 5, 6],
        order_sampler=lambda order, at: np.array([0, 0, 1, 2, 3, 4, 5, 5]),
    )
    assert it._epoch_size == 8
    assert flat(taken(it, 4)) == [1, 1, 2, 3, 4, 5, 6, 6]
    assert place(it) == (1, 1.0, 6 / 8, True)


def test_starting_over_goes_on_with_the_random_state_where_the_user_is(make):
    """It doesn't matter how many orders the loop has drawn ahead of the user.

    So ranks that share a seed stay in step.
    """

    def stream(it):
        found = taken(it, 7)
        it.reset()
        return found + taken(it, 9)

    def sampler():
        return theirs.ShuffleOrderSampler(np.random.RandomState(7))

    serial = theirs.SerialIterator(list(range(12)), 4, order_sampler=sampler())
    assert stream(make(list(range(12)), 4, order_sampler=sampler())) == stream(serial)


# -- threads, signals, patience --------------------------------------------------------


_INTERRUPTED = """
    import chainer_where_it_needs_help
    from mpiter.chainer import MultithreadIterator

    class Endless:
        def __len__(self):
            return 100
        def __getitem__(self, index):
            if index == 40:
                import time
                time.sleep(600)
            return index

    it = MultithreadIterator(Endless(), 4, shuffle=False)
    it.next()
    print("first", flush=True)
    while True:
        it.next()
"""


def test_ctrl_c_ends_a_program_whose_threads_are_stuck(tmp_path):
    (tmp_path / "chainer_where_it_needs_help.py").write_text(_HELP)
    script = Script(tmp_path, _INTERRUPTED)
    script.reads("first")
    script.ctrl_c()
    outcome = script.ends()
    assert outcome.code in (1, 130, -signal.SIGINT), outcome
    assert "KeyboardInterrupt" in outcome.err
    assert outcome.left_running == []


def test_a_snapshot_has_the_place_in_an_order_that_the_dataset_brings(make, tmp_path):
    def numbers(it):
        return [number for _, number in it.next()]

    it = make(Thirds(20), 7, seed=0)
    wanted = Thirds(20).expected(2)
    numbers(it)
    serializers.save_npz(tmp_path / "one.npz", it)
    other = make(Thirds(20), 5, seed=1)
    serializers.load_npz(tmp_path / "one.npz", other)
    assert numbers(other) == wanted[7:12]
    with pytest.raises(StateError, match="order_length=20"):
        serializers.load_npz(tmp_path / "one.npz", make(Thirds(21), 5))
    serializers.save_npz(tmp_path / "other.npz", make(list(range(20))))
    with pytest.raises(StateError, match="brings no order"):
        serializers.load_npz(tmp_path / "other.npz", other)
    assert numbers(other) == wanted[12:17]
