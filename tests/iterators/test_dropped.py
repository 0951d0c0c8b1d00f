"""When the last reference to an open iterator goes, its workers end."""

import gc
import os

import psutil
import pytest
from scripts import METHODS, lives, wait_until

import mpiter


class Pids:
    """Each sample is the number of the process that fetched it."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return os.getpid()


def opened(method="forkserver"):
    """Return an iterator that has handed out a batch, and its workers."""
    it = mpiter.MultiprocessIterator(
        Pids(), 4, n_processes=2, backend=mpiter.Process(method)
    )
    return it, {psutil.Process(pid) for pid in next(it)}


def are_gone(workers):
    wait_until(lambda: not any(map(lives, workers)), "they are gone")


@pytest.mark.parametrize("method", METHODS)
def test_a_dropped_iterator_ends_its_workers(method):
    it, workers = opened(method)
    assert os.getpid() not in {worker.pid for worker in workers}
    del it
    are_gone(workers)


def test_an_iterator_in_a_cycle_ends_its_workers_when_collected():
    it, workers = opened()
    it.trainer = {"iterator": it}
    del it
    gc.collect()
    are_gone(workers)


def test_breaking_out_of_a_loop_over_an_unnamed_iterator_ends_its_workers():
    for batch in mpiter.batches(Pids(), 4, n_processes=2):
        workers = {psutil.Process(int(pid)) for pid in batch}
        break
    are_gone(workers)


def test_leaving_the_with_block_by_an_exception_ends_the_workers():
    it, workers = opened()
    with pytest.raises(ZeroDivisionError), it:
        raise ZeroDivisionError
    assert not any(map(lives, workers))


def test_the_end_of_the_epoch_does_not_end_the_workers_of_a_reset():
    it = mpiter.MultiprocessIterator(Pids(), 4, repeat=False, n_processes=1)
    first = {pid for batch in it for pid in batch}
    it.reset()
    assert {pid for batch in it for pid in batch} == first
    it.close()
