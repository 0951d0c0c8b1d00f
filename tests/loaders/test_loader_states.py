"""Both loaders' states: whenever one is saved, another loader goes on from there as if nothing had happened."""

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
from datasets import Failing, Gated, Random, Squares
from loader_kinds import KINDS, Maker, epoch, flat, makers, plain, some, until_the_end
from pairs import pairs, slow_but, slow_if

import mpiter

# More workers than cores: torch's remark.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

LENGTH, BATCHES = 23, 6  # of 4 samples, the last one of 3
WORKERS = (0, 2)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=WORKERS)
def loader(request: pytest.FixtureRequest, kind: str) -> Iterator[Maker]:
    with makers(kind, request.param) as maker:
        yield maker


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
    """One that uses the generator of ``random``."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)

    def __iter__(self) -> Iterator[int]:
        yield from random.sample(range(LENGTH), LENGTH)


class PicksByNumpy(Picks):
    """One that uses NumPy's global generator."""

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
    return loader(Random(LENGTH), 4, shuffle=True, generator=loader.generator(seed), **options)


def in_sequence(loader: Maker, seed: int, **options: Any) -> Any:
    loader.seed(seed)
    return loader(Random(LENGTH), 4, **options)


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


def sampled_by_numpy(loader: Maker, seed: int, **options: Any) -> Any:
    return loader(list(range(LENGTH)), 4, sampler=PicksByNumpy(seed), **options)


def sampled_in_batches(loader: Maker, seed: int, **options: Any) -> Any:
    return loader(list(range(LENGTH)), batch_sampler=PicksBatches(seed), **options)


SELF_CONTAINED = (by_generator, sampled, sampled_in_batches)  # also in the epochs after the one that was saved
WAYS = (shuffled, in_sequence, in_one, one_by_one, sampled_by_module, sampled_by_numpy, *SELF_CONTAINED)
here_and_there = pytest.mark.parametrize(  # by workers those that differ in what is drawn, and when
    ("loader", "way"),
    [*((0, way) for way in WAYS), *slow_if(lambda _, way: way != by_generator, ((2, way) for way in SELF_CONTAINED))],
    indirect=["loader"],
)
in_any_state = pytest.mark.parametrize("loader", slow_but(WORKERS, 0), indirect=True)  # what is refused, is so at once
Way = Callable[..., Any]


def saved(batches: Any) -> Any:
    """Its state, as it comes back from a file."""
    return json.loads(json.dumps(batches.state_dict()))


def is_rare(workers: int, way: Way, _: int) -> bool:
    return workers > 0 and way not in (shuffled, sampled)


# -- going on ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "way", "handed_out"), slow_if(is_rare, pairs(WORKERS, WAYS, (0, 1, 3, BATCHES))), indirect=["loader"]
)
def test_another_loader_gives_the_rest(loader: Maker, way: Way, handed_out: int) -> None:
    batches = way(loader, 1)
    under_way = iter(batches)
    some(under_way, handed_out)
    state = saved(batches)
    rest = epoch(under_way)
    assert len(rest) == BATCHES - handed_out

    other = way(loader, 2)
    other.load_state_dict(state)
    assert epoch(other) == rest
    if way in SELF_CONTAINED:
        assert epoch(other) == epoch(batches)


@pytest.mark.parametrize(
    ("loader", "way", "epochs"), slow_if(is_rare, pairs(WORKERS, WAYS, (0, 1, 2))), indirect=["loader"]
)
def test_another_loader_gives_the_next_epoch(loader: Maker, way: Way, epochs: int) -> None:
    batches = way(loader, 1)
    for _ in range(epochs):
        epoch(batches)
    state = saved(batches)
    expected = epoch(batches)

    other = way(loader, 2)
    other.load_state_dict(state)
    assert epoch(other) == expected


@here_and_there
def test_an_epoch_may_be_interrupted_again_and_again(loader: Maker, way: Way) -> None:
    expected = epoch(way(loader, 1))
    batches, given = way(loader, 1), []
    for seed in range(2, 2 + BATCHES):
        given += some(iter(batches), 1)
        state = saved(batches)
        batches = way(loader, seed)
        batches.load_state_dict(state)
    assert given == expected
    assert epoch(batches) == []


@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (1, 3)])
@pytest.mark.parametrize("way", [shuffled, sampled])
def test_the_number_of_workers_may_change(kind: str, way: Way, workers: tuple[int, int]) -> None:
    before, after = workers
    with makers(kind, before) as loader:
        batches = way(loader, 1)
        under_way = iter(batches)
        some(under_way, 2)
        state = saved(batches)
        rest = epoch(under_way)
        other = way(loader, 2, num_workers=after)
        other.load_state_dict(state)
        assert epoch(other) == rest


def test_the_state_inside_the_loop_is_that_after_the_batch_in_hand(loader: Maker) -> None:
    data = list(range(LENGTH))
    batches = loader(data, 4)
    for batch in batches:
        other = loader(data, 4, num_workers=0)
        other.load_state_dict(saved(batches))
        assert flat(epoch(other)) == data[plain(batch)[-1] + 1 :]


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


def test_loading_a_state_leaves_an_iterator_under_way_alone(loader: Maker) -> None:
    batches = loader(list(range(12)), 4)
    at_the_start = saved(batches)
    under_way = iter(batches)
    next(under_way)
    batches.load_state_dict(at_the_start)
    assert epoch(under_way) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert epoch(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_a_failed_batch_is_behind_us(loader: Maker) -> None:
    dataset = Failing({5: KeyError("five")}, 12)
    batches = loader(dataset, 4, collate_fn=len)
    under_way = iter(batches)
    next(under_way)
    with pytest.raises(KeyError):
        next(under_way)
    other = loader(dataset, 4, collate_fn=len)
    other.load_state_dict(saved(batches))
    assert until_the_end(iter(other)) == ([4], [])


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


def test_a_sampler_that_draws_as_it_goes_goes_on_with_the_generator_that_the_user_has_restored(loader: Maker) -> None:
    class PicksLate(Picks):
        def __iter__(self) -> Iterator[int]:
            for _ in range(LENGTH):
                yield random.randrange(LENGTH)

    random.seed(1)
    batches = loader(list(range(LENGTH)), 4, sampler=PicksLate(0))
    under_way = iter(batches)
    some(under_way, 2)
    state, users = saved(batches), random.getstate()
    rest = epoch(under_way)
    random.seed(2)
    other = loader(list(range(LENGTH)), 4, sampler=PicksLate(0))
    random.setstate(users)
    other.load_state_dict(state)
    assert epoch(other) == rest


def test_who_restores_the_global_generators_between_epochs_goes_on_as_without_a_break(loader: Maker) -> None:
    batches = sampled_by_numpy(loader, 1)
    epoch(batches)
    state, users = saved(batches), loader.globals()
    expected = [epoch(batches), np.random.random(), epoch(batches)]
    loader.seed(2)
    other = sampled_by_numpy(loader, 2)
    loader.restore(users)
    other.load_state_dict(state)
    assert [epoch(other), np.random.random(), epoch(other)] == expected


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_is_a_loader_at_the_same_place(loader: Maker, copied: Any) -> None:
    batches = loader(list(range(10)), 2, shuffle=True, generator=loader.generator(3))
    under_way = iter(batches)
    some(under_way, 2)
    with copied(batches) as other:
        assert other.worker_pids == ()
        assert epoch(other) == epoch(under_way)


# -- samplers that tell their place -------------------------------------------------------------------------------


class Counting:
    """A sampler whose place is a number; it begins anew unless it has just been told where to go on."""

    at, goes_on = 0, False

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        if not self.goes_on:
            self.at, self.cards = 0, self.shuffled()
        self.goes_on = False
        while self.at < LENGTH:
            self.at += 1
            yield self.cards[self.at - 1]

    def shuffled(self) -> list[int]:
        return list(range(LENGTH))

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "cards": tuple(self.shuffled() if self.at == 0 else self.cards)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.cards, self.goes_on = state["at"], state["cards"], True
        assert type(self.cards) is tuple


class Deck(Counting):
    """No two epochs of it are the same, so only its state tells what comes next."""

    def shuffled(self) -> list[int]:
        return random.SystemRandom().sample(range(LENGTH), LENGTH)


class Hand:
    """An iterator that tells its place; what it is of doesn't."""

    def __init__(self, size: int | None) -> None:
        self.cards, self.size = random.SystemRandom().sample(range(LENGTH), LENGTH), size

    def __iter__(self) -> Hand:
        raise AssertionError("it was asked for once already")

    def __next__(self) -> Any:
        if not self.cards:
            raise StopIteration
        if self.size is None:
            return self.cards.pop()
        given, self.cards = self.cards[: self.size], self.cards[self.size :]
        return given

    def state_dict(self) -> dict[int, Any]:
        return {1: np.array(self.cards)}

    def load_state_dict(self, state: dict[int, Any]) -> None:
        self.cards = state[1].tolist()


class Dealer:
    def __init__(self, size: int | None = None) -> None:
        self.size = size

    def __len__(self) -> int:
        return LENGTH if self.size is None else BATCHES

    def __iter__(self) -> Hand:
        return Hand(self.size)


TELLING: dict[str, Any] = {
    "sampler": lambda: {"sampler": Deck()},
    "sampler's iterator": lambda: {"sampler": Dealer()},
    "one by one": lambda: {"sampler": Deck(), "batch_size": None},
    "batch sampler's iterator": lambda: {"batch_sampler": Dealer(4)},
}


@pytest.mark.parametrize(
    ("loader", "kind_of", "handed_out"),
    slow_if(lambda *cell: cell[-1] != 4, pairs(WORKERS, TELLING, (1, 4, BATCHES))),
    indirect=["loader"],
)
def test_a_sampler_that_tells_its_place_goes_on_from_there(loader: Maker, kind_of: str, handed_out: int) -> None:
    choice = TELLING[kind_of]
    batches = loader(Random(LENGTH), **{"batch_size": 4, **choice()})
    for _ in range(2):
        under_way = iter(batches)
        given = some(under_way, handed_out)
        state = saved(batches)
        rest = epoch(under_way)
        assert len(given) + len(rest) == (BATCHES if batches.batch_size or batches.batch_sampler else LENGTH)
        other = loader(Random(LENGTH), **{"batch_size": 4, **choice()}, num_workers=1)
        other.load_state_dict(state)
        assert saved(other) == state
        under_way = iter(other)
        assert saved(other)["sampler"] == state["sampler"]
        assert epoch(under_way) == rest


def test_a_sampler_that_tells_its_place_begins_the_next_epoch_after_the_last(loader: Maker) -> None:
    batches = loader(list(range(LENGTH)), 4, sampler=Counting())
    assert flat(epoch(batches)) == list(range(LENGTH))
    assert batches.sampler.at == LENGTH
    state = saved(batches)
    for _ in range(2):
        other = loader(list(range(LENGTH)), 4, sampler=Counting())
        other.load_state_dict(state)
        under_way = iter(other)
        state = saved(other)  # before the first batch
        assert flat(epoch(under_way)) == list(range(LENGTH))


def test_a_sampler_whose_place_cannot_be_saved_says_so_when_somebody_asks(loader: Maker) -> None:
    class Unsavable(Deck):
        def state_dict(self) -> dict[str, Any]:
            return {"cards": [iter([])]}

    batches = loader(list(range(LENGTH)), 4, sampler=Unsavable())
    under_way = iter(batches)
    some(under_way, 1)
    with pytest.raises(mpiter.StateError, match=r"state\['cards'\]\[0\] is of type list_iterator"):
        batches.state_dict()
    assert len(epoch(under_way)) == BATCHES - 1


def test_the_place_of_a_sampler_is_refused_by_one_that_cannot_go_there(loader: Maker) -> None:
    batches = loader(list(range(LENGTH)), 4, sampler=Deck())
    some(iter(batches), 2)
    other = loader(list(range(LENGTH)), 4, sampler=Picks(0))
    with pytest.raises(mpiter.StateError, match=r"sampler|load_state_dict"):
        other.load_state_dict(saved(batches))
        epoch(other)


# -- what it costs -----------------------------------------------------------------------------------------------


class Noted(Squares):
    """Leaves a file for each sample that was asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LENGTH)
        self.folder = folder

    def __getitem__(self, index: int) -> int:
        (self.folder / str(index)).touch()
        return index

    @property
    def asked_for(self) -> set[int]:
        return set(map(int, os.listdir(self.folder)))


@pytest.mark.parametrize("options", [{}, {"sampler": range(LENGTH)}, {"collate_fn": list}])
def test_what_was_handed_out_is_not_loaded_again(loader: Maker, options: dict[str, Any], tmp_path: Path) -> None:
    batches = loader(list(range(LENGTH)), 4, **options)
    some(iter(batches), 3)
    dataset = Noted(tmp_path)
    other = loader(dataset, 4, **options)
    other.load_state_dict(saved(batches))
    assert flat(epoch(other)) == list(range(12, LENGTH))
    assert dataset.asked_for == set(range(12, LENGTH))


def test_a_state_is_had_without_waiting_for_slow_samples(kind: str, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    with makers(kind, 2) as loader:
        batches = loader(Gated(str(gate), free=4, length=8), 4)
        under_way = iter(batches)
        next(under_way)
        state = saved(batches)
        gate.touch()
        other = loader(Gated(str(gate), free=4, length=8), 4, num_workers=0)
        other.load_state_dict(state)
        assert epoch(other) == epoch(under_way)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}])
def test_a_states_size_doesnt_depend_on_the_dataset(loader: Maker, options: dict[str, Any]) -> None:
    sizes = []
    for length in (10, 1_000_000):
        batches = loader(range(length), 2, num_workers=0, **options)
        some(iter(batches), 3)
        sizes.append(len(json.dumps(batches.state_dict())))
    assert abs(sizes[0] - sizes[1]) < 40  # some digits
    assert max(sizes) < 20_000


# -- what doesn't fit --------------------------------------------------------------------------------------------


class Unrepeatable(Picks):
    """A sampler whose keys come from nowhere."""

    def __iter__(self) -> Iterator[int]:
        yield from (int.from_bytes(os.urandom(4), "little") for _ in range(LENGTH))


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
    other.load_state_dict(saved(loader(Everything(), 4, sampler=Unrepeatable(0))))  # of the beginning
    assert len(epoch(other)) == BATCHES


def test_a_sampler_with_other_generators_is_found_out(loader: Maker) -> None:
    batches = sampled(loader, 1)
    some(iter(batches), 2)
    other = sampled_by_module(loader, 1)
    with pytest.raises(mpiter.StateError, match=r"generators|sampler"):
        other.load_state_dict(saved(batches))
        iter(other)


OTHERS: dict[str, dict[str, Any]] = {
    "drop_last": {"drop_last": True},
    "shuffle": {"shuffle": False},
}


@in_any_state
@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_a_state_of_another_kind_of_loader_is_refused(loader: Maker, options: dict[str, Any]) -> None:
    state = saved(loader(list(range(LENGTH)), 4, shuffle=True))
    other = loader(list(range(LENGTH)), **{"batch_size": 4, "shuffle": True, **options})
    with pytest.raises(mpiter.StateError):
        other.load_state_dict(state)
    assert len(epoch(other)) == len(other)


@in_any_state
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("size", "other"), [(4, 3), (4, 5), (2, 23), (5, 1), (4, 9)])
def test_a_state_goes_on_in_batches_of_another_size(loader: Maker, size: int, other: int, drop_last: bool) -> None:
    """A place of a map is a number of samples: those that are left come, in their order, and no other."""

    def made(batch_size: int) -> Any:
        options = {"drop_last": drop_last, "generator": loader.generator(5)}
        return loader(list(range(LENGTH)), batch_size, shuffle=True, **options)

    order = loader(list(range(LENGTH)), LENGTH, shuffle=True, generator=loader.generator(5))
    orders = [flat(epoch(order)) for _ in range(2)]
    first = made(size)
    for expected in orders:
        seen = []
        for number, batch in enumerate(first, 1):
            seen += plain(batch)
            second = made(other)
            second.load_state_dict(saved(first))
            left = [] if number == len(first) else expected[len(seen) :]  # an epoch that is over is that in any size
            coming = iter(second)
            announced, found = len(coming), list(coming)
            assert flat(map(plain, found)) == (left[: len(left) // other * other] if drop_last else left)
            assert announced == len(found)
            assert second.is_new_epoch or not found


@in_any_state
def test_a_state_changes_its_batches_size_again_and_again(loader: Maker) -> None:
    def made(batch_size: int) -> Any:
        return loader(list(range(LENGTH)), batch_size, shuffle=True, generator=loader.generator(5))

    expected, found, state = flat(epoch(made(LENGTH))), [], None
    for size in (3, 5, 2, 4, 7, 9):
        batches = made(size)
        if state is not None:
            batches.load_state_dict(state)
        found += flat(some(iter(batches), 1)) if size < 9 else flat(epoch(batches))
        state = saved(batches)
    assert found == expected


def test_the_keys_of_a_sampler_go_on_in_batches_of_another_size(loader: Maker) -> None:
    def made(batch_size: int) -> Any:
        return loader(list(range(LENGTH)), batch_size, sampler=Picks(1))

    expected = flat(epoch(made(4)))
    batches = made(4)
    some(iter(batches), 3)
    other = made(5)
    other.load_state_dict(saved(batches))
    assert len(under_way := iter(other)) == 3
    assert flat(epoch(under_way)) == expected[12:]


def another(way: Any, options: dict[str, Any]) -> Any:
    return way(list(range(LENGTH)), 4, shuffle=True, **options)


ITERATOR = "batches() or an iterator", lambda: another(mpiter.batches, {"n_processes": 0})
LOADER = "a loader (DataLoader)", lambda: another(mpiter.DataLoader, {})


@pytest.mark.parametrize(("saver", "mine"), [(ITERATOR, LOADER), (LOADER, ITERATOR)], ids=["loader", "iterator"])
def test_a_loader_and_an_iterator_say_that_a_state_is_the_others(saver: Any, mine: Any) -> None:
    with saver[1]() as one, mine[1]() as other, pytest.raises(mpiter.StateError, match="of another kind") as refusal:
        other.load_state_dict(saved(one))
    assert f"{saver[0]} saved it, and this is {mine[0]}" in str(refusal.value)


DAMAGES: dict[str, Any] = {
    "nothing": lambda state: None,
    "a list": lambda state: list(state),
    "no version": lambda state: {name: value for name, value in state.items() if name != "mpiter"},
    "another version": lambda state: {**state, "mpiter": 99},
    "a place before the first": lambda state: {**state, "position": -1},
    "half a sample": lambda state: {**state, "position": 1.5},
    "an epoch by name": lambda state: {**state, "epoch": "one"},
    "no seed": lambda state: {**state, "seed": None},
    "no epoch": lambda state: {name: value for name, value in state.items() if name != "epoch"},
    "generators of another type": lambda state: {**state, "generators": [1]},
    "no loader": lambda state: {**state, "loader": None},
    "half a sampler": lambda state: {**state, "sampler": {"samples": 3, "told": [None]}},
    "a sampler's place that is no value": lambda state: {
        **state,
        "sampler": {"samples": 3, "told": [{"~set": 1}, None]},
    },
}


@in_any_state
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_refused_and_changes_nothing(loader: Maker, damage: Any) -> None:
    batches = shuffled(loader, 1)
    some(iter(batches), 2)
    before = saved(batches)
    with pytest.raises(mpiter.StateError):
        batches.load_state_dict(damage(before))
    assert saved(batches) == before


DAMAGED_GENERATORS = [{"random": 1}, {"numpy": {"bit_generator": "MT19937"}}, {"held": 7}, {"numpy": "00"}]


@pytest.mark.parametrize("damaged", DAMAGED_GENERATORS)
def test_damaged_generators_are_a_state_error_when_they_are_needed(loader: Maker, damaged: Any) -> None:
    batches = sampled_by_module(loader, 1)
    state = saved(batches)
    batches.load_state_dict({**state, "generators": {**state["generators"], **damaged}})
    with pytest.raises(mpiter.StateError):
        iter(batches)
