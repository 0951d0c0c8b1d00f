"""The audit counts what came of each component, over ranks, kills and restarts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from documents import Documents, Named, lognormal
from ledgers import alter, lines_in, logs_in

import mpiter
from mpiter.audit import audit
from mpiter.language import Balanced
from mpiter.receipts import Receipts

PARTS: dict[str, Any] = {
    "web": Documents(lognormal(120)),
    "code": Documents(lognormal(50, 1), 121),
}
WEIGHTS = {"web": 2, "code": 1}
WHOLE = {"code": 50, "web": 120}


def mixture() -> Any:
    return mpiter.Mix(PARTS, WEIGHTS, short="renormalise")


DATASETS = {
    "samples": (mixture, {"ragged": "list"}),
    "balanced": (lambda: Balanced(mixture()), {"ragged": "list"}),
    "rows": (lambda: mpiter.Pack(mixture(), 64, window=40), {}),
    "cut rows": (lambda: mpiter.Pack(mixture(), 50, how="cut", window=40), {}),
    "split rows": (lambda: mpiter.Pack(mixture(), 20, long="split"), {}),
}


def train(
    folder: Path,
    dataset: Any,
    ranks: int,
    steps: int | None,
    state: Any,
    **options: Any,
) -> Any:
    """Train with some ranks; return the state behind the first ``steps`` steps.

    Each rank is handed two batches more, which nobody saves: it is killed.
    """
    saved: Any = None
    for rank in range(ranks):
        stream = mpiter.batches(
            dataset,
            3,
            n_processes=0,
            seed=1,
            shard=mpiter.Shard(rank, ranks, exact=True),
            hooks=Receipts(folder),
            **options,
        )
        with stream:
            if state is not None:
                stream.load_state_dict(json.loads(state))
            for step, _ in enumerate(stream, 1):
                if step == steps:
                    saved = json.dumps(stream.state_dict())
                if steps is not None and step == steps + 2:
                    break
    return saved


@pytest.mark.parametrize("kind", DATASETS)
def test_each_document_counts_once_over_ranks_and_kills(
    kind: str, tmp_path: Path
) -> None:
    make, options = DATASETS[kind]
    state = train(tmp_path, make(), 1, 3, None, **options)
    state = train(tmp_path, make(), 3, 2, state, **options)
    train(tmp_path, make(), 2, None, state, **options)
    found = audit(tmp_path)
    assert found.is_sound
    assert found.starts == (1, 3, 2)
    [epoch] = found.epochs
    assert epoch.is_over
    assert dict(epoch.components) == WHOLE
    assert "  of the components: code 50, web 120" in found.lines


def test_dealt_rows_that_are_lost_or_come_twice_are_found(tmp_path: Path) -> None:
    make, _ = DATASETS["rows"]
    train(tmp_path, make(), 2, None, None)
    log = logs_in(tmp_path)[0]
    lines = lines_in(log)
    [first, *_] = [at for at, line in enumerate(lines) if "keys" in line]
    alter(log, lambda lines: [*lines[:first], *lines[first + 1 :]])
    lost = audit(tmp_path)
    assert (lost.is_sound, lost.twice) == (False, 0)
    assert lost.missing == len(lines[first]["keys"])
    alter(log, lambda _: [*lines[: first + 1], *lines[first:]])
    twice = audit(tmp_path)
    assert (twice.is_sound, twice.missing) == (False, 0)
    assert twice.twice == len(lines[first]["keys"])


def test_what_fills_a_step_and_what_is_skipped_is_not_counted(tmp_path: Path) -> None:
    class Torn(Named):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                raise ValueError("a torn page")
            return super().__getitem__(index)

    mix = mpiter.Mix(
        {"a": Torn("a", 10), "b": Named("b", 5)},
        {"a": 2, "b": 1},
        short="renormalise",
    )
    for rank in range(2):
        with mpiter.batches(
            mix,
            4,
            n_processes=0,
            shard=(rank, 2),
            hooks=Receipts(tmp_path),
            on_error="skip",
        ) as stream:
            assert len([*stream]) == 2
    [epoch] = audit(tmp_path).epochs
    assert epoch.components == {"a": 9, "b": 5}


def test_each_epoch_has_its_own_counts(tmp_path: Path) -> None:
    mix = mpiter.Mix({"a": Named("a", 30), "b": Named("b", 10)}, {"a": 1, "b": 1})
    expected = Counter[str]()
    with mpiter.batches(
        mix, 16, n_processes=0, epochs=3, hooks=Receipts(tmp_path)
    ) as stream:
        for batch in stream:
            expected.update(sample.split()[0] for sample in batch)
    total = Counter[str]()
    for epoch in audit(tmp_path).epochs:
        assert sum(epoch.components.values()) == 40
        total.update(epoch.components)
    assert total == expected


def test_rows_of_a_dataset_without_components_tell_none(tmp_path: Path) -> None:
    pack = mpiter.Pack(PARTS["web"], 64)
    with mpiter.batches(pack, 4, n_processes=0, hooks=Receipts(tmp_path)) as stream:
        list(stream)
    assert not any("components" in line for line in lines_in(logs_in(tmp_path)[0]))
    assert audit(tmp_path).epochs[0].components == {}


def test_a_users_dataset_may_tell_its_components(tmp_path: Path) -> None:
    class Halves(list[int]):
        def components_of(self, keys: Any) -> dict[str, int]:
            return {"low": sum(key < 10 for key in keys)}

    class Failing(list[int]):
        def components_of(self, keys: Any) -> dict[str, int]:
            raise RuntimeError("no idea")

    def train(folder: str, dataset: Any) -> None:
        hook = Receipts(tmp_path / folder)
        with mpiter.batches(dataset, 4, n_processes=0, hooks=hook) as stream:
            assert len(list(stream)) == 5

    train("a", Halves(range(20)))
    assert audit(tmp_path / "a").epochs[0].components == {"low": 10}
    with pytest.warns(RuntimeWarning, match="no idea"):
        train("b", Failing(range(20)))


@pytest.mark.parametrize("damage", [3, {"web": "many"}, {"web": None}, [["web", 3]]])
def test_damaged_counts_are_refused(damage: Any, tmp_path: Path) -> None:
    train(tmp_path, mixture(), 1, None, None, ragged="list")
    log = logs_in(tmp_path)[0]

    def change(lines: Any) -> Any:
        for line in lines:
            if "components" in line:
                line["components"] = damage
        return lines

    alter(log, change)
    with pytest.raises(mpiter.OptionError, match="is damaged, or no receipt"):
        audit(tmp_path)
