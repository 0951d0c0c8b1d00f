"""Iterable datasets are read in shards and in order, and resumed exactly.

Nothing is lost when a worker dies.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import warnings

import numpy as np
import pytest
from loader_kinds import both_kinds, flat, loader_class

import mpiter
from mpiter import DataLoader, OptionError, StateError
from mpiter.samples.batch import collate as collate_arrays


class Counting:
    """A stream of 0, 1, 2, … that knows nothing of workers."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        for number in range(self.length):
            yield np.full(3, number), number


class Sharding(Counting):
    """A stream that gives each worker its own numbers."""

    def __iter__(self):
        info = mpiter.get_worker_info()
        for number in range(info.id, self.length, info.num_workers):
            yield np.full(3, number), number


class Unequal:
    """A stream of no element in worker 0, 4 in worker 1, and 20 in worker 2."""

    def __iter__(self):
        yield from range([0, 4, 20][mpiter.get_worker_info().id])


class Stateful(Counting):
    """A stream that saves and loads its place, and logs what it reads."""

    def __init__(self, length, log=None):
        super().__init__(length)
        self.at = 0
        self.log = log

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            if self.log:
                with open(self.log, "a") as log:
                    log.write(f"{self.at - 1}\n")
            yield np.full(3, self.at - 1), self.at - 1
        self.at = 0


class Falsy(Stateful):
    """A stream that is false, as one may be that has nothing left."""

    def __bool__(self):
        return False


class ItsIterator:
    """A stream whose iterator saves and loads its place."""

    class _Iterator:
        def __init__(self, length):
            self.at = 0
            self.length = length

        def __iter__(self):
            return self

        def __next__(self):
            if self.at == self.length:
                raise StopIteration
            self.at += 1
            return np.full(3, self.at - 1), self.at - 1

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return self._Iterator(self.length)


class ItsOwnIterator(ItsIterator._Iterator):
    """A stream that is its own iterator, and begins again at each ``iter()``."""

    def __init__(self, length):
        super().__init__(length)

    def __iter__(self):
        self.at = 0
        return self


class Both(Counting):
    """A stream that counts what it has read, and whose iterator knows its place.

    The elements say how often ``iter()`` was called.
    """

    class _Lines(ItsIterator._Iterator):
        def __init__(self, length, stream):
            super().__init__(length)
            self.stream = stream

        def __next__(self):
            array, number = super().__next__()
            self.stream.read += 1
            return array, number + 100 * self.stream.asked

    read = asked = 0

    def __iter__(self):
        self.asked += 1
        return self._Lines(self.length, self)

    def state_dict(self):
        # After loading, ``iter()`` is called once more.
        return {"read": self.read, "asked": self.asked - 1}

    def load_state_dict(self, state):
        self.read = state["read"]
        self.asked = state["asked"]


class Drawing(Counting):
    """A stream of random numbers from two generators."""

    def __iter__(self):
        for _ in range(self.length):
            yield mpiter.get_rng().random(), np.random.rand()


def numbers(batches):
    return [labels.tolist() for _, labels in batches]


def epoch_of(dataset, batch_size=3, **options):
    with DataLoader(dataset, batch_size, **options) as loader:
        return numbers(loader)


WHOLE = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]
again = pytest.mark.filterwarnings("ignore:the stream has no state:RuntimeWarning")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_library_shards_what_knows_nothing_of_workers(workers):
    with DataLoader(Counting(11), 3, num_workers=workers) as loader:
        assert [numbers(loader) for _ in range(3)] == [WHOLE] * 3
    assert epoch_of(Counting(11), drop_last=True, num_workers=workers) == WHOLE[:3]
    # The second worker has no element.
    with DataLoader(Counting(1), None, num_workers=workers) as loader:
        assert [number for _, number in loader] == [0]


def test_a_stream_that_asks_for_its_worker_shards_itself():
    assert epoch_of(Sharding(11), num_workers=2) == [
        [0, 2, 4],
        [1, 3, 5],
        [6, 8, 10],
        [7, 9],
    ]
    assert epoch_of(Sharding(11), num_workers=2, drop_last=True) == [
        [0, 2, 4],
        [1, 3, 5],
        [6, 8, 10],
    ]


def test_what_a_collate_fn_asks_says_nothing_of_the_stream():
    def collate(batch):
        assert mpiter.get_worker_info().num_workers == 2
        return collate_arrays(batch)

    with DataLoader(Counting(11), 3, num_workers=2, collate_fn=collate) as loader:
        assert [numbers(loader) for _ in range(2)] == [WHOLE] * 2


def begun():
    yield from range(12)


class HoldsOne:
    """An iterator that holds another; ``renews``: a new one in each epoch."""

    def __init__(self, renews):
        self.renews = renews
        self.held = begun()

    def __iter__(self):
        if self.renews:
            self.held = begun()
        return self

    def __next__(self):
        return next(self.held)


@pytest.mark.parametrize(
    "stream",
    [
        begun(),
        map(abs, range(12)),
        zip(range(12), range(12), strict=True),
        HoldsOne(False),
    ],
    ids=lambda stream: type(stream).__name__,
)
def test_threads_share_no_iterator_and_one_alone_reads_it(stream):
    refused = DataLoader(stream, 2, num_workers=2, backend="thread")
    with refused, pytest.raises(OptionError, match=r"an iterator .* num_workers=1"):
        next(iter(refused))
    with DataLoader(stream, 2, num_workers=1, backend="thread") as loader:
        assert len(list(loader)) == 6
        with pytest.warns(RuntimeWarning, match="which has come to its end"):
            assert not list(loader)


@pytest.mark.parametrize(
    "stream", [iter(list(range(12))), HoldsOne(True)], ids=["list", "renewed"]
)
def test_threads_read_copies_of_an_iterator_that_can_be_copied(stream):
    with DataLoader(stream, 2, num_workers=2, backend="thread") as loader:
        for _ in range(2):
            assert np.concatenate(list(loader)).tolist() == list(range(12))


def test_shards_of_unequal_length_are_read_to_their_ends():
    with DataLoader(Unequal(), 7, num_workers=3) as loader:
        found = [batch.tolist() for batch in loader]
    assert found == [
        [0, 1, 2, 3],
        list(range(7)),
        list(range(7, 14)),
        list(range(14, 20)),
    ]


class AsksLate(Counting):
    """A stream that shards itself only after its first element."""

    def __iter__(self):
        yield np.full(3, -1), -1
        yield from Sharding.__iter__(self)


@pytest.mark.parametrize(
    ("num_workers", "shards_itself"), [(0, None), (2, None), (2, False)]
)
def test_a_stream_that_asks_for_its_worker_too_late_says_so_once(
    num_workers, shards_itself
):
    stream = AsksLate(20)
    if shards_itself is not None:
        stream.shards_itself = shards_itself
    with (
        DataLoader(stream, 3, num_workers=num_workers) as loader,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        first = numbers(loader)
        second = numbers(loader)
    assert first == second
    assert len(caught) == (num_workers > 1 and shards_itself is None)
    for warning in caught:
        assert "get_worker_info() after its first element" in str(warning.message)
        assert "shards_itself" in str(warning.message)
        assert warning.category is RuntimeWarning
        assert warning.filename == __file__


def test_randomness_doesnt_depend_on_workers():
    def drawn(num_workers):
        with DataLoader(Drawing(12), 2, num_workers=num_workers, seed=5) as loader:
            first = [[column.tolist() for column in batch] for batch in loader]
            second = [[column.tolist() for column in batch] for batch in loader]
        assert first[0] != second[0]
        return first

    whole = drawn(0)
    assert len({value for batch in whole for column in batch for value in column}) == 24
    assert drawn(2) == whole


class DrawingOn(ItsIterator):
    """A stream of random numbers whose iterator saves and loads its place."""

    class _Iterator(ItsIterator._Iterator):
        def __next__(self):
            super().__next__()
            return mpiter.get_rng().random(), np.random.rand()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_randomness_goes_on_as_it_would_have(num_workers):
    def drawn(epoch):
        return [[column.tolist() for column in batch] for batch in epoch]

    with DataLoader(DrawingOn(24), 3, num_workers=num_workers, seed=5) as loader:
        epoch = iter(loader)
        next(epoch), next(epoch)
        state = loader.state_dict()
        rest = drawn(epoch)
    with DataLoader(DrawingOn(24), 3, num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        assert drawn(loader) == rest


resumable = [
    (Counting, (2, 1), 3),
    (Stateful, (2, 0), 3),
    (Stateful, (0, 2), 3),
    (ItsIterator, (2, 1), 3),
]
resumable += [
    (Stateful, (0, 0), 0),
    (Stateful, (0, 0), 4),
    (ItsOwnIterator, (0, 0), 1),
    (Falsy, (0, 0), 2),
]


@again
@pytest.mark.parametrize(("stream", "workers", "handed_out"), resumable)
def test_resuming_under_any_number_of_workers(stream, handed_out, workers):
    before, after = workers
    with DataLoader(stream(11), 3, num_workers=before) as loader:
        epoch = iter(loader)
        for _ in range(handed_out):
            next(epoch)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = numbers(epoch)
        ended = json.loads(json.dumps(loader.state_dict()))
    assert rest == WHOLE[handed_out:]
    with DataLoader(stream(11), 3, num_workers=after) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == rest
        assert numbers(loader) == WHOLE
        loader.load_state_dict(ended)
        assert numbers(loader) == WHOLE


@again
@pytest.mark.parametrize(
    ("stream", "workers"), [(ItsIterator, (1, 2, 0)), (Counting, (0, 0))]
)
def test_a_state_saved_before_its_first_batch_is_of_the_same_place(stream, workers):
    state = None
    for count in workers:
        with DataLoader(stream(11), 3, num_workers=count) as loader:
            if state is not None:
                loader.load_state_dict(state)
            epoch = iter(loader)
            if state is None:
                next(epoch), next(epoch)
            state = json.loads(json.dumps(loader.state_dict()))
            assert numbers(epoch) == WHOLE[2:]


def test_a_stream_with_a_state_is_not_read_again(tmp_path):
    with DataLoader(Stateful(30), 3, num_workers=2) as loader:
        epoch = iter(loader)
        for _ in range(6):
            next(epoch)
        state = loader.state_dict()
    with DataLoader(Stateful(30, str(tmp_path / "log")), 3, num_workers=2) as loader:
        loader.load_state_dict(state)
        assert numbers(loader)[0] == [18, 19, 20]
    assert min(map(int, (tmp_path / "log").read_text().split())) == 18


@pytest.mark.parametrize(
    ("stream", "num_workers"), [(Stateful, 2), (ItsOwnIterator, 0)]
)
def test_a_state_in_the_second_epoch_goes_on_there(stream, num_workers):
    with DataLoader(stream(11), 3, num_workers=num_workers) as loader:
        numbers(loader)
        epoch = iter(loader)
        before = json.loads(json.dumps(loader.state_dict()))
        next(epoch)
        after = json.loads(json.dumps(loader.state_dict()))
    with DataLoader(stream(11), 3) as loader:
        for state, rest in ((before, WHOLE), (after, WHOLE[1:])):
            assert state["epoch"] == 1
            loader.load_state_dict(state)
            assert numbers(loader) == rest


def test_a_streams_state_is_loaded_before_its_iterator_is_made_the_iterators_after():
    with DataLoader(Both(11), 3) as loader:
        epoch = iter(loader)
        given = numbers([next(epoch), next(epoch)])
        state = json.loads(json.dumps(loader.state_dict()))
        rest = numbers(epoch)
    assert given + rest == [[100 + number for number in batch] for batch in WHOLE]
    with DataLoader(Both(11), 3) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == rest


def test_a_state_that_cannot_be_saved_is_no_state_and_the_stream_is_read_again():
    class Unsavable(Stateful):
        def state_dict(self):
            return {"a": [0, 1, (number for number in range(3))]}

    with DataLoader(Unsavable(11), 3) as loader:
        epoch = iter(loader)
        next(epoch)
        state = loader.state_dict()
        rest = numbers(epoch)
    with DataLoader(Unsavable(11), 3) as loader:
        loader.load_state_dict(state)
        with pytest.warns(
            RuntimeWarning,
            match="no state that can be saved, so its first 1 batches are read again",
        ):
            epoch = iter(loader)
        assert numbers(epoch) == rest


def test_a_stream_without_a_state_is_read_again_and_says_so():
    with DataLoader(Counting(11), 3) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with DataLoader(Counting(11), 3) as loader:
        loader.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match="its first 1 batches are read again"):
            epoch = iter(loader)
        assert numbers(epoch) == WHOLE[1:]


@again
def test_shards_of_the_streams_own_need_as_many_workers():
    with DataLoader(Sharding(11), 3, num_workers=2) as loader:
        epoch = iter(loader)
        for _ in range(3):
            next(epoch)
        state = loader.state_dict()
        rest = numbers(epoch)
    with DataLoader(Sharding(11), 3, num_workers=2) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == rest == [[7, 9]]
    with DataLoader(Sharding(11), 3, num_workers=3) as loader:
        loader.load_state_dict(state)
        with pytest.raises(
            StateError,
            match="2 workers, each with a shard of its own making; this loader has 3",
        ):
            iter(loader)


@again
@pytest.mark.parametrize("stream", [Counting, Sharding])
def test_a_killed_worker_is_replaced_and_nothing_is_lost(stream):
    wanted = epoch_of(stream(600), num_workers=2)
    with DataLoader(stream(600), 3, num_workers=2) as loader:
        epoch = iter(loader)
        found = numbers(next(epoch) for _ in range(3))
        os.kill(loader.worker_pids[0], signal.SIGKILL)
        found += numbers(epoch)
        assert loader.stats().restarts == 1
    assert found == wanted


def test_a_changed_stream_is_sent_again_and_workers_stay_otherwise():
    with DataLoader(Counting(5), 3, num_workers=2) as loader:
        numbers(loader)
        pids = loader.worker_pids
        numbers(loader)
        assert loader.worker_pids == pids
        loader.dataset.length = 8
        assert numbers(loader) == [[0, 1, 2], [3, 4, 5], [6, 7]]
        assert loader.worker_pids != pids


class CountedElsewhere(Counting):
    """A stream whose state takes arguments.

    The loader of its own library would pass them.
    """

    def state_dict(self, read, workers, **more):
        return {"at": read * workers}

    def load_state_dict(self, state):
        raise AssertionError("nobody has saved a state of it")


def test_a_stream_whose_state_takes_arguments_is_one_without_a_state():
    with (
        DataLoader(CountedElsewhere(11), 3) as loader,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        epoch = iter(loader)
        next(epoch)
        assert not caught
        state = loader.state_dict()
        rest = numbers(epoch)
        loader.state_dict()
    (warning,) = caught
    text = str(warning.message)
    assert (
        "CountedElsewhere.state_dict() can't be called without read, workers, so"
        in text
    )
    assert "save what CountedElsewhere.state_dict(…) returns" in text
    assert warning.filename == __file__
    with DataLoader(CountedElsewhere(11), 3) as loader:
        loader.load_state_dict(state)
        with pytest.warns(RuntimeWarning, match="its first 1 batches are read again"):
            epoch = iter(loader)
        assert numbers(epoch) == rest == WHOLE[1:]


class Link:
    """A part of a stream like Hugging Face's, which is a chain of objects."""

    def __init__(self, source):
        self.ex_iterable = source

    def __iter__(self):
        return iter(self.ex_iterable)


class Joined:
    def __init__(self, *sources):
        self.ex_iterables = sources

    def __iter__(self):
        return itertools.chain(*self.ex_iterables)


class Buffer(Link):
    buffer_size = None

    def __iter__(self):
        held = []
        for number in self.ex_iterable:
            held.append(number)
            if len(held) == self.buffer_size:
                yield held.pop(1)
        yield from held


class Buffered:
    """A stream that reads through a buffer, which its state would leave out.

    It has every attribute that it is asked for.
    """

    def __init__(self, chain):
        self._ex_iterable = chain

    def __iter__(self):
        return iter(self._ex_iterable)

    def state_dict(self):
        raise AssertionError("half of a state isn't asked for")

    def load_state_dict(self, state):
        raise AssertionError("half of a state isn't loaded")

    def __getattr__(self, name):
        return self


@again
@pytest.mark.parametrize(
    "outer", [lambda one: one, Link, lambda one: Joined(range(0), one)]
)
def test_a_stream_with_a_shuffle_buffer_is_read_again_exactly(outer):
    buffer = Buffer(Link(range(11)))
    buffer.buffer_size = 4
    stream = Buffered(outer(buffer))
    with DataLoader(stream, 3) as loader:
        epoch = iter(loader)
        first = next(epoch).tolist()
        state = loader.state_dict()
        rest = [batch.tolist() for batch in epoch]
    read = [*first, *flat(rest)]
    assert sorted(read) == [*range(11)] != read
    with DataLoader(stream, 3) as loader:
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest


class ByEpoch(Stateful):
    """A stream that counts its epochs, and begins each at its place."""

    def __init__(self, length):
        super().__init__(length)
        self.epoch = 0

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.at = state["at"]
        self.epoch = state["epoch"]

    def __iter__(self):
        for _, number in super().__iter__():
            yield 100 * self.epoch + number
        self.epoch += 1


def epochs_of(loader, epochs=3):
    """Yield (when, batch) at each place of some epochs.

    There are places before ``iter()``, before the first batch, after each, and after
    the end.
    """
    yield "made", None
    for epoch in range(epochs):
        batches = iter(loader)
        yield f"begun {epoch}", None
        for number, batch in enumerate(batches):
            yield f"batch {number} of {epoch}", batch.tolist()
        yield f"ended {epoch}", None


def at_each_place(make, stream):
    """Resume from each place, also between epochs, and return those that go wrong.

    A place is wrong if the batches aren't those of a loader that ran through.
    """
    with make(copy.copy(stream), 4) as loader:
        whole = [batch for _, batch in epochs_of(loader) if batch]
        places = [when for when, _ in epochs_of(loader)]
    wrong = {}
    for place in places:
        seen = []
        states = []
        with make(copy.copy(stream), 4) as loader:
            for when, batch in epochs_of(loader):
                seen += [batch] * bool(batch)
                if when == place:
                    states.append(json.dumps(loader.state_dict()))
                    break
        with make(copy.copy(stream), 4) as loader:
            loader.load_state_dict(json.loads(states[0]))
            seen += [batch.tolist() for _ in range(4) for batch in loader]
        if seen[: len(whole)] != whole:
            wrong[place] = seen
    return wrong


@both_kinds
def test_a_stream_that_is_read_here_goes_on_from_wherever_it_was(kind):
    loader = loader_class(kind)
    if kind == "numpy":
        assert at_each_place(loader, ByEpoch(6)) == {}
        return
    torch = pytest.importorskip("torch")

    class TorchsByEpoch(ByEpoch, torch.utils.data.IterableDataset):
        """The same stream, as torch's kind of dataset."""

    assert at_each_place(loader, TorchsByEpoch(6)) == {}


@pytest.mark.parametrize("interrupted", [{1}, {3, 5}, {5, 8}, {7, 9}])
def test_ctrl_c_in_a_stream_that_is_read_here_costs_nothing(interrupted):
    count = itertools.count(1)

    class Interrupted:
        def __iter__(self):
            for element in range(12):
                if next(count) in interrupted:
                    raise KeyboardInterrupt
                yield element

    epoch = iter(DataLoader(Interrupted(), 2))
    found = []
    while len(found) < 6:
        try:
            found.append(next(epoch).tolist())
        except KeyboardInterrupt:
            continue
    assert found == [[at, at + 1] for at in range(0, 12, 2)]
    assert next(epoch, None) is None


@pytest.mark.parametrize("copies", [copy.copy, copy.deepcopy])
def test_an_epoch_under_way_refuses_to_be_copied_and_goes_on(copies):
    epoch = iter(DataLoader(range(12), 4))
    next(epoch)
    with pytest.raises(TypeError, match="copy the loader, or keep its state_dict"):
        copies(epoch)
    assert len(list(epoch)) == 2
