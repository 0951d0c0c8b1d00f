"""Ours has none of the weaknesses of Chainer's MultiprocessIterator, one test for each.

The numbers are those of the list in docs/chainer.md.  Many of these points have more
thorough tests elsewhere.  Here they are checked of the iterator that takes the place of
Chainer's.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest
from datasets import BUILDS, Failing, Gated, Shaped, Squares, plain
from ours import slots_of
from scripts import interrupt_once_waiting, run

pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests`")

from chainer import serializers

from mpiter import Process, machine
from mpiter.chainer import MultiprocessIterator, MultithreadIterator
from mpiter.errors import SharedMemoryFull
from mpiter.samples.batch import columns_in_place

pytestmark = pytest.mark.chainer


def make(dataset, batch_size=4, **options):
    return MultiprocessIterator(
        dataset, batch_size, **{"n_processes": 1, "shuffle": False, **options}
    )


def saved(it):
    target = {}
    serializers.DictionarySerializer(target).save(it)
    return target


def everything(dataset, **options):
    with make(dataset, repeat=False, **options) as it:
        return [sample for batch in it for sample in batch]


def test_01_an_error_of_the_dataset_is_raised_in_next_and_the_next_one_goes_on():
    with make(Failing({5: ValueError("no picture")}, 12), repeat=False) as it:
        assert len(it.next()) == 4
        with pytest.raises(ValueError, match="no picture") as caught:
            it.next()
        # The cause has the worker's traceback.
        assert "__getitem__" in str(caught.value.__cause__)
        assert [label for _, label in it.next()] == [8, 9, 10, 11]
        it.reset()
        assert len(it.next()) == 4


def test_02_an_error_in_the_very_first_batch_is_the_datasets_own():
    with (
        make(Failing({0: ZeroDivisionError("at once")})) as it,
        pytest.raises(ZeroDivisionError, match="at once"),
    ):
        it.next()


def test_03_a_killed_worker_costs_nothing_and_blocks_nothing():
    dataset = Squares(200)
    with make(dataset, n_processes=2, repeat=False) as it:
        found = list(it.next())
        os.kill(it.worker_pids[0], signal.SIGKILL)
        found += [sample for batch in it for sample in batch]
    assert list(map(plain, found)) == [plain(dataset[i]) for i in range(200)]


def test_04_finalize_does_not_wait_for_workers(tmp_path):
    it = make(Gated(str(tmp_path / "never"), free=4), run_ahead=0)
    it.next()
    finalizing = threading.Thread(target=it.finalize)
    finalizing.start()
    finalizing.join(60)
    assert not finalizing.is_alive()


def test_05_without_shuffling_it_can_be_saved_and_pickled():
    with make(list(range(20))) as it:
        it.next()
        with make(list(range(20))) as other, pickle.loads(pickle.dumps(it)) as third:
            serializers.NpzDeserializer(saved(it)).load(other)
            assert (
                list(other.next())
                == list(third.next())
                == list(it.next())
                == [4, 5, 6, 7]
            )


def test_06_pickling_leaves_the_original_as_it_was():
    with make(list(range(12)), repeat=False) as it:
        it.next()
        before = it.epoch, it.current_position, it.epoch_detail
        pickle.dumps(it)
        assert (it.epoch, it.current_position, it.epoch_detail) == before
        assert [list(batch) for batch in it] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_07_saving_throws_nothing_away():
    fetched = Noted()
    asked = []

    def sampler(order, position):
        asked.append(position)
        return np.arange(len(order))

    with MultithreadIterator(
        fetched, 4, n_threads=2, n_prefetch=8, order_sampler=sampler
    ) as it:
        for _ in range(50):
            it.next()
            saved(it)
    assert len(fetched.indices) == len(set(fetched.indices)) >= 200
    assert len(asked) == 1


class Noted:
    """A dataset that keeps the indices that were fetched."""

    def __init__(self):
        self.indices = []

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        self.indices.append(index)
        return index


def test_08_the_order_is_not_drawn_from_the_global_generator_while_training():
    np.random.seed(0)
    with make(list(range(40)), shuffle=True) as it:
        state = np.random.get_state()[1:]
        for _ in range(25):
            it.next()
        assert all(
            np.array_equal(now, then)
            for now, then in zip(np.random.get_state()[1:], state, strict=True)
        )


class Drawing:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return float(np.random.random())


def test_09_no_two_samples_get_the_same_random_numbers():
    assert len(set(everything(Drawing(), n_processes=2, maxtasksperchild=12))) == 32


def test_10_an_order_sampler_that_is_set_later_governs_every_epoch_from_then_on():
    with make(
        list(range(8)),
        8,
        shuffle=None,
        order_sampler=lambda order, at: np.arange(8),
        n_prefetch=3,
    ) as it:
        assert list(it.next()) == list(range(8))
        it.order_sampler = lambda order, at: np.arange(8)[::-1]
        it.reset()
        assert [list(it.next()) for _ in range(4)] == [list(range(8))[::-1]] * 4


class Special(MultiprocessIterator):
    """A subclass, as a user writes it."""


def test_11_a_copy_is_like_its_original():
    it = Special(
        list(range(8)),
        4,
        shuffle=False,
        n_processes=1,
        dataset_timeout=12.5,
        maxtasksperchild=3,
    )
    with it, copy.copy(it) as other:
        assert type(other) is Special
        assert (other.dataset_timeout, other.maxtasksperchild, other.shuffle) == (
            12.5,
            3,
            False,
        )
        other.reset()
        assert list(other.next()) == [0, 1, 2, 3]


@pytest.mark.parametrize("build", ["bare array", "nested"])
def test_12_and_13_samples_of_every_form_travel_in_shared_columns_and_keep_their_types(
    build,
):
    dataset = Shaped(build)
    with make(dataset, repeat=False) as it:
        batches = list(it)
        assert it.stats().odd_rows == 0
        assert slots_of(it).count > 0
    assert (columns_in_place(batches[-1]) is None) == (build == "nested"), (
        "dicts may be changed"
    )
    assert [plain(sample) for batch in batches for sample in batch] == [
        plain(BUILDS[build](i)) for i in range(20)
    ]


@pytest.mark.parametrize("build", ["oversize", "objects", "masked"])
def test_14_15_and_16_large_odd_and_masked_samples_come_back_as_they_were(build):
    with warnings.catch_warnings():
        # A warning about shared_mem would be an error.
        warnings.simplefilter("error")
        found = everything(Shaped(build), shared_mem=64)
    assert list(map(plain, found)) == [plain(BUILDS[build](i)) for i in range(20)]


def test_16_columns_are_aligned():
    with make([(np.zeros(3, np.uint8), np.zeros(5)) for _ in range(8)]) as it:
        addresses = [
            column.__array_interface__["data"][0] for column in it.next().columns
        ]
    assert [address % 64 for address in addresses] == [0, 0]


class Crossing(Squares):
    """A sample of an early batch waits for one of a much later batch.

    Any of those will do: the worker that is held up has one more block, which may be
    any.
    """

    def __init__(self, folder):
        super().__init__(64)
        self.crossed = folder / "crossed"

    def __getitem__(self, index):
        if index >= 32:
            self.crossed.touch()
        while index == 8 and not self.crossed.exists():
            pass
        return super().__getitem__(index)


def test_17_later_batches_are_fetched_while_a_slow_sample_holds_up_an_earlier_one(
    tmp_path,
):
    assert [
        label
        for _, label in everything(Crossing(tmp_path), n_processes=2, n_prefetch=16)
    ] == list(range(64))


class Particular(Squares):
    def __getitem__(self, index):
        if type(index) is not int:
            raise TypeError(f"{type(index)} is no int")
        return super().__getitem__(index)


def test_18_indices_are_pythons_own_integers():
    assert len(everything(Particular(), shuffle=True)) == 20


def test_19_a_stall_is_told_of_once(tmp_path):
    gate = tmp_path / "gate"
    with make(
        Gated(str(gate), free=4, length=8), repeat=False, dataset_timeout=0.1
    ) as it:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            next(it)
            # On a busy machine there may have been a warning for the first batch, too.
            told.clear()
            # The gate opens after five times the timeout.
            opening = threading.Timer(0.5, gate.touch)
            opening.start()
            assert len(list(it)) == 1
        opening.join()
    assert [warning.category for warning in told] == [
        MultiprocessIterator.TimeoutWarning
    ]


def test_20_workers_are_not_forked_from_a_process_with_threads():
    with make(Squares()) as it:
        it.next()
        assert all(psutil.Process(pid).ppid() != os.getpid() for pid in it.worker_pids)


def test_21_the_start_method_is_a_matter_of_the_iterator():
    before = multiprocessing.get_start_method(allow_none=True)
    assert len(everything(Squares(), backend=Process("fork"))) == 20
    assert multiprocessing.get_start_method(allow_none=True) == before


class Weighed(Squares):
    """A dataset that writes a line to a file each time that it is pickled."""

    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def __getstate__(self):
        with Path(self.notes).open("a") as file:
            file.write("pickled\n")
        return self.__dict__


def test_22_starting_over_keeps_the_workers_and_sends_the_dataset_once(tmp_path):
    notes = tmp_path / "notes"
    with make(Weighed(str(notes)), n_processes=2, repeat=False) as it:
        pids = set()
        for _ in range(3):
            assert len(list(it)) == 5
            pids |= set(it.worker_pids)
            it.reset()
    assert len(pids) == 2
    assert notes.read_text() == "pickled\n"


_LEFT_OPEN = """
    import warnings
    warnings.simplefilter("ignore")
    import mpiter.chainer_compat
    from mpiter.chainer import MultiprocessIterator

    it = MultiprocessIterator(list(range(100)), 4, n_processes=1)
    it.next()
    raise ValueError("this isn't caught")
"""


def test_23_a_program_that_ends_by_an_error_ends(tmp_path):
    outcome = run(tmp_path, _LEFT_OPEN)
    assert outcome.code == 1
    assert outcome.err.endswith("ValueError: this isn't caught\n")
    assert outcome.left_running == []


def test_24_ctrl_c_in_next_loses_no_batch(tmp_path):
    gate = tmp_path / "gate"
    with make(Gated(str(gate), free=4, length=12), repeat=False, run_ahead=0) as it:
        found = [it.next()]
        interrupting = interrupt_once_waiting()
        with pytest.raises(KeyboardInterrupt):
            it.next()
        interrupting.join()
        gate.touch()
        found += it
    assert [label for batch in found for _, label in batch] == list(range(12))


class Fetched:
    """Each sample says which process has fetched it."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, os.getpid()


def test_25_worn_workers_are_renewed_between_batches():
    with make(Fetched(), repeat=False, maxtasksperchild=10) as it:
        samples = [sample for batch in it for sample in batch]
        assert it.stats().restarts == 0
    assert [index for index, _ in samples] == list(range(24))
    assert len({pid for _, pid in samples}) > 1


def test_26_full_shared_memory_is_an_error_with_numbers(monkeypatch):
    monkeypatch.setattr(machine, "memory_available", lambda: 100_000_000)
    with (
        make(Squares(60, (1000, 1000)), 30) as it,
        pytest.raises(SharedMemoryFull, match=r"a slot of 120\.0 MB"),
    ):
        it.next()


def test_27_an_empty_dataset_ends_at_once_and_finalized_is_finalized():
    with pytest.warns(RuntimeWarning, match="the dataset is empty"):
        it = make([], repeat=False)
    with it, pytest.raises(StopIteration):
        it.next()
    with pytest.raises(NotImplementedError):
        it.reset()
    with pytest.raises(ValueError, match="empty"):
        make([])
