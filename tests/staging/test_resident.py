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
from mpiter.staging.resident import entropy, resident_first


@pytest.fixture
def staged(tmp_path):
    """Of 40 samples, the first 10 are local."""
    found = Staging(tmp_path / "tier", "1MB", workers=0).of(Store(tmp_path))
    for index in range(10):
        found[index]
    return found


@pytest.mark.parametrize(
    ("window", "first"), [(6, [1, 3, 5, 0, 2, 4]), (4, [1, 3, 0, 2, 5, 4]), (1, [0, 1, 2, 3, 4, 5])]
)
def test_within_a_window_what_is_here_comes_first_and_else_all_stays(window, first):
    here = np.array([False, True, False, True, False, True])
    assert resident_first(here, window).tolist() == first


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("local", [0, 1, 2, 5])
def test_the_entropy_is_that_of_all_the_orders_there_may_be(window, local):
    outcomes, told = Counter(), 0.0
    for order in itertools.permutations(range(5)):
        here = np.array(order) < local
        outcomes[tuple(np.array(order)[resident_first(here, window)])] += 1
        told += entropy(here, window)
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


def test_one_order_follows_from_the_one_before_and_the_seed(staged):
    first = ResidentFirst(staged, seed=4)(np.arange(40), 0)
    second = ResidentFirst(staged, seed=4)(first, 40)
    assert second.tolist() == ResidentFirst(staged, seed=4)(first, 40).tolist() != first.tolist()
    assert ResidentFirst(staged, seed=5)(first, 40).tolist() != second.tolist()


def test_when_all_is_local_it_is_an_ordinary_shuffle(staged):
    for index in range(40):
        staged[index]
    sampler = ResidentFirst(staged, 8)
    sampler(np.arange(40), 0)
    assert sampler.entropy == 1


def indices_of(stream, batches):
    return [next(stream)[0].tolist() for _ in range(batches)]


def test_what_was_drawn_comes_again_from_the_log(staged, tmp_path):
    options = {"n_processes": 2, "epochs": None, "seed": 1}
    with mpiter.batches(staged, 4, order_sampler=ResidentFirst(staged, log=tmp_path / "log"), **options) as stream:
        drawn = indices_of(stream, 25)
    replay = ResidentFirst(staged, replay=tmp_path / "log")
    with mpiter.batches(staged, 4, order_sampler=replay, **options) as stream:
        assert indices_of(stream, 25) == drawn
    other = Store(tmp_path)  # whatever is local, and nothing need be
    with mpiter.batches(other, 4, order_sampler=ResidentFirst(other, replay=tmp_path / "log"), **options) as stream:
        assert indices_of(stream, 25) == drawn


def test_a_run_that_was_resumed_comes_again_from_its_logs(staged, tmp_path):
    options = {"n_processes": 0, "epochs": None, "seed": 1}
    logs = [tmp_path / "first", tmp_path / "second"]
    with mpiter.batches(staged, 4, order_sampler=ResidentFirst(staged, log=logs[0]), **options) as stream:
        drawn = indices_of(stream, 14)
        state = stream.state_dict()
        indices_of(stream, 16)  # whose third epoch is not that of the resumed run
    for index in range(10, 30):
        staged[index]
    with mpiter.batches(staged, 4, order_sampler=ResidentFirst(staged, log=logs[1]), **options) as stream:
        stream.load_state_dict(state)
        drawn += indices_of(stream, 16)
    with mpiter.batches(staged, 4, order_sampler=ResidentFirst(staged, replay=logs), **options) as stream:
        assert indices_of(stream, 30) == drawn


def test_a_resumed_run_goes_on_with_the_order_it_had(staged):
    options = {"n_processes": 1, "epochs": None, "seed": 1}
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


def loader_of(staged, sampler, workers=2):
    return mpiter.DataLoader(staged, batch_size=4, sampler=sampler, num_workers=workers)


def test_a_loader_draws_from_what_is_local_first_and_each_epoch_anew(staged):
    sampler = ResidentFirst(staged, seed=4)
    with loader_of(staged, sampler, workers=0) as loader:
        assert len(loader) == 10
        first = indices_of(iter(loader), 10)
        assert sorted(flat(first)[:10]) == list(range(10))
        assert sorted(flat(first)) == list(range(40))
        second = indices_of(iter(loader), 10)
        assert second != first
        assert sampler.entropy == 1, "by now all of it is local"


def epoch_after_epoch(loader):
    return itertools.chain.from_iterable(iter(loader) for _ in itertools.count())


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3, 10, 12, 19])
def test_a_loader_resumes_exactly_whatever_is_local_by_then(staged, tmp_path, at):
    with loader_of(staged, ResidentFirst(staged, 16, seed=4, log=tmp_path / "log")) as loader:
        drawn = epoch_after_epoch(loader)
        indices_of(drawn, at)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = indices_of(drawn, 20 - at)
    with loader_of(staged, ResidentFirst(staged, replay=tmp_path / "log"), workers=1) as loader:
        loader.load_state_dict(state)
        assert indices_of(epoch_after_epoch(loader), 20 - at) == rest
    with loader_of(staged, ResidentFirst(staged, 16, seed=4), workers=1) as loader:
        loader.load_state_dict(state)
        drawn = epoch_after_epoch(loader)
        if at % 10:  # else an epoch begins, with what is local by then
            assert indices_of(drawn, 10 - at % 10) == rest[: 10 - at % 10]
        assert sorted(flat(indices_of(drawn, 10))) == list(range(40))


def test_an_epoch_that_was_left_is_over_for_a_loader(staged):
    sampler = ResidentFirst(staged, seed=4)
    first = list(itertools.islice(sampler, 7))
    assert list(sampler)[:7] != first
    assert list(sampler) != list(sampler)


def test_a_state_that_is_none_is_refused(staged):
    sampler = ResidentFirst(staged)
    for state in ({}, {"epoch": 0, "given": 41, "local": ""}, {"epoch": -1, "given": 0, "local": ""}):
        with pytest.raises(mpiter.StateError):
            sampler.load_state_dict(state)
    sampler.load_state_dict({"epoch": 0, "given": 1, "local": "no mask"})
    with pytest.raises(mpiter.StateError, match="does not say what was local"):
        next(iter(sampler))


def test_a_log_that_was_cut_short_holds_what_was_used(staged, tmp_path):
    log = tmp_path / "log"
    sampler = ResidentFirst(staged, log=log)
    first = sampler(np.arange(40), 0)
    size = log.stat().st_size
    sampler(first, 40)
    log.write_bytes(log.read_bytes()[: size + 100])
    replay = ResidentFirst(staged, replay=log)
    assert replay(np.arange(40), 0).tolist() == first.tolist()
    with pytest.raises(mpiter.StateError, match="the log has no order that follows this one"):
        replay(first, 40)


def test_what_makes_no_sense_is_refused(staged, tmp_path):
    with pytest.raises(mpiter.OptionError, match="resident first needs a dataset that is staged"):
        ResidentFirst(Store(tmp_path))
    with pytest.raises(mpiter.OptionError, match="window"):
        ResidentFirst(staged, 0)
    with pytest.raises(mpiter.OptionError, match="exclude each other"):
        ResidentFirst(staged, log="a", replay="b")
    with pytest.raises(mpiter.OptionError, match="for 40 samples, and the dataset has 50"):
        mpiter.batches(range(50), 4, order_sampler=ResidentFirst(staged), n_processes=0)
    (tmp_path / "log").write_bytes(b"something else")
    with pytest.raises(mpiter.OptionError, match="is no log of orders"):
        ResidentFirst(staged, replay=tmp_path / "log")
    with pytest.raises(mpiter.OptionError, match="is there already"):
        ResidentFirst(staged, log=tmp_path / "log")
