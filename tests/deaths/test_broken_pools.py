"""A Pool that breaks with one of its workers is replaced, and no sample is lost."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
from brought_orders import Killing
from outside import Futures, FuturesPool

import mpiter

pytestmark = pytest.mark.death


def makers(dataset: Any) -> dict[str, Any]:
    return {
        "batches": lambda: mpiter.batches(
            dataset, 3, n_processes=2, backend=Futures(), seed=0
        ),
        "loader": lambda: mpiter.DataLoader(
            dataset, 3, num_workers=2, backend=Futures(), seed=0
        ),
    }


@pytest.mark.parametrize("door", ["batches", "loader"])
@pytest.mark.parametrize("times", [1, 2])
def test_the_error_says_what_has_happened_and_the_next_batch_follows(
    tmp_path: Path, door: str, times: int
) -> None:
    dataset = Killing(tmp_path, times)
    found: list[int] = []
    with makers(dataset)[door]() as made:
        batches = iter(made)
        for _ in range(times):
            with pytest.raises(mpiter.WorkerCrashed, match="with a new Pool") as caught:
                for _, numbers in batches:
                    found += numbers.tolist()
            assert isinstance(caught.value.__cause__, BrokenProcessPool)
        for _, numbers in batches:
            found += numbers.tolist()
    assert found == dataset.expected(1)


class BreaksOnce(Futures):
    """Its first Pool takes two blocks, and then says that it is broken."""

    def __init__(self) -> None:
        self.made = 0

    def pool(self, *begin: Any) -> FuturesPool:
        self.made += 1
        pool = FuturesPool(*begin)
        if self.made > 1:
            return pool
        submit = pool.executor.submit
        left = iter(range(2))

        def refuses(*call: Any) -> Any:
            if next(left, None) is None:
                raise BrokenExecutor("no more today")
            return submit(*call)

        pool.executor.submit = refuses  # type: ignore[method-assign]
        return pool


def test_a_pool_that_refuses_blocks_since_it_is_broken_is_replaced_too() -> None:
    backend = BreaksOnce()
    found: list[int] = []
    with mpiter.batches(
        range(12), 2, n_processes=1, backend=backend, shuffle=False
    ) as stream:
        with pytest.raises(mpiter.WorkerCrashed, match="BrokenExecutor: no more today"):
            for batch in stream:
                found += batch.tolist()
        for batch in stream:
            found += batch.tolist()
    assert found == list(range(12))
    assert backend.made == 2


class Bare(mpiter.Backend):
    """Makes no Pool."""


class Nothing(Bare):
    def pool(self, *begin: Any) -> Any:
        return None


class Bares(FuturesPool):
    """Gives each answer as it is, not in a list."""

    def map_async(
        self, func: Any, items: Any, size: int, callback: Any, *_: Any
    ) -> Any:
        super().map_async(func, items, size, lambda found: callback(found[0]), callback)


class Unbegun(FuturesPool):
    """Its workers don't call the initializer."""

    def __init__(self, workers: int, initializer: Any, initargs: Any) -> None:
        super().__init__(workers, int, ())


def backend_of(kind: type[FuturesPool]) -> Futures:
    backend = Futures()
    backend.pool = kind  # type: ignore[method-assign,assignment]
    return backend


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        (Bare(), r"Bare needs a method pool\(workers, initializer, initargs\)"),
        (Nothing(), r"pool\(\) of Nothing returned NoneType, .* no method map_async"),
        (backend_of(Bares), r"callback with .*; it must be a list of what func"),
        (backend_of(Unbegun), r"each worker call initializer\(\*initargs\) first"),
    ],
    ids=["no pool", "None", "no list", "no initializer"],
)
def test_a_pool_that_is_none_is_refused_with_what_it_must_do(
    backend: mpiter.Backend, text: str
) -> None:
    with (
        mpiter.batches(range(4), 2, n_processes=1, backend=backend) as stream,
        pytest.raises(mpiter.OptionError, match=text),
    ):
        next(stream)


class Shares(Futures):
    shares_memory = True


@pytest.mark.parametrize("count", ["3", 0, -1])
def test_a_count_of_workers_that_is_none_is_refused(count: Any) -> None:
    backend = Futures()
    backend.count_workers = lambda: count  # type: ignore[method-assign]
    with pytest.raises(mpiter.OptionError, match=r"Futures.count_workers\(\)"):
        mpiter.batches(range(4), 2, backend=backend)


def test_a_backend_that_shares_memory_needs_a_launch_of_its_own() -> None:
    with (
        mpiter.batches(range(4), 2, n_processes=1, backend=Shares()) as stream,
        pytest.raises(mpiter.OptionError, match="needs a launch"),
    ):
        next(stream)
