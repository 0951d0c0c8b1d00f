"""What every iterator guarantees, with any backend and any transport."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import threading
import time
import traceback
from typing import Any

import numpy as np
import pickling
import pytest
from brought_orders import Failing as FailingThirds
from brought_orders import ThirdsAtOnce
from datasets import (
    Every,
    Failing,
    Gated,
    Random,
    Shaped,
    Squares,
    TwoArguments,
    Unpicklable,
    plain_batch,
)
from pairs import slow_but
from ways import iterator

import mpiter
from mpiter.errors import RemoteTraceback, SharedMemoryFull
from mpiter.testing import check_dataset, check_resume

# Everything runs on the default configuration of each backend.  What depends on how
# samples travel runs on one configuration of each transport as well, and the core of
# the contract on each start method and on serializers of the user's own too.
DEFAULTS: dict[str, dict[str, Any]] = {
    "process": {"n_processes": 2},
    "thread": {"n_processes": 2, "backend": "thread"},
    "serial": {"n_processes": 0},
}
# The whole contract once more, with several samples under way in a worker.
UNDER_WAY: dict[str, dict[str, Any]] = {
    "process, under way": {"n_processes": 2, "concurrency": 4},
    "serial, under way": {"n_processes": 0, "concurrency": 4},
}
PAIRS: dict[str, dict[str, Any]] = {
    "forkserver, copies": {"n_processes": 1, "copy": True},
    "forkserver, packed": {"n_processes": 2, "serializer": "packed"},
    "thread, packed, copies": {
        "n_processes": 3,
        "backend": "thread",
        "serializer": "packed",
        "copy": True,
    },
    "serial, packed, copies": {"n_processes": 0, "serializer": "packed", "copy": True},
}
RARE: dict[str, dict[str, Any]] = {
    "fork, slots": {"n_processes": 2, "backend": mpiter.Process("fork")},
    "fork, bench's rawarray": {
        "n_processes": 2,
        "backend": mpiter.Process("fork"),
        "serializer": pickling.RawArray,
    },
    "forkserver, the bench's pickle5": {
        "n_processes": 2,
        "serializer": pickling.Pickle5,
    },
    "spawn, packed": {
        "n_processes": 2,
        "backend": mpiter.Process("spawn"),
        "serializer": "packed",
    },
}
ANY_WAY = {**DEFAULTS, **PAIRS}
ANY_START = {**ANY_WAY, **RARE}


@pytest.fixture(params=slow_but({**DEFAULTS, **UNDER_WAY}, *DEFAULTS))
def default(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**DEFAULTS, **UNDER_WAY}[request.param]


@pytest.fixture(params=list(ANY_WAY))
def any_way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ANY_WAY[request.param]


@pytest.fixture(params=slow_but(ANY_START, *ANY_WAY))
def any_start(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ANY_START[request.param]


def is_serial(way: dict[str, Any]) -> bool:
    return way.get("n_processes") == 0


def stays_here(way: dict[str, Any]) -> bool:
    """Return whether samples are fetched in this process."""
    return is_serial(way) or shares_generators(way)


def epoch(dataset: Any, batch_size: int = 6, **options: Any) -> list[Any]:
    options = {"repeat": False, "seed": 3, **options}
    with iterator(dataset, batch_size, **options) as it:
        return [plain_batch(batch) for batch in it]


def reference(dataset: Any, batch_size: int = 6, **options: Any) -> list[Any]:
    """Return what a loop over our order gives in this process."""
    with iterator(
        range(len(dataset)), batch_size, repeat=False, seed=3, n_processes=0
    ) as it:
        return [plain_batch([dataset[index] for index in batch]) for batch in it]


# -- samples ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build", ["bare array", "namedtuple", "odd ones", "none", "empty", "oversize"]
)
def test_samples_come_back_as_they_were(default: dict[str, Any], build: str) -> None:
    dataset = Shaped(build)
    assert epoch(dataset, **default) == reference(dataset)


def test_parts_of_all_kinds_come_back_as_they_were_any_way(
    any_start: dict[str, Any],
) -> None:
    dataset = Every()
    assert epoch(dataset, **any_start) == reference(dataset)


def test_a_batch_is_a_real_list_and_knows_its_columns(any_way: dict[str, Any]) -> None:
    with iterator(Squares(), 6, seed=3, **any_way) as it:
        batch = next(it)
        images, labels = batch.columns
        assert isinstance(batch, list)
        assert len(batch) == 6
        assert batch[1::3] == [batch[1], batch[4]]
        assert np.array_equal(images, np.stack([image for image, _ in batch]))
        assert labels.tolist() == [label for _, label in batch]


def test_list_and_columns_show_the_same_writable_memory() -> None:
    with iterator(Squares(), 6, **DEFAULTS["process"]) as it:
        batch = next(it)
        batch[2][0][...] = -1
        assert (batch.columns[0][2] == -1).all()
        batch.columns[0][3] = -2
        assert (batch[3][0] == -2).all()


@pytest.mark.parametrize("backend", ["thread", "serial"])
def test_samples_that_leave_no_process_are_the_very_objects(backend: str) -> None:
    samples = [(np.zeros(2), object()) for _ in range(4)]
    with iterator(samples, 4, shuffle=False, **DEFAULTS[backend]) as it:
        assert all(one is other for one, other in zip(next(it), samples, strict=True))


def test_changing_the_list_detaches_the_columns(default: dict[str, Any]) -> None:
    with iterator(Squares(), 6, **default) as it:
        batch = next(it)
        batch.pop()
        assert len(batch.columns[0]) == 5


def test_writing_into_a_batch_changes_no_other_data(default: dict[str, Any]) -> None:
    data = np.zeros((8, 3))
    with iterator(data, 4, repeat=False, shuffle=False, **default) as it:
        for batch in it:
            batch.columns[...] = 7
    assert not data.any()


def test_batches_stay_valid_as_long_as_they_are_referenced(
    any_way: dict[str, Any],
) -> None:
    dataset = Squares(200)
    with iterator(dataset, 2, repeat=False, seed=3, **any_way) as it:
        kept = list(it)
    assert [plain_batch(batch) for batch in kept] == reference(dataset, 2)


# -- order and randomness --------------------------------------------------------------


def test_the_order_is_the_same_for_any_number_of_workers(
    default: dict[str, Any],
) -> None:
    few, many = (
        {**default, "n_processes": n and default["n_processes"]} for n in (1, 5)
    )
    assert (
        epoch(Squares(50), **few)
        == epoch(Squares(50), **many)
        == reference(Squares(50))
    )


def test_each_epoch_has_an_order_of_its_own(default: dict[str, Any]) -> None:
    with iterator(list(range(30)), 30, seed=3, **default) as it:
        first = next(it)
        second = next(it)
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second


def test_an_order_that_the_dataset_brings_is_followed(default: dict[str, Any]) -> None:
    dataset = FailingThirds(20)
    wanted = [number for number in dataset.expected(2) if number != 4]
    options = {"seed": 0, "on_error": "skip", **default}
    with iterator(dataset, 7, **options) as it:
        found = next(it) + next(it)
        state = json.loads(json.dumps(it.state_dict()))
        found += next(it) + next(it)
        assert [number for _, number in found] == wanted[: len(found)]
        skips = it.stats().skips
    assert set(skips) == {(("code", 4), "ValueError: no such page")}
    with iterator(dataset, 3, n_processes=0, seed=0, on_error="skip") as other:
        other.load_state_dict(state)
        assert [number for _, number in next(other)] == wanted[13:16]
    with (
        iterator(dataset, 20, seed=0, **default) as it,
        pytest.raises(ValueError, match="no such page") as caught,
    ):
        next(it)
    assert "sample ('code', 4) (position 8 of epoch 0)" in caught.value.__notes__[0]


def test_keys_of_an_order_are_read_together_where_the_dataset_can(
    default: dict[str, Any],
) -> None:
    dataset = ThirdsAtOnce(20, "rows")
    with iterator(dataset, 8, seed=0, repeat=False, **default) as it:
        # The first rows may be fetched one by one, to see what samples are like.
        found = [number for _, number in next(it) + next(it)]
    assert found == dataset.expected(1)[:16]


def shares_generators(options: dict[str, Any]) -> bool:
    backend = options.get("backend")
    return backend == "thread" or getattr(backend, "in_process", False)


def test_random_samples_depend_on_their_place_alone(any_start: dict[str, Any]) -> None:
    # Threads share the global generators, so there only get_rng() is guaranteed.
    dataset = Random(draws="rng" if shares_generators(any_start) else "all")
    assert epoch(dataset, **any_start) == epoch(dataset, n_processes=0)


def test_an_item_visited_twice_gets_fresh_randomness(default: dict[str, Any]) -> None:
    with iterator(
        Random(draws="rng"),
        10,
        order_sampler=lambda order, position: np.zeros(20, int),
        **default,
    ) as it:
        draws = [draw for _, draw in next(it)]
    assert len(set(draws)) == 10


@pytest.mark.filterwarnings("ignore:.*they are read one by one:RuntimeWarning")
def test_the_callers_random_state_is_left_alone(default: dict[str, Any]) -> None:
    np.random.seed(5)
    expected = np.random.RandomState(5).random_sample(3).tolist()
    with iterator(Random(), 4, seed=1, **default) as it:
        if shares_generators(default):
            return
        next(it)
        next(it)
    assert np.random.random_sample(3).tolist() == expected


def test_numpys_seed_governs_unless_told_otherwise() -> None:
    def seeds() -> list[int]:
        np.random.seed(0)
        return [mpiter.SerialIterator([1, 2], 1).seed for _ in range(2)]

    first = seeds()
    again = seeds()
    assert first == again
    assert first[0] != first[1]


# -- epochs and state ------------------------------------------------------------------


def test_epoch_arithmetic_describes_what_was_handed_out(
    default: dict[str, Any],
) -> None:
    with iterator(Squares(5), 2, **default) as it:
        assert (it.epoch_detail, it.previous_epoch_detail, it.is_new_epoch) == (
            0.0,
            None,
            False,
        )
        seen = []
        for _ in range(5):
            next(it)
            seen.append(
                (
                    it.epoch,
                    it.current_position,
                    it.is_new_epoch,
                    it.epoch_detail,
                    it.previous_epoch_detail,
                )
            )
    assert seen == [
        (0, 2, False, 2 / 5, 0.0),
        (0, 4, False, 4 / 5, 2 / 5),
        (1, 1, True, 6 / 5, 4 / 5),
        (1, 3, False, 8 / 5, 6 / 5),
        (2, 0, True, 2.0, 8 / 5),
    ]


def test_the_end_comes_again_and_again(default: dict[str, Any]) -> None:
    with iterator(Squares(5), 2, repeat=False, **default) as it:
        assert [len(batch) for batch in it] == [2, 2, 1]
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(it)
        assert it.epoch_detail == it.previous_epoch_detail == 1.0


@pytest.mark.parametrize(("length", "size"), [(2, 3), (100, 150)])
def test_batches_larger_than_the_dataset_follow_an_order_sampler(
    default: dict[str, Any], length: int, size: int
) -> None:
    dataset = range(length)
    turn = itertools.count(1)
    orders = [np.roll(np.arange(length), number) for number in range(12)]
    with iterator(
        dataset,
        size,
        order_sampler=lambda order, position: orders[next(turn) % 12],
        **default,
    ) as it:
        found = [sample for _ in range(5) for sample in next(it)]
    assert found == np.concatenate(orders[1:] + orders[:1])[: 5 * size].tolist()


@pytest.mark.parametrize(
    "make",
    [
        lambda: iterator(range(8), 2, in_order=False, n_processes=1),
        lambda: mpiter.DataLoader(range(8), 2, num_workers=1, in_order=False),
    ],
)
def test_a_state_without_order_is_warned_of_when_it_is_loaded(make: Any) -> None:
    with (
        make() as one,
        pytest.warns(RuntimeWarning, match="some samples may come twice, or never"),
    ):
        one.load_state_dict(one.state_dict())


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize(("size", "other"), [(3, 4), (4, 3), (2, 15)])
def test_a_state_goes_on_in_batches_of_another_size(
    size: int, other: int, repeat: bool
) -> None:
    def made(batch_size: int) -> Any:
        return iterator(range(11), batch_size, repeat=repeat, seed=3, n_processes=0)

    def samples(it: Any, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count and (batch := next(it, None)) is not None:
            found += batch
        return found

    count = 44 if repeat else 11
    with made(1) as it:
        whole = samples(it, count + 11)
    with made(size) as it:
        seen: list[int] = []
        while len(seen) < count:
            with made(other) as second:
                second.load_state_dict(json.loads(json.dumps(it.state_dict())))
                found = seen + samples(second, count - len(seen))
            assert found[:count] == whole[:count]
            seen += next(it)


class Peak(mpiter.Hook):
    """Keeps the largest number of batches that were in flight."""

    batches = 0

    def in_flight(self, batches: int, ready: int) -> None:
        self.batches = max(self.batches, batches)


class Watched(Squares):
    """A dataset that has a hook in this process."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.peak = Peak()

    def mpiter_hook(self) -> Peak:
        return self.peak


def test_a_room_has_as_many_rows_as_come(default: dict[str, Any]) -> None:
    few = Squares(4, (100, 100))
    with iterator(few, 512, repeat=False, shuffle=False, **default) as it:
        assert plain_batch(next(it)) == plain_batch([few[index] for index in range(4)])
        # Without workers there is no team, nor a room.
        team = getattr(it._pump.loop, "_team", None)
        assert team is None or team.rooms.bytes <= 2 * sum(
            few[index][0].nbytes for index in range(4)
        )
    with iterator(few, 8, shuffle=False, **default) as it:
        assert plain_batch(next(it)) == 2 * plain_batch(
            [few[index] for index in range(4)]
        )


def test_a_room_grows_with_the_batches(default: dict[str, Any]) -> None:
    with iterator(Squares(5), 3, repeat=False, shuffle=False, **default) as it:
        next(it)
        short = it.state_dict()
    with iterator(Squares(5), 3, repeat=False, shuffle=False, **default) as it:
        it.load_state_dict(short)
        for _ in range(3):
            assert plain_batch(next(it)) == plain_batch(
                [Squares(5)[index] for index in (3, 4)]
            )
            it.reset()
            assert plain_batch(next(it)) == plain_batch(
                [Squares(5)[index] for index in range(3)]
            )
        it.dataset = Squares(20)
        it.batch_size = 12
        it.reset()
        assert plain_batch(next(it)) == plain_batch(
            [Squares(20)[index] for index in range(12)]
        )


def test_a_batch_of_countless_epochs_that_memory_cannot_hold_is_refused_at_once(
    default: dict[str, Any],
) -> None:
    with iterator(Squares(40, (32, 32)), 10**8, **default) as it:
        for _ in range(2):
            with pytest.raises(SharedMemoryFull, match="lower batch_size"):
                next(it)
        it.batch_size = 100
        assert len(next(it)) == 100


def test_an_order_sampler_is_read_anew_at_each_epoch(default: dict[str, Any]) -> None:
    with iterator(
        list(range(4)), 2, order_sampler=lambda order, position: np.arange(4), **default
    ) as it:
        first = [next(it), next(it)]
        it.order_sampler = lambda order, position: np.arange(4)[::-1]
        second = [next(it), next(it), next(it), next(it)]
    assert first == [[0, 1], [2, 3]]
    # With workers, the loop may have called the old sampler for the coming epoch.
    assert second[:2] in ([[0, 1], [2, 3]], [[3, 2], [1, 0]])
    assert second[2:] == [[3, 2], [1, 0]]


@pytest.mark.parametrize(
    "dataset", [Squares(), Random(), Every()], ids=lambda one: type(one).__name__
)
def test_samples_are_those_of_a_plain_loop(dataset: Any) -> None:
    assert check_dataset(dataset, uneven=True).samples == 20


def test_every_place_can_be_resumed_from_by_another_number_of_workers() -> None:
    workers = itertools.cycle([2, 0, 1, 3])
    places = check_resume(
        lambda: iterator(Random(13), 3, seed=9, n_processes=next(workers)), batches=6
    )
    assert places == 7


def test_loading_a_state_drops_what_is_prefetched(default: dict[str, Any]) -> None:
    with iterator(Squares(30), 4, seed=2, **default) as it:
        start = it.state_dict()
        first = [plain_batch(next(it)) for _ in range(3)]
        it.load_state_dict(start)
        assert [plain_batch(next(it)) for _ in range(3)] == first


def test_reset_starts_over(default: dict[str, Any]) -> None:
    with iterator(Squares(10), 4, repeat=False, seed=2, **default) as it:
        whole = [plain_batch(batch) for batch in it]
        for consumed in (3, 0, 1):
            it.reset()
            for _ in range(consumed):
                next(it)
        it.reset()
        assert it.previous_epoch_detail is None
        assert [plain_batch(batch) for batch in it] == whole


@pytest.mark.parametrize(
    ("duplicate", "consumed"),
    [(copy.copy, 2), (lambda it: pickle.loads(pickle.dumps(it)), 0)],
)
def test_a_copy_goes_on_from_the_same_place(
    default: dict[str, Any], duplicate: Any, consumed: int
) -> None:
    with iterator(Squares(10), 3, seed=2, **default) as it:
        for _ in range(consumed):
            next(it)
        with duplicate(it) as other:
            assert other.epoch_detail == it.epoch_detail
            assert [plain_batch(next(other)) for _ in range(5)] == [
                plain_batch(next(it)) for _ in range(5)
            ]


# -- errors ----------------------------------------------------------------------------


def test_a_datasets_error_comes_in_its_batch_and_the_next_one_follows(
    any_start: dict[str, Any],
) -> None:
    dataset = Failing({4: KeyError("four"), 9: OSError(5, "nine")}, 12)
    with iterator(dataset, 3, repeat=False, shuffle=False, **any_start) as it:
        assert [label for _, label in next(it)] == [0, 1, 2]
        with pytest.raises(KeyError, match="four") as caught:
            next(it)
        assert it.current_position == 6
        assert [label for _, label in next(it)] == [6, 7, 8]
        with pytest.raises(OSError, match="nine"):
            next(it)
        with pytest.raises(StopIteration):
            next(it)
    if stays_here(any_start):
        assert "__getitem__" in "".join(traceback.format_exception(caught.value))
    else:
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "__getitem__" in str(caught.value.__cause__)
    assert "sample 4 (position 4 of epoch 0)" in caught.value.__notes__[0]


def test_errors_that_cannot_travel_are_described(default: dict[str, Any]) -> None:
    for error, text in [
        (Unpicklable(), "holds a lock"),
        (TwoArguments(1, 2), "1 and 2"),
        (StopIteration(), "Stop"),
    ]:
        dataset = Raiser(error)
        travels = stays_here(default) and not isinstance(error, StopIteration)
        with (
            iterator(dataset, 3, **default) as it,
            pytest.raises(type(error) if travels else RuntimeError, match=text),
        ):
            next(it)


class Raiser(Squares):
    def __init__(self, error: Any) -> None:
        super().__init__()
        self.kind = type(error)

    def __getitem__(self, index: int) -> Any:
        if self.kind is TwoArguments:
            raise self.kind(1, 2)
        raise self.kind()


def test_skipped_errors_shorten_the_batch_and_are_counted(
    any_way: dict[str, Any],
) -> None:
    dataset = Failing(
        {0: KeyError(), 4: KeyError(), 6: KeyError(), 7: KeyError(), 8: KeyError()}, 12
    )
    with iterator(
        dataset, 3, repeat=False, shuffle=False, on_error="skip", **any_way
    ) as it:
        batches = list(it)
        assert [[label for _, label in batch] for batch in batches] == [
            [1, 2],
            [3, 5],
            [9, 10, 11],
        ]
        assert batches[0].columns[1].tolist() == [1, 2]
        assert it.stats().skipped == 5
        assert it.stats().skips == tuple(
            (index, "KeyError: ") for index in (0, 4, 6, 7, 8)
        )


@pytest.mark.parametrize("broken", [range(8, 12), range(4, 12), range(4)], ids=str)
def test_no_epochs_end_is_lost_with_a_batch_of_which_nothing_is_left(
    default: dict[str, Any], broken: range
) -> None:
    dataset = Failing({index: KeyError() for index in broken}, 12)
    left = 3 - len(broken) // 4
    with iterator(dataset, 4, shuffle=False, on_error="skip", **default) as it:
        before = 0.0
        epochs = 0
        for _ in range(3 * left):
            assert next(it)[0][1] not in broken
            assert it.previous_epoch_detail == before
            assert it.is_new_epoch == (it.epoch > int(before))
            before = it.epoch_detail
            epochs = epochs + it.is_new_epoch
        assert epochs == it.epoch >= 2


def test_the_end_is_the_epochs_end_though_nothing_is_left_of_its_last_batch(
    default: dict[str, Any],
) -> None:
    dataset = Failing({index: KeyError() for index in range(8, 12)}, 12)
    with mpiter.batches(
        dataset, 4, shuffle=False, on_error="skip", epochs=2, **default
    ) as it:
        assert [(it.epoch, it.is_new_epoch) for _ in it] == [
            (0, False),
            (0, False),
            (1, True),
            (1, False),
        ]
        assert (it.epoch, it.epoch_detail, it.is_new_epoch) == (2, 2.0, True)


def test_of_many_skipped_samples_the_first_hundred_are_listed(
    default: dict[str, Any],
) -> None:
    dataset = Failing({index: KeyError() for index in range(0, 400, 2)}, 400)
    with mpiter.batches(dataset, 40, shuffle=False, on_error="skip", **default) as it:
        assert len([*it]) == 10
        assert it.stats().skipped == 200
        assert [index for index, _ in it.stats().skips] == [*range(0, 200, 2)]


def test_more_failures_than_may_be_skipped_are_errors_each(
    default: dict[str, Any],
) -> None:
    dataset = Failing({index: KeyError() for index in (0, 1, 4, 8)}, 12)
    options: dict[str, Any] = {
        "repeat": False,
        "shuffle": False,
        "on_error": mpiter.Skip(most=2),
    }
    with iterator(dataset, 3, **options, **default) as it:
        assert [label for _, label in next(it)] == [2]
        for _ in range(2):
            with pytest.raises(
                mpiter.SampleError,
                match=r"on_error=Skip\(most=2\): more samples have failed",
            ) as error:
                next(it)
            assert isinstance(error.value.__cause__, KeyError)
        assert [label for _, label in next(it)] == [9, 10, 11]
        assert it.stats().skipped == 2


# -- several at once, and the end ------------------------------------------------------


def test_out_of_order_delivery_brings_every_batch_once(default: dict[str, Any]) -> None:
    with iterator(list(range(100)), 5, repeat=False, in_order=False, **default) as it:
        assert sorted(itertools.chain.from_iterable(it)) == list(range(100))


@pytest.mark.parametrize("n_prefetch", [1, 3])
def test_strict_run_ahead_keeps_to_n_prefetch(
    default: dict[str, Any], n_prefetch: int
) -> None:
    squares = Watched(200)
    with iterator(
        squares, 2, repeat=False, seed=3, n_prefetch=n_prefetch, run_ahead=0, **default
    ) as it:
        assert [plain_batch(batch) for batch in it] == reference(Squares(200), 2)
    assert squares.peak.batches == (0 if is_serial(default) else n_prefetch)


def test_numpys_numbers_are_taken_as_pythons_and_do_not_overflow(
    default: dict[str, Any],
) -> None:
    numbers = {"n_prefetch": np.uint8(2), "run_ahead": np.uint8(254)}
    with iterator(Squares(), np.uint8(4), repeat=False, **numbers, **default) as it:
        assert len(list(it)) == -(-len(Squares()) // 4)


def test_closing_is_idempotent_and_final(default: dict[str, Any]) -> None:
    it = iterator(Squares(), 4, **default)
    next(it)
    it.close()
    it.finalize()
    # SerialIterator may be used again, as Chainer's may.
    if is_serial(default):
        assert len(next(it)) == 4
        return
    with pytest.raises(mpiter.errors.IteratorClosed):
        next(it)
    with pytest.raises(NotImplementedError):
        it.reset()


def test_constructing_starts_nothing(default: dict[str, Any]) -> None:
    it = iterator(Squares(), 4, **default)
    assert it.stats() == mpiter.Stats()
    it.close()


def test_a_dataset_of_which_every_sample_fails_is_not_skipped_for_ever(
    default: dict[str, Any],
) -> None:
    dataset = Failing({index: KeyError(index) for index in range(12)}, 12)
    with (
        iterator(dataset, 3, on_error="skip", **default) as it,
        pytest.raises(mpiter.SampleError, match="a whole epoch"),
    ):
        next(it)


def test_an_order_samplers_error_comes_after_the_batches_before_it(
    default: dict[str, Any],
) -> None:
    orders = iter([np.arange(4), np.arange(4)])
    with iterator(
        list(range(4)), 2, order_sampler=lambda order, position: next(orders), **default
    ) as it:
        assert [next(it), next(it), next(it)] == [[0, 1], [2, 3], [0, 1]]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="order_sampler"):
                next(it)


def test_several_threads_may_share_an_iterator(default: dict[str, Any]) -> None:
    with iterator(list(range(300)), 3, repeat=False, **default) as it:
        shares: list[list[int]] = [[], [], []]
        threads = [
            threading.Thread(target=lambda mine=mine: [mine.extend(b) for b in it])
            for mine in shares
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(itertools.chain(*shares)) == list(range(300))


def test_a_warning_that_is_an_error_loses_nothing(tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    dataset = Gated(str(gate), free=4, length=12)
    with iterator(
        dataset,
        4,
        repeat=False,
        shuffle=False,
        n_processes=1,
        run_ahead=0,
        dataset_timeout=0.5,
    ) as it:
        assert [label for _, label in next(it)] == [0, 1, 2, 3]
        with pytest.raises(it.TimeoutWarning):
            next(it)
        gate.touch()
        assert [[label for _, label in batch] for batch in it] == [
            [4, 5, 6, 7],
            [8, 9, 10, 11],
        ]


def test_the_first_batch_does_not_wait_for_a_sample_of_the_second(
    tmp_path: Any,
) -> None:
    gate = tmp_path / "gate"
    with iterator(
        Gated(str(gate), free=4, length=12),
        4,
        repeat=False,
        shuffle=False,
        n_processes=2,
    ) as it:
        assert [label for _, label in next(it)] == [0, 1, 2, 3]
        gate.touch()
        assert len(list(it)) == 2


def test_nothing_waits_for_a_look_at_the_workers(default: dict[str, Any]) -> None:
    """Without ``sample_timeout`` the loop never looks at the workers.

    So it would wait for ever for a block that it has forgotten to send.
    """
    with iterator(Squares(10), 3, repeat=False, sample_timeout=None, **default) as it:
        for _ in range(3):
            assert sum(map(len, it)) == 10
            it.reset()


def test_starting_the_workers_is_not_the_datasets_fault() -> None:
    def slow_start(info: Any) -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass

    with iterator(
        Squares(8),
        4,
        repeat=False,
        n_processes=2,
        worker_init=slow_start,
        dataset_timeout=0.5,
    ) as it:
        # A warning that blames the dataset would be an error here.
        assert len(list(it)) == 2


def test_a_serializer_of_ones_own_may_be_a_class_or_an_object() -> None:
    found = []
    for own in (pickling.Pickle, pickling.Pickle()):
        with iterator(Squares(), 6, serializer=own, n_processes=1, seed=1) as it:
            found.append(plain_batch(next(it)))
    assert found[0] == found[1]
