"""Resident first: what such an order is, how random it is, and that it comes again."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from stores import Store

import mpiter
from mpiter.staging import ResidentFirst, Staging
from mpiter.staging.resident import entropy


@pytest.fixture
def staged(tmp_path):
    """Of 40 samples, the first 10 are local."""
    found = Staging(tmp_path / "tier", "1MB", workers=0).of(Store(tmp_path))
    for index in range(10):
        found[index]
    return found


@pytest.mark.parametrize(("window", "local"), [(2, 1), (3, 2), (5, 0)])
def test_the_entropy_is_that_of_all_the_orders_there_may_be(window, local):
    outcomes, told = Counter(), 0.0
    for order in itertools.permutations(range(5)):
        windows = [order[start : start + window] for start in range(0, 5, window)]
        outcomes[tuple(index for part in windows for index in sorted(part, key=lambda i: i >= local))] += 1
        told += entropy(np.array(order) < local, window)
    total = sum(outcomes.values())
    truth = -sum(count / total * math.log(count / total) for count in outcomes.values()) / math.log(total)
    assert told / total == pytest.approx(truth)


def test_an_epoch_is_each_sample_once_local_ones_first(staged):
    sampler = ResidentFirst(staged, seed=4)
    order = sampler(np.arange(40), 0)
    assert sorted(order.tolist()) == list(range(40))
    assert sorted(order[:10].tolist()) == list(range(10))
    assert 0 < sampler.entropy < 1
    assert ResidentFirst(staged, 1, seed=4)(np.arange(40), 0).tolist() != order.tolist()
    window = ResidentFirst(staged, 8, seed=4)
    found = window(np.arange(40), 0)
    assert sorted(found[:8]) == sorted(ResidentFirst(staged, 1, seed=4)(np.arange(40), 0)[:8])
    assert window.entropy > sampler.entropy


def indices_of(stream, batches):
    return [next(stream)[0].tolist() for _ in range(batches)]


def test_a_resumed_run_goes_on_with_the_order_it_had(staged):
    options = {"n_processes": 0, "epochs": None, "seed": 1}
    with mpiter.batches(staged, 4, order_sampler=ResidentFirst(staged), **options) as stream:
        indices_of(stream, 4)
        state = json.loads(json.dumps(stream.state_dict()))
        rest = indices_of(stream, 6)
    with mpiter.batches(staged, 4, order_sampler=ResidentFirst(staged), **options) as stream:
        stream.load_state_dict(state)
        assert indices_of(stream, 6) == rest
        assert sorted(i for batch in indices_of(stream, 10) for i in batch) == list(range(40))


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def loader_of(staged, sampler, workers):
    return mpiter.DataLoader(staged, batch_size=4, sampler=sampler, num_workers=workers)


def epoch_after_epoch(loader):
    return itertools.chain.from_iterable(iter(loader) for _ in itertools.count())


@pytest.mark.parametrize("at", [3, 10])
def test_a_loader_resumes_exactly_whatever_is_local_by_then(staged, at):
    with loader_of(staged, ResidentFirst(staged, 16, seed=4), workers=1) as loader:
        drawn = epoch_after_epoch(loader)
        indices_of(drawn, at)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = indices_of(drawn, 20 - at)
    with loader_of(staged, ResidentFirst(staged, 16, seed=4), workers=0) as loader:
        loader.load_state_dict(state)
        drawn = epoch_after_epoch(loader)
        if at % 10:  # else an epoch begins, with what is local by then
            assert indices_of(drawn, 10 - at % 10) == rest[: 10 - at % 10]
        assert sorted(flat(indices_of(drawn, 10))) == list(range(40))


def test_an_empty_dataset_has_an_empty_order(tmp_path):
    store = Store(tmp_path, 0)
    assert list(ResidentFirst(Staging(tmp_path / "tier", "1MB").of(store))) == []


def test_a_state_that_is_none_is_refused(staged):
    sampler = ResidentFirst(staged)
    for state in ({}, {"epoch": 0, "given": 41, "local": ""}, {"epoch": -1, "given": 0, "local": ""}):
        with pytest.raises(mpiter.StateError):
            sampler.load_state_dict(state)
    with pytest.raises(ValueError, match="base64"):
        sampler.load_state_dict({"epoch": 0, "given": 1, "local": "no mask"})


def test_what_makes_no_sense_is_refused(staged, tmp_path):
    with pytest.raises(mpiter.OptionError, match="resident first needs a dataset that is staged"):
        ResidentFirst(Store(tmp_path))
    with pytest.raises(mpiter.OptionError, match="window"):
        ResidentFirst(staged, 0)
    with pytest.raises(mpiter.OptionError, match="for 40 samples, and the dataset has 50"):
        mpiter.batches(range(50), 4, order_sampler=ResidentFirst(staged), n_processes=0)
