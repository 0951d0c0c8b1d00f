"""Several trainers, one epoch: each rank an iterator of its own, here all in one process."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial

import numpy as np
import pytest

import mpiter
from mpiter import MultiprocessIterator, MultithreadIterator, OptionError, SerialIterator, Shard, StateError, batches
from mpiter.order import ranks

LENGTH = 103


class Drawing:
    """Samples with randomness of their own."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        return index, mpiter.get_rng().random()


def of_ranks(size, make=batches, dataset=None, **options):
    dataset = Drawing() if dataset is None else dataset
    exact = options.pop("exact", False)
    options = {"batch_size": 4, "n_processes": 0, "seed": 5} | options
    return [make(dataset, shard=Shard(rank, size, exact=exact), **options) for rank in range(size)]


def keys_of(batch):
    return batch[0].tolist() if isinstance(batch, tuple) else [sample[0] for sample in batch]


def test_all_ranks_together_visit_each_sample_once_and_as_often_each():
    found = [[keys_of(batch) for batch in rank] for rank in of_ranks(3, exact=True)]
    assert Counter(key for rank in found for batch in rank for key in batch) == Counter(range(LENGTH))
    filled = [[keys_of(batch) for batch in rank] for rank in of_ranks(3)]
    assert len({tuple(map(len, rank)) for rank in filled}) == 1


def test_the_samples_of_a_step_are_those_of_one_rank_with_a_large_batch():
    alone = batches(Drawing(), 12, n_processes=0, seed=5)
    for step, together in zip(zip(*of_ranks(3, drop_last=True), strict=True), alone, strict=False):
        assert np.concatenate([batch[0] for batch in step]).tolist() == together[0].tolist()
        assert np.concatenate([batch[1] for batch in step]).tolist() == together[1].tolist(), "and their randomness"


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"exact": True}])
def test_a_length_is_what_comes(options):
    for rank in of_ranks(4, **options):
        expected = len(rank)
        assert sum(1 for _ in rank) == expected


def test_chainers_epochs_run_on_for_all_at_once():
    its = [SerialIterator(Drawing(), 10, shard=(rank, 3), seed=5) for rank in range(3)]
    seen: Counter[int] = Counter()
    for _ in range(2 * LENGTH // 30 + 1):
        for it in its:
            seen.update(keys_of(next(it)))
        assert len({(it.epoch, it.current_position, it.is_new_epoch, it.epoch_detail) for it in its}) == 1
    assert seen.total() // LENGTH in (2, 3)
    assert max(seen.values()) - min(seen.values()) <= 1
    for it in its:
        it.close()


def test_a_state_is_one_and_the_same_on_every_rank_and_small():
    its = of_ranks(8)
    for it in its:
        next(it), next(it)
    states = {json.dumps(it.state_dict(), sort_keys=True) for it in its}
    assert len(states) == 1
    assert len(states.pop()) < 300


@pytest.mark.parametrize("make", [batches, partial(SerialIterator, repeat=False)], ids=["batches", "iterator"])
def test_eight_ranks_then_three_then_two_give_each_sample_once(make):
    def sitting(size, batch_size, steps, state):
        options = {"batch_size": batch_size, "exact": True}
        its = (
            of_ranks(size, make, **options)
            if make is batches
            else [make(Drawing(), batch_size, shard=Shard(rank, size, exact=True), seed=5) for rank in range(size)]
        )
        if state is not None:
            for it in its:
                it.load_state_dict(json.loads(json.dumps(state)))
        found = []
        for _ in range(steps):
            for it in its:
                found += [batch for batch in [next(it, None)] if batch is not None]
        state = its[0].state_dict()
        for it in its:
            it.close()
        return found, state

    first, state = sitting(8, 4, 2, None)
    second, state = sitting(3, 5, 1, state)
    third, _ = sitting(2, 3, 20, state)
    pairs = {}
    for batch in [*first, *second, *third]:
        rows = zip(*(column.tolist() for column in batch), strict=True) if isinstance(batch, tuple) else batch
        for key, drawn in rows:
            assert key not in pairs
            pairs[key] = drawn
    assert len(pairs) == LENGTH
    alone = dict(np.array(next(batches(Drawing(), LENGTH, n_processes=0, seed=5))).T.tolist())
    assert pairs == {int(key): drawn for key, drawn in alone.items()}, "drawn as in a run that nobody has interrupted"


def test_one_process_goes_on_where_many_were_and_back():
    its = of_ranks(4)
    seen = [key for it in its for key in keys_of(next(it))]
    alone = batches(Drawing(), 7, n_processes=0, seed=5)
    alone.load_state_dict(its[2].state_dict())
    seen += keys_of(next(alone))
    back = of_ranks(2, exact=True)
    for it in back:
        it.load_state_dict(alone.state_dict())
        seen += [key for batch in it for key in keys_of(batch)]
    assert Counter(seen) == Counter(range(LENGTH))


def test_workers_in_processes_and_threads_bring_the_same():
    wanted = [keys_of(batch) for batch in of_ranks(2)[1]]
    with batches(Drawing(), 4, n_processes=2, seed=5, shard=(1, 2)) as processes:
        assert [keys_of(batch) for batch in processes] == wanted
    with MultithreadIterator(Drawing(), 4, repeat=False, n_threads=2, seed=5, shard=(1, 2)) as threads:
        assert [keys_of(batch) for batch in threads] == wanted


def test_ranks_that_say_no_seed_have_one():
    orders = []
    for number in range(2):
        np.random.seed(number)
        with batches(Drawing(), 4, n_processes=0, shard=(1, 2)) as rank:
            orders.append([keys_of(batch) for batch in rank])
    assert orders[0] == orders[1]


def test_a_rank_is_asked_for_when_the_loop_begins(monkeypatch):
    place = (0, 1, "a test")
    monkeypatch.setattr(ranks, "_found", lambda: place)
    rank = batches(Drawing(), 4, n_processes=0, seed=5, shard="auto")
    place = (1, 2, "a test")
    assert keys_of(next(rank)) == keys_of(next(of_ranks(2)[1]))


def test_ranks_on_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr("mpiter.engine.options.cores", lambda: 32)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert MultiprocessIterator(Drawing(), 4, shard=(1, 8)).n_processes == 4
    assert MultiprocessIterator(Drawing(), 4).n_processes == 32
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert MultiprocessIterator(Drawing(), 4, shard=(1, 64)).n_processes == 1


def test_a_sampler_of_ones_own_is_refused():
    def sampler(order, position):
        return order

    with pytest.raises(OptionError, match="shard and order_sampler exclude each other"):
        batches(Drawing(), 4, n_processes=0, order_sampler=sampler, shard=(0, 2))
    it = SerialIterator(Drawing(), 4, shard=(0, 2))
    with pytest.raises(OptionError, match="shard and order_sampler exclude each other"):
        it.order_sampler = sampler


def test_leaving_samples_out_and_giving_each_contradict():
    with pytest.raises(OptionError, match="leave one of them out"):
        batches(Drawing(), 4, n_processes=0, drop_last=True, shard=Shard(0, 2, exact=True))


def test_a_state_of_another_dataset_is_refused():
    state = of_ranks(2)[0].state_dict()
    other = of_ranks(3, dataset=list(range(7)))[0]
    with pytest.raises(StateError, match="dataset_length=103"):
        other.load_state_dict(state)


def test_a_copy_is_of_the_same_rank():
    import copy

    it = SerialIterator(Drawing(), 4, repeat=False, shard=(1, 2), seed=5)
    next(it)
    assert [keys_of(batch) for batch in copy.copy(it)] == [keys_of(batch) for batch in it]
