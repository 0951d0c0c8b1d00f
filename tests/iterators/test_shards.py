"""Several ranks share one epoch: each has an iterator, here all in one process."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from datasets import Random

from mpiter import (
    MultiprocessIterator,
    MultithreadIterator,
    OptionError,
    SerialIterator,
    Shard,
    batches,
)
from mpiter.order import ranks

LENGTH = 103
DRAWING = Random(LENGTH, "rng")


def of_ranks(size, **options):
    exact = options.pop("exact", False)
    options = {"batch_size": 4, "n_processes": 0, "seed": 5} | options
    return [
        batches(DRAWING, shard=Shard(rank, size, exact=exact), **options)
        for rank in range(size)
    ]


def keys_of(batch):
    if isinstance(batch, tuple):
        return batch[0].tolist()
    return [sample[0] for sample in batch]


def test_the_samples_of_a_step_are_those_of_one_rank_with_a_large_batch():
    alone = batches(DRAWING, 12, n_processes=0, seed=5)
    for step, together in zip(
        zip(*of_ranks(3, drop_last=True), strict=True), alone, strict=False
    ):
        assert (
            np.concatenate([batch[0] for batch in step]).tolist()
            == together[0].tolist()
        )
        assert (
            np.concatenate([batch[1] for batch in step]).tolist()
            == together[1].tolist()
        ), "and their randomness"


def test_chainers_epochs_run_on_for_all_at_once():
    its = [SerialIterator(DRAWING, 10, shard=(rank, 3), seed=5) for rank in range(3)]
    seen: Counter[int] = Counter()
    for _ in range(2 * LENGTH // 30 + 1):
        for it in its:
            seen.update(keys_of(next(it)))
        assert (
            len(
                {
                    (it.epoch, it.current_position, it.is_new_epoch, it.epoch_detail)
                    for it in its
                }
            )
            == 1
        )
    assert seen.total() // LENGTH in (2, 3)
    assert max(seen.values()) - min(seen.values()) <= 1
    for it in its:
        it.close()


def test_one_process_goes_on_where_many_were_and_back():
    its = of_ranks(4)
    seen = [key for it in its for key in keys_of(next(it))]
    alone = batches(DRAWING, 7, n_processes=0, seed=5)
    alone.load_state_dict(its[2].state_dict())
    seen += keys_of(next(alone))
    back = of_ranks(2, exact=True)
    for it in back:
        it.load_state_dict(alone.state_dict())
        seen += [key for batch in it for key in keys_of(batch)]
    assert Counter(seen) == Counter(range(LENGTH))


def test_workers_in_processes_and_threads_bring_the_same():
    wanted = [keys_of(batch) for batch in of_ranks(2)[1]]
    with batches(DRAWING, 4, n_processes=2, seed=5, shard=(1, 2)) as processes:
        assert [keys_of(batch) for batch in processes] == wanted
    with MultithreadIterator(
        DRAWING, 4, repeat=False, n_threads=2, seed=5, shard=(1, 2)
    ) as threads:
        assert [keys_of(batch) for batch in threads] == wanted


def test_ranks_that_say_no_seed_have_one():
    orders = []
    for number in range(2):
        np.random.seed(number)
        with batches(DRAWING, 4, n_processes=0, shard=(1, 2)) as rank:
            orders.append([keys_of(batch) for batch in rank])
    assert orders[0] == orders[1]


def test_a_rank_is_asked_for_when_the_loop_begins(monkeypatch):
    place = (0, 1, "a test")
    monkeypatch.setattr(ranks, "found", lambda: place)
    rank = batches(DRAWING, 4, n_processes=0, seed=5, shard="auto")
    place = (1, 2, "a test")
    assert keys_of(next(rank)) == keys_of(next(of_ranks(2)[1]))


def test_ranks_on_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("mpiter.engine.options.cores", lambda: 32)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert MultiprocessIterator(DRAWING, 4, shard=(1, 8)).n_processes == 4
    assert MultiprocessIterator(DRAWING, 4).n_processes == 32
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert MultiprocessIterator(DRAWING, 4, shard=(1, 64)).n_processes == 1


def test_leaving_samples_out_and_giving_each_contradict():
    with pytest.raises(OptionError, match="leave one of them out"):
        batches(
            DRAWING, 4, n_processes=0, drop_last=True, shard=Shard(0, 2, exact=True)
        )


def test_a_copy_is_of_the_same_rank():
    import copy

    it = SerialIterator(DRAWING, 4, repeat=False, shard=(1, 2), seed=5)
    next(it)
    of_copy = [keys_of(batch) for batch in copy.copy(it)]
    assert of_copy == [keys_of(batch) for batch in it]
