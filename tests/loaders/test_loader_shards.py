"""Several ranks share one epoch: each has a loader, here all in one process."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from datasets import Random
from loader_kinds import loader_class

from mpiter import DataLoader, OptionError, Shard, StateError
from mpiter.order import ranks

LENGTH = 103
DRAWING = Random(LENGTH, "rng")


def pairs_in(samples):
    return [list(pair) for pair in samples]


WAYS = {"by rows": {}, "whole": {"collate_fn": pairs_in}}


@pytest.fixture
def make(kind):
    return loader_class(kind)


def of_ranks(make, size, batch_size=4, exact=False, **options):
    options = {"shuffle": True, "seed": 5} | options
    return [
        make(DRAWING, batch_size, shard=Shard(rank, size, exact=exact), **options)
        for rank in range(size)
    ]


def rows(batch):
    pairs = batch
    if not isinstance(batch[0], list):
        columns = [np.asarray(one).tolist() for one in batch]
        pairs = zip(*columns, strict=True)
    return [list(pair) for pair in pairs]


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_together_visit_each_sample_once_and_as_often_each(make, way):
    found = [
        [rows(batch) for batch in rank]
        for rank in of_ranks(make, 3, exact=True, **WAYS[way])
    ]
    assert Counter(
        key for rank in found for batch in rank for key, _ in batch
    ) == Counter(range(LENGTH))
    filled = [
        [rows(batch) for batch in rank] for rank in of_ranks(make, 3, **WAYS[way])
    ]
    assert len({tuple(map(len, rank)) for rank in filled}) == 1
    for rank in of_ranks(make, 4, drop_last=True):
        assert sum(1 for _ in rank) == len(rank)
    first = of_ranks(make, 2)[0]
    assert [rows(batch) for batch in first] != [rows(batch) for batch in first], (
        "another order in each epoch"
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_state_is_one_and_the_same_on_every_rank(make, way):
    loaders = of_ranks(make, 4, **WAYS[way])
    epochs = list(map(iter, loaders))
    for epoch in epochs:
        next(epoch), next(epoch)
    states = {json.dumps(loader.state_dict(), sort_keys=True) for loader in loaders}
    assert len(states) == 1
    assert len(states.pop()) < 400


@pytest.mark.parametrize(("way", "workers"), [("by rows", 1), ("whole", 0)])
def test_four_ranks_then_three_then_two_give_each_sample_once(make, way, workers):
    def sitting(size, batch_size, steps, state):
        loaders = of_ranks(
            make, size, batch_size, exact=True, num_workers=workers, **WAYS[way]
        )
        found = []
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        epochs = list(map(iter, loaders))
        for _ in range(steps):
            for epoch in epochs:
                batch = next(epoch, None)
                if batch is not None:
                    found += rows(batch)
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
        return found, state

    first, state = sitting(4, 4, 2, None)
    second, state = sitting(3, 5, 1, state)
    third, _ = sitting(2, 3, 20, state)
    found = dict([*first, *second, *third])
    assert len(first) + len(second) + len(third) == len(found) == LENGTH
    (alone,) = of_ranks(make, 1, LENGTH)
    assert found == dict(rows(next(iter(alone)))), (
        "drawn as in a run without interruption"
    )


def test_what_is_left_after_a_resume_is_counted(make):
    before = of_ranks(make, 4)[0]
    epoch = iter(before)
    next(epoch), next(epoch)
    loader = of_ranks(make, 2, 7)[1]
    loader.load_state_dict(before.state_dict())
    epoch = iter(loader)
    expected = -(-(LENGTH - 2 * 4 * 4) // 14)
    assert len(epoch) == expected
    for number, _ in enumerate(epoch, 1):
        assert loader.is_new_epoch == (number == expected)
    assert number == expected
    assert len(list(loader)) == -(-LENGTH // 14)


def test_a_place_beyond_the_epoch_is_refused(make):
    loader = of_ranks(make, 2)[0]
    next(iter(loader))
    with pytest.raises(
        StateError, match=f"'position' is {LENGTH + 1}, not within 0 … {LENGTH}"
    ):
        loader.load_state_dict({**loader.state_dict(), "position": LENGTH + 1})


class Broken(Random):
    """The last sample of an epoch fails."""

    def __getitem__(self, index):
        if index == LENGTH - 1:
            raise OSError("broken")
        return super().__getitem__(index)


def test_a_rest_of_an_epoch_may_be_skipped_whole(make):
    def loader(size, batch_size):
        return make(
            Broken(LENGTH, "rng"), batch_size, shard=Shard(0, size), on_error="skip"
        )

    before = loader(2, LENGTH // 2)
    next(iter(before))
    again = loader(1, 8)
    again.load_state_dict(before.state_dict())
    assert list(again) == []
    assert again.stats().skipped == 1


def test_a_rank_is_asked_for_when_an_epoch_begins(make, monkeypatch):
    place = (0, 1, "a test")
    monkeypatch.setattr(ranks, "found", lambda: place)
    loader = make(DRAWING, 4, shuffle=True, seed=5, shard="auto", drop_last=True)
    place = (1, 2, "a test")
    assert rows(next(iter(loader))) == rows(next(iter(of_ranks(make, 2)[1])))


def test_what_draws_by_itself_is_refused(make):
    with pytest.raises(
        OptionError, match="shard goes without sampler, batch_sampler and generator"
    ):
        make(DRAWING, 4, sampler=[1, 2], shard=(0, 2))
    with pytest.raises(OptionError, match="shard needs a dataset with"):
        DataLoader((number for number in range(4)), 4, shard=(0, 2))


@pytest.mark.torch
def test_a_seed_without_ranks_is_torchs_generators_affair():
    with pytest.raises(
        OptionError,
        match=r"goes with shard=.*pass generator=torch.Generator\(\).manual_seed\(3\)",
    ):
        loader_class("torch")(DRAWING, 4, seed=3)
