"""``ResidentFirst`` takes local samples first, in an order that can be resumed."""

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
    """A staged dataset of 40 samples, of which the first 10 are local."""
    found = Staging(tmp_path / "tier", "1MB", threads=0).of(Store(tmp_path))
    for index in range(10):
        found[index]
    return found


@pytest.mark.parametrize(("window", "local"), [(2, 1), (3, 2), (5, 0)])
def test_the_entropy_is_that_of_all_the_orders_there_may_be(window, local):
    outcomes = Counter()
    told = 0.0
    for order in itertools.permutations(range(5)):
        windows = [order[start : start + window] for start in range(0, 5, window)]
        outcome = []
        for part in windows:
            outcome += sorted(part, key=lambda i: i >= local)
        outcomes[tuple(outcome)] += 1
        told += entropy(np.array(order) < local, window)
    total = sum(outcomes.values())
    truth = -sum(
        count / total * math.log(count / total) for count in outcomes.values()
    ) / math.log(total)
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
    assert sorted(found[:8]) == sorted(
        ResidentFirst(staged, 1, seed=4)(np.arange(40), 0)[:8]
    )
    assert window.entropy > sampler.entropy


def indices_of(stream, batches):
    return [next(stream)[0].tolist() for _ in range(batches)]


def test_a_resumed_run_goes_on_with_the_order_it_had(staged):
    options = {"n_processes": 0, "epochs": None, "seed": 1}
    with mpiter.batches(
        staged, 4, order_sampler=ResidentFirst(staged), **options
    ) as stream:
        indices_of(stream, 4)
        state = json.loads(json.dumps(stream.state_dict()))
        rest = indices_of(stream, 6)
    with mpiter.batches(
        staged, 4, order_sampler=ResidentFirst(staged), **options
    ) as stream:
        stream.load_state_dict(state)
        assert indices_of(stream, 6) == rest
        whole = [index for batch in indices_of(stream, 10) for index in batch]
        assert sorted(whole) == list(range(40))


def test_an_empty_dataset_has_an_empty_order(tmp_path):
    store = Store(tmp_path, 0)
    assert (
        len(ResidentFirst(Staging(tmp_path / "tier", "1MB").of(store))(np.arange(0), 0))
        == 0
    )


def test_what_makes_no_sense_is_refused(staged, tmp_path):
    with pytest.raises(
        mpiter.OptionError, match="ResidentFirst needs a staged dataset"
    ):
        ResidentFirst(Store(tmp_path))
    with pytest.raises(mpiter.OptionError, match="window"):
        ResidentFirst(staged, 0)
    with pytest.raises(mpiter.OptionError, match=r"window=2.5 must be a whole number"):
        ResidentFirst(staged, 2.5)
    with pytest.raises(mpiter.OptionError, match="seed=None must be a whole number"):
        ResidentFirst(staged, seed=None)
    with pytest.raises(
        mpiter.OptionError, match="made for 40 samples; this order has 50"
    ):
        mpiter.batches(range(50), 4, order_sampler=ResidentFirst(staged), n_processes=0)
