"""Rows are dealt to ranks such that each has as much to do, and none is lost."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from documents import Documents, Named, lognormal, tokens_in

import mpiter
from mpiter.language import Balanced
from mpiter.order import dealing


def epoch_of(dataset: Any, ranks: int, batch_size: int, **options: Any) -> list[Any]:
    """Return the steps of an epoch: a batch of each rank, or None."""
    exact = options.pop("exact", True)
    streams = list[Any]()
    for rank in range(ranks):
        shard = mpiter.Shard(rank, ranks, exact=exact)
        streams.append(
            mpiter.batches(
                dataset, batch_size, n_processes=0, seed=3, shard=shard, **options
            )
        )
    steps = list[Any]()
    while True:
        step = [next(stream, None) for stream in streams]
        # Of an epoch's last rows the first rank gets one, if any does.
        if step[0] is None:
            return steps
        steps.append(step)


def cost_of(batch: Any) -> int:
    """Return what attention costs: the squares of the documents' lengths."""
    total = 0
    for segments in batch["segment_ids"]:
        total += int((np.bincount(segments)[1:] ** 2).sum())
    return total


# A document as long as a row is cut into pieces that can't be evened out.
@pytest.mark.parametrize(("how", "longest"), [("fit", 2048), ("cut", 512)])
def test_of_8_ranks_none_has_5_percent_more_to_do_than_the_mean(
    how: Any, longest: int
) -> None:
    lengths = lognormal(8000, 1, most=longest, mean=5.5)
    order = mpiter.Pack(Documents(lengths), 2048, how).mpiter_order(3, None)
    dealt = list[float]()
    undealt = list[float]()
    for begin in range(0, len(order) - 32, 32):
        costs = np.asarray(order.costs(begin, begin + 32))
        mean = costs.sum() / 8
        undealt.append(costs.reshape(8, 4).sum(axis=1).max() / mean)
        rows = dealing.dealt(costs, [4] * 8, (0, begin))
        assert sorted(row for mine in rows for row in mine) == [*range(32)]
        assert [len(mine) for mine in rows] == [4] * 8
        dealt.append(max(costs[mine].sum() for mine in rows) / mean)
    assert np.mean(dealt) <= 1.05
    assert np.mean(undealt) > 1.05


@pytest.mark.parametrize("exact", [True, False])
def test_each_rank_gets_as_many_rows_as_it_would_have_got_undealt(exact: bool) -> None:
    pack = mpiter.Pack(Documents(lognormal(300)), 64)
    rows = [*range(len(pack))]
    for ranks, batch_size in ((2, 1), (3, 4), (8, 5), (5, 16)):
        told = epoch_of(pack, ranks, batch_size, exact=exact, ragged="list")
        plain = epoch_of(rows, ranks, batch_size, exact=exact)
        sizes = list[Any]()
        for step in told:
            sizes.append([0 if one is None else len(one["tokens"]) for one in step])
        assert sizes == [[0 if x is None else len(x) for x in step] for step in plain]
        if exact:
            batches = [one for step in told for one in step if one is not None]
            assert tokens_in(batches) == pack.dataset.tokens()


def test_a_step_has_the_same_rows_however_they_are_dealt() -> None:
    documents = Documents(lognormal(300))
    even = epoch_of(mpiter.Pack(documents, 64), 2, 8)
    flat = mpiter.Pack(documents, 64, cost=lambda lengths: 1.0)
    loads = [Counter[str](), Counter[str]()]
    for step, same in zip(even, epoch_of(flat, 2, 8), strict=True):
        assert tokens_in(step) == tokens_in(same)
        for load, one in zip(loads, (step, same), strict=True):
            costs = [*map(cost_of, one)]
            load["off"] += abs(costs[0] - costs[1])
    assert loads[0]["off"] * 4 < loads[1]["off"]


def test_a_mixture_of_packs_is_dealt_by_the_packs_own_costs() -> None:
    documents = [Documents(lognormal(200, seed), 1 + 200 * seed) for seed in (0, 1)]
    packs = {
        "a": mpiter.Pack(documents[0], 64),
        "b": mpiter.Pack(documents[1], 64, cost=lambda lengths: 1e9),
    }
    mix = mpiter.Mix(packs, {"a": 1, "b": 1}, short="renormalise")
    found = Counter[int]()
    for step in epoch_of(mix, 2, 8):
        found += tokens_in(step)
        if len(step[0]["tokens"]) == len(step[1]["tokens"]) == 8:
            dear = [int((batch["tokens"][:, 0] > 200).sum()) for batch in step]
            assert abs(dear[0] - dear[1]) <= 1
    assert found == documents[0].tokens() + documents[1].tokens()


# -- Balanced --------------------------------------------------------------------------


def test_balanced_samples_are_those_of_the_dataset_evened_out() -> None:
    documents = Documents(lognormal(200))
    balanced = Balanced(documents)
    off = Counter[str]()
    seen = Counter[int]()
    for name, dataset in (("dealt", balanced), ("plain", documents)):
        for step in epoch_of(dataset, 4, 8, ragged="list"):
            loads = list[int]()
            for batch in step:
                samples = [] if batch is None else [*batch]
                loads.append(sum(len(sample) ** 2 for sample in samples))
                if name == "dealt":
                    seen.update(int(sample[0]) for sample in samples)
            if all(batch is not None and len(batch) == 8 for batch in step):
                off[name] += max(loads) - min(loads)
    assert off["dealt"] * 2 < off["plain"]
    assert seen == Counter(range(1, 201))


def test_balanced_keeps_the_order_and_the_tokens_of_a_mixture() -> None:
    parts = {"a": Documents(lognormal(90)), "b": Documents(lognormal(60, 1), 91)}
    mix = mpiter.Mix(parts, {"a": 1, "b": 2})
    both = [mix, Balanced(mix)]
    keys = [dataset.mpiter_order(5, None).take(0, 150).tolist() for dataset in both]
    assert keys[0] == keys[1]
    with mpiter.batches(both[1], 10, n_processes=0, ragged="list") as stream:
        for batch in stream:
            assert stream.step_tokens == sum(map(len, batch))
        state = stream.state_dict()
    with mpiter.batches(both[1], 7, n_processes=0, ragged="list") as stream:
        stream.load_state_dict(state)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cost": 3}, "cost=3 must be a function of a length"),
        ({"lengths": [1, 2]}, "lengths= has 2 numbers, and there are 9 documents"),
    ],
)
def test_what_balanced_refuses(options: Any, text: str) -> None:
    with pytest.raises(mpiter.OptionError, match=text):
        Balanced(Named("a", 9), **{"lengths": [1] * 9, **options})
