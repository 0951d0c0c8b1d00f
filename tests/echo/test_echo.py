"""An echo hands out each sample several times, and fetches it once.

The order is known, the state resumes exactly, and the source may be any.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ways
from datasets import Failing
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter
from mpiter.echo import Bundles, Echo

LENGTH = 22
BATCH = 4


class Augmented:
    """Reading gives the number of a sample, and its augmentation is a random draw."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length
        self.reads = 0

    def __len__(self) -> int:
        return self.length

    def read(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.reads += 1
        return np.full(3, index, np.float64)

    def transform(self, sample: Any) -> Any:
        # Many transforms change the sample in place, as this one does.
        sample *= 10
        return sample, int(sample[0]) // 10, mpiter.get_rng().random()

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))


class Dying(Augmented):
    """The first worker that reads sample 7 dies."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def read(self, index: int) -> Any:
        if index == 7 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def iterator(dataset: Any, **options: Any) -> Any:
    return ways.iterator(
        dataset, BATCH, **{"repeat": False, "seed": 3, "n_processes": 0, **options}
    )


def stream(dataset: Any, **options: Any) -> Any:
    return mpiter.batches(dataset, BATCH, **{"seed": 3, "n_processes": 0, **options})


def loader(dataset: Any, n_processes: int = 0, **options: Any) -> Any:
    return mpiter.DataLoader(
        dataset,
        BATCH,
        **{"shuffle": True, "seed": 3, "num_workers": n_processes, **options},
    )


def torch_loader(dataset: Any, n_processes: int = 0, **options: Any) -> Any:
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    from mpiter.torch import DataLoader

    generator = torch.Generator().manual_seed(3)
    return DataLoader(
        dataset,
        BATCH,
        **{
            "shuffle": True,
            "generator": generator,
            "num_workers": n_processes,
            **options,
        },
    )


Make = Callable[..., Any]
each_source = pytest.mark.parametrize(
    "make",
    [iterator, stream, loader, pytest.param(torch_loader, marks=pytest.mark.torch)],
)
ECHOES: dict[str, dict[str, Any]] = {
    "twice": {"factor": 2, "shuffle_buffer": 16},
    "often": {"factor": 3, "shuffle_buffer": 8},
    "all of it": {"factor": 2},
    "whole batches": {"factor": 2, "shuffle_buffer": 0},
}
each_echo = pytest.mark.parametrize(
    ("make", "options"),
    [
        (iterator, ECHOES["often"]),
        *((stream, options) for options in ECHOES.values()),
        (loader, ECHOES["twice"]),
        pytest.param(torch_loader, ECHOES["often"], marks=pytest.mark.torch),
    ],
)


def plain(batch: Any) -> list[tuple[list[float], int, float]]:
    """Return the samples of a batch as tuples, whatever the batch consists of."""
    columns = batch.columns if isinstance(batch, mpiter.Batch) else batch
    if isinstance(columns, list) and isinstance(columns[0], tuple):
        return [(array.tolist(), number, drawn) for array, number, drawn in columns]
    return [*zip(*(column.tolist() for column in columns), strict=True)]


# -- what comes ------------------------------------------------------------------------


@each_echo
def test_every_sample_comes_as_often_as_told_and_is_fetched_once(
    make: Make, options: Any
) -> None:
    for augments in (False, True):
        dataset = Augmented()
        factor = options["factor"]
        with make(Bundles(dataset, 4) if augments else dataset) as source:
            echo = Echo(source, **options)
            found = [plain(batch) for batch in echo]
        assert dataset.reads == LENGTH
        counts = Counter(number for batch in found for _, number, _ in batch)
        assert counts == dict.fromkeys(range(LENGTH), factor)
        assert all(
            len({number for _, number, _ in batch}) == len(batch) for batch in found
        ), "no batch has one twice"
        assert all(
            array == [10.0 * number] * 3
            for batch in found
            for array, number, _ in batch
        )
        draws = {sample[2] for batch in found for sample in batch}
        assert len(draws) == (counts.total() if augments else LENGTH)


@each_source
def test_first_uses_are_what_comes_without_an_echo(make: Make) -> None:
    with make(Augmented()) as source:
        once = [plain(batch) for batch in source]
    for dataset in (Augmented(), Bundles(Augmented(), 2)):
        with make(dataset) as source:
            seen = set[int]()
            firsts = []
            for batch in map(plain, Echo(source, 2, shuffle_buffer=16)):
                if batch[0][1] not in seen:
                    firsts.append(batch)
                    seen.update(number for _, number, _ in batch)
        assert firsts == once


def test_uses_lie_apart_and_at_an_even_rate() -> None:
    with stream(Augmented(400)) as source:
        found = [
            number
            for batch in Echo(source, 2, shuffle_buffer=80)
            for number in batch[1].tolist()
        ]
    places = {
        number: [at for at, one in enumerate(found) if one == number]
        for number in range(400)
    }
    apart = [second - first for first, second in places.values()]
    assert np.median(apart) > 40
    assert max(apart) < 3 * 80
    firsts = np.array([places[number][0] == at for at, number in enumerate(found)])
    assert firsts[80:720].reshape(-1, 16).mean(1).min() > 0.4


@each_echo
def test_what_the_user_does_to_a_batch_changes_no_other(
    make: Make, options: Any
) -> None:
    for dataset in (Augmented(), Bundles(Augmented(), 4)):
        with make(dataset) as source:
            expected = [plain(batch) for batch in Echo(source, **options)]
        with make(dataset) as source:
            found = []
            for batch in Echo(source, **options):
                found.append(plain(batch))
                arrays = [batch[0]]
                if make is iterator:
                    arrays = [sample[0] for sample in batch]
                for array in arrays:
                    array[:] = -1
        assert found == expected


def test_rows_that_differ_are_mixed_as_samples_and_else_repeated_as_batches() -> None:
    ragged = [np.full((4, 1 + index % 5), index) for index in range(LENGTH)]
    with iterator(ragged) as source:
        found = [row for batch in Echo(source, 2) for row in batch]
    assert Counter(int(row[0, 0]) for row in found) == dict.fromkeys(range(LENGTH), 2)
    assert all((row == ragged[row[0, 0]]).all() for row in found)
    for source in (
        stream(ragged, ragged="pad"),
        stream(ragged, ragged="list"),
        loader(ragged, collate_fn=list),
    ):
        with source:
            found = [*Echo(source, 2)]
        assert all(
            all((a == b).all() for a, b in zip(*pair, strict=True))
            for pair in zip(found[::2], found[1::2], strict=True)
        )


@each_source
def test_further_uses_are_of_the_types_of_the_first(make: Make) -> None:
    class Named(Augmented):
        def __getitem__(self, index: int) -> Any:
            return np.full(2, index), f"number {index}", {"label": (index, -index)}

    for buffer in (0, 8):
        with make(Named(8), shuffle=False) as source:
            batches = [*Echo(source, 2, shuffle_buffer=buffer)]
        for found in zip(
            *(getattr(batch, "columns", batch) for batch in batches), strict=True
        ):
            assert len({type(column) for column in found}) == 1
        assert len({type(batch) for batch in batches}) == 1
        for batch in batches:
            numbers, names, labels = getattr(batch, "columns", batch)
            assert list(names) == [
                f"number {number}" for number in numbers[:, 0].tolist()
            ]
            assert labels["label"][0].tolist() == numbers[:, 0].tolist()


def test_a_stream_of_elements_is_echoed() -> None:
    class Elements:
        def __iter__(self) -> Any:
            return iter(range(LENGTH))

    with mpiter.DataLoader(Elements(), BATCH) as source:
        assert Counter(
            itertools.chain(*(batch.tolist() for batch in Echo(source, 2)))
        ) == dict.fromkeys(range(LENGTH), 2)


def test_what_is_kept_does_not_grow() -> None:
    with mpiter.SerialIterator(range(200), BATCH, seed=1) as source:
        echo = Echo(source, 3, shuffle_buffer=20)
        for _ in range(300):
            next(echo)
            assert BATCH * (len(echo._before) + len(echo._now)) <= 20


# -- places ----------------------------------------------------------------------------


@each_echo
@pytest.mark.parametrize("augments", [False, True])
def test_a_state_resumes_exactly_from_many_places(
    make: Make, options: Any, augments: bool
) -> None:
    def made() -> Echo[Any]:
        return Echo(
            make(Bundles(Augmented(), 4) if augments else Augmented()), **options
        )

    echo = made()
    if make is not iterator:
        # After an epoch, it is the second one that is resumed.
        list(echo)
    states = [echo.state_dict()]
    expected = []
    for batch in echo:
        expected.append(plain(batch))
        states.append(json.loads(json.dumps(echo.state_dict())))
    echo.close()
    for at, state in [*enumerate(states)][::4]:
        with contextlib.closing(made()) as other:
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert [plain(batch) for batch in other] == expected[at:]


@settings(max_examples=40)
@given(
    st.integers(1, 40),
    st.integers(1, 15),
    st.integers(1, 4),
    st.sampled_from([0, 1, 4, 20, 100]),
    st.booleans(),
    st.integers(0, 12),
)
def test_whatever_the_sizes_a_state_resumes_exactly(
    length: int, batch_size: int, factor: int, buffer: int, wraps: bool, after: int
) -> None:
    def made() -> Echo[Any]:
        source = mpiter.SerialIterator(range(length), batch_size, repeat=wraps, seed=1)
        return Echo(source, factor, shuffle_buffer=buffer)

    def told(echo: Echo[Any]) -> Any:
        return [
            (list(batch), echo.epoch_detail, echo.epoch)
            for batch in itertools.islice(echo, 10)
        ]

    echo = made()
    list(itertools.islice(echo, after))
    state = echo.state_dict()
    expected = told(echo)
    other = made()
    other.load_state_dict(state)
    assert told(other) == expected


def test_batches_do_not_depend_on_workers_and_a_state_resumes_under_others() -> None:
    def echo(**way: Any) -> Echo[Any]:
        return Echo(stream(Bundles(Augmented(), 2), **way), 2, shuffle_buffer=16)

    expected = [plain(batch) for batch in echo()]
    with contextlib.closing(echo(n_processes=2)) as one:
        begun = [plain(batch) for batch in itertools.islice(one, 5)]
        state = one.state_dict()
    with contextlib.closing(echo(n_processes=2, backend="thread")) as other:
        other.load_state_dict(state)
        assert begun + [plain(batch) for batch in other] == expected


def test_of_what_is_owed_two_blocks_at_the_most_are_read_again() -> None:
    dataset = Augmented(200)
    with stream(dataset) as source:
        echo = Echo(source, 2, shuffle_buffer=16)
        list(itertools.islice(echo, 60))
        state = echo.state_dict()
    fetched = dataset.reads
    dataset.reads = 0
    with stream(dataset) as source:
        echo = Echo(source, 2, shuffle_buffer=16)
        echo.load_state_dict(state)
        list(echo)
    assert dataset.reads <= 200 - fetched + 16


def test_epochs_are_the_sources() -> None:
    with mpiter.SerialIterator(Augmented(), BATCH, seed=3) as source:
        echo = Echo(source, 2, shuffle_buffer=16)
        for _ in range(40):
            before = echo.epoch
            next(echo)
            assert (echo.epoch, echo.epoch_detail) == (
                source.epoch,
                source.epoch_detail,
            )
            assert echo.is_new_epoch == (echo.epoch > before)
        assert echo.epoch == int(40 * BATCH / (2 * LENGTH))
        assert echo.stats().samples == source.stats().samples < 40 * BATCH


def test_a_pass_has_a_length() -> None:
    for make, options in itertools.product((stream, loader), ECHOES.values()):
        with make(Augmented()) as source:
            echo = Echo(source, **options)
            assert len(echo) == len([*echo]) == len([*echo])


# -- what goes wrong -------------------------------------------------------------------


def test_a_death_changes_nothing(tmp_path: Path) -> None:
    with iterator(Bundles(Augmented(), 2)) as source:
        expected = [plain(batch) for batch in Echo(source, 2)]
    with iterator(Bundles(Dying(tmp_path), 2), n_processes=2) as source:
        assert [plain(batch) for batch in Echo(source, 2)] == expected
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize("options", [ECHOES["twice"], ECHOES["whole batches"]])
def test_an_error_comes_once_and_the_rest_goes_on_resumed_or_not(options: Any) -> None:
    def rest(echo: Echo[Any]) -> list[Any]:
        found = []
        while True:
            try:
                found.append([sample[1] for sample in next(echo)])
            except KeyError:
                found.append("error")
            except StopIteration:
                return found

    with iterator(Failing({5: KeyError("five")})) as source:
        expected = rest(Echo(source, **options))
    assert expected.count("error") == 1
    for at in range(0, len(expected), 3):
        with iterator(Failing({5: KeyError("five")})) as source:
            echo = Echo(source, **options)
            for _ in range(at):
                with contextlib.suppress(KeyError):
                    next(echo)
            state = echo.state_dict()
        with iterator(Failing({5: KeyError("five")})) as source:
            echo = Echo(source, **options)
            echo.load_state_dict(state)
            assert rest(echo) == expected[at:]


def test_ctrl_c_while_a_batch_is_awaited_loses_and_repeats_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stream(range(LENGTH)) as source:
        echo = Echo(source, 2, shuffle_buffer=16)
        list(itertools.islice(echo, 5))
        state = echo.state_dict()
        expected = [batch.tolist() for batch in echo]
    with stream(range(LENGTH)) as source:
        echo = Echo(source, 2, shuffle_buffer=16)
        found = []
        echo.load_state_dict(state)
        take = type(source).__next__
        turns = itertools.count()

        def interrupted(it: Any) -> Any:
            if next(turns) in (2, 7, 9):
                raise KeyboardInterrupt
            return take(it)

        monkeypatch.setattr(type(source), "__next__", interrupted)
        batch: Any = ()
        while batch is not None:
            with contextlib.suppress(KeyboardInterrupt):
                batch = next(echo, None)
                found.append(batch)
    assert [batch.tolist() for batch in found[:-1]] == expected


def test_what_cannot_be_echoed_is_refused_by_type_and_remedy() -> None:
    for options, says in (
        ({"factor": 0}, "factor=0 must be at least 1"),
        ({"factor": 1.5}, "factor=1.5 must be"),
        ({"shuffle_buffer": -1}, "shuffle_buffer=-1 must be at least 0"),
    ):
        with stream(range(4)) as source, pytest.raises(mpiter.OptionError, match=says):
            Echo(source, **options)
    with pytest.raises(
        mpiter.OptionError,
        match=r"needs a dataset with read\(i\) and transform.*which range has not",
    ):
        Bundles(range(4))
    with pytest.raises(
        mpiter.OptionError, match=r"goes around an iterator, .* not around \[1, 2\]"
    ):
        Echo([1, 2])
    with (
        stream(Bundles(Augmented(), 2)) as source,
        pytest.raises(mpiter.OptionError, match=r"needs Bundles\(dataset, 3"),
    ):
        Echo(source, 3)


def test_a_state_of_another_echo_or_a_damaged_one_is_refused() -> None:
    with stream(range(LENGTH)) as source:
        echo = Echo(source, 2)
        next(echo)
        state = echo.state_dict()
        with pytest.raises(mpiter.StateError, match="saved with echo="):
            Echo(source, 3).load_state_dict(state)
        with pytest.raises(mpiter.StateError, match="the key 'echo' is missing"):
            echo.load_state_dict(source.state_dict())
        for name, value in (
            ("taken", -1),
            ("taken", 10**9),
            ("block", "1"),
            ("pass", None),
            ("source", []),
        ):
            with pytest.raises(mpiter.StateError):
                echo.load_state_dict({**state, name: value})
        assert echo.state_dict() == state


SOURCES: dict[str, Make] = {
    "iterator": lambda: mpiter.SerialIterator(
        range(40), 4, shuffle=False, repeat=False
    ),
    "loader": lambda: mpiter.DataLoader(range(40), 4),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_a_checkpoint_holds_the_last_finished_step_of_an_echo(
    tmp_path: Path, make: Make
) -> None:
    with make() as source:
        echo = Echo(source, 1)
        with mpiter.Checkpoint(tmp_path / "run.npz", echo=echo) as checkpoint:
            for batch in echo:
                if batch[0] == 20:
                    # The step of this batch isn't finished.
                    break
                checkpoint.step()
    with make() as source:
        echo = Echo(source, 1)
        with mpiter.Checkpoint(tmp_path / "run.npz", echo=echo):
            assert next(iter(echo))[0] == 20


@pytest.mark.parametrize(
    "options", [{"factor": 1}, {"factor": 2}, {"factor": 3, "shuffle_buffer": 0}]
)
def test_the_last_batch_of_an_echo_around_a_loader_completes_its_epoch(
    options: Any,
) -> None:
    echo = Echo(mpiter.DataLoader(range(22), 4), **options)
    for _ in range(2):
        assert [echo.is_new_epoch for _ in echo] == [False] * (len(echo) - 1) + [True]


@pytest.mark.parametrize("make", [loader, stream])
def test_a_loop_over_an_iterator_of_an_echo_goes_on_behind_its_last_batch(
    make: Make,
) -> None:
    with make(range(LENGTH)) as source:
        whole = [batch.tolist() for batch in Echo(source, 2)]
    with make(range(LENGTH)) as source:
        batches = iter(Echo(source, 2))
        found = [next(batches).tolist()]
        found += [batch.tolist() for batch in batches]
        assert found == whole


def test_an_iterator_of_an_echo_around_a_loader_ends_where_another_begins() -> None:
    echo = Echo(mpiter.DataLoader(range(LENGTH), BATCH), 2)
    first = iter(echo)
    next(first)
    second = iter(echo)
    assert echo.passes == 1
    assert [*first] == []
    assert len([*second]) == len(echo)
    assert [*second] == []
    assert echo.passes == 2


class Together(tuple):
    """A value without a column, which looks like a container of columns."""

    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        Together,
        lambda pair: np.ma.array(pair),
        lambda pair: OrderedDict(a=pair[0], b=pair[1]),
    ],
)
def test_values_without_a_column_that_are_as_long_as_the_batch_stay_whole(
    value: Any,
) -> None:
    samples = [(index, value((index, 10 * index))) for index in range(8)]
    for size in (2, 3):
        found = [*Echo(mpiter.DataLoader(samples, size), 2, shuffle_buffer=8)]
        pairs = [
            (int(index), one)
            for indices, values in found
            for index, one in zip(indices, values, strict=True)
        ]
        assert Counter(index for index, _ in pairs) == dict.fromkeys(range(8), 2)
        assert all(str(one) == str(samples[index][1]) for index, one in pairs)
