"""What users write, as mypy and pyright see it.

A line that is marked as a mistake must be one, or they complain.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from typing import Any, assert_type

import numpy as np

import mpiter
from mpiter.echo import Echo
from mpiter.iterators.iterators import Batches

Array = np.ndarray[Any, np.dtype[np.number[Any] | np.bool_]]
X: np.ndarray[Any, np.dtype[np.float32]] = np.zeros((4, 2), np.float32)
ANYTHING: Any = X


class Pictures:
    """An annotated dataset, as most are."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return X[index], index


class Unannotated:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return ANYTHING


class Named(list[dict[str, np.ndarray]]):
    """A dataset whose samples have names for their parts."""


class Half(list[tuple[Any, int]]):
    """The type of its samples is known in part, as in the next two."""


class HalfOfThree(list[tuple[int, Any, int]]):
    pass


class HalfNamed(list[dict[str, Any]]):
    pass


def batches_have_the_types_of_stacked_samples() -> None:
    for numbers in mpiter.batches([1, 2], 2):
        assert_type(numbers, Array)
    for pair in mpiter.batches([(1, 2.0)], 2, on_error="skip", ragged="pad"):
        assert_type(pair, tuple[Array, Array])
    for pair in mpiter.batches(Pictures(), 2):
        assert_type(pair, tuple[Array, Array])
    assert_type(next(mpiter.batches([(1, 2.0, True)], 2)), tuple[Array, Array, Array])
    assert_type(next(mpiter.batches(Named(), 2)), dict[str, Array])
    for untold in mpiter.batches(Pictures(), 2, ragged="list"):
        assert_type(untold, Any)
    stream = mpiter.batches(Pictures(), 2)
    assert_type(next(stream), tuple[Array, Array])
    assert_type(stream.next(), tuple[Array, Array])
    assert_type(list(stream), list[tuple[Array, Array]])


def columns_come_back_as_arrays() -> None:
    assert_type(next(mpiter.batches(X, 2)), Array)
    assert_type(next(mpiter.batches((X, X), 2)), tuple[Array, Array])
    assert_type(next(mpiter.batches((X, X, X), 2)), tuple[Array, Array, Array])
    assert_type(next(mpiter.batches({"x": X, "y": X}, 2)), dict[str, Array])
    assert_type(next(mpiter.batches((X, [1, 2, 3, 4]), 2)), Any)


def what_the_dataset_does_not_tell_is_not_made_up() -> None:
    assert_type(next(mpiter.batches(Half(), 2)), Any)
    assert_type(next(mpiter.batches(HalfOfThree(), 2)), Any)
    assert_type(next(mpiter.batches(HalfNamed(), 2)), Any)
    assert_type(next(mpiter.batches(ANYTHING, 2)), Any)
    assert_type(next(mpiter.batches(["a", "b"], 2)), Any)
    for batch in mpiter.batches(Unannotated(), 2):
        print(batch.anything)
    for batch in mpiter.SerialIterator(Unannotated(), 2):
        print(batch[0].anything)
    assert_type(next(mpiter.SerialIterator((X, X), 2)), mpiter.Batch[Any])
    assert_type(next(mpiter.SerialIterator({"x": X}, 2)), mpiter.Batch[Any])
    assert_type(next(mpiter.SerialIterator(X, 2)), mpiter.Batch[Any])


def batches_of_iterators_are_lists_of_samples() -> None:
    with mpiter.MultiprocessIterator([1, 2], 2, n_processes=2) as it:
        for batch in it:
            assert_type(batch, mpiter.Batch[int])
    assert_type(mpiter.MultithreadIterator(range(4), 2).next(), mpiter.Batch[int])
    pairs = next(mpiter.SerialIterator([("a", 1)], 1))
    assert_type(pairs, mpiter.Batch[tuple[str, int]])
    assert_type([name for name, _ in pairs], list[str])
    assert_type(
        next(mpiter.SerialIterator(mpiter.Packed([1, 2]), 2)), mpiter.Batch[int]
    )


def a_loaders_batches_are_stacked_or_what_its_collate_fn_returns() -> None:
    with mpiter.DataLoader(Pictures(), batch_size=2, shuffle=True) as loader:
        for pair in loader:
            assert_type(pair, tuple[Array, Array])
    assert_type(next(iter(mpiter.DataLoader((X, X)))), tuple[Array, Array])
    assert_type(next(iter(mpiter.DataLoader({"x": X}, 2))), dict[str, Array])
    assert_type(next(iter(mpiter.DataLoader(Pictures(), 2, ragged="list"))), Any)
    assert_type(next(iter(mpiter.DataLoader(Pictures(), None))), Any)
    assert_type(next(iter(mpiter.DataLoader(iter([1, 2]), 2))), Any)
    assert_type(next(iter(mpiter.DataLoader(Pictures(), 2, collate_fn=len))), int)
    some: mpiter.DataLoader[Any] = mpiter.DataLoader(Pictures(), 2)
    for untold in some:
        assert_type(untold, Any)


def takes_any(stream: Batches[Any], it: mpiter.SerialIterator[Any]) -> None:
    print(next(stream), next(it))


Key = tuple[str, int]


class InTurn(mpiter.Order):
    """An order whose keys are tuples."""

    def __len__(self) -> int:
        return 4

    def take(self, start: int, stop: int) -> list[Key]:
        return [("web", number) for number in range(start, stop)]

    def later(self, epochs: int) -> InTurn:
        return self


class Pages:
    """A dataset that brings it."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: Key) -> tuple[np.ndarray, int]:
        return X[key[1]], key[1]

    def mpiter_order(self, seed: int, shuffle: bool | None) -> mpiter.Order:
        return InTurn()


def of_an_order_that_the_dataset_brings() -> None:
    for _ in mpiter.batches(Pages(), 2):
        pass
    next(mpiter.SerialIterator(Pages(), 2))
    for _ in mpiter.DataLoader(Pages(), 2):
        pass


def of_right_programs() -> None:
    takes_any(
        mpiter.batches([1, 2], 2, ragged="list"), mpiter.SerialIterator([1, 2], 2)
    )
    for pair in Echo(mpiter.batches([(1, 2.0)], 2), 2):
        assert_type(pair, tuple[Array, Array])
    loader: mpiter.DataLoader[list[int]] = mpiter.DataLoader([1, 2], 2, collate_fn=list)
    with loader as opened:
        assert_type(opened, mpiter.DataLoader[list[int]])
    for numbers in loader:
        assert_type(numbers, list[int])
    with mpiter.Checkpoint("run.npz", loader, model={"w": 1}, every_s=100) as c:
        assert_type(c, mpiter.Checkpoint)
        for epoch in c.epochs(2):
            assert_type(epoch, int)
            for numbers in c.steps(loader):
                assert_type(numbers, list[int])
            c.step()
    assert_type(loader.stats().wait_s, float)
    assert_type(mpiter.get_worker_info(), mpiter.WorkerInfo | None)


def of_wrong_ones() -> None:
    mpiter.batches([1], 2, on_error="leave out")  # type: ignore[arg-type]
    mpiter.batches([1], 2, ragged="stack")  # type: ignore[type-var]
    mpiter.batches([1], 2, num_workers=2)  # type: ignore[call-arg]
    mpiter.nothing  # type: ignore[attr-defined]  # noqa: B018
