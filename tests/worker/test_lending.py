"""Rows that are lent: arrays that a dataset makes in the batch itself, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.worker.lending import row_for

SHAPE = (300, 400, 3)
WAYS: list[dict[str, Any]] = [
    {"n_processes": 2},
    {"n_processes": 2, "serializer": "packed"},
    {"n_processes": 2, "backend": "thread"},
]


class Filled:
    """Large arrays, made where they will lie if somebody lends that place; a sample tells whether."""

    def __init__(self, shape: tuple[int, ...] = SHAPE) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        shape = self.shape if index != 38 else (2, 2)  # which fits no column
        row = row_for(self, shape, np.dtype(np.uint8))
        array = np.empty(shape, np.uint8) if row is None else row
        array[...] = index
        return array, index, row is not None


class Keeping:
    """Of another dataset, whose samples it keeps."""

    def __init__(self) -> None:
        self.inner, self.kept = Filled(), dict[int, Any]()

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            self.kept[index] = self.inner[index]
        return self.kept[index]


def rows(dataset: Any, **options: Any) -> tuple[list[int], int]:
    """The numbers of the samples, whose arrays are found to be theirs, and how many were lent a row."""
    numbers, lent = [], 0
    with mpiter.batches(dataset, 4, epochs=2, shuffle=False, ragged="list", **options) as stream:
        for arrays, indices, were_lent in stream:
            for array, index, was_lent in zip(arrays, indices, were_lent, strict=True):
                assert (array == index).all()
                numbers.append(int(index))
                lent += bool(was_lent)
    return numbers, lent


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_large_arrays_are_made_in_the_batch(way: dict[str, Any]) -> None:
    numbers, lent = rows(Filled(), **way)
    assert sorted(numbers) == sorted([*range(40)] * 2)
    assert 30 < lent < 80


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_who_might_keep_what_he_is_given_is_lent_nothing(way: dict[str, Any]) -> None:
    assert rows(Keeping(), **way)[1] == 0


class Nesting(Filled):
    """Looks something up first, by an iterator of its own."""

    def __getitem__(self, index: int) -> Any:
        with mpiter.batches(range(3), 3, n_processes=0, shuffle=False) as stream:
            next(stream)
        return super().__getitem__(index)


def test_who_has_an_iterator_of_his_own_is_lent_rows_after_it() -> None:
    assert rows(Nesting(), n_processes=1)[1] > 30


def test_small_arrays_are_written_many_at_once_as_ever() -> None:
    assert rows(Filled((20, 30, 3)), n_processes=1)[1] == 0


def test_outside_of_a_fetch_nothing_is_lent() -> None:
    assert row_for(Filled(), SHAPE, np.dtype(np.uint8)) is None
    with mpiter.batches(Filled(), 4, n_processes=1, backend="thread", ragged="list") as stream:
        next(stream)
        assert row_for(stream.dataset, SHAPE, np.dtype(np.uint8)) is None


class Twins(Filled):
    def __getitem__(self, index: int) -> Any:
        row = row_for(self, SHAPE, np.dtype(np.uint8))
        return np.full(SHAPE, index, np.uint8), np.full(SHAPE, index, np.uint8), row is not None


def test_of_two_arrays_alike_neither_is_lent_a_place() -> None:
    with mpiter.batches(Twins(), 4, n_processes=1) as stream:
        assert not any(np.any(lent) for _, _, lent in stream)
