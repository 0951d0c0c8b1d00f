"""Samples come several times through ``mpiter.torch.DataLoader``, in the order of torch's samplers."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loaders import NO_TORCH

torch = pytest.importorskip("torch", reason=NO_TORCH)

from torch.utils import data  # noqa: E402

import mpiter  # noqa: E402
from mpiter.echo import Echo  # noqa: E402
from mpiter.echo.factors import Factors  # noqa: E402
from mpiter.torch import DataLoader, StatefulDataLoader  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
]
LENGTH, BATCH = 22, 4
ECHOES = {
    "example": Echo(2, shuffle_buffer=9),
    "example, a fraction": Echo(1.4, shuffle_buffer=9),
    "augmented": Echo(3, at="augmented", shuffle_buffer=11),
    "batch": Echo(1.5, at="batch"),
}
SAMPLERS: dict[str, Any] = {
    "in sequence": dict,
    "shuffled": lambda: {"shuffle": True},
    "generator": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    "drop_last": lambda: {"shuffle": True, "drop_last": True},
    "replacement": lambda: {"sampler": data.RandomSampler(range(LENGTH), replacement=True, num_samples=30)},
    "weighted": lambda: {"sampler": data.WeightedRandomSampler(torch.arange(1.0, LENGTH + 1), 15)},
    "subset": lambda: {"sampler": data.SubsetRandomSampler([1, 5, 7, 11, 13])},
    "distributed": lambda: {"sampler": data.DistributedSampler(range(LENGTH), 3, 1)},
}
each_echo = pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)


class Augmented(data.Dataset):
    """What is read is the number of the sample; what is drawn, its augmentation."""

    def __len__(self) -> int:
        return LENGTH

    def read(self, index: int) -> Any:
        return np.full(3, index, np.float64)

    def transform(self, sample: Any) -> Any:
        return sample, int(sample[0]), mpiter.get_rng().random()

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))


def loader(echo: Any, class_: Any = DataLoader, **options: Any) -> Any:
    return class_(Augmented(), BATCH, echo=echo, **options)


def seen(batches: Any, count: int | None = None) -> list[Any]:
    """Numbers and draws of each batch."""
    return [
        (x[:, 0].tolist(), numbers.tolist(), draws.tolist()) for x, numbers, draws in itertools.islice(batches, count)
    ]


def seen_of(echo: Any, **options: Any) -> list[Any]:
    torch.manual_seed(1)
    with loader(echo, **options) as batches:
        return seen(batches)


def numbers_of(batches: list[Any]) -> list[int]:
    return [number for _, numbers, _ in batches for number in numbers]


@each_echo
@each_sampler
def test_every_sample_of_a_sampler_comes_as_often_as_told(echo: Echo, sampler: Any) -> None:
    once, found = seen_of(None, **sampler()), seen_of(echo, **sampler())
    torch.manual_seed(1)
    with loader(echo, **sampler()) as batches:
        assert len(batches) == len(found) >= len(once)
    fresh, repeats = Counter(numbers_of(once)), Counter(numbers_of(found))
    if "drop_last" not in sampler() and echo.at != "batch":
        assert all(repeats[number] >= fresh[number] for number in fresh)
        assert abs(repeats.total() - echo.factor * fresh.total()) <= 1
    assert set(repeats) <= set(range(LENGTH)) if "drop_last" in sampler() else set(repeats) == set(fresh)


@each_echo
def test_the_same_batches_come_whoever_fetches(echo: Echo) -> None:
    assert seen_of(echo, shuffle=True) == seen_of(echo, shuffle=True, num_workers=2)


def test_what_comes_first_is_what_torch_would_give() -> None:
    once = seen_of(None, shuffle=True)
    fresh = list(dict.fromkeys(numbers_of(seen_of(Echo(2), shuffle=True))))
    assert fresh == numbers_of(once)


def test_an_example_is_augmented_anew_each_time() -> None:
    found = seen_of(Echo(2), shuffle=True)
    assert len({draw for *_, draws in found for draw in draws}) == 2 * LENGTH


@each_echo
@each_sampler
def test_a_state_resumes_exactly_within_the_buffer(echo: Echo, sampler: Any) -> None:
    for at in (0, 1, 2):
        torch.manual_seed(1)
        with loader(echo, **sampler()) as batches:
            seen(batches)  # an epoch, so that it is the second that is resumed
            under_way = iter(batches)
            seen(under_way, at)
            state = json.loads(json.dumps(batches.state_dict()))
            rest = seen(under_way)
        torch.manual_seed(2)
        users = torch.get_rng_state()
        with loader(echo, num_workers=at, **sampler()) as other:
            other.load_state_dict(state)
            assert len(iter(other)) == len(rest)
        with loader(echo, **sampler()) as other:
            other.load_state_dict(state)
            assert seen(other) == rest
        assert torch.equal(torch.get_rng_state(), users)


@pytest.mark.parametrize("persistent", [None, True, False])
def test_epoch_after_epoch_comes_whole_whether_workers_stay_or_not(persistent: bool | None) -> None:
    with loader(Echo(2), shuffle=True, num_workers=2, persistent_workers=persistent) as batches:
        epochs = [numbers_of(seen(batches)) for _ in range(3)]
    assert all(Counter(each) == dict.fromkeys(range(LENGTH), 2) for each in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_an_automatic_echo_goes_on_under_torchdatas_name() -> None:
    with loader(Echo("auto"), StatefulDataLoader, shuffle=True) as batches:
        assert Counter(numbers_of(seen(batches))) == dict.fromkeys(range(LENGTH), 1)
        under_way = iter(batches)
        seen(under_way, 2)
        state, rest = batches.state_dict(), seen(under_way)
        with pytest.raises(TypeError, match="or the echo is automatic"):
            len(batches)
    with loader(Echo("auto"), StatefulDataLoader, shuffle=True) as other:
        other.load_state_dict(state)
        assert seen(other) == rest


@pytest.mark.parametrize("class_", [DataLoader, mpiter.DataLoader])
@pytest.mark.parametrize("at", ["example", "augmented", "batch"])
def test_between_epochs_a_state_has_the_automatic_factor_of_the_next(
    class_: Any, at: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = iter([None, 2.5, 1.5, 1.0])
    monkeypatch.setattr(Factors, "_measured", lambda _: next(measured))
    with loader(Echo("auto", at=at), class_) as batches:
        once = len(seen(batches))
        state = json.loads(json.dumps(batches.state_dict()))
        second, third = seen(batches), seen(batches)
    of = {"batch": once}.get(at, LENGTH / BATCH)
    assert [len(second), len(third)] == [math.ceil(2.5 * of), math.ceil(1.5 * of)]
    monkeypatch.setattr(Factors, "_measured", lambda _: None)
    with loader(Echo("auto", at=at), class_) as other:
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert len(seen(other)) == len(second)


def test_batches_that_a_worker_collates_come_several_times() -> None:
    with loader(Echo(2, at="batch"), collate_fn=repr, num_workers=2) as batches:
        found = list(batches)
    assert found[::2] == found[1::2]
    assert len(found) == 12


class Stated:
    """A sampler that tells its place."""

    def __init__(self, seeds: Any = (1, 2, 3)) -> None:
        self.seeds = iter(seeds)  # those of the epochs to come, which nobody else knows
        self.seed, self.given = 0, LENGTH

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[int]:
        if self.given == LENGTH:
            self.seed, self.given = next(self.seeds), 0
        for key in np.random.default_rng(self.seed).permutation(LENGTH).tolist()[self.given :]:
            self.given += 1
            yield key

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seed, self.given = state["seed"], state["given"]


class Unlike(Stated):
    """Tells the last epoch, whatever it has given of it."""

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(next(self.seeds)).permutation(LENGTH).tolist())


@pytest.mark.parametrize("class_", [DataLoader, mpiter.DataLoader])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_sampler_that_tells_its_place_goes_on_in_an_epoch_that_nobody_else_knows(class_: Any, at: int) -> None:
    with loader(Echo(2), class_, sampler=Stated()) as batches:
        seen(batches)
        under_way = iter(batches)
        seen(under_way, at)
        state, rest = json.loads(json.dumps(batches.state_dict())), seen(under_way)
    for _ in range(2):
        with loader(Echo(2), class_, sampler=Stated((8, 9))) as other:
            other.load_state_dict(state)
            under_way = iter(other)
            state = json.loads(json.dumps(other.state_dict()))  # as it was
            assert seen(under_way) == rest
            assert len(seen(other)) == len(other)


@pytest.mark.parametrize("at", [0, 1])
def test_a_sampler_that_does_not_tell_what_it_has_given_is_found_out(at: int) -> None:
    with loader(Echo(2), sampler=Unlike()) as batches:
        seen(iter(batches), at)
        state = batches.state_dict()
    with loader(Echo(2), sampler=Unlike()) as other:
        other.load_state_dict(state)
        with pytest.raises(mpiter.StateError, match="gives other batches"):
            iter(other)


def test_what_a_sampler_tells_in_one_process_is_not_for_another() -> None:
    class Share(Stated):
        rank, num_replicas = 0, 2

    with loader(Echo(2), sampler=Share()) as batches:
        seen(iter(batches), 1)
        state = batches.state_dict()
    other_share = Share()
    other_share.rank = 1
    with loader(Echo(2), sampler=other_share) as other:
        other.load_state_dict(state)
        with pytest.raises(mpiter.StateError, match="saved by process 0 of 2, this is process 1"):
            iter(other)


# -- what is refused ----------------------------------------------------------------------------------------------


class Stream(data.IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


class Endless:
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


@pytest.mark.parametrize("class_", [DataLoader, mpiter.DataLoader])
def test_what_cannot_be_echoed_is_refused_by_type_and_remedy(class_: Any) -> None:
    batches = data.BatchSampler(data.RandomSampler(range(LENGTH)), BATCH, False)
    with pytest.raises(mpiter.OptionError, match=r"than BatchSampler does; .* pass sampler, batch_size and drop_last"):
        class_(Augmented(), batch_sampler=batches, echo=Echo(2))
    with pytest.raises(mpiter.OptionError, match=r"Stream is read as a stream; give it both, or have its __iter__"):
        class_(Stream(), BATCH, echo=Echo(2, at="batch"))
    with pytest.raises(mpiter.OptionError, match=r"Endless has no len\(\); give it one, or pass shuffle"):
        class_(Augmented(), BATCH, sampler=Endless(), echo=Echo(2))
    with pytest.raises(mpiter.OptionError, match="a worker makes whole batches"):
        class_(Augmented(), BATCH, collate_fn=list, echo=Echo(2))
    with pytest.raises(mpiter.OptionError, match="let the workers stay"):
        class_(Augmented(), BATCH, num_workers=1, persistent_workers=False, echo=Echo("auto"))
    with (
        class_(Augmented(), BATCH, sampler=["a", "b"], echo=Echo(2)) as words,
        pytest.raises(mpiter.OptionError, match=r"gave 'a' \(str\)\.  Have it give indices"),
    ):
        iter(words)


def test_a_state_of_another_echo_or_sampler_is_refused() -> None:
    with loader(Echo(2), shuffle=True) as batches:
        seen(iter(batches), 2)
        state = batches.state_dict()
    with loader(None, shuffle=True) as other, pytest.raises(mpiter.StateError, match="saved with echo="):
        other.load_state_dict(state)
    with loader(Echo(2), sampler=list(range(LENGTH))) as other, pytest.raises(mpiter.StateError, match="sampler"):
        other.load_state_dict(state)


def test_a_sampler_that_does_not_repeat_itself_is_found_out() -> None:
    state: Any = None
    for seed in (1, 2):
        order = np.random.default_rng(seed).permutation(LENGTH).tolist()
        with loader(Echo(2), sampler=order) as batches:
            if state is None:
                seen(iter(batches), 2)
                state = batches.state_dict()
                continue
            batches.load_state_dict(state)
            with pytest.raises(mpiter.StateError, match="gives other batches"):
                iter(batches)
