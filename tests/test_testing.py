"""The checks that users' tests may call: they pass where all is well, and name the cause where it isn't."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Random, Squares

import mpiter
from mpiter.testing import check_dataset, check_resume

LOADERS: dict[str, Callable[[], Any]] = {
    "batches without workers": lambda: mpiter.batches(Random(10), 3, n_processes=0, seed=1),
    "an endless iterator": lambda: mpiter.MultiprocessIterator(Random(10), 3, n_processes=1, seed=1),
    "an iterator of one epoch": lambda: mpiter.SerialIterator(Random(10), 3, repeat=False, seed=1),
    "a loader": lambda: mpiter.DataLoader(Random(10), 3, shuffle=True, seed=1),
}


class Own(Squares):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__(8)
        self.rng = np.random.default_rng(1)

    def __getitem__(self, index: int) -> Any:
        return self.rng.random(3)


class Locked(Squares):
    def __init__(self) -> None:
        super().__init__(8)
        self.lock = threading.Lock()


class Uneven(Squares):
    def __getitem__(self, index: int) -> Any:
        return np.zeros(index)


class Leaves(Squares):
    """Leaves a file open for each sample."""

    files: list[Any]

    def __getitem__(self, index: int) -> Any:
        self.files.append(Path(__file__).open())  # noqa: SIM115 - it stays open
        return index


class ElsewhereDifferent(Squares):
    """Depends on what fetches it."""

    def __getitem__(self, index: int) -> Any:
        info = mpiter.get_worker_info()
        return index if info is None or info.backend == "serial" else -index


def test_a_good_dataset_is_measured() -> None:
    report = check_dataset(Random(40), samples=12)
    assert (report.samples, report.is_even) == (12, True)
    assert 0 < report.sample_s <= report.slowest_s
    assert check_dataset([(np.zeros(100), 1)] * 3).sample_bytes == 800
    assert check_dataset((np.zeros((40, 3)), np.zeros(40))).samples == 32
    assert not check_dataset(Uneven(8), n_processes=1, uneven=True).is_even


class Kinds(Squares):
    """Samples that can be compared in no simple way."""

    def __getitem__(self, index: int) -> Any:
        arrays = np.array([None, float("nan")], object), np.ma.array([1, 2], mask=[0, 1])
        return Record(np.full(3, index)), *arrays, {"b"}


class Tensors(Squares):
    def __getitem__(self, index: int) -> Any:
        import torch

        return [torch.ones(3, dtype=torch.bfloat16), torch.ones(3, requires_grad=True)]


@dataclass
class Record:
    array: Any


def test_samples_of_all_kinds_are_compared() -> None:
    assert check_dataset(Kinds(8), n_processes=1, uneven=True).samples == 8


@pytest.mark.torch
def test_tensors_of_all_kinds_are_compared() -> None:
    pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    assert check_dataset(Tensors(8), n_processes=1, uneven=True).samples == 8


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (Own(), r"dataset\[0\] is another sample when it is fetched once more with the same seed"),
        (ElsewhereDifferent(8), r"dataset\[1\] is another sample when a worker fetches it"),
        (Locked(), r"can't be sent to workers as it is: dataset\.lock \(lock\) cannot be pickled"),
        (Uneven(8), "the samples differ in shape or type"),
    ],
)
def test_what_is_wrong_with_a_dataset_is_named(dataset: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_dataset(dataset, n_processes=1)


def test_files_that_stay_open_are_found() -> None:
    dataset = Leaves(8)
    dataset.files = []
    try:
        with pytest.raises(AssertionError, match="fetching 8 samples has left 8 files open"):
            check_dataset(dataset)
    finally:
        for file in dataset.files:
            file.close()


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_every_place_can_be_resumed_from(make: Callable[[], Any]) -> None:
    tried = check_resume(make, batches=7)
    assert tried in (5, 8)  # an iterator of one epoch has four batches


def test_a_generator_of_the_datasets_own_is_told() -> None:
    with pytest.raises(AssertionError, match=r"resumed after batch \d+, batch \d+ is another one"):
        check_resume(lambda: mpiter.batches(Own(), 2, n_processes=0, seed=1), batches=6)


def test_batches_that_do_not_come_are_told() -> None:
    class Forgetful:
        """Forgets its place when it loads a state: it is at its end."""

        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Any:
            while self.left:
                self.left -= 1
                yield self.left

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: Any) -> None:
            self.left = 0

    with pytest.raises(AssertionError, match="resumed after batch 0, 3 of 3 batches did not come"):
        check_resume(Forgetful)
