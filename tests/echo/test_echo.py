"""Samples come several times: the same whoever fetches, each fetched once, and resumed exactly within the buffer."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import BUILDS, Failing, Shaped, Squares, plain
from hypothesis import given
from hypothesis import strategies as st
from pairs import slow_but

import mpiter
from mpiter.echo import Echo
from mpiter.echo.factors import Factors
from mpiter.echo.order import Echoed
from mpiter.order.order import Shuffled

WAYS: dict[str, dict[str, Any]] = {
    "process": {"n_processes": 2},
    "three processes, packed": {"n_processes": 3, "serializer": "packed"},
    "thread": {"n_processes": 2, "backend": "thread"},
    "serial": {"n_processes": 0},
}
ECHOES = {
    "example": Echo(2, shuffle_buffer=9),
    "example, a fraction": Echo(1.4, shuffle_buffer=9),
    "augmented": Echo(3, at="augmented", shuffle_buffer=11),
    "augmented, a fraction": Echo(1.5, at="augmented", shuffle_buffer=6),
    "augmented, a large buffer": Echo(2, at="augmented"),
    "batch": Echo(2, at="batch"),
    "batch, a fraction": Echo(1.5, at="batch"),
}
LENGTH, BATCH = 22, 4


class Augmented:
    """What is read is the number of the sample; what is drawn, its augmentation."""

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
        sample *= 10  # in place, as transforms do
        return sample, int(sample[0]) // 10, mpiter.get_rng().random()

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.read(index))


class Buffered(Augmented):
    """Returns one array, refilled."""

    def __init__(self) -> None:
        super().__init__()
        self.array = np.zeros(2)

    def transform(self, sample: Any) -> Any:
        self.array[:] = sample[0], mpiter.get_rng().random()
        return self.array


class Dying(Augmented):
    """The worker that reads sample 7 dies, once."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def read(self, index: int) -> Any:
        if index == 7 and not (self.folder / "died").exists():
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


def iterator(echo: Any, dataset: Any = None, **options: Any) -> Any:
    options = {"repeat": False, "seed": 3, "n_processes": 0, **options}
    return mpiter.MultiprocessIterator(Augmented() if dataset is None else dataset, BATCH, echo=echo, **options)


def epoch(echo: Any, dataset: Any = None, **options: Any) -> list[Any]:
    with iterator(echo, dataset, **options) as it:
        return [plain_batch(batch) for batch in it]


def plain_batch(batch: Any) -> list[Any]:
    return [tuple(map(_value, sample)) if isinstance(sample, tuple) else plain(sample) for sample in batch]


def exactly(echo: Any, dataset: Any, **options: Any) -> list[str]:
    with iterator(echo, dataset, **options) as it:
        return sorted(repr(plain(sample)) for batch in it for sample in batch)


def _value(part: Any) -> Any:
    return part.tolist() if isinstance(part, np.ndarray) else part


def numbers(batches: Any) -> list[int]:
    return [sample[1] for batch in batches for sample in batch]


@pytest.fixture(params=slow_but(ECHOES, "example", "augmented, a fraction", "batch"))
def echo(request: pytest.FixtureRequest) -> Echo:
    return ECHOES[request.param]


# -- what comes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way != "serial"])
def test_the_same_batches_come_whoever_fetches(echo: Echo, way: str) -> None:
    assert epoch(echo, **WAYS[way]) == epoch(echo)


def test_samples_come_in_the_echoed_order() -> None:
    order, indices = Echoed(LENGTH, 3, 3, 0, 11), Shuffled(LENGTH, 3)
    positions, _ = order.take(0, order.total)
    found = numbers(epoch(ECHOES["augmented"]))
    assert found == [int(indices.take(position, position + 1)[0]) for position in positions.tolist()]


def test_every_sample_comes_as_often_as_told(echo: Echo) -> None:
    found = Counter(numbers(epoch(echo)))
    assert len(found) == LENGTH
    if echo.factor == int(echo.factor):
        assert {*found.values()} == {echo.factor}
    elif echo.at != "batch":
        assert {*found.values()} == {1, 2}
        assert found.total() == round(echo.factor * LENGTH)


def test_an_example_is_augmented_anew_each_time_and_the_first_time_as_without_an_echo() -> None:
    alone = {sample[1]: sample[2] for batch in epoch(None) for sample in batch}
    found: dict[int, list[float]] = {}
    for _, number, drawn in itertools.chain(*epoch(Echo(3, shuffle_buffer=9))):
        found.setdefault(number, []).append(drawn)
    assert all(len({*drawn}) == 3 for drawn in found.values())
    assert {number: drawn[0] for number, drawn in found.items()} == alone


def test_what_was_augmented_comes_again_as_it_was() -> None:
    for at in ("augmented", "batch"):
        found = Counter((number, drawn) for _, number, drawn in itertools.chain(*epoch(Echo(2, at=at))))
        assert {*found.values()} == {2}


def test_each_sample_is_read_once(echo: Echo) -> None:
    dataset = Augmented()
    epoch(echo, dataset)
    assert dataset.reads == LENGTH


def test_a_transform_that_refills_its_array_is_heeded() -> None:
    with iterator(Echo(2), Buffered()) as it:
        found = [tuple(sample.tolist()) for batch in it for sample in batch]
    assert len({*found}) == 2 * LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("build", list(BUILDS))
@pytest.mark.parametrize("at", ["augmented", "batch"])
@pytest.mark.parametrize("way", ["process", "serial"])
def test_samples_of_every_kind_come_as_they_are(build: str, at: Any, way: str) -> None:
    alone = exactly(None, Shaped(build), **WAYS[way])
    assert exactly(Echo(2, at=at), Shaped(build), **WAYS[way]) == sorted(2 * alone)


class Kinds(Augmented):
    """Samples that fit no column, now and then."""

    def transform(self, sample: Any) -> Any:
        number = int(sample[0])
        return {"number": number, "name": f"name {number}", "odd": sample if number % 5 else None}


def test_examples_of_every_kind_come_as_they_are() -> None:
    for way in ("process", "serial"):
        assert exactly(Echo(2), Kinds(), **WAYS[way]) == sorted(2 * exactly(None, Kinds(), **WAYS[way]))


def test_what_the_user_does_to_a_batch_is_his_own_affair(echo: Echo) -> None:
    expected = epoch(echo)
    for way in ("process", "serial"):
        found = []
        with iterator(echo, **WAYS[way]) as it:
            for batch in it:
                found.append(plain_batch(copy.deepcopy(batch)))
                for array, *_ in batch:
                    array[:] = -1
        assert found == expected


def test_columns_are_stacked_as_ever() -> None:
    with mpiter.batches(Augmented(), BATCH, n_processes=2, seed=3, echo=Echo(2, shuffle_buffer=9)) as stream:
        found = [(arrays.copy(), labels.tolist()) for arrays, labels, _ in stream]
    assert [arrays.shape for arrays, _ in found] == [(BATCH, 3)] * (2 * LENGTH // BATCH)
    assert [label for _, labels in found for label in labels] == numbers(epoch(Echo(2, shuffle_buffer=9)))


@pytest.mark.parametrize("at", ["example", "augmented"])
def test_what_is_kept_does_not_grow(at: Any) -> None:
    with iterator(Echo(3, at=at, shuffle_buffer=20), Augmented(200), repeat=True) as it:
        held, most = it._pump.composer._held, []
        for _ in range(5):
            kept = []
            while not kept or not it.is_new_epoch:
                next(it)
                kept.append(len({(epoch, position) for epoch, position, _ in held._places}))
            most.append((max(kept), sum(shelf._rows for shelf in held._shelves)))
    assert max(kept for kept, _ in most) <= 20 + 2 * BATCH
    assert len({rows for _, rows in most[1:]}) == 1


# -- places -------------------------------------------------------------------------------------------------------


def test_epochs_count_fresh_samples(echo: Echo) -> None:
    with iterator(echo, repeat=True) as it:
        details, ends = [it.epoch_detail], 0
        for batch in itertools.islice(it, 40):
            details.append(it.epoch_detail)
            assert it.previous_epoch_detail == details[-2]
            assert it.is_new_epoch == (int(details[-1]) > int(details[-2]))
            ends += it.is_new_epoch
            assert len(batch) == BATCH
        assert details == sorted(details)
        assert it.epoch == ends == int(40 * BATCH / (echo.factor * LENGTH))


def test_an_epoch_ends_with_the_last_repeat_and_with_a_short_batch(echo: Echo) -> None:
    with iterator(echo) as it:
        batches = [len(batch) for batch in it]
        assert (it.epoch, it.current_position, it.is_new_epoch) == (1, 0, True)
        assert it.epoch_detail == 1.0
        assert it.stats().samples == sum(batches)
        assert it.stats().batches == len(batches)
        assert it.stats().fresh_samples == LENGTH


def test_without_an_echo_all_samples_are_fresh() -> None:
    with iterator(None) as it:
        list(it)
        assert it.stats().fresh_samples == it.stats().samples == LENGTH


def test_a_state_resumes_exactly_from_every_place(echo: Echo) -> None:
    with iterator(echo, repeat=True) as it:
        states, expected = [], []
        for _ in range(30):
            states.append(json.loads(json.dumps(it.state_dict())))
            batch = plain_batch(next(it))
            expected.append((batch, it.epoch_detail, it.previous_epoch_detail, it.is_new_epoch))
    with iterator(echo, repeat=True) as it:
        for at, state in enumerate(states):
            it.load_state_dict(state)
            assert it.state_dict() == state
            for batch, *place in expected[at : at + 8]:
                assert plain_batch(next(it)) == batch
                assert [it.epoch_detail, it.previous_epoch_detail, it.is_new_epoch] == place


@pytest.mark.slow
@given(
    st.integers(1, 40),
    st.integers(1, 15),
    st.sampled_from([1, 1.3, 2, 2.5, 4]),
    st.sampled_from([None, 1, 4, 20, 100]),
    st.booleans(),
    st.integers(0, 12),
)
def test_whatever_the_sizes_a_state_resumes_exactly(
    length: int, batch_size: int, factor: float, buffer: int | None, wraps: bool, after: int
) -> None:
    echo = Echo(factor, "batch") if buffer is None else Echo(factor, "augmented", buffer)

    def made() -> Any:
        return mpiter.SerialIterator(range(length), batch_size, repeat=wraps, seed=1, echo=echo)

    def told(it: Any) -> Any:
        return [(list(batch), it.epoch_detail, it.is_new_epoch) for batch in itertools.islice(it, 10)]

    it = made()
    begun = list(itertools.chain.from_iterable(itertools.islice(it, after)))
    state, expected = it.state_dict(), told(it)
    other = made()
    other.load_state_dict(state)
    assert told(other) == expected
    if not wraps and buffer is not None:
        rest = itertools.chain.from_iterable(batch for batch, *_ in expected)
        counts = Counter([*begun, *rest, *itertools.chain.from_iterable(it)])
        assert counts.total() == Echoed(length, factor, 1, 0, 1).total
        assert len(counts) == length


def test_a_state_resumes_under_another_number_of_workers(echo: Echo) -> None:
    expected = epoch(echo, n_processes=2)
    with iterator(echo, n_processes=2) as it:
        begun = [plain_batch(batch) for batch in itertools.islice(it, 5)]
        state = it.state_dict()
    assert begun == expected[:5]
    with iterator(echo, n_processes=3) as it:
        it.load_state_dict(state)
        assert [plain_batch(batch) for batch in it] == expected[5:]


def test_what_is_owed_is_read_again_and_nothing_else() -> None:
    dataset = Augmented()
    with iterator(Echo(2, shuffle_buffer=6), dataset) as it:
        list(itertools.islice(it, 6))
        state = it.state_dict()
    dataset.reads = 0
    with iterator(Echo(2, shuffle_buffer=6), dataset) as it:
        it.load_state_dict(state)
        owed, gone = Echoed(LENGTH, 2, 3, 0, 6).owed(6 * BATCH)
        list(it)
        assert dataset.reads == LENGTH - gone
        assert 0 < len(owed) <= 6


def test_a_copy_and_a_pickle_go_on_from_the_same_place(echo: Echo) -> None:
    expected = epoch(echo)
    with iterator(echo) as it:
        list(itertools.islice(it, 5))
        for other in (copy.copy(it), pickle.loads(pickle.dumps(it))):
            assert [plain_batch(batch) for batch in other] == expected[5:]
            other.close()


def test_reset_begins_anew(echo: Echo) -> None:
    with iterator(echo) as it:
        first = [plain_batch(batch) for batch in itertools.islice(it, 5)]
        it.reset()
        assert [plain_batch(batch) for batch in itertools.islice(it, 5)] == first


def test_passes_go_on_with_the_next_epochs_and_know_their_length(echo: Echo) -> None:
    with mpiter.batches(Augmented(), BATCH, n_processes=0, seed=3, epochs=2, echo=echo) as stream:
        one = [numbers.tolist() for _, numbers, _ in stream]
        assert len(stream) == len(one)
        other = [numbers.tolist() for _, numbers, _ in stream]
        assert len(one) == len(other)
        assert one != other
    with mpiter.batches(Augmented(), BATCH, n_processes=0, seed=3, epochs=2, drop_last=True, echo=echo) as stream:
        assert {len(numbers) for _, numbers, _ in stream} == {BATCH}


def test_an_order_sampler_is_asked_as_ever() -> None:
    asked = []

    def backwards(order: Any, position: int) -> Any:
        asked.append(position)
        return np.arange(LENGTH)[::-1]

    with iterator(ECHOES["augmented"], repeat=True, order_sampler=backwards) as it:
        seen = [plain_batch(next(it)) for _ in range(30)]
        assert it.epoch == 1
    firsts = list(dict.fromkeys(numbers(seen)))
    assert firsts == [*range(LENGTH)][::-1]


# -- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["example", "augmented", "batch"])
def test_a_death_changes_nothing(at: Any, tmp_path: Path) -> None:
    echo = Echo(2, at=at)
    found = epoch(echo, Dying(tmp_path), n_processes=2)
    assert (tmp_path / "died").exists()
    assert found == epoch(echo)


@pytest.mark.parametrize("way", ["process", "serial"])
@pytest.mark.parametrize("at", ["augmented", "batch"])
def test_an_error_comes_once_and_the_rest_goes_on(at: Any, way: str) -> None:
    found, errors = [], 0
    with iterator(Echo(2, at=at), Failing({5: KeyError("five")}), **WAYS[way]) as it:
        while True:
            try:
                found.append(plain_batch(next(it)))
            except KeyError:
                errors += 1
            except StopIteration:
                break
        assert it.epoch == 1
    counts = Counter(numbers(found))
    assert errors == 1
    assert {*counts.values()} == {2}
    assert len(counts) == 20 - BATCH  # the batch that was fetched


@pytest.mark.parametrize("at", ["augmented", "batch"])
def test_what_fails_is_left_out_each_time(at: Any) -> None:
    bad = dict.fromkeys((5, 6, 11), ValueError("no"))
    with iterator(Echo(3, at=at), Failing(bad), on_error="skip") as it:
        counts = Counter(numbers(plain_batch(batch) for batch in it))
        assert it.stats().skipped == 3
        assert it.stats().fresh_samples == 17
    assert counts == {number: 3 for number in range(20) if number not in bad}


def test_a_whole_batch_that_fails_is_gone_by() -> None:
    bad = dict.fromkeys(range(4, 8), ValueError("no"))
    for way in ("process", "serial"):
        found = epoch(Echo(2, at="augmented"), Failing(bad), shuffle=False, on_error="skip", **WAYS[way])
        assert Counter(numbers(found)) == {number: 2 for number in range(20) if number not in bad}


@pytest.mark.parametrize("at", ["augmented", "batch"])
def test_no_epochs_end_is_lost_with_its_last_batch(at: Any) -> None:
    bad = dict.fromkeys(range(14, 20), ValueError("no"))
    echo = Echo(2, at=at, shuffle_buffer=None if at == "batch" else 1)
    with iterator(echo, Failing(bad), shuffle=False, on_error="skip", repeat=True) as it:
        crossed = 0
        for _ in range(30):
            next(it)
            crossed += it.is_new_epoch
        assert crossed == it.epoch >= 2


def test_the_last_batches_that_fail_are_gone_by() -> None:
    bad = dict.fromkeys(range(14, 20), ValueError("no"))
    for way in ("process", "serial"):
        found = epoch(Echo(2, at="augmented"), Failing(bad), shuffle=False, on_error="skip", **WAYS[way])
        assert Counter(numbers(found)) == dict.fromkeys(range(14), 2)


def test_an_error_of_an_example_names_the_sample() -> None:
    class Broken(Augmented):
        def read(self, index: int) -> Any:
            raise OSError(f"{index} is broken")

    with iterator(Echo(2), Broken(), shuffle=False) as it, pytest.raises(OSError, match="0 is broken") as caught:
        next(it)
    assert any("dataset[0]" in note for note in caught.value.__notes__)


def test_what_was_read_and_cannot_be_copied_is_named_with_the_remedy() -> None:
    class Open(Augmented):
        def read(self, index: int) -> Any:
            return threading.Lock()

    with (
        iterator(Echo(2), Open()) as it,
        pytest.raises(TypeError, match=r"a lock cannot be: .*; have read\(i\) return"),
    ):
        next(it)


def test_books_that_ctrl_c_has_left_open_are_begun_anew(echo: Echo) -> None:
    expected = epoch(echo)
    for way in ("process", "serial"):
        with iterator(echo, **WAYS[way]) as it:
            found = []
            for batch in it:
                found.append(plain_batch(batch))
                it._pump.composer.is_sound = False
        assert found == expected


# -- options ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"factor": 0.5}, "factor=0.5 must be a number from 1 to 1000, or 'auto'"),
        ({"factor": "often"}, "factor='often' must be a number"),
        ({"factor": True}, "factor=True must be"),
        ({"at": "read"}, "at='read' is unknown"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0 must be a whole number of samples"),
        ({"at": "batch", "shuffle_buffer": 10}, "shuffle_buffer is for samples"),
    ],
)
def test_nonsense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(mpiter.OptionError, match=said):
        Echo(**options)


def test_what_cannot_be_is_refused_at_construction() -> None:
    with pytest.raises(mpiter.OptionError, match=r"the dataset needs read.*which Squares has not"):
        iterator(Echo(2), Squares())
    with pytest.raises(mpiter.OptionError, match="echo needs in_order=True"):
        iterator(Echo(2), in_order=False)
    with pytest.raises(mpiter.OptionError, match="echo=2 is no Echo"):
        iterator(2)


def test_a_state_of_another_echo_is_refused() -> None:
    with iterator(Echo(2)) as it:
        next(it)
        state = it.state_dict()
    for other in (None, Echo(3), Echo(2, at="batch")):
        with iterator(other) as it:
            with pytest.raises(mpiter.StateError, match="the state was saved with echo="):
                it.load_state_dict(state)
            plain = it.state_dict()
        with iterator(Echo(2)) as it, pytest.raises(mpiter.StateError, match="the state was saved with echo="):
            it.load_state_dict(plain)
    with iterator(Echo(2)) as it:
        for damaged in ("1", [1], [-1, 2], [1, "2"], [1e300, 2]):
            with pytest.raises(mpiter.StateError, match="'extra'"):
                it.load_state_dict({**state, "extra": damaged})


def test_a_factor_of_one_is_no_echo() -> None:
    for at in ("example", "augmented", "batch"):
        assert epoch(Echo(1, at=at)) == epoch(None)


# -- "auto" -------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    now = [0.0]
    monkeypatch.setattr("mpiter.echo.factors.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("ratio", "factor"), [(0.2, 1.0), (1.5, 1.5), (3.0, 3.0), (20.0, 4.0)])
def test_auto_follows_what_was_measured(ratio: float, factor: float, clock: Any, caplog: Any) -> None:
    caplog.set_level("INFO", "mpiter")
    factors = Factors("auto")
    assert factors.of(0) == 1.0
    for _ in range(10):
        factors.asked(sample_s=ratio * 0.01)
        factors.gave(rows=8)
        clock[0] += 8 * 0.01
    factors.asked(sample_s=ratio * 0.01)
    assert factors.of(0) == 1.0
    assert factors.of(1) == factor
    assert f"every sample of epoch 1 comes {factor:.2f} times" in caplog.text


def test_a_long_step_now_and_then_is_not_what_training_takes(clock: Any) -> None:
    factors = Factors("auto")
    for step in range(20):
        factors.asked(sample_s=0.02)
        factors.gave(rows=1)
        clock[0] += 100 if step % 7 == 0 else 0.01
    assert factors.of(0) == 2.0


def test_the_factor_of_an_epoch_stays_and_is_in_the_state() -> None:
    with iterator(Echo("auto", at="augmented"), repeat=True) as it:
        it._pump.composer._factors._chosen[0] = 1.5
        list(itertools.islice(it, 4))
        state = it.state_dict()
        assert state["extra"] == [4.0 * BATCH, 1.5]
        expected = [plain_batch(next(it)) for _ in range(4)]
    with iterator(Echo("auto", at="augmented"), repeat=True) as it:
        it.load_state_dict(state)
        assert [plain_batch(next(it)) for _ in range(4)] == expected


def test_auto_has_a_factor_for_each_epoch() -> None:
    for at in ("example", "augmented", "batch"):
        for way in ("process", "serial"):
            with iterator(Echo("auto", at=at), repeat=True, **WAYS[way]) as it:
                seen = [plain_batch(next(it)) for _ in range(25)]
                assert it.epoch >= 1
            assert len({*numbers(seen)}) == LENGTH
    stream = mpiter.batches(Augmented(), BATCH, n_processes=0, echo=Echo("auto"))
    with pytest.raises(TypeError, match="with an automatic echo nobody knows"):
        len(stream)


# -- loaders ------------------------------------------------------------------------------------------------------


def loader(echo: Any, **options: Any) -> Any:
    return mpiter.DataLoader(Augmented(), BATCH, **{"shuffle": True, "seed": 3, "echo": echo, **options})


def some(batches: Any, count: int | None = None) -> list[list[int]]:
    return [numbers.tolist() for _, numbers, _ in itertools.islice(batches, count)]


@pytest.mark.slow
def test_a_loader_gives_what_an_iterator_gives(echo: Echo) -> None:
    expected = [[sample[1] for sample in batch] for batch in epoch(echo)]
    for workers in (0, 2):
        with loader(echo, num_workers=workers) as batches:
            assert len(batches) == len(expected)
            assert some(batches) == expected
            assert batches.is_new_epoch
            assert some(batches) != expected


def test_a_loader_resumes_exactly_from_every_place(echo: Echo) -> None:
    expected = [[sample[1] for sample in batch] for batch in epoch(echo)]
    for at in range(len(expected)):
        with loader(echo) as batches:
            assert some(batches, at) == expected[:at]
            state = json.loads(json.dumps(batches.state_dict()))
        with loader(echo) as batches:
            batches.load_state_dict(state)
            assert some(batches) == expected[at:]


def test_a_loader_leaves_out_batches(echo: Echo) -> None:
    expected = [[sample[1] for sample in batch] for batch in epoch(echo)]
    with loader(echo) as batches:
        batches.skip(5)
        assert some(batches) == expected[5:]


def test_batches_that_a_worker_makes_come_several_times() -> None:
    with loader(Echo(2, at="batch"), collate_fn=list, num_workers=2) as batches:
        found = [tuple(sample[1:] for sample in batch) for batch in batches]
        assert len(batches) == len(found) == 12
    assert found[::2] == found[1::2]
    assert len({*found}) == 6


def test_what_a_loader_cannot_echo_is_refused() -> None:
    with pytest.raises(mpiter.OptionError, match="a worker makes whole batches"):
        loader(Echo(2), collate_fn=list)
    with pytest.raises(mpiter.OptionError, match="has no len"):
        mpiter.DataLoader(Augmented(), BATCH, sampler=iter([5]), echo=Echo(2))
    with loader(Echo(2)) as batches:
        state = batches.state_dict()
    with loader(None) as batches, pytest.raises(mpiter.StateError, match="saved with echo="):
        batches.load_state_dict(state)


@pytest.mark.chainer
def test_a_snapshot_of_chainers_resumes_within_the_buffer(echo: Echo) -> None:
    pytest.importorskip("chainer", reason="Chainer is not installed: run `python3 tests --all`")
    from chainer.serializers import DictionarySerializer, NpzDeserializer

    from mpiter.chainer import SerialIterator

    def made() -> Any:
        return SerialIterator(Augmented(), BATCH, seed=3, echo=echo)

    it, saved = made(), DictionarySerializer()
    for _ in range(7):
        next(it)
    it.serialize(saved)
    other = made()
    other.serialize(NpzDeserializer(saved.target))
    for _ in range(10):
        assert plain_batch(next(other)) == plain_batch(next(it))
        assert other.epoch_detail == it.epoch_detail
