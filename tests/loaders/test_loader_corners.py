"""Programs have run into these corners of loaders and streams."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter import DataLoader, OptionError, StateError

DATA = np.arange(1000)


class Lazy:
    """A sampler that draws each key from a global generator when it is asked for."""

    def __iter__(self):
        for _ in range(400):
            yield random.randrange(1000)


def listed(batches):
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_as_it_goes_resumes_and_changes_no_other_draws(workers):
    random.seed(1)
    with DataLoader(DATA, 4, sampler=Lazy(), num_workers=workers) as loader:
        epoch = iter(loader)
        for _ in range(3):
            next(epoch)
        state = loader.state_dict()
        rest = listed(epoch)
    random.seed(99)
    untouched = random.random()
    random.seed(99)
    with DataLoader(DATA, 4, sampler=Lazy(), num_workers=workers) as loader:
        loader.load_state_dict(state)
        assert listed(loader) == rest
    assert random.random() == untouched


def test_a_sampler_is_not_asked_far_ahead_at_once():
    asked = []

    class Sampler:
        def __iter__(self):
            for batch in range(500):
                asked.append(batch)
                yield [batch, batch + 1]

    with DataLoader(DATA, batch_sampler=Sampler(), num_workers=2) as loader:
        epoch = iter(loader)
        assert len(asked) <= 8
        for handed_out in range(1, 40):
            next(epoch)
            assert len(asked) <= 2 * handed_out + 8


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dataset": []}, "the dataset gives nothing"),
        (
            {"dataset": [1, 2], "batch_size": 3, "drop_last": True},
            "fewer samples than a batch, which drop_last leaves",
        ),
        ({"dataset": DATA, "sampler": []}, "the sampler gives nothing"),
        (
            {"dataset": DATA, "sampler": iter([])},
            r"the sampler is an iterator \(list_iterator\), which has come to",
        ),
        (
            {"dataset": (n for n in ())},
            r"the dataset is an iterator \(generator\), "
            "which has come to its end; pass a",
        ),
    ],
    ids=["empty", "drop_last", "sampler", "iterator", "generator"],
)
def test_an_epoch_without_a_batch_is_warned_of_at_its_end(
    options: dict[str, Any], told: str
) -> None:
    with pytest.warns(RuntimeWarning, match=f"no batch in an epoch: .*{told}"):
        assert list(DataLoader(**options)) == []


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_workers": 1, "backend": "thread"},
        {"num_workers": 1, "backend": "thread", "persistent_workers": True},
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=["none", "thread", "the same thread", "the same processes"],
)
def test_what_can_be_read_only_once_is_warned_of_in_the_second_epoch(
    options: dict[str, Any],
) -> None:
    with DataLoader(zip(DATA, DATA, strict=True), 2, **options) as loader:
        assert len(list(loader)) == len(DATA) // 2
        with pytest.warns(RuntimeWarning, match=r"an iterator \(zip\), which has come"):
            assert list(loader) == []


def test_an_epoch_that_goes_on_at_its_end_is_not_warned_of():
    loader = DataLoader([1, 2], 2, sampler=[0, 1])
    epoch = iter(loader)
    next(epoch)
    again = DataLoader([1, 2], 2, sampler=[0, 1])
    again.load_state_dict(loader.state_dict())
    assert list(again) == []


class Sharded:
    def __init__(self):
        self.numbers = range(40)

    def __iter__(self):
        return iter(self.numbers)


def test_a_stream_may_be_sharded_by_worker_init_fn():
    def shard(number):
        info = mpiter.get_worker_info()
        assert (info.id, info.num_workers) == (number, 2)
        info.dataset.numbers = info.dataset.numbers[number::2]

    with DataLoader(Sharded(), 5, num_workers=2, worker_init_fn=shard) as loader:
        for _ in range(2):
            assert sorted(
                number for batch in listed(loader) for number in batch
            ) == list(range(40))


def test_a_stream_may_say_that_it_shards_itself():
    class Said(Sharded):
        shards_itself = True

    with DataLoader(Said(), 20, num_workers=2) as loader:
        assert listed(loader) == [
            list(range(20)),
            list(range(20)),
            list(range(20, 40)),
            list(range(20, 40)),
        ]


def with_errors(epoch):
    found = []
    while len(found) < 50:
        try:
            found.append(next(epoch).tolist())
        except ValueError:
            found.append("torn")
        except StopIteration:
            break
    return found


class Scratched:
    """A stream of the numbers below 24 that raises in place of some of them."""

    class _Reading:
        def __init__(self, scratches):
            self.at = -1
            self.scratches = scratches

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            if self.at == 24:
                raise StopIteration
            if self.at in self.scratches:
                raise ValueError(self.at)
            return self.at

    def __init__(self, scratches):
        self.scratches = scratches

    def __iter__(self):
        return self._Reading(self.scratches)


@pytest.mark.filterwarnings("ignore:the stream has no state:RuntimeWarning")
@pytest.mark.parametrize(("workers", "scratches"), [(0, {6}), (2, {0, 1, 2, 3, 23})])
def test_elements_that_fail_cost_the_batch_that_they_would_be_in_and_no_other(
    workers, scratches
):
    batches = [list(range(n, n + 4)) for n in range(0, 24, 4)]
    wanted = ["torn" if scratches & {*batch} else batch for batch in batches]
    with DataLoader(Scratched(scratches), 4, num_workers=workers) as loader:
        assert with_errors(iter(loader)) == wanted
        epoch = iter(loader)
        for _ in range(2):
            with contextlib.suppress(ValueError):
                next(epoch)
        state = loader.state_dict()
    with DataLoader(Scratched(scratches), 4, num_workers=2 - workers) as loader:
        loader.load_state_dict(state)
        assert with_errors(iter(loader)) == wanted[2:]


def test_a_refused_state_stays_refused():
    with DataLoader(DATA, 4, sampler=list(range(100))) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with DataLoader(DATA, 4, sampler=list(range(50, 150))) as loader:
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(StateError, match="other batches"):
                iter(loader)
    for other in (
        DataLoader(Sharded(), 4),
        DataLoader(DATA, 4),
        DataLoader(DATA, batch_sampler=[[1]]),
    ):
        with pytest.raises(StateError, match="kind"):
            other.load_state_dict(state)


def test_what_makes_no_sense_is_refused_at_once():
    for dataset in (None, 5):
        with pytest.raises(OptionError):
            DataLoader(dataset)
    with DataLoader(DATA, 4) as loader:
        for name in ("batch_size", "dataset", "sampler", "collate_fn", "num_workers"):
            with pytest.raises(OptionError, match=f"{name} is fixed"):
                setattr(loader, name, None)


class Together:
    """A dataset that reads many samples at once, and keeps their indices.

    Sample 2 fails.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return int(self.__getitems__([index])[0])

    def __getitems__(self, indices: list[int]) -> Any:
        self.asked += indices
        if 2 in indices:
            raise OSError("a sample that fails")
        return self.kind(indices)


def test_good_samples_that_came_one_by_one_are_not_asked_for_once_more() -> None:
    data = Together(list)
    with DataLoader(data, 4, collate_fn=list, on_error="skip") as loader:
        assert [*loader] == [[0, 1, 3], [4, 5, 6, 7]]
    assert data.asked == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", [iter, lambda indices: dict.fromkeys(indices).keys()])
def test_many_samples_in_any_iterable_are_asked_for_once(kind: Any) -> None:
    data = Together(kind)
    with mpiter.batches(
        data, 4, n_processes=0, order_sampler=lambda order, at: np.array([4, 5, 6, 7])
    ) as stream:
        assert next(stream).tolist() == [4, 5, 6, 7]
    assert data.asked == [4, 5, 6, 7]


class Failing:
    """A sampler whose iterator raises at the third key, again and again."""

    def __iter__(self) -> Failing:
        self.given = 0
        return self

    def __next__(self) -> int:
        if self.given == 2:
            raise OSError("no more keys")
        self.given += 1
        return self.given


def test_a_sampler_that_fails_while_a_state_is_loaded_is_told() -> None:
    with DataLoader(range(8), sampler=[1, 2, 3, 4], batch_size=1) as loader:
        seen = iter(loader)
        for _ in range(3):
            next(seen)
        state = loader.state_dict()
    with DataLoader(range(8), sampler=Failing(), batch_size=1) as loader:
        loader.load_state_dict(state)
        with pytest.raises(OSError, match="no more keys"):
            next(iter(loader))


def interrupted_at(line, epoch):
    """Raise KeyboardInterrupt at the given line that a loader runs in ``next(epoch)``.

    Return False if it runs fewer lines.
    """
    left = line
    unheard = 0

    def traced(frame, event, argument):
        nonlocal left, unheard
        # Python forgets what is raised in a __del__, and in what that calls.
        if frame.f_code.co_name == "__del__":
            unheard += (event == "call") - (event == "return")
            return traced
        if os.sep + "loaders" + os.sep not in frame.f_code.co_filename:
            return None
        if event == "line" and not unheard:
            left -= 1
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        next(epoch)
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 2, "sampler": range(12)},
        {"batch_sampler": [[0, 1], [2, 3], [4, 5]]},
    ],
)
def test_ctrl_c_at_any_line_ends_no_epoch_and_loses_only_the_batch_that_was_on_its_way(
    how,
):
    dataset = list(range(12))
    wanted = [batch.tolist() for batch in DataLoader(dataset, **how)]
    for line in itertools.count():
        epoch = iter(DataLoader(dataset, **how))
        found = [next(epoch).tolist()]
        if not interrupted_at(line, epoch):
            break
        found += [batch.tolist() for batch in epoch]
        assert found in (wanted, wanted[:1] + wanted[2:])
    assert line > 20
