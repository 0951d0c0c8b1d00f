"""A step has the same rows in any number of ranks, and each rank knows its tokens."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from typing import Any

import numpy as np
import pytest
from documents import Documents, lognormal

import mpiter
from mpiter.language import Balanced
from mpiter.order import dealing

CAPACITY = 64
ROWS = 12
FIRST = Documents(lognormal(400, 1))
SECOND = Documents(lognormal(300, 2), 401)
WEIGHTS = {"first": 2, "second": 1}


def pack(**options: Any) -> mpiter.Pack:
    return mpiter.Pack(FIRST, CAPACITY, **options)


def pack_of_mix() -> mpiter.Pack:
    mix = mpiter.Mix({"first": FIRST, "second": SECOND}, WEIGHTS)
    return mpiter.Pack(mix, CAPACITY, window=100)


def mix_of_packs() -> mpiter.Mix:
    packs = {"first": pack(), "second": mpiter.Pack(SECOND, CAPACITY)}
    return mpiter.Mix(packs, WEIGHTS)


DATASETS = {
    "fit": pack,
    "cut": lambda: pack(how="cut"),
    "pack of mix": pack_of_mix,
    "mix of packs": mix_of_packs,
}
each_dataset = pytest.mark.parametrize("make", DATASETS.values(), ids=DATASETS)


def loaders(dataset: Any, ranks: int, workers: int = 0, **options: Any) -> list[Any]:
    return [
        mpiter.DataLoader(
            dataset,
            ROWS // ranks,
            shuffle=True,
            seed=3,
            shard=(rank, ranks),
            num_workers=workers,
            **options,
        )
        for rank in range(ranks)
    ]


def iterators(dataset: Any, ranks: int, workers: int = 0) -> list[Any]:
    return [
        mpiter.batches(
            dataset, ROWS // ranks, seed=3, shard=(rank, ranks), n_processes=workers
        )
        for rank in range(ranks)
    ]


def rows_of(batch: Any) -> Counter[bytes]:
    return Counter(row.tobytes() for row in np.asarray(batch["tokens"]))


@each_dataset
def test_a_step_has_the_same_rows_in_any_number_of_ranks(make):
    whole = [rows_of(batch) for batch in loaders(make(), 1, drop_last=True)[0]]
    for ranks in 2, 3, 4:
        together = zip(*loaders(make(), ranks, drop_last=True), strict=True)
        steps = [sum(map(rows_of, batches), Counter()) for batches in together]
        assert steps == whole


@each_dataset
@pytest.mark.parametrize("begin", [loaders, iterators])
@pytest.mark.parametrize("ranks", [1, 3])
def test_step_tokens_are_those_of_all_ranks_up_to_the_last_step(make, begin, ranks):
    sources = begin(make(), ranks)
    for batches in zip(*sources, strict=True):
        real = sum(int((batch["segment_ids"] > 0).sum()) for batch in batches)
        assert [source.step_tokens for source in sources] == [real] * ranks
    for source in sources:
        source.close()


def test_workers_that_are_ahead_change_no_step_tokens():
    [alone] = loaders(mix_of_packs(), 1)
    wanted = [alone.step_tokens for _ in alone]
    [ahead] = loaders(mix_of_packs(), 1, workers=2)
    with ahead:
        assert [ahead.step_tokens for _ in ahead] == wanted


def test_step_tokens_are_those_that_the_loss_counts():
    answers = np.minimum(FIRST.lengths, 5)
    [loader] = loaders(pack(counted=answers), 1)
    for batch in loader:
        numbers = np.unique(np.asarray(batch["tokens"]))
        assert loader.step_tokens == answers[numbers[numbers > 0] - 1].sum()


def cost_of(sample: Any) -> float:
    """Return the sum of the squared lengths of the documents in a row."""
    tokens = np.asarray(sample)
    _, lengths = np.unique(tokens[tokens > 0], return_counts=True)
    return float((lengths**2).sum())


def samples_in(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return list(batch["tokens"])
    return list(batch)


def busiest(parts: list[list[float]]) -> float:
    return max(map(sum, parts))


@pytest.mark.parametrize("dataset", [pack(), Balanced(FIRST)], ids=["Pack", "Balanced"])
def test_ranks_get_as_many_samples_and_the_busiest_has_less_to_compute(dataset):
    dealt = 0.0
    as_they_come = 0.0
    options: Any = {"ragged": "list", "drop_last": True}
    [alone] = loaders(dataset, 1, **options)
    ranks = loaders(dataset, 3, **options)
    for step, *batches in zip(alone, *ranks, strict=True):
        costs = [[cost_of(one) for one in samples_in(batch)] for batch in batches]
        assert [len(its) for its in costs] == [ROWS // 3] * 3
        dealt += busiest(costs)
        undealt = [cost_of(one) for one in samples_in(step)]
        assert sorted(undealt) == sorted(itertools.chain(*costs))
        as_they_come += busiest([undealt[:4], undealt[4:8], undealt[8:]])
    assert dealt < as_they_come


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, "mpiter")
    dealing.tell_that_nothing_is_even.cache_clear()
    return caplog


def test_one_row_for_each_rank_is_said_to_leave_nothing_to_deal_and_once(said):
    for _ in range(2):
        list(mpiter.DataLoader(pack(), 1, shard=(0, 2)))
    [record] = said.records
    assert "each rank gets one row a step" in record.message


def test_nothing_is_said_of_a_last_step_with_few_rows(said):
    rows = len(pack())
    # The last step has one row, or two where ranks are to have as many.
    list(mpiter.DataLoader(pack(), (rows - 1) // 2, shard=(0, 2)))
    assert not said.records
