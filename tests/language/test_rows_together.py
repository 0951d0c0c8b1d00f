"""Rows that are made at once are those that are made one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter.errors import DocumentError
from mpiter.files import Tokens

CAPACITY = 12


class Singly:
    """Documents that are read one by one."""

    def __init__(self, documents: Sequence[Any]) -> None:
        self.documents = documents
        self.calls = 0

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> Any:
        return self.documents[index]


class AtOnce(Singly):
    """Documents that are read at once, too; it counts how often."""

    def __getitems__(self, indices: Sequence[int]) -> Any:
        self.calls += 1
        return [self.documents[index] for index in indices]


def batches_of(dataset: Any, **options: Any) -> list[Any]:
    with mpiter.batches(dataset, 3, n_processes=0, seed=1, **options) as stream:
        return list(stream)


def assert_same(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    assert len(found) == len(wanted)
    for batch, other in zip(found, wanted, strict=True):
        assert [*batch] == [*other]
        for name, column in batch.items():
            assert column.dtype == other[name].dtype
            assert column.tolist() == other[name].tolist(), name


def as_arrays(sizes: Sequence[int]) -> list[Any]:
    return [np.arange(size, dtype=np.uint16) + 7 * size for size in sizes]


def as_others(sizes: Sequence[int]) -> list[Any]:
    # The byte order of another machine.
    return [np.arange(size).astype(">i4") for size in sizes]


def as_lists(sizes: Sequence[int]) -> list[Any]:
    return [[size] * size for size in sizes]


def as_fields(sizes: Sequence[int]) -> list[Any]:
    found = list[Any]()
    for number, size in enumerate(sizes):
        pair = np.full((size, 2), number, np.float32)
        found.append({"tokens": np.arange(size), "pair": pair})
    return found


@given(
    sizes=st.lists(st.integers(0, 2 * CAPACITY), min_size=1, max_size=30),
    how=st.sampled_from(["fit", "cut"]),
    long=st.sampled_from(["split", "truncate", "drop"]),
    make=st.sampled_from([as_arrays, as_others, as_lists, as_fields]),
)
@settings(max_examples=60, deadline=None)
def test_rows_are_the_same_at_once_and_one_by_one(
    sizes: list[int], how: Any, long: Any, make: Any
) -> None:
    kept = [size for size in sizes if long != "drop" or size <= CAPACITY]
    if not sum(kept):
        sizes = [*sizes, 3]
    documents = make(sizes)
    options = {"how": how, "long": long, "lengths": sizes}
    at_once = AtOnce(documents)
    found = batches_of(mpiter.Pack(at_once, CAPACITY, **options))
    wanted = batches_of(mpiter.Pack(Singly(documents), CAPACITY, **options))
    for batch, other in zip(found, wanted, strict=True):
        assert {*batch} == {*other}
        for name, column in batch.items():
            assert column.dtype == other[name].dtype
            np.testing.assert_array_equal(column, other[name])
    assert at_once.calls or all(len(batch["tokens"]) == 1 for batch in found)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_a_mixture_of_files_are_those_of_its_documents(
    tmp_path: Path, workers: int
) -> None:
    rng = np.random.default_rng(3)
    files = dict[str, Any]()
    arrays = dict[str, Any]()
    for name, documents in (("web", 50), ("code", 20), ("books", 9)):
        sizes = rng.integers(1, CAPACITY, documents)
        flat = rng.integers(0, 1000, sizes.sum()).astype(np.uint16)
        flat.tofile(tmp_path / name)
        borders = np.concatenate(([0], np.cumsum(sizes)))
        files[name] = Tokens(tmp_path / name, borders)
        arrays[name] = Singly(np.split(flat, borders[1:-1]))
    weights = {"web": 3, "code": 2, "books": 1}
    wanted = batches_of(mpiter.Pack(mpiter.Mix(arrays, weights), CAPACITY), epochs=2)
    mix = mpiter.Mix(files, weights)
    options = {"n_processes": workers, "seed": 1, "epochs": 2}
    with mpiter.batches(mpiter.Pack(mix, CAPACITY), 3, **options) as stream:
        assert_same([*stream], wanted)


def test_a_file_is_read_by_the_getitem_of_a_derived_class(tmp_path: Path) -> None:
    class Shifted(Tokens):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) + 100

    np.arange(12, dtype=np.uint16).tofile(tmp_path / "tokens")
    documents = Shifted(tmp_path / "tokens", range(0, 13, 3))
    for dataset in (mpiter.Pack(documents, 6), mpiter.Mix({"a": documents}, {"a": 1})):
        with mpiter.batches(dataset, 2, n_processes=0, ragged="list") as stream:
            for batch in stream:
                tokens = batch["tokens"] if isinstance(batch, dict) else batch
                assert np.min(tokens) >= 100


class Damaged(AtOnce):
    """Its document 2 can't be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise OSError("the disk is gone")
        return super().__getitem__(index)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        return [self[index] for index in indices]


def test_a_row_whose_document_fails_is_named_and_the_others_come() -> None:
    documents = Damaged(as_arrays([CAPACITY] * 6))
    rows = mpiter.Pack(documents, CAPACITY, lengths=[CAPACITY] * 6)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        batches_of(rows)
    assert "document 2 of a packed row" in "".join(caught.value.__notes__)
    found = batches_of(rows, on_error="skip")
    assert sum(len(batch["tokens"]) for batch in found) == 5


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (np.arange(3), "document 1 has 3 tokens .* its length was told to be 4"),
        (np.arange(4.0), "document 1 has float64 .* others in the row int64"),
        (np.zeros((4, 2), np.int64), r"document 1 has int64 of shape \(2,\)"),
        (["a"] * 4, "document 1 has text"),
        ({"tokens": np.arange(4), "more": np.arange(4)}, "document 1 has the fields"),
        (7, "document 1 has no tokens"),
    ],
)
def test_what_is_wrong_with_a_document_is_said_as_if_read_alone(
    wrong: Any, told: str
) -> None:
    documents = AtOnce([np.arange(4), wrong, np.arange(4), np.arange(4)])
    rows = mpiter.Pack(documents, 8, lengths=[4] * 4)
    with pytest.raises(DocumentError, match=told):
        batches_of(rows, shuffle=False)


class Counted(AtOnce):
    """It counts how many documents were read at once and one by one."""

    def __init__(self, documents: Sequence[Any]) -> None:
        super().__init__(documents)
        self.at_once = 0
        self.singly = 0

    def __getitem__(self, index: int) -> Any:
        self.singly += 1
        return super().__getitem__(index)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        self.at_once += len(indices)
        return super().__getitems__(indices)


@pytest.mark.parametrize("wrong", ["all", "one"])
def test_documents_that_cannot_be_joined_are_read_twice_a_few_times_only(
    wrong: str,
) -> None:
    # Each row has one type, and another one than the next.
    kinds = [np.int32, np.int64] if wrong == "all" else [np.int32]
    documents = []
    for number in range(90):
        documents.append(np.arange(CAPACITY, dtype=kinds[number % len(kinds)]))
    if wrong == "one":
        documents[0] = documents[0].astype(np.int64)
    dataset = Counted(documents)
    lengths = [CAPACITY] * len(documents)
    rows = mpiter.Pack(dataset, CAPACITY, lengths=lengths, how="cut")
    found = []
    options: dict[str, Any] = {"shuffle": False, "repeat": False}
    with mpiter.SerialIterator(rows, 3, **options) as stream:
        for batch in stream:
            found += [row["tokens"] for row in batch]
    for row, document in zip(found, documents, strict=True):
        assert row.dtype == document.dtype
        assert row.tolist() == document.tolist()
    if wrong == "all":
        assert dataset.singly == 90
        assert dataset.at_once <= 3 * 3
    else:
        assert dataset.singly <= 2 * 3
        assert dataset.at_once >= 90 - 3


def test_a_number_beyond_a_file_is_an_error_for_many_as_for_one(tmp_path: Path) -> None:
    np.arange(6, dtype=np.uint16).tofile(tmp_path / "tokens")
    documents = Tokens(tmp_path / "tokens", [0, 3, 6])

    class Order(mpiter.Order):
        def __init__(self, keys: list[int]) -> None:
            self.keys = keys

        def __len__(self) -> int:
            return len(self.keys)

        def take(self, start: int, stop: int) -> list[int]:
            return self.keys[start:stop]

        def later(self, epochs: int) -> Order:
            return self

    for wrong in (-1, 2):
        keys = [0, wrong, 1]
        documents.mpiter_order = lambda seed, shuffle, keys=keys: Order(keys)  # type: ignore[attr-defined]
        with pytest.raises(IndexError, match=f"{wrong} isn't from 0 to before 2"):
            batches_of(documents)
