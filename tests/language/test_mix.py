"""A mixture has the shares that it was given, refuses what it can't, and says why."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest
from documents import Documents, Named, lognormal

import mpiter
from mpiter.language import Balanced, Ending, Source

TWO: dict[str, Any] = {"web": Named("web", 100), "code": Named("code", 30)}


def serial(dataset: Any, batch_size: int = 10, **options: Any) -> Any:
    options = {"n_processes": 0, "seed": 0, **options}
    return mpiter.batches(dataset, batch_size, **options)


def samples_of(dataset: Any, count: int, **options: Any) -> list[Any]:
    """Return the first samples, over as many epochs as that takes."""
    iterator = mpiter.SerialIterator(dataset, 1, shuffle=True, seed=0, **options)
    return [sample for [sample] in itertools.islice(iterator, count)]


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    "weight",
    [
        -1,
        -0.1,
        float("nan"),
        float("inf"),
        np.float32("nan"),
        "much",
        "1/0",
        "nan",
        True,
        np.bool_(True),
        None,
        1j,
        [1],
    ],
)
def test_a_weight_that_is_no_number_is_refused_with_its_component(weight: Any) -> None:
    with pytest.raises(mpiter.OptionError, match=r"weight of component 'code' is"):
        mpiter.Mix(TWO, {"web": 1, "code": weight})


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ({"web": 0, "code": 0.0}, "all weights are 0"),
        ({"web": 1}, "nothing for component 'code'; 0 leaves it out"),
        (
            {"web": 1, "code": 1, "books": 1},
            "'books', which .* there are 'web', 'code'",
        ),
        ({}, "nothing for component 'web'"),
        ([], "weights is empty"),
        ([0.7, 0.3], r"weights has 0.7, where \(place, {name: weight}\) belongs"),
        ([(1, {"web": 1, "code": 1})], "begin with 0 and rise; 1"),
        ([(0, {"web": 1, "code": 1}), (0, {"web": 1, "code": 1})], "rise; 0"),
        (
            [(0, {"web": 1, "code": 1}), (9, {"web": 1, "code": 2}), (8, {})],
            "rise; 8",
        ),
        ([(0.5, {"web": 1, "code": 1})], "rise; 0.5"),
        ([(False, {"web": 1, "code": 1})], "rise; False"),
        ([(0, {"web": 1, "code": 1}), (5, {"web": 1})], "nothing for component 'code'"),
        ([(0, 1)], "must be a dict by name, not 1"),
        (7, "weights must be a dict by name, or a list .* not 7"),
        ("web", "weights must be a dict by name, or a list .* not 'web'"),
    ],
)
def test_weights_that_leave_something_open_are_refused(weights: Any, text: str) -> None:
    with pytest.raises(mpiter.OptionError, match=text):
        mpiter.Mix(TWO, weights)


@pytest.mark.parametrize(
    ("datasets", "text"),
    [
        ({}, "needs a dict of datasets"),
        ([Named("web", 3)], "needs a dict of datasets"),
        ({3: Named("web", 3)}, "name 3 must be text"),
        ({"web": Named("web", 0)}, "component 'web' is empty; leave it out"),
        ({"web": iter([1, 2])}, r"component 'web' \(list_iterator\) has no len\(\)"),
    ],
)
def test_what_is_no_component_is_refused_by_its_name(datasets: Any, text: str) -> None:
    with pytest.raises(mpiter.OptionError, match=text):
        mpiter.Mix(datasets, {"web": 1})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"length": 0}, "length=0 must be"),
        ({"length": -5}, "length=-5 must be"),
        ({"length": 2.5}, "length=2.5 must be"),
        ({"length": True}, "length=True must be"),
        ({"short": "stop", "length": 5}, "length=5 goes with short='repeat'"),
        ({"short": "never"}, "short='never' is unknown; it may be 'repeat'"),
    ],
)
def test_other_options_are_refused_in_words(options: Any, text: str) -> None:
    with pytest.raises(mpiter.OptionError, match=text):
        mpiter.Mix(TWO, {"web": 1, "code": 1}, **options)


def test_a_place_before_the_first_has_no_share() -> None:
    mix = mpiter.Mix(TWO, {"web": 1, "code": 1})
    with pytest.raises(mpiter.OptionError, match="place=-1 must be at least 0"):
        mix.share(-1)


def test_a_key_beyond_the_last_is_an_index_error() -> None:
    mix = mpiter.Mix(TWO, {"web": 1, "code": 1})
    for key in (-1, 130):
        with pytest.raises(IndexError, match=f"{key} isn't from 0 to before 130"):
            mix[key]


class Failing(Named):
    """A component with one sample that can't be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise ValueError("a torn page")
        return super().__getitem__(index)


@pytest.mark.parametrize("n_processes", [0, 1])
def test_a_sample_that_fails_is_named_with_its_component(n_processes: int) -> None:
    mix = mpiter.Mix(
        {**TWO, "books": Failing("books", 20)}, dict.fromkeys(TWO, 0) | {"books": 1}
    )
    stream = serial(mix, n_processes=n_processes)
    with stream, pytest.raises(ValueError, match="a torn page") as caught:
        list(stream)
    notes = "\n".join(caught.value.__notes__)
    assert "sample 7 of component 'books'" in notes
    options = {"n_processes": n_processes, "on_error": "skip"}
    with serial(mix, **options) as stream:
        found = [sample for batch in stream for sample in batch]
        assert stream.stats().skipped >= 7
    assert {*found} == {f"books {index}" for index in range(20) if index != 7}


# -- what comes ------------------------------------------------------------------------


def test_weights_mean_the_same_in_any_unit_and_type() -> None:
    same = [
        (0.7, 0.3),
        (7, 3),
        ("0.7", "0.3"),
        ("7/10", Fraction(3, 10)),
        (np.float32(0.7), np.float64(0.3)),
        (np.int64(7), np.uint8(3)),
        (np.int64(7 * 10**17), np.int64(3 * 10**17)),
    ]
    found = list[Any]()
    for web, code in same:
        mix = mpiter.Mix(TWO, {"web": web, "code": code}, length=np.int64(5000))
        found.append((mix.share(10**15), samples_of(mix, 300)))
    assert all(one == found[0] for one in found)
    assert found[0][0] == {"web": 7 * 10**14, "code": 3 * 10**14}


def test_a_component_with_the_weight_0_never_comes_and_may_come_later() -> None:
    mix = mpiter.Mix(TWO, [(0, {"web": 1, "code": 0}), (500, {"web": 0, "code": 1})])
    found = samples_of(mix, 900)
    assert {sample.split()[0] for sample in found[:500]} == {"web"}
    assert {sample.split()[0] for sample in found[500:]} == {"code"}


def test_each_pass_over_a_component_is_a_permutation_of_its_own() -> None:
    mix = mpiter.Mix(TWO, {"web": 0.4, "code": 0.6})
    by_name: dict[str, list[Any]] = {"web": [], "code": []}
    for sample in samples_of(mix, 2000):
        by_name[sample.split()[0]].append(sample)
    for name, dataset in TWO.items():
        passes = list[Any]()
        for begin in range(0, len(by_name[name]) - len(dataset), len(dataset)):
            one = by_name[name][begin : begin + len(dataset)]
            assert {*one} == {dataset[index] for index in range(len(dataset))}
            passes.append(tuple(one))
        assert len({*passes}) == len(passes) >= 7


def test_another_component_moves_no_sample_of_the_others() -> None:
    def firsts(mix: Any) -> list[Any]:
        found = samples_of(mix, 1500)
        return [sample for sample in found if sample.startswith("code")][:100]

    alone = mpiter.Mix({"code": TWO["code"]}, {"code": 1})
    beside = mpiter.Mix(
        {"books": Named("books", 77), **TWO}, {"books": 3, "web": 1, "code": 1}
    )
    assert firsts(alone) == firsts(beside)


def test_share_and_forecast_say_what_then_comes() -> None:
    mix = mpiter.Mix(TWO, [(0, {"web": 1, "code": 1}), (100, {"web": 3, "code": 1})])
    found = [sample.split()[0] for sample in samples_of(mix, 612)]
    # Blocks begin where weights do.
    for place in (0, 100, 356, 612):
        counted = Counter(found[:place])
        for name, count in mix.share(place).items():
            assert abs(counted[name] - count) < 2, place
    endings = [*mix.forecast(400)]
    assert endings[0] == Ending(59, "code", 1)
    for place, name, number in endings:
        assert mix.share(place)[name] == number * len(TWO[name])
        assert mix.share(place - 1)[name] < number * len(TWO[name])
    assert [*mix.forecast(58)] == []


@pytest.mark.parametrize("short", ["renormalise", "stop"])
def test_share_beyond_the_epochs_end_is_that_at_the_end(short: Any) -> None:
    mix = mpiter.Mix(TWO, {"web": 1, "code": 1}, short)
    whole = Counter(sample.split()[0] for batch in serial(mix) for sample in batch)
    assert mix.share(10**9) == dict(whole)
    expected = {
        "renormalise": {"web": 100, "code": 30},
        "stop": {"web": 30, "code": 30},
    }
    for name, count in expected[short].items():
        assert abs(whole[name] - count) < 2


def test_a_field_names_the_component_of_samples_that_are_dicts() -> None:
    datasets = {name: [{"x": index} for index in range(9)] for name in ("a", "b")}
    mix = mpiter.Mix(datasets, {"a": 1, "b": 1}, field="source")
    for key in range(18):
        assert mix[key] == {"x": key % 9, "source": mix.source(key).name}
    assert "source" not in datasets["a"][0], "the user's sample stays as it was"
    with pytest.raises(mpiter.OptionError, match="component 'web' has str"):
        mpiter.Mix(TWO, {"web": 1, "code": 1}, field="source")[0]


def test_a_source_says_name_and_key_of_numbers_and_of_rows() -> None:
    mix = mpiter.Mix(TWO, {"web": 1, "code": 1})
    assert mix.source(0) == Source("web", 0)
    assert mix.source(np.int64(129)) == Source("code", 29)
    assert type(mix.source(np.int64(129)).key) is int
    rows = mpiter.Mix({"a": mpiter.Pack(Documents([3, 4]), 8)}, {"a": 1})
    [key] = rows.mpiter_order(0, False).take(0, 1)
    assert rows.source(key).name == "a"


@pytest.mark.parametrize("make", [mpiter.SerialIterator, mpiter.DataLoader])
def test_an_epoch_that_has_become_shorter_ends_where_it_is(make: Any) -> None:
    def mixture(length: int) -> Any:
        return mpiter.Mix(TWO, {"web": 2, "code": 1}, length=length)

    def epochs_of(source: Any) -> Iterator[Any]:
        while True:
            yield from iter(source)

    long = make(mixture(120), 10, shuffle=True, seed=0)
    first = itertools.islice(epochs_of(long), 8)
    given = [sample for batch in first for sample in batch]
    short = make(mixture(50), 10, shuffle=True, seed=0)
    short.load_state_dict(json.loads(json.dumps(long.state_dict())))
    given += [
        sample for batch in itertools.islice(epochs_of(short), 22) for sample in batch
    ]
    assert short.state_dict()["epoch"] == 5
    counts = Counter(given)
    for name, dataset in TWO.items():
        passes = [
            counts[sample] for sample in map(dataset.__getitem__, range(len(dataset)))
        ]
        assert max(passes) - min(passes) <= 1, name
    assert counts.total() == 300


class Counting(mpiter.Order):
    """An order that counts how often it is asked."""

    calls: ClassVar[Counter[str]] = Counter()

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 50

    def take(self, start: int, stop: int) -> Any:
        self.calls["take"] += 1
        return (np.arange(start, stop) + self.epoch) % 50

    def later(self, epochs: int) -> Counting:
        self.calls["later"] += 1
        return Counting(self.epoch + epochs)


class Ordered(Documents):
    """Documents that bring such an order."""

    def mpiter_order(self, seed: int, shuffle: bool | None) -> Any:
        return Counting()


@pytest.fixture
def calls() -> Iterator[Counter[str]]:
    Counting.calls.clear()
    yield Counting.calls
    Counting.calls.clear()


@pytest.mark.parametrize("epochs", [1, 10**9])
def test_a_later_epoch_is_found_without_going_through_those_before(
    calls: Counter[str], epochs: int
) -> None:
    documents = Ordered(lognormal(50))
    mix = mpiter.Mix({"a": documents, "b": Ordered(lognormal(50))}, {"a": 1, "b": 1})
    # The mixture looks at the orders that it is given.
    calls.clear()
    order = mix.mpiter_order(0, None).later(epochs)
    order.take(10, 20)
    assert calls["later"] <= 4
    assert calls["take"] <= 4
    packed = mpiter.Pack(documents, 64, window=8).mpiter_order(0, None)
    calls.clear()
    packed.later(epochs)
    assert calls == {"later": 1}


def test_a_state_needs_no_order_of_a_whole_epoch_but_the_one_it_goes_on_in(
    calls: Counter[str],
) -> None:
    rows = mpiter.Pack(Ordered(lognormal(50)), 64, window=50)
    iterator = mpiter.SerialIterator(rows, 2, seed=0)
    for _ in range(20):
        next(iterator)
    state = json.dumps(iterator.state_dict())
    fresh = mpiter.SerialIterator(rows, 2, seed=0)
    calls.clear()
    fresh.load_state_dict(json.loads(state))
    assert calls["take"] <= 3
    assert next(fresh)[0]["tokens"].tolist() == next(iterator)[0]["tokens"].tolist()


def test_decimals_are_told_to_be_none_of_the_numbers() -> None:
    with pytest.raises(mpiter.OptionError, match="weight of component 'web'"):
        mpiter.Mix(TWO, {"web": Decimal("nan"), "code": 1})


@pytest.mark.parametrize("as_dict", [False, True])
def test_columns_are_a_component_of_their_rows(as_dict: bool) -> None:
    columns: Any = (np.arange(6), np.arange(6) * 10)
    if as_dict:
        columns = dict(zip("xy", columns, strict=True))
    mix = mpiter.Mix({"a": columns, "b": columns}, {"a": 1, "b": 1})
    assert len(mix) == 12
    with mpiter.batches(mix, 4, n_processes=0, seed=0) as stream:
        found = list(stream)
    rows = 0
    for batch in found:
        x, y = batch.values() if as_dict else batch
        assert (y == 10 * x).all()
        rows += len(x)
    assert rows == 12


# -- in workers ------------------------------------------------------------------------


class Opened:
    """Documents that are there once ``worker_init`` has been called."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.begun: list[int] = []

    def worker_init(self, info: mpiter.WorkerInfo) -> None:
        assert info.dataset is self
        assert mpiter.get_worker_info() is info
        self.begun.append(info.num_workers)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        [workers] = self.begun
        return np.array([self.first + index, workers])


def opened_in(kind: str) -> Any:
    one = Opened(0)
    mix = mpiter.Mix(
        {"one": one, "two": Opened(100), "again": one, "plain": [np.zeros(2, int)]},
        {"one": 1, "two": 1, "again": 1, "plain": 0},
        length=61,
    )
    if kind == "Mix":
        return mix
    if kind == "Mix of Mix":
        return mpiter.Mix({"inner": mix}, {"inner": 1})
    if kind == "Pack":
        return mpiter.Pack(Opened(0), 4, lengths=[2] * 20)
    if kind == "Pack of Mix":
        return mpiter.Pack(mix, 4, lengths=[2] * 61)
    return Balanced(Opened(0), lengths=[2] * 20)


@pytest.mark.parametrize(
    "kind", ["Mix", "Mix of Mix", "Pack", "Pack of Mix", "Balanced"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_worker_init_of_what_is_within_is_called_once_in_each_worker(
    kind: str, workers: int
) -> None:
    with mpiter.batches(opened_in(kind), 4, n_processes=workers, epochs=1) as stream:
        for batch in stream:
            tokens = batch
            if kind.startswith("Pack"):
                tokens = batch["tokens"].reshape(-1, 2)
                tokens = tokens[tokens[:, 1] > 0]
            assert (tokens[:, 1] == max(1, workers)).all()
