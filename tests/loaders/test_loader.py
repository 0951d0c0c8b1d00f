"""Both loaders keep the same guarantees, with workers and without.

They concern order, errors, randomness, and workers that persist.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Failing, Random, Squares
from loader_kinds import (
    Maker,
    both_kinds,
    epoch,
    flat,
    makers,
    plain,
    some,
    until_the_end,
)

import mpiter

# There may be more workers than cores here, and torch warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Yields:
    """An iterable without a length, which can be read again and again."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)


# -- order and coverage ----------------------------------------------------------------


def test_batches_are_the_slices_of_the_dataset(loader: Maker) -> None:
    data = list(range(100, 120))
    for batch_size in (3, 64):
        batches = loader(data, batch_size)
        assert epoch(batches) == [
            data[at : at + batch_size] for at in range(0, 20, batch_size)
        ]
        assert len(batches) == -(-20 // batch_size)


@pytest.mark.parametrize("options", [{}, {"run_ahead": None}])
def test_no_more_batches_are_fetched_ahead_than_prefetch_factor_allows(
    with_workers: Maker, tmp_path: Path, options: dict[str, Any]
) -> None:
    class Noted(Squares):
        def __getitem__(self, index: int) -> int:
            (tmp_path / str(index)).touch()
            return index

    batches = iter(with_workers(Noted(40), prefetch_factor=2, **options))
    for handed_out in range(1, 21):
        next(batches)
        assert len(os.listdir(tmp_path)) <= handed_out + 2 * 2


def test_shuffling_shows_every_sample_once_with_its_own_label(loader: Maker) -> None:
    images = []
    labels = []
    for x, y in loader(Squares(), 3, shuffle=True):
        images += [image[0][0] for image in plain(x)]
        labels += plain(y)
    assert images == [label * label for label in labels]
    assert labels != sorted(labels) == list(range(20))


@pytest.mark.parametrize(
    "sampler", [range(2, 12), np.arange(2, 12), Yields(*range(2, 12))]
)
def test_a_sampler_is_any_iterable_of_keys(
    without_workers: Maker, sampler: Any
) -> None:
    assert epoch(without_workers(list(range(20)), 4, sampler=sampler)) == [
        [2, 3, 4, 5],
        [6, 7, 8, 9],
        [10, 11],
    ]


def test_keys_may_be_anything_that_the_dataset_understands(loader: Maker) -> None:
    class Named:
        def __getitem__(self, key: Any) -> int:
            return {"a": 1, ("b", 2): 2, None: 3}[key]

    assert epoch(loader(Named(), 2, sampler=["a", ("b", 2), None])) == [[1, 2], [3]]


def test_a_sampler_without_a_length_gives_a_loader_without_a_length(
    without_workers: Maker,
) -> None:
    batches = without_workers(list(range(20)), 2, sampler=Yields(3, 1, 4))
    with pytest.raises(TypeError):
        len(batches)
    assert epoch(batches) == epoch(batches) == [[3, 1], [4]]


class BeginsAnew:
    """A sampler that is its own iterator, which ``iter()`` takes back to its start."""

    def __init__(self, *keys: Any) -> None:
        self._keys = keys
        self._at = 0

    def __iter__(self) -> Iterator[Any]:
        self._at = 0
        return self

    def __next__(self) -> Any:
        if self._at == len(self._keys):
            raise StopIteration
        self._at += 1
        return self._keys[self._at - 1]


@pytest.mark.parametrize(
    ("batch_size", "expected"),
    [(None, [3, 1, 4]), (1, [[3], [1], [4]]), (2, [[3, 1], [4]])],
)
def test_a_sampler_that_begins_anew_is_asked_for_an_iterator_once_an_epoch(
    loader: Maker, batch_size: int | None, expected: list[Any]
) -> None:
    options = {"backend": "thread"} if loader.workers else {}
    batches = loader(
        list(range(20)), batch_size, sampler=BeginsAnew(3, 1, 4), **options
    )
    for _ in range(2):
        assert epoch(islice(batches, 5)) == expected


def test_a_batch_sampler_says_which_samples_are_a_batch(loader: Maker) -> None:
    for batch_sampler in ([[0], [1, 2], [5, 4, 3]], Yields([0], (1, 2), [5, 4, 3])):
        batches = loader(list(range(20)), batch_sampler=batch_sampler)
        assert epoch(batches) == epoch(batches) == [[0], [1, 2], [5, 4, 3]]


def test_without_a_batch_size_samples_come_alone(loader: Maker) -> None:
    assert epoch(loader([3, 1, 4], None)) == [3, 1, 4]
    assert epoch(loader([3, 1, 4], None, sampler=[2, 0])) == [4, 3]


def test_without_a_batch_size_a_sampler_of_lists_reads_in_bulk(loader: Maker) -> None:
    class Bulk:
        def __getitem__(self, keys: list[int]) -> Any:
            assert type(keys) is list
            return np.array(keys) * 10

    assert epoch(loader(Bulk(), None, sampler=[[1, 2], [3], [6, 5, 4]])) == [
        [10, 20],
        [30],
        [60, 50, 40],
    ]


class OnlyTogether:
    """A dataset that gives samples only by the list."""

    def __len__(self) -> int:
        return 10

    def __getitems__(self, keys: list[int]) -> list[int]:
        return [10 * key for key in keys]


@pytest.mark.parametrize(
    "options", [{}, {"on_error": "skip"}, {"sampler": range(10)}, {"shard": (0, 1)}]
)
def test_a_dataset_needs_no_other_method_than_getitems(
    loader: Maker, options: dict[str, Any]
) -> None:
    batches = loader(OnlyTogether(), 4, **options)
    assert epoch(batches) == [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90]]
    shuffled = epoch(loader(OnlyTogether(), 4, shuffle=True))
    assert sorted(flat(shuffled)) == [10 * key for key in range(10)]


def test_without_batches_a_dataset_needs_samples_by_key(loader: Maker) -> None:
    with pytest.raises(mpiter.OptionError, match="OnlyTogether has only __getitems__"):
        loader(OnlyTogether(), batch_size=None)


def test_getitems_is_called_once_for_a_batch(loader: Maker) -> None:
    class Together(Squares):
        def __getitems__(self, keys: list[int]) -> list[tuple[int, int]]:
            assert type(keys) is list
            call = random.SystemRandom().getrandbits(62)
            return [(key, call) for key in keys]

    calls = []
    for keys, call in epoch(loader(Together(), 6, shuffle=True)):
        assert len(keys) > 1
        assert len(set(call)) == 1
        calls += call[:1]
    assert len(set(calls)) == 4


class Summing:
    """A collate function that is false, as an empty container is."""

    def __len__(self) -> int:
        return 0

    def __call__(self, samples: list[int]) -> int:
        return sum(samples)


def test_a_collate_fn_that_is_false_is_called_all_the_same() -> None:
    batches = mpiter.DataLoader(list(range(5)), 2, collate_fn=Summing())
    assert list(batches) == [1, 5, 4]


def test_collate_fn_gets_the_samples_of_each_batch(loader: Maker) -> None:
    def collated(samples: list[int]) -> dict[str, Any]:
        assert type(samples) is list
        return {
            "sum": sum(samples),
            "samples": tuple(samples),
            "text": f"{len(samples)}",
        }

    batches = loader(list(range(5)), 2, collate_fn=collated)
    assert list(batches) == [collated([0, 1]), collated([2, 3]), collated([4])]


@pytest.mark.filterwarnings("ignore:there was no batch in an epoch")
@pytest.mark.parametrize("length", [0, 1, 12, 13])
@pytest.mark.parametrize("drop_last", [False, True])
def test_len_is_the_number_of_batches(
    without_workers: Maker, length: int, drop_last: bool
) -> None:
    data = list(range(length))
    for options in ({}, {"sampler": data}, {"collate_fn": list}):
        batches = without_workers(data, 4, drop_last=drop_last, **options)
        given = epoch(batches)
        assert len(given) == len(batches)
        assert flat(given) == (data[: length // 4 * 4] if drop_last else data)


def test_len_and_the_next_epoch_see_a_dataset_that_has_grown(loader: Maker) -> None:
    data = list(range(3))
    batches = loader(data, 2)
    assert len(batches) == len(epoch(batches)) == 2
    data += [3, 4]
    assert len(batches) == 3
    assert epoch(batches) == [[0, 1], [2, 3], [4]]


def test_two_iterators_of_one_loader_dont_disturb_each_other(loader: Maker) -> None:
    batches = loader(list(range(10)), 2, shuffle=True)
    one = iter(batches)
    other = iter(batches)
    mixed = [(plain(next(one)), plain(next(other))) for _ in range(5)]
    for seen in zip(*mixed, strict=True):
        assert sorted(flat(seen)) == list(range(10))
    assert next(one, None) is next(other, None) is None


def test_the_end_comes_again_and_again(loader: Maker) -> None:
    batches = loader(list(range(4)), 2)
    ending = iter(batches)
    assert epoch(ending) == [[0, 1], [2, 3]]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(ending)
    assert epoch(batches) == [[0, 1], [2, 3]]
    with pytest.raises(StopIteration):
        next(ending)


def test_writing_into_a_batch_changes_no_other_data(loader: Maker) -> None:
    data = np.zeros((8, 3))
    for _ in range(2):
        for batch in loader(data, 4):
            assert not batch.any()
            batch[...] = 7
    assert not data.any()


# -- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"collate_fn": lambda samples: [label for _, label in samples]}]
)
def test_each_bad_batch_is_one_error_and_the_next_or_the_end_follows(
    loader: Maker, options: dict[str, Any]
) -> None:
    failing = Failing(
        {0: KeyError("zero"), **{index: ValueError(index) for index in range(8, 14)}},
        14,
    )
    given, errors = until_the_end(iter(loader(failing, 4, **options)))
    labels = given if options else [label for _, label in given]
    assert labels == [[4, 5, 6, 7]]
    assert [(type(error), error.args) for error in errors] == [
        (KeyError, ("zero",)),
        (ValueError, (8,)),
        (ValueError, (12,)),
    ]


def test_an_error_of_collating_is_that_batchs(loader: Maker) -> None:
    def picky(samples: list[int]) -> list[int]:
        if 2 in samples:
            raise ArithmeticError("I don't like two")
        return samples

    given, errors = until_the_end(iter(loader(list(range(6)), 2, collate_fn=picky)))
    assert given == [[0, 1], [4, 5]]
    assert [(type(error), str(error)) for error in errors] == [
        (ArithmeticError, "I don't like two")
    ]


def test_an_error_of_the_sampler_comes_in_the_place_of_its_batch(loader: Maker) -> None:
    class Breaks:
        def __iter__(self) -> Iterator[int]:
            yield from range(5)
            raise LookupError("no more keys")

    batches = iter(loader(list(range(10)), 2, sampler=Breaks()))
    assert some(batches, 2) == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="no more keys"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_without_workers_worker_init_fn_is_not_called(without_workers: Maker) -> None:
    def breaks(worker: int) -> None:
        raise AssertionError(f"there is no worker {worker}")

    assert epoch(without_workers([1, 2], 2, worker_init_fn=breaks)) == [[1, 2]]


REFUSED: dict[str, dict[str, Any]] = {
    "sampler and shuffle": {"sampler": [1], "shuffle": True},
    "batch_sampler and batch_size": {"batch_sampler": [[1]], "batch_size": 2},
    "batch_sampler and shuffle": {"batch_sampler": [[1]], "shuffle": True},
    "batch_sampler and sampler": {"batch_sampler": [[1]], "sampler": [1]},
    "batch_sampler and drop_last": {"batch_sampler": [[1]], "drop_last": True},
    "no batches and drop_last": {"batch_size": None, "drop_last": True},
    "no samples in a batch": {"batch_size": 0},
    "a negative batch": {"batch_size": -1},
    "half a sample": {"batch_size": 2.5},
    "True samples": {"batch_size": True},
    "negative workers": {"num_workers": -1},
    "a negative timeout": {"num_workers": 2, "timeout": -1},
    "no workers, timeout": {"timeout": 1},
    "no workers, prefetch_factor": {"prefetch_factor": 2},
    "no workers, persistent": {"persistent_workers": True},
    "no workers, context": {"multiprocessing_context": "fork"},
    "no prefetching": {"num_workers": 2, "prefetch_factor": 0},
    "negative prefetching": {"num_workers": 2, "prefetch_factor": -1},
    "half prefetching": {"num_workers": 2, "prefetch_factor": 1.5},
    "an unknown way to start": {
        "num_workers": 2,
        "multiprocessing_context": "teleport",
    },
    "a number for a way to start": {"num_workers": 1, "multiprocessing_context": 42},
    "half a worker": {"num_workers": 1.5},
    "True workers": {"num_workers": True},
    "workers by name": {"num_workers": "2"},
    "half a seed": {"seed": 1.5},
    "a seed by name": {"seed": "a"},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused_at_construction(
    without_workers: Maker, options: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        without_workers.class_([1, 2, 3], **options)
    assert any(
        name in str(caught.value) for name in (*options, "batch", "start_method")
    )


# -- randomness ------------------------------------------------------------------------


def test_the_seed_or_a_generator_says_the_order_whatever_the_number_of_workers(
    loader: Maker,
) -> None:
    def orders(seed: int, **options: Any) -> list[Any]:
        loader.seed(seed)
        batches = loader(list(range(30)), 4, shuffle=True, **options)
        return [epoch(batches), epoch(batches)]

    first, second = orders(4)
    assert first != second
    assert orders(4, num_workers=0) == [first, second]
    assert orders(1, generator=loader.generator(1)) == orders(
        2, generator=loader.generator(1), num_workers=0
    )
    by_another = orders(1, generator=loader.generator(2), num_workers=0)
    assert by_another != orders(1, generator=loader.generator(1))


@pytest.mark.parametrize("options", [{}, {"collate_fn": list}])
def test_each_samples_randomness_is_its_own_for_any_number_of_workers(
    options: dict[str, Any],
) -> None:
    seen = []
    for workers in (0, 2):
        with makers("numpy", workers) as loader:
            loader.seed(7)
            batches = loader(Random(draws="all"), 3, **options)
            seen.append([epoch(batches), epoch(batches)])
    assert seen[0] == seen[1]
    rows = [
        row
        for one in seen[0]
        for batch in one
        for row in (batch if options else zip(*batch, strict=True))
    ]
    assert [len({row[place] for row in rows}) for place in (1, 2, 3)] == [40] * 3


def test_loaders_are_generic(kind: str) -> None:
    with makers(kind, 0) as loader:

        class Mine(loader.class_[int]):  # type: ignore[misc,name-defined]
            pass

        for class_ in (loader.class_[int], Mine):
            with class_([1, 2, 3], 2) as batches:
                assert epoch(batches) == [[1, 2], [3]]


# -- worker and place ------------------------------------------------------------------


class Where(Squares):
    """Each sample is the process and the number of the worker that fetched it."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = mpiter.get_worker_info()
        return os.getpid(), -1 if info is None else info.id


def pids(loader: Any) -> set[int]:
    return {pid for batch in loader for pid in plain(batch[0])}


def test_workers_know_themselves_and_the_main_process_is_none(
    with_workers: Maker,
) -> None:
    class Knows(Squares):
        mine = "left alone"

        def __getitem__(self, index: int) -> list[Any]:
            info = mpiter.get_worker_info()
            assert info.dataset is self
            with pytest.raises(AttributeError):
                info.id = 7
            self.mine = "changed"
            return [info.id, info.num_workers, info.seed, os.getpid()]

    dataset = Knows(40)
    assert mpiter.get_worker_info() is None
    loader = with_workers(dataset, 4, collate_fn=list)
    seen = {tuple(one) for batch in loader for one in batch}
    assert {ident for ident, *_ in seen} <= {0, 1}
    assert {workers for _, workers, *_ in seen} == {2}
    assert {pid for *_, pid in seen} <= set(loader.worker_pids)
    assert len(seen) == len({pid for *_, pid in seen})
    assert mpiter.get_worker_info() is None
    assert dataset.mine == "left alone"


def test_worker_init_fn_is_called_in_each_worker_with_its_number(
    with_workers: Maker, tmp_path: Path
) -> None:
    def note(worker: int) -> None:
        (tmp_path / f"{worker} {os.getpid()}").touch()

    loader = with_workers(Where(40), 1, worker_init_fn=note)
    for _ in range(2):
        epoch(loader)
    seen = sorted(name.split() for name in os.listdir(tmp_path))
    assert {number for number, _ in seen} <= {"0", "1"}
    assert {int(pid) for _, pid in seen} <= set(loader.worker_pids)


def test_without_workers_this_process_fetches(without_workers: Maker) -> None:
    loader = without_workers(Where(4))
    assert pids(loader) == {os.getpid()}
    assert loader.worker_pids == ()


@pytest.mark.parametrize("persistent", [None, True])
def test_workers_stay_from_epoch_to_epoch(
    with_workers: Maker, persistent: bool | None
) -> None:
    loader = with_workers(Where(), 2, persistent_workers=persistent)
    first = pids(loader)
    workers = loader.worker_pids
    assert len(workers) == 2
    # This epoch is left after its first batch.
    next(iter(loader))
    assert first | pids(loader) <= set(workers) == set(loader.worker_pids)
    assert loader.stats().restarts == 0


def test_workers_end_with_the_epoch_if_they_are_told_to(with_workers: Maker) -> None:
    loader = with_workers(Where(), 2, persistent_workers=False)
    first = pids(loader)
    assert loader.worker_pids == ()
    assert not first & pids(loader)


class Changing(Squares):
    """A dataset that a training loop changes between epochs."""

    def __init__(self) -> None:
        super().__init__(4)
        self.attribute = 0
        self.array = np.zeros(100_000)

    def change(self) -> None:
        self.attribute = 3
        self.array[-1] = 4

    def __getitem__(self, index: int) -> int:
        return self.attribute + int(self.array[-1])


@pytest.mark.parametrize("persistent", [None, True])
def test_a_changed_dataset_reaches_workers_at_the_next_epoch_unless_they_persist(
    with_workers: Maker, persistent: bool | None
) -> None:
    dataset = Changing()
    batches = with_workers(dataset, 2, persistent_workers=persistent)
    under_way = iter(batches)
    next(under_way)
    dataset.change()
    assert epoch(under_way) == [[0, 0]]
    assert epoch(batches) == [[0, 0] if persistent else [7, 7]] * 2


# -- ending ----------------------------------------------------------------------------


def test_a_closed_loader_says_so(loader: Maker) -> None:
    batches = loader(list(range(40)), 2)
    one = iter(batches)
    other = iter(batches)
    next(one), next(other)
    batches.close()
    batches.close()
    for under_way in (one, other):
        with pytest.raises(mpiter.errors.IteratorClosed):
            next(under_way)
    with pytest.raises(mpiter.errors.IteratorClosed):
        iter(batches)


def test_a_loader_that_is_dropped_ends_its_workers(with_workers: Maker) -> None:
    """A fixture checks after each test that no worker is left."""
    batches = with_workers.class_(list(range(40)), 2, num_workers=2)
    for _ in batches:
        break
    under_way = iter(batches)
    next(under_way)
    del batches
    assert len(epoch(under_way)) == 19


@both_kinds
def test_an_iterator_that_is_kept_by_a_traceback_ends_with_it(kind: str) -> None:
    with makers(kind, 2) as maker, pytest.raises(ZeroDivisionError):
        for batch in maker.class_(Squares(), 1, num_workers=2):
            len(batch) / 0


class PassesOn:
    """A sampler that yields from lists, and some keys of its own between them."""

    def __iter__(self):
        yield from [3, 1, 4]
        yield 1
        yield from (5, 9)
        yield from [2, 6, 5]
        self.has_ended = True

    def __len__(self):
        return 9


@pytest.mark.parametrize("batch_size", [1, 2, 4, 9])
def test_a_sampler_that_passes_on_lists_is_asked_for_what_lies_between_them(batch_size):
    sampler = PassesOn()
    loader = mpiter.DataLoader(range(10), batch_size, sampler=sampler)
    for _ in range(2):
        sampler.has_ended = False
        assert [key for batch in loader for key in batch.tolist()] == [
            3,
            1,
            4,
            1,
            5,
            9,
            2,
            6,
            5,
        ]
        assert sampler.has_ended
