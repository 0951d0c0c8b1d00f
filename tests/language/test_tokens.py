"""``step_tokens`` are the real tokens of all ranks' batches, the same on each rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from documents import Documents, Named, lognormal

import mpiter
from mpiter.echo import Echo

# More ranks than rows are no mistake here.
pytestmark = pytest.mark.filterwarnings("ignore:there was no batch")
LENGTHS = lognormal(150)


def packs() -> dict[str, Any]:
    """Return each kind of packed dataset."""
    web = Documents(LENGTHS)
    code = Documents(lognormal(60, 1), 151)
    weights = {"web": 2, "code": 1}
    both: dict[str, Any] = {"web": web, "code": code}
    rows = {name: mpiter.Pack(documents, 64) for name, documents in both.items()}
    return {
        "fit": rows["web"],
        "cut": mpiter.Pack(web, 64, how="cut"),
        "around a mixture": mpiter.Pack(mpiter.Mix(both, weights), 64, window=32),
        "in a mixture": mpiter.Mix(rows, weights),
    }


PACKS = packs()


def real_tokens(batch: Any) -> int:
    if batch is None:
        return 0
    return int((np.asarray(batch["segment_ids"]) > 0).sum())


def check(steps: Any, sources: list[Any]) -> int:
    """Check each step's tokens on all ranks; return the number of steps.

    A rank that gets no batch in the last step is still at the one before.
    """
    count = 0
    for step in steps:
        count += 1
        total = sum(map(real_tokens, step))
        for batch, source in zip(step, sources, strict=True):
            if batch is not None:
                assert source.step_tokens == total
    return count


def together(iterators: list[Any]) -> Any:
    """Yield the batches of each step, until the first rank has no more."""
    while True:
        step = [next(iterator, None) for iterator in iterators]
        if step[0] is None:
            return
        yield step


@pytest.mark.parametrize("kind", PACKS)
@pytest.mark.parametrize("last", ["exact", "filled", "dropped"])
def test_a_loaders_steps_are_counted_up_to_the_last_of_an_epoch(
    kind: str, last: str
) -> None:
    for ranks, batch_size in ((1, 7), (2, 3), (3, 4), (8, 2)):
        loaders = list[Any]()
        for rank in range(ranks):
            shard = mpiter.Shard(rank, ranks, exact=last == "exact")
            drops = last == "dropped"
            loaders.append(
                mpiter.DataLoader(
                    PACKS[kind],
                    batch_size,
                    shuffle=True,
                    drop_last=drops,
                    shard=shard,
                )
            )
        for _ in range(2):
            # Around a mixture epochs may differ in their number of rows.
            expected = len(loaders[0])
            steps = check(together([*map(iter, loaders)]), loaders)
            assert steps == expected > 0


@pytest.mark.parametrize("kind", PACKS)
def test_an_iterator_that_repeats_counts_steps_across_epochs(kind: str) -> None:
    for ranks, batch_size, most in ((1, 7, 30), (2, 3, 30), (3, 50, 3)):
        iterators = list[Any]()
        for rank in range(ranks):
            iterators.append(
                mpiter.SerialIterator(
                    PACKS[kind],
                    batch_size,
                    shuffle=True,
                    seed=1,
                    shard=(rank, ranks),
                )
            )
        steps = itertools.islice(together(iterators), most)
        counted = ([batch.columns for batch in step] for step in steps)
        assert check(counted, iterators) == most
        assert iterators[0].epoch >= 2


def test_counted_tokens_are_those_that_the_loss_looks_at() -> None:
    answers = np.maximum(LENGTHS // 3, 1)
    pack = mpiter.Pack(Documents(LENGTHS), 64, counted=answers)
    with mpiter.DataLoader(pack, 5, shuffle=True) as loader:
        for batch in loader:
            there = {*batch["tokens"].ravel().tolist()} - {0}
            assert loader.step_tokens == sum(int(answers[one - 1]) for one in there)


@pytest.mark.parametrize("n_processes", [0, 1])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"how": "cut"},
        {"long": "split"},
        {"long": "truncate"},
        {"long": "drop"},
        {"layout": "jagged"},
        {"cost": len},
    ],
    ids=str,
)
def test_a_function_says_how_many_tokens_of_each_piece_count(
    options: dict[str, Any], n_processes: int
) -> None:
    capacity = 16 if {"how", "long"} & {*options} else 64
    mix = mpiter.Mix(
        {"web": Documents(LENGTHS), "code": Documents(LENGTHS, 151)},
        {"web": 2, "code": 1},
    )
    rows = mpiter.Pack(mix, capacity, counted=lambda sizes: sizes - 1, **options)
    loader: Any = mpiter.DataLoader(
        rows, 5, shuffle=True, num_workers=n_processes, collate_fn=list
    )
    counted = 0
    with loader:
        for batch in loader:
            predicted = 0
            for row in batch:
                real = len(row["tokens"])
                pieces = len(row.get("cu_seqlens", [0])) - 1
                if "segment_ids" in row:
                    real = int((row["segment_ids"] > 0).sum())
                    pieces = int(row["segment_ids"].max())
                predicted += real - pieces
            assert loader.step_tokens == predicted
            counted += 1
    assert counted


def test_a_function_that_counts_wrongly_is_told_where_it_does() -> None:
    # The second document begins with the last token of a row.
    rows = mpiter.Pack(
        Documents([20, 21]), 7, how="cut", counted=lambda sizes: sizes - 5
    )
    text = r"counted= returned -. for a piece of"
    with (
        mpiter.batches(rows, 1, n_processes=0, shuffle=False) as stream,
        pytest.raises(mpiter.OptionError, match=text),
    ):
        for _ in stream:
            assert stream.step_tokens >= 0


def test_before_the_first_batch_and_without_lengths_it_is_not_there() -> None:
    stream = mpiter.batches(PACKS["fit"], 4, n_processes=0)
    loader = mpiter.DataLoader(PACKS["fit"], 4)
    for source in (stream, loader):
        assert not hasattr(source, "step_tokens")
        with pytest.raises(AttributeError, match="no batch has come yet"):
            source.step_tokens  # noqa: B018
    for dataset in (
        [1, 2, 3],
        mpiter.Mix({"a": Named("a", 9)}, {"a": 1}),
    ):
        with mpiter.DataLoader(dataset, 2) as plain:
            next(iter(plain))
            with pytest.raises(AttributeError, match="step_tokens isn't known"):
                plain.step_tokens  # noqa: B018


def test_an_echo_says_why_it_has_none() -> None:
    with mpiter.batches(PACKS["fit"], 4, n_processes=0) as stream:
        echo = Echo(stream, 2)
        next(echo)
        with pytest.raises(AttributeError, match="an Echo gives further uses"):
            echo.step_tokens  # noqa: B018


def test_samples_that_are_left_out_are_still_counted() -> None:
    class Torn(Documents):
        def __getitem__(self, index: int) -> Any:
            if index == 7:
                raise ValueError("a torn page")
            return super().__getitem__(index)

    pack = mpiter.Pack(Torn(LENGTHS), 64)
    total = 0
    with mpiter.batches(pack, 4, n_processes=0, seed=0, on_error="skip") as stream:
        for _ in stream:
            total += stream.step_tokens
    assert total == LENGTHS.sum()


def test_on_a_device_it_is_that_of_the_batch_handed_out() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from mpiter.torch import DataLoader, DevicePrefetcher

    with DataLoader(PACKS["fit"], 4, shuffle=True) as loader:
        ahead = DevicePrefetcher(loader, "cpu")
        with pytest.raises(AttributeError, match="step_tokens isn't known"):
            ahead.step_tokens  # noqa: B018
        for batch in ahead:
            assert ahead.step_tokens == int((batch["segment_ids"] > 0).sum())
