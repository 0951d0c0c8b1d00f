"""Common mistakes give errors with a remedy, whose full text is checked here.

A text may be changed, but it must keep its remedy.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import mpiter
from mpiter import MultiprocessIterator, SerialIterator, batches
from mpiter.receipts import Receipts
from mpiter.tuning import Trace

DATA = list(range(10))


class Everything:
    """A dataset with a lock deep inside."""

    def __init__(self):
        self.transform = Transform()

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index


class Transform:
    def __init__(self):
        self.steps = [str, {"lock": threading.Lock()}]


class Picky:
    def __init__(self, wrong=5, error=KeyError, text="no such picture"):
        self.wrong = wrong
        self.error = error
        self.text = text

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == self.wrong:
            raise self.error(self.text)
        return index


class Handles:
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return threading.Lock()


class NoLength:
    def __getitem__(self, index):
        return index


class Unopened(NoLength):
    def __len__(self):
        raise TypeError("it is not open")


BACKENDS = "'process', 'thread', 'ray', 'mpi'"
AT_CONSTRUCTION = {
    "a dataset without length": (
        lambda: batches(NoLength(), 2),
        "a dataset needs len(dataset), which NoLength has not; pass a list, an array "
        "or an object with __len__ and __getitem__.",
    ),
    "a generator": (
        lambda: batches((i for i in DATA), 2),
        "a dataset needs dataset[i], which generator has not; pass a list, an array "
        "or an object with __len__ and __getitem__. mpiter.DataLoader takes what can "
        "only be iterated over.",
    ),
    "an unknown backend, and no workers": (
        lambda: batches(DATA, 2, backend="proces", n_processes=0),
        f"backend='proces' is unknown; use {BACKENDS}, or an object such as "
        "mpiter.Process() or an mpiter.Backend of yours.",
    ),
    "an empty dataset, repeated": (
        lambda: MultiprocessIterator([], 2),
        "the dataset is empty, so it cannot be repeated; pass repeat=False or fill it.",
    ),
    "a word for yes": (
        lambda: batches(DATA, 2, shuffle="yes"),
        "shuffle='yes' must be True or False.",
    ),
    "a word for no": (
        lambda: batches(DATA, 2, drop_last="no"),
        "drop_last='no' must be True or False.",
    ),
    "a word for a loader": (
        lambda: mpiter.DataLoader(DATA, 2, shuffle="no"),
        "shuffle='no' must be True or False.",
    ),
    "a function that is none": (
        lambda: batches(DATA, 2, worker_init=3),
        "worker_init=3 cannot be called; pass a function.",
    ),
    "a length that fails": (
        lambda: batches(Unopened(), 2),
        "len(dataset) of Unopened fails: it is not open.",
    ),
    "a sampler's class": (
        lambda: mpiter.DataLoader(DATA, 2, sampler=NoLength),
        "sampler=NoLength is a class: pass an object of it, NoLength(…).",
    ),
    "a number for a sampler": (
        lambda: mpiter.DataLoader(DATA, batch_sampler=3),
        "batch_sampler=3 is no iterable: pass a list of keys, or what yields them.",
    ),
    "no epochs": (lambda: batches(DATA, 2, epochs=0), "epochs=0 must be at least 1."),
    "a batch size of zero": (
        lambda: MultiprocessIterator(DATA, 0),
        "batch_size=0 must be at least 1.",
    ),
    "a negative number of workers": (
        lambda: batches(DATA, 2, n_processes=-1),
        "n_processes=-1 must be at least 0.",
    ),
    "no prefetching": (
        lambda: MultiprocessIterator(DATA, 2, n_prefetch=0),
        "n_prefetch=0 must be at least 1.",
    ),
    "an unknown backend": (
        lambda: batches(DATA, 2, backend="processes"),
        f"backend='processes' is unknown; use {BACKENDS}, or an object such as "
        "mpiter.Process() or an mpiter.Backend of yours.",
    ),
    "an unknown serializer": (
        lambda: batches(DATA, 2, serializer="pickle"),
        "serializer='pickle' is unknown; use 'slots', 'packed' or an object with pack "
        "and unpack.",
    ),
    "an unknown on_error": (
        lambda: batches(DATA, 2, on_error="ignore"),
        "on_error='ignore' is unknown; use 'raise', 'skip' or Skip(most=…).",
    ),
    "a negative number of samples to skip": (
        lambda: batches(DATA, 2, on_error=mpiter.Skip(-1)),
        "most=-1 must be at least 0.",
    ),
    "samples to skip in words": (
        lambda: batches(DATA, 2, on_error=mpiter.Skip("3")),  # type: ignore[arg-type]
        "most='3' must be a whole number or None.",
    ),
    "receipts without a folder": (
        lambda: batches(DATA, 2, hooks=Receipts("")),
        "Receipts('') must name a folder.",
    ),
    "a number of traces": (
        lambda: batches(DATA, 2, hooks=Trace(5)),
        "Trace(5) must name a file.",
    ),
    "a path among the hooks": (
        lambda: batches(DATA, 2, hooks=["receipts"]),
        "hooks='receipts' is no mpiter.Hook; pass one, or a list, such as "
        "[one, another].",
    ),
    "shuffle and an order sampler": (
        lambda: MultiprocessIterator(
            DATA, 2, shuffle=True, order_sampler=lambda order, at: order
        ),
        "shuffle and order_sampler exclude each other; leave shuffle at None to use "
        "the sampler.",
    ),
    "an order sampler that returns something else": (
        lambda: SerialIterator(
            DATA, 2, order_sampler=lambda order, at: np.ones((2, 5))
        ),
        "order_sampler returned float64 values of shape (2, 5); return a 1-D array of "
        "integer indices.",
    ),
    "an order sampler that is no function": (
        lambda: MultiprocessIterator(DATA, 2, order_sampler=[1, 2]),
        "order_sampler=[1, 2] cannot be called; pass a function.",
    ),
    "a timeout of zero": (
        lambda: MultiprocessIterator(DATA, 2, dataset_timeout=0),
        "dataset_timeout=0 must be a number of seconds above 0, or None.",
    ),
    "an oversized seed": (
        lambda: batches(DATA, 2, seed=1 << 200),
        "seed has 201 bits; use a whole number of at most 128.",
    ),
}


@pytest.mark.parametrize("mistake", AT_CONSTRUCTION)
def test_at_construction(mistake):
    make, text = AT_CONSTRUCTION[mistake]
    with pytest.raises(mpiter.OptionError) as caught:
        make()
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError)


def closed():
    it = batches(DATA, 2, n_processes=0)
    it.close()
    return it


LATER = {
    "no state of ours": (
        lambda: SerialIterator(DATA, 2).load_state_dict({"model": 1}),
        mpiter.StateError,
        "this is no state of mpiter: a dict, as state_dict() returns it, with the key "
        "'mpiter'.",
    ),
    "a closed iterator": (
        lambda: closed().next(),
        mpiter.errors.IteratorClosed,
        "the iterator is closed; make a new one.",
    ),
    "a closed iterator that is reset": (
        lambda: closed().reset(),
        mpiter.errors.IteratorClosed,
        "a closed iterator cannot be reset; make a new one.",
    ),
    "samples that have no columns": (
        lambda: SerialIterator([(1, 2), (1, 2, 3)], 2, shuffle=False).next().columns,
        TypeError,
        "the samples of this batch are built differently: tuple of 2 in its row 0, "
        "tuple of 3 in row 1, or something in them.  So it has no columns: build them "
        "alike in the dataset, pass a collate_fn to a loader, or use the iterators, "
        "whose batches are lists.",
    ),
    "the length of endless batches": (
        lambda: len(batches(DATA, 2, epochs=None)),
        TypeError,
        "endless batches have no length; pass epochs=.",
    ),
}


@pytest.mark.parametrize("mistake", LATER)
def test_later(mistake):
    do, kind, text = LATER[mistake]
    with pytest.raises(kind) as caught:
        do()
    assert str(caught.value) == text


def test_a_dataset_that_cannot_be_pickled():
    with (
        MultiprocessIterator(
            Everything(), 2, n_processes=1, backend=mpiter.Process("spawn")
        ) as it,
        pytest.raises(mpiter.errors.DatasetNotPicklable) as caught,
    ):
        it.next()
    assert str(caught.value) == (
        "dataset.transform.steps[1]['lock'] (lock) cannot be pickled: cannot pickle "
        "'_thread.lock' object. Open such things in worker_init or on first use, "
        "leave them out in __getstate__, or pass "
        "backend=mpiter.Process(start_method='fork')."
    )
    assert isinstance(caught.value, TypeError)


def test_a_dataset_that_raises():
    with MultiprocessIterator(Picky(), 4, shuffle=False, n_processes=1) as it:
        it.next()
        with pytest.raises(KeyError) as caught:
            it.next()
        # The iterator goes on after the error.
        assert list(it.next()) == [8, 9, 0, 1]
    assert str(caught.value) == "'no such picture'"
    assert caught.value.__notes__ == [
        "mpiter: sample 5 (position 5 of epoch 0), fetched by process worker 0; "
        "dataset[5] repeats it in this process."
    ]
    assert "in __getitem__" in str(caught.value.__cause__)


def test_a_sample_that_cannot_be_sent():
    with (
        batches(Handles(), 2, shuffle=False, n_processes=1) as it,
        pytest.raises(mpiter.errors.SampleNotSendable) as caught,
    ):
        next(it)
    assert str(caught.value) == (
        "dataset[0] returned lock, which cannot be sent from a worker: cannot pickle "
        "'_thread.lock' object. Return arrays, numbers, strings or containers of "
        "them."
    )


def test_a_part_of_a_sample_that_cannot_be_sent_is_told_by_its_path_in_the_sample():
    class Locked(list):
        def __getitem__(self, index):
            return {
                "number": index,
                "more": [index, threading.Lock() if index == 3 else "fine"],
            }

    with MultiprocessIterator(Locked(range(8)), 2, shuffle=False, n_processes=1) as it:
        it.next()
        with pytest.raises(
            mpiter.errors.SampleNotSendable,
            match=r"^dataset\[3\] returned dict.*dataset\[3\]\['more'\]\[1\]",
        ):
            it.next()


class RaisesWhenOpened:
    """A part of a sample whose unpickling raises the given error."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return raise_it, (self.error, "in the unpickling")


def raise_it(error, text):
    raise error(text)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_sample_whose_unpickling_raises_anything_fails_its_own_batch_only(on_error):
    errors = {1: ValueError, 4: SystemExit, 8: KeyboardInterrupt, 13: GeneratorExit}

    class Sore(list):
        def __getitem__(self, index):
            return index, RaisesWhenOpened(errors[index]) if index in errors else "fine"

    with batches(
        Sore(range(16)), 2, shuffle=False, n_processes=1, on_error=on_error
    ) as it:
        for first in range(0, 16, 2):
            named = [
                error.__name__
                for index, error in errors.items()
                if index in (first, first + 1)
            ]
            if not named:
                assert next(it)[0].tolist() == [first, first + 1]
                continue
            with pytest.raises(
                mpiter.errors.SampleNotSendable, match=f"{named[0]}: in the unpickling"
            ):
                next(it)
        with pytest.raises(StopIteration):
            next(it)


def no_database(info):
    raise FileNotFoundError("no database here")


def test_a_worker_init_that_raises():
    with (
        MultiprocessIterator(DATA, 2, n_processes=1, worker_init=no_database) as it,
        pytest.raises(mpiter.errors.WorkerStartError) as caught,
    ):
        it.next()
    lines = str(caught.value).splitlines()
    assert lines[0] == "worker 0 could not start: FileNotFoundError: no database here"
    # A forked worker would call ``worker_init`` as well, so the text names no start
    # method.
    assert "multiprocessing" not in str(caught.value)
    assert "in no_database" in str(caught.value)
    assert lines[-1] == "FileNotFoundError: no database here"


def test_every_error_is_of_a_family_and_of_the_builtin_that_one_expects():
    for name, builtin in {
        "OptionError": ValueError,
        "StateError": ValueError,
        "DatasetNotPicklable": TypeError,
        "SampleNotSendable": TypeError,
        "SampleError": RuntimeError,
        "WorkerStartError": RuntimeError,
        "SharedMemoryFull": MemoryError,
        "IteratorClosed": NotImplementedError,
    }.items():
        assert issubclass(getattr(mpiter.errors, name), (mpiter.MpiterError,))
        assert issubclass(getattr(mpiter.errors, name), builtin)
