"""From any state of either loader, another loader goes on as the first would have."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brought_orders import Thirds, ThirdsAtOnce
from datasets import Random, Squares
from loader_kinds import NO_TORCH, Maker, epoch, flat, plain, some

import mpiter

# There may be more workers than cores here, and torch warns of that.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

# The batches have 4 samples, the last one 3.
LENGTH = 23
BATCHES = 6


class Picks:
    """A sampler with a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH):
            yield int(self.rng.integers(LENGTH))


class PicksByModule(Picks):
    """A sampler that uses the generator of ``random``."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)

    def __iter__(self) -> Iterator[int]:
        yield from random.sample(range(LENGTH), LENGTH)


class PicksByNumpy(Picks):
    """A sampler that uses NumPy's global generator."""

    def __init__(self, seed: int) -> None:
        np.random.seed(seed)

    def __iter__(self) -> Iterator[int]:
        yield from np.random.permutation(LENGTH)


class PicksBatches(Picks):
    """A batch sampler with a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # type: ignore[assignment]

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        for size in range(1, BATCHES + 1):
            yield [self.rng.randrange(LENGTH) for _ in range(size)]  # type: ignore[attr-defined]


def shuffled(loader: Maker, seed: int, **options: Any) -> Any:
    loader.seed(seed)
    return loader(Random(LENGTH), 4, shuffle=True, **options)


def by_generator(loader: Maker, seed: int, **options: Any) -> Any:
    return loader(
        Random(LENGTH), 4, shuffle=True, generator=loader.generator(seed), **options
    )


def in_one(loader: Maker, seed: int, **options: Any) -> Any:
    loader.seed(seed)
    return loader(Random(LENGTH), 4, shuffle=True, collate_fn=list, **options)


def one_by_one(loader: Maker, seed: int, **options: Any) -> Any:
    loader.seed(seed)
    return loader(list(range(BATCHES)), None, shuffle=True, **options)


def sampled(loader: Maker, seed: int, **options: Any) -> Any:
    return loader(list(range(LENGTH)), 4, sampler=Picks(seed), **options)


def sampled_by_module(loader: Maker, seed: int, **options: Any) -> Any:
    return loader(list(range(LENGTH)), 4, sampler=PicksByModule(seed), **options)


def sampled_in_batches(loader: Maker, seed: int, **options: Any) -> Any:
    return loader(list(range(LENGTH)), batch_sampler=PicksBatches(seed), **options)


# These go on exactly in the epochs after the one that was saved, too.
SELF_CONTAINED = (by_generator, sampled, sampled_in_batches)
WAYS = (shuffled, in_one, one_by_one, sampled_by_module, *SELF_CONTAINED)
# States concern no worker, so tests of them run without workers.
in_any_state = pytest.mark.parametrize("loader", [0], indirect=True)
Way = Callable[..., Any]


def saved(batches: Any) -> Any:
    """Return the loader's state, as it comes back from a file."""
    return json.loads(json.dumps(batches.state_dict()))


# -- going on --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "way", "handed_out"),
    [
        *((0, way, 3) for way in WAYS),
        (0, shuffled, 0),
        (0, sampled, BATCHES),
        (2, shuffled, 3),
    ],
    indirect=["loader"],
)
def test_another_loader_gives_the_rest(
    loader: Maker, way: Way, handed_out: int
) -> None:
    batches = way(loader, 1)
    under_way = iter(batches)
    some(under_way, handed_out)
    state = saved(batches)
    rest = epoch(under_way)
    assert len(rest) == BATCHES - handed_out

    other = way(loader, 2, num_workers=2 - loader.workers)
    other.load_state_dict(state)
    assert epoch(other) == rest
    if way in SELF_CONTAINED:
        assert epoch(other) == epoch(batches)


@pytest.mark.parametrize(
    ("loader", "way", "epochs"),
    [*((0, way, 1) for way in WAYS), (0, sampled, 2), (2, shuffled, 1)],
    indirect=["loader"],
)
def test_another_loader_gives_the_next_epoch(
    loader: Maker, way: Way, epochs: int
) -> None:
    batches = way(loader, 1)
    for _ in range(epochs):
        epoch(batches)
    state = saved(batches)
    expected = epoch(batches)

    other = way(loader, 2)
    other.load_state_dict(state)
    assert epoch(other) == expected


@pytest.mark.parametrize("loader", [0], indirect=True)
@pytest.mark.parametrize("way", [shuffled, sampled_in_batches])
def test_an_epoch_may_be_interrupted_again_and_again(loader: Maker, way: Way) -> None:
    expected = epoch(way(loader, 1))
    batches = way(loader, 1)
    given = []
    for seed in range(2, 2 + BATCHES):
        given += some(iter(batches), 1)
        state = saved(batches)
        batches = way(loader, seed)
        batches.load_state_dict(state)
    assert given == expected
    assert epoch(batches) == []


@in_any_state
def test_the_same_loader_can_go_back(loader: Maker) -> None:
    batches = shuffled(loader, 1)
    under_way = iter(batches)
    some(under_way, 2)
    state = saved(batches)
    rest = epoch(under_way)
    for _ in range(2):
        batches.load_state_dict(state)
        assert saved(batches) == state
        assert epoch(batches) == rest


@in_any_state
def test_saving_and_resuming_leave_the_callers_generators_alone(loader: Maker) -> None:
    batches = sampled_by_module(loader, 1)
    some(iter(batches), 2)
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    state = saved(batches)
    other = loader(list(range(LENGTH)), 4, sampler=batches.sampler)
    other.load_state_dict(state)
    epoch(other)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_a_sampler_that_draws_as_it_goes_uses_the_generator_that_the_user_restored(
    loader: Maker,
) -> None:
    class PicksLate(Picks):
        def __iter__(self) -> Iterator[int]:
            for _ in range(LENGTH):
                yield random.randrange(LENGTH)

    random.seed(1)
    batches = loader(list(range(LENGTH)), 4, sampler=PicksLate(0))
    under_way = iter(batches)
    some(under_way, 2)
    state = saved(batches)
    users = random.getstate()
    rest = epoch(under_way)
    random.seed(2)
    other = loader(list(range(LENGTH)), 4, sampler=PicksLate(0))
    random.setstate(users)
    other.load_state_dict(state)
    assert epoch(other) == rest


@in_any_state
def test_restored_global_generators_continue_the_epochs_as_without_a_break(
    loader: Maker,
) -> None:
    batches = loader(list(range(LENGTH)), 4, sampler=PicksByNumpy(1))
    epoch(batches)
    state = saved(batches)
    users = loader.globals()
    expected = [epoch(batches), np.random.random(), epoch(batches)]
    loader.seed(2)
    other = loader(list(range(LENGTH)), 4, sampler=PicksByNumpy(2))
    loader.restore(users)
    other.load_state_dict(state)
    assert [epoch(other), np.random.random(), epoch(other)] == expected


def test_a_copy_is_a_loader_at_the_same_place(loader: Maker) -> None:
    batches = loader(list(range(10)), 2, shuffle=True, generator=loader.generator(3))
    under_way = iter(batches)
    some(under_way, 2)
    with copy.copy(batches) as one, pickle.loads(pickle.dumps(batches)) as other:
        assert one.worker_pids == other.worker_pids == ()
        assert epoch(one) == epoch(other) == epoch(under_way)


# -- what it costs ---------------------------------------------------------------------


class Noted(Squares):
    """A dataset that makes a file for each sample that is fetched."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LENGTH)
        self.folder = folder

    def __getitem__(self, index: int) -> int:
        (self.folder / str(index)).touch()
        return index

    @property
    def asked_for(self) -> set[int]:
        return set(map(int, os.listdir(self.folder)))


@in_any_state
@pytest.mark.parametrize(
    "options", [{}, {"sampler": range(LENGTH)}, {"collate_fn": list}]
)
def test_what_was_handed_out_is_not_loaded_again(
    loader: Maker, options: dict[str, Any], tmp_path: Path
) -> None:
    batches = loader(list(range(LENGTH)), 4, **options)
    some(iter(batches), 3)
    dataset = Noted(tmp_path)
    other = loader(dataset, 4, **options)
    other.load_state_dict(saved(batches))
    assert flat(epoch(other)) == list(range(12, LENGTH))
    assert dataset.asked_for == set(range(12, LENGTH))


# -- what doesn't fit ------------------------------------------------------------------


class Unrepeatable(Picks):
    """A sampler whose keys come from the system, and can't be repeated."""

    def __iter__(self) -> Iterator[int]:
        yield from (int.from_bytes(os.urandom(4), "little") for _ in range(LENGTH))


@in_any_state
def test_a_sampler_that_doesnt_repeat_itself_is_found_out(loader: Maker) -> None:
    class Everything:
        def __getitem__(self, key: int) -> int:
            return key

    batches = loader(Everything(), 4, sampler=Unrepeatable(0))
    some(iter(batches), 2)
    state = saved(batches)
    other = loader(Everything(), 4, sampler=Unrepeatable(0))
    other.load_state_dict(state)
    with pytest.raises(mpiter.StateError, match="sampler gives other batches"):
        iter(other)
    # A state of the beginning needs no repetition.
    other.load_state_dict(saved(loader(Everything(), 4, sampler=Unrepeatable(0))))
    assert len(epoch(other)) == BATCHES


@in_any_state
@pytest.mark.parametrize(
    ("size", "other", "drop_last"), [(4, 3, False), (2, 23, True), (4, 9, True)]
)
def test_a_state_goes_on_in_batches_of_another_size(
    loader: Maker, size: int, other: int, drop_last: bool
) -> None:
    """The place of a dataset with indices is a number of samples.

    So the samples that are left come in their order, and no other.
    """

    def made(batch_size: int) -> Any:
        options = {"drop_last": drop_last, "generator": loader.generator(5)}
        return loader(list(range(LENGTH)), batch_size, shuffle=True, **options)

    order = loader(
        list(range(LENGTH)), LENGTH, shuffle=True, generator=loader.generator(5)
    )
    orders = [flat(epoch(order)) for _ in range(2)]
    first = made(size)
    for expected in orders:
        seen = []
        for number, batch in enumerate(first, 1):
            seen += plain(batch)
            second = made(other)
            second.load_state_dict(saved(first))
            # An epoch that is over is over for any batch size.
            left = expected[len(seen) :]
            if number == len(first):
                left = []
            if drop_last:
                left = left[: len(left) // other * other]
            coming = iter(second)
            announced = len(coming)
            found = list(coming)
            assert flat(map(plain, found)) == left
            assert announced == len(found)
            assert second.is_new_epoch or not found


@in_any_state
@pytest.mark.parametrize("taken", [1, 2, 3, 4])
def test_keys_of_several_types_are_the_same_keys_however_they_are_drawn(
    loader: Maker, taken: int
) -> None:
    keys = [1, 2, "three", 4, np.int64(5), 1 << 70, 7, "eight", 9, 10]

    class ByKey:
        def __len__(self) -> int:
            return len(keys)

        def __getitem__(self, key: Any) -> int:
            return keys.index(key)

    data = ByKey()
    whole = epoch(loader(data, 2, sampler=keys))
    first = loader(data, 2, sampler=keys)
    under_way = iter(first)
    some(under_way, taken)
    second = loader(data, 2, sampler=keys)
    second.load_state_dict(saved(first))
    assert epoch(second) == whole[taken:]


@pytest.mark.parametrize("way", ["rows", "whole", "together", "one by one"])
def test_the_order_that_a_dataset_brings_goes_on_under_other_ranks_and_sizes(
    loader: Maker, way: str
) -> None:
    dataset: Any = Thirds(LENGTH)
    options: dict[str, Any] = {"collate_fn": list} if way == "whole" else {}
    if way == "together":
        dataset = ThirdsAtOnce(LENGTH, "rows")

    def numbers(batch: Any) -> list[int]:
        if way == "whole":
            return [number for _, number in plain(batch)]
        found: Any = plain(batch[1])
        return found if isinstance(found, list) else [found]

    wanted = dataset.expected(2, seed=3)
    size = None if way == "one by one" else 4
    first = loader(dataset, size, seed=3, **options)
    under_way = iter(first)
    found = flat([numbers(next(under_way)) for _ in range(2)])
    assert found == wanted[: len(found)]
    state = saved(first)
    assert flat(map(numbers, under_way)) == wanted[len(found) : LENGTH]
    assert flat(map(numbers, first)) == wanted[LENGTH:]
    if size is None:
        return
    ranks = []
    for rank in range(2):
        shard = mpiter.Shard(rank, 2, exact=True)
        other = loader(dataset, 3, num_workers=0, shard=shard, **options)
        other.load_state_dict(state)
        # torch's is that of the whole epoch.
        assert len(other) == (3 if loader.kind == "numpy" else 4)
        ranks.append([numbers(batch) for batch in other])
    steps = flat(flat(step) for step in zip(*ranks, strict=True))
    assert steps == wanted[len(found) : LENGTH]


@pytest.mark.torch
def test_torchs_loader_takes_a_seed_for_an_order_that_the_dataset_brings() -> None:
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    make = mpiter.torch.DataLoader
    seeds = []
    for options in ({"seed": 5}, {"generator": torch.Generator().manual_seed(1)}) * 2:
        seeds.append(make(Thirds(), 2, **options).state_dict()["seed"])
    assert seeds[0] == seeds[2] == "5"
    assert seeds[1] != seeds[0]
    with pytest.raises(mpiter.OptionError, match="sampler says another"):
        make(Thirds(), 2, sampler=torch.utils.data.SequentialSampler(Thirds()))
    # It has other keys than what it is made of, and an order of its own.
    subset = torch.utils.data.Subset(Thirds(20, "numbers"), [3, 1])
    assert epoch(make(subset, 2, shuffle=False))[0][1] == [3, 1]
