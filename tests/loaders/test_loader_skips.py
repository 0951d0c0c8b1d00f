"""Both loaders leave out samples that fail, wherever batches are made.

Such samples are counted and listed, and their number can be limited.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_kinds import Maker, epoch, flat, makers, some, until_the_end

import mpiter

# There may be more workers than cores here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

LENGTH = 14
BATCH = 4
# Nothing is left of the third batch in sequence.
BROKEN = (1, 6, 8, 9, 10, 11)
GOOD = [[0, 2, 3], [4, 5, 7], [12, 13]]


class Files:
    """Samples from files, some of which are broken."""

    def __init__(self, broken: Any = BROKEN) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            raise OSError(f"file {index} is broken")
        return index


class AtOnce(Files):
    """Reads a whole batch at once, which fails if one of its files is broken."""

    repeatable = True

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Columns(Files):
    """Reads a whole batch at once, as columns."""

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        samples = [self[index] for index in indices]
        return {"x": samples, "y": [-sample for sample in samples]}


class DrawingColumns(Columns):
    """Draws one number for the whole batch."""

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        drawn = int(mpiter.get_rng().integers(1 << 30))
        return {"x": super().__getitems__(indices)["x"], "drawn": drawn}


class Ending(Files):
    """Calls ``sys.exit`` at a broken file."""

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            raise SystemExit(index)
        return index


class EndingAtOnce(Ending):
    """Reads a whole batch at once, and calls ``sys.exit`` at a broken file."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class Nesting(Files):
    """Reads something through an iterator of its own before it fails."""

    def __getitem__(self, index: int) -> int:
        with mpiter.batches(range(3), 3, n_processes=0, shuffle=False) as stream:
            assert next(stream).tolist() == [0, 1, 2]
        return super().__getitem__(index)


class Interrupted(Files):
    """Ctrl-C comes once, while a sample is fetched."""

    def __init__(self, broken: Any = BROKEN) -> None:
        super().__init__(broken)
        self.comes = True

    def __getitem__(self, index: int) -> int:
        if index == 5 and self.comes:
            self.comes = False
            raise KeyboardInterrupt
        return super().__getitem__(index)


class Drawing(Files):
    """Random samples, which depend only on their place."""

    def __getitem__(self, index: int) -> Any:
        return (
            super().__getitem__(index),
            mpiter.get_rng().integers(1 << 30),
            np.random.randint(1 << 30),
        )


class Fatal(Files):
    """The worker that reads a broken file dies."""

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def as_list(samples: list[Any]) -> list[Any]:
    return list(samples)


def refusing(samples: list[Any]) -> list[Any]:
    if 5 in samples:
        raise ValueError("cannot be put together")
    return samples


WAYS: dict[str, Any] = {
    "rows": lambda: (Files(), {}),
    "collate_fn": lambda: (Files(), {"collate_fn": as_list}),
    "__getitems__": lambda: (AtOnce(), {}),
    "sampler": lambda: (Files(), {"sampler": range(LENGTH)}),
    "batch_sampler": lambda: (
        Files(),
        {"batch_sampler": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13]]},
    ),
}
each_way = pytest.mark.parametrize(
    ("loader", "way"),
    [
        *((0, way) for way in WAYS.values()),
        (2, WAYS["rows"]),
        (2, WAYS["__getitems__"]),
    ],
    indirect=["loader"],
    ids={way: name for name, way in WAYS.items()}.get,
)


@each_way
def test_what_fails_is_left_out_counted_and_listed(loader: Maker, way: Any) -> None:
    dataset, options = way()
    batches = loader(dataset, BATCH, on_error="skip", **options)
    assert epoch(batches) == GOOD
    stats = batches.stats()
    assert (stats.skipped, stats.samples, stats.batches) == (len(BROKEN), 8, 3)
    assert stats.skips == tuple(
        (index, f"OSError: file {index} is broken") for index in BROKEN
    )
    assert epoch(batches) == GOOD
    assert batches.stats().skipped == 2 * len(BROKEN)


@each_way
def test_more_than_the_most_are_an_error_in_the_batchs_place(
    loader: Maker, way: Any
) -> None:
    dataset, options = way()
    given, errors = until_the_end(
        iter(loader(dataset, BATCH, on_error=mpiter.Skip(most=4), **options))
    )
    assert given == GOOD
    assert [type(error) for error in errors] == [mpiter.SampleError]
    assert "Skip(most=4): more samples have failed" in str(errors[0])
    assert isinstance(errors[0].__cause__, OSError)


def rounds_of_a_loader(kind: str, most: int) -> Iterator[Any]:
    with makers(kind, 2) as loader:
        batches = loader(
            Files(), BATCH, on_error=mpiter.Skip(most=most), persistent_workers=False
        )
        while True:
            yield until_the_end(iter(batches))[1], batches.stats()


def rounds_of_an_iterator(_: str, most: int) -> Iterator[Any]:
    on_error = mpiter.Skip(most=most)
    with mpiter.MultiprocessIterator(
        Files(), BATCH, False, False, n_processes=2, on_error=on_error
    ) as it:
        while True:
            yield until_the_end(it)[1], it.stats()
            it.reset()


@pytest.mark.parametrize("again", [rounds_of_a_loader, rounds_of_an_iterator])
def test_the_most_and_the_count_are_of_all_epochs_with_and_without_workers(
    kind: str, again: Any
) -> None:
    rounds = again(kind, 2 * len(BROKEN))
    for number in (1, 2):
        errors, stats = next(rounds)
        assert not errors
        assert stats.skipped == number * len(BROKEN)
        assert [index for index, _ in stats.skips] == [*BROKEN] * number
    errors, stats = next(rounds)
    assert {type(error) for error in errors} == {mpiter.SampleError}
    assert "more samples have failed" in str(errors[0])
    assert stats.skipped == 2 * len(BROKEN)
    rounds.close()


@each_way
def test_an_epoch_of_which_nothing_is_left_is_an_error(loader: Maker, way: Any) -> None:
    dataset, options = way()
    dataset.broken = range(LENGTH)
    given, errors = until_the_end(
        iter(loader(dataset, BATCH, on_error="skip", **options))
    )
    assert not given
    assert [type(error) for error in errors] == [mpiter.SampleError]
    assert "left out a whole epoch" in str(errors[0])


@pytest.mark.parametrize("loader", [0], indirect=True)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_state_resumes_exactly_with_what_was_left_out(
    loader: Maker, way: Any
) -> None:
    dataset, options = way()
    for at in range(len(GOOD)):
        under_way = iter(batches := loader(dataset, BATCH, on_error="skip", **options))
        assert some(under_way, at) == GOOD[:at]
        state = json.loads(json.dumps(batches.state_dict()))
        each = 1 if "batch_sampler" in options else BATCH
        # The batch of which nothing is left comes after the second.
        assert state["position"] == at * each
        other = loader(way()[0], BATCH, on_error="skip", **options)
        other.load_state_dict(state)
        assert epoch(other) == GOOD[at:]


@pytest.mark.parametrize(
    ("loader", "options"),
    [(0, {}), (2, {}), (0, {"collate_fn": as_list})],
    indirect=["loader"],
)
def test_the_others_are_what_they_would_have_been(
    loader: Maker, options: dict[str, Any]
) -> None:
    found = []
    for broken in (BROKEN, ()):
        loader.seed(1)
        options = options if loader.kind == "torch" else {"seed": 3, **options}
        batches = epoch(loader(Drawing(broken), BATCH, on_error="skip", **options))
        rows: list[Any] = []
        for batch in batches:
            rows += batch if options.get("collate_fn") else zip(*batch, strict=True)
        found.append({tuple(row) for row in rows if row[0] not in BROKEN})
    assert found[0] == found[1]
    assert len(found[0]) == LENGTH - len(BROKEN)


def test_a_collate_fn_that_fails_is_no_sample_to_be_left_out(loader: Maker) -> None:
    options = {"on_error": "skip", "collate_fn": lambda sample: refusing([sample])[0]}
    given, errors = until_the_end(iter(batches := loader(Files(), None, **options)))
    assert given == [index for index in flat(GOOD) if index != 5]
    assert [str(error) for error in errors] == ["cannot be put together"]
    assert batches.stats().skipped == len(BROKEN)


def test_whatever_container_the_dataset_makes_reaches_the_collate_fn_as_it_is(
    loader: Maker,
) -> None:
    def doubled(columns: dict[str, list[int]]) -> list[int]:
        return [x - y for x, y in zip(columns["x"], columns["y"], strict=True)]

    for on_error, wanted in (("raise", [*range(LENGTH)]), ("skip", flat(GOOD))):
        dataset = Columns(BROKEN if on_error == "skip" else ())
        batches = loader(dataset, BATCH, on_error=on_error, collate_fn=doubled)
        assert flat(epoch(batches)) == [2 * index for index in wanted]
        assert batches.stats().skipped == len(dataset.broken)


def test_what_a_batch_of_columns_draws_does_not_depend_on_what_is_left_out(
    loader: Maker,
) -> None:
    found = []
    for broken in (BROKEN, ()):
        loader.seed(1)
        options: dict[str, Any] = {} if loader.kind == "torch" else {"seed": 3}
        batches = loader(
            DrawingColumns(broken), BATCH, on_error="skip", collate_fn=dict, **options
        )
        found.append({batch["x"][-1]: batch["drawn"] for batch in batches})
    some_left_out, whole = found
    assert some_left_out.items() <= whole.items()
    assert len({*whole.values()}) == len(whole)


@pytest.mark.parametrize(
    ("loader", "dataset"),
    [(2, Ending()), (2, EndingAtOnce()), (2, Nesting())],
    indirect=["loader"],
)
def test_a_sample_that_fails_in_an_odd_way_is_left_out_alone(
    loader: Maker, dataset: Files
) -> None:
    for options in ({}, {"collate_fn": as_list}):
        batches = loader(dataset, BATCH, on_error="skip", **options)
        assert epoch(batches) == GOOD
        assert [index for index, _ in batches.stats().skips] == list(BROKEN)


@pytest.mark.parametrize("options", [{}, {"collate_fn": as_list}])
def test_ctrl_c_is_no_samples_failure(kind: str, options: dict[str, Any]) -> None:
    with makers(kind, 0) as loader:
        under_way = iter(loader(Interrupted(), BATCH, on_error="skip", **options))
        assert some(under_way, 1) == GOOD[:1]
        with pytest.raises(KeyboardInterrupt):
            next(under_way)
        assert epoch(under_way) == GOOD[1:]


@pytest.mark.parametrize(
    "way", [{}, {"collate_fn": as_list}], ids=["rows", "collate_fn"]
)
def test_what_ends_its_worker_twice_is_left_out(kind: str, way: dict[str, Any]) -> None:
    with makers(kind, 2) as loader:
        batches = loader(Fatal((6,)), BATCH, on_error="skip", **way)
        found = flat(epoch(batches))
    # A batch that is made as a whole is one row, so its death concerns all samples.
    left_out = {4, 5, 6, 7} if way else {6}
    assert found == [index for index in range(LENGTH) if index not in left_out]
    assert batches.stats().skipped == 1


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


def test_what_is_only_iterable_is_refused_by_type_and_remedy(kind: str) -> None:
    stream: Any = Stream()
    if kind == "torch":
        data = pytest.importorskip("torch").utils.data
        stream = type("Stream", (Stream, data.IterableDataset), {})()
    with makers(kind, 0) as loader:
        for on_error in ("skip", mpiter.Skip(most=3)):
            with pytest.raises(
                mpiter.OptionError,
                match=r"Stream is read as a stream.*have its __iter__ catch",
            ):
                loader(stream, BATCH, on_error=on_error)
        with pytest.raises(mpiter.OptionError, match="use 'raise', 'skip' or Skip"):
            loader(Files(), BATCH, on_error="ignore")
