"""Padding, and batches of samples of about the same length."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mpiter


def lengths_of(seed=0, count=500):
    return np.random.RandomState(seed).randint(1, 60, count)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    more=st.integers(0, 3),
    multiple=st.integers(1, 5),
)
def test_padded_rows_are_the_rows_and_the_rest_is_filling(lengths, more, multiple):
    rows = [np.arange(1, length + 1, dtype=np.int16) for length in lengths]
    padded = mpiter.pad(rows, -1, to=max(lengths) + more, multiple_of=multiple)
    assert padded.dtype == np.int16
    assert padded.shape[1] % multiple == 0
    assert max(lengths) + more <= padded.shape[1] < max(lengths) + more + multiple
    for row, line in zip(rows, padded, strict=True):
        assert line[: len(row)].tolist() == row.tolist()
        assert (line[len(row) :] == -1).all()


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([], {}, "at least one row"),
        ([np.ones(2), np.ones((2, 2))], {}, "first dimension only"),
        ([np.float64(1)], {}, "first dimension only"),
        ([np.ones(5)], {"to": 4}, "more than to=4"),
    ],
)
def test_what_cannot_be_padded_is_refused(rows, options, said):
    with pytest.raises(mpiter.OptionError, match=said):
        mpiter.pad(rows, **options)


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=200),
    batch_size=st.integers(1, 9),
    shuffle=st.booleans(),
    most=st.none() | st.integers(30, 100),
)
def test_each_sample_is_in_one_bucket(lengths, batch_size, shuffle, most):
    buckets = mpiter.Buckets(lengths, batch_size, shuffle=shuffle, most=most, seed=1)
    batches = list(buckets)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= batch_size for batch in batches)
    if most is not None:
        assert all(max(lengths[i] for i in batch) * len(batch) <= most for batch in batches)
    if most is None or not shuffle:
        assert len(buckets) == len(batches)


def test_buckets_pad_little_and_are_not_sorted():
    lengths = lengths_of()
    batches = list(mpiter.Buckets(lengths, 16, seed=1))
    padding = sum(max(lengths[batch]) * len(batch) - lengths[batch].sum() for batch in batches)
    assert padding < 0.1 * lengths.sum()
    longest = [max(lengths[batch]) for batch in batches]
    assert longest != sorted(longest)


def test_every_epoch_has_other_buckets_and_a_seed_repeats_them_all():
    one, other = (mpiter.Buckets(lengths_of(), 16, seed=1) for _ in range(2))
    first = list(one)
    assert first != list(one)
    assert first == list(other)
    assert list(mpiter.Buckets(lengths_of(), 16, seed=2)) != first


def test_short_batches_can_be_left_out():
    buckets = mpiter.Buckets(lengths_of(count=50), 16, drop_last=True, seed=0)
    assert [len(batch) for batch in buckets] == [16] * 3
    assert len(buckets) == 3


@pytest.mark.parametrize(
    ("lengths", "batch_size", "options", "said"),
    [
        ([1.5], 2, {}, "whole numbers"),
        ([[1]], 2, {}, "whole numbers"),
        ([1], 0, {}, "batch_size=0"),
        ([7], 2, {"most": 6}, "no room for the longest sample"),
    ],
)
def test_what_cannot_be_bucketed_is_refused(lengths, batch_size, options, said):
    with pytest.raises(mpiter.OptionError, match=said):
        mpiter.Buckets(lengths, batch_size, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_finds_its_place_among_the_buckets_again(workers):
    lengths = lengths_of(count=90)
    rows = [np.arange(length) for length in lengths]

    def loader(seed, num_workers):
        buckets = mpiter.Buckets(lengths, 8, seed=seed)
        return mpiter.DataLoader(rows, batch_sampler=buckets, num_workers=num_workers, ragged="list")

    def seen(batches):
        return [[row.tolist() for row in batch] for batch in batches]

    with loader(1, workers) as it, loader(2, 1) as other:
        seen(it)
        epoch = iter(it)
        for _ in range(3):
            batch = next(epoch)
            assert mpiter.pad(batch).shape == (len(batch), max(map(len, batch)))
        other.load_state_dict(json.loads(json.dumps(it.state_dict())))
        assert seen(other) == seen(epoch)
        assert seen(other) == seen(it)


@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_rows_arrive_as_a_list_of_writable_arrays(workers):
    rows = [(np.arange(length), length) for length in (3, 1, 2, 2)]
    with mpiter.DataLoader(rows, 4, num_workers=workers, ragged="list") as loader:
        ((values, lengths),) = loader
    assert [value.tolist() for value in values] == [[0, 1, 2], [0], [0, 1], [0, 1]]
    assert lengths.tolist() == [3, 1, 2, 2]
    values[0][:] = 7
    assert values[1].tolist() == [0]


ROWS = [np.arange(length) for length in (2, 3, 2, 2)]
UNEVEN = {  # samples, and what is said of them
    "arrays": (ROWS, r"uneven: ndarray \(2,\) of int64 in its row 0, ndarray \(3,\) of int64 in row 1.*ragged='list'"),
    "in a tuple": ([(row, 0) for row in ROWS], r"at \[0\]: ndarray \(2,\)"),
    "in a dict": ([{"x": {"y": row}} for row in ROWS], r"at \['x'\]\['y'\]: ndarray \(2,\)"),
    "None": ([1, 2, None, 3], "2 in its row 0, None in row 1|None in its row 0, 3 in row 1|None in row 2"),
    "lists": ([[1, 2], [3], [4], [5]], r"uneven: list of 2 in its row 0, list of 1 in row 1.*ragged='list' or 'pad'"),
    "lists in a dict": ([{"ids": [1] * n} for n in (2, 1, 2, 2)], r"at \['ids'\]: list of 2 in its row 0, list of 1"),
    "dtypes": ([np.zeros(2, "f4"), np.zeros(2)] * 2, "of float32 in its row 0, .* of float64 in row 1"),
}
WAYS = {  # in the dataset's order, or in this one
    "batches": lambda data, workers, order=None, **options: mpiter.batches(
        data, 4, n_processes=workers, order_sampler=lambda *_: np.array(order or range(len(data))), **options
    ),
    "loader": lambda data, workers, order=None, **options: mpiter.DataLoader(
        data, 4, num_workers=workers, sampler=order, **options
    ),
    "sampler": lambda data, workers, order=range(4), **options: mpiter.DataLoader(
        data, num_workers=workers, batch_sampler=[order[:4]], **options
    ),
}
every_way = pytest.mark.parametrize(
    ("way", "workers"),
    [*((way, 0) for way in WAYS.values()), (WAYS["loader"], 1)],
    ids={way: name for name, way in WAYS.items()}.get,
)


@pytest.mark.parametrize(
    ("way", "workers", "data", "says"),
    [
        *((WAYS["loader"], 0, *uneven) for uneven in UNEVEN.values()),
        *((way, workers, *UNEVEN["arrays"]) for way, workers in ((WAYS["batches"], 0), (WAYS["sampler"], 1))),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_samples_that_fit_no_array_are_refused_by_place_and_shape(way, workers, data, says):
    with way(mpiter.Packed(data), workers) as batches, pytest.raises(mpiter.errors.UnevenSamples, match=says):
        list(batches)


@pytest.mark.parametrize(
    ("way", "workers", "backend"),
    [*((way, 0, "process") for way in WAYS.values()), (WAYS["loader"], 1, "thread")],
)
def test_the_samples_that_do_not_fit_are_named_by_their_index(way, workers, backend):
    rows, order = [np.zeros(2)] * 6 + [np.zeros(3)] + [np.zeros(2)], [7, 6, 5, 4, 3, 2, 1, 0]
    with way(rows, workers, order, backend=backend) as batches, pytest.raises(mpiter.errors.UnevenSamples) as raised:
        list(batches)
    notes = "\n".join(raised.value.__notes__)
    assert "sample 7 in row 0; dataset[7] repeats it" in notes
    assert "sample 6 in row 1; dataset[6] repeats it" in notes


def notes_of(loader):
    with loader, pytest.raises(ValueError, match="no batch of these") as raised:
        list(loader)
    return "\n".join(raised.value.__notes__)


def refuses(samples):
    raise ValueError("no batch of these")


@pytest.mark.parametrize(("workers", "backend"), [(0, "process"), (1, "process")])
def test_an_error_of_a_collate_function_names_the_samples(workers, backend):
    made = functools.partial(mpiter.DataLoader, range(9), num_workers=workers, collate_fn=refuses, backend=backend)
    assert "[dataset[i] for i in [8, 3, 5]]" in notes_of(made(3, sampler=[8, 3, 5]))
    assert "sample 8 in row 0; dataset[8] repeats it" in notes_of(made(None, sampler=[8]))


@every_way
def test_they_are_a_list_or_padded_if_asked(way, workers):
    data = mpiter.Packed([(row, str(len(row))) for row in ROWS])
    with way(data, workers, ragged="list") as batches:
        ((rows, names),) = batches
    assert [row.tolist() for row in rows] == [row.tolist() for row in ROWS]
    with way(data, workers, ragged="pad") as batches:
        ((rows, names),) = batches
    assert rows.tolist() == [[0, 1, 0], [0, 1, 2], [0, 1, 0], [0, 1, 0]]
    assert names == ["2", "3", "2", "2"]


TOKENS = [[1, 2], [3], [], [4, 5], [6, 7, 8]]


@every_way
@pytest.mark.parametrize("within", [lambda ids: ids, lambda ids: {"ids": ids}], ids=["alone", "in a dict"])
def test_lists_are_lists_or_padded_in_each_batch_alike(way, workers, within):
    data = [within(ids) for ids in TOKENS]

    def found(ragged):
        with way(data, workers, ragged=ragged) as batches:
            return [batch if isinstance(batch, (list, np.ndarray)) else batch["ids"] for batch in batches]

    kept = [TOKENS[:4], TOKENS[4:]] if way is not WAYS["sampler"] else [TOKENS[:4]]
    assert found("list") == kept
    padded = found("pad")
    assert padded[0].tolist() == [[1, 2], [3, 0], [0, 0], [4, 5]]
    assert padded[0].dtype == np.int64
    assert [batch.tolist() for batch in padded[1:]] == [[[6, 7, 8]] for _ in kept[1:]]


def test_long_lists_and_huge_integers():
    options = {"n_processes": 0, "shuffle": False, "ragged": "pad"}
    assert next(mpiter.batches([[1] * 300, [2] * 290], 2, **options)).sum(axis=1).tolist() == [300, 580]
    for lists in ([[1 << 70], [1, 2]], [["a"], ["b", "c"]]):
        assert next(mpiter.batches(lists, 2, **options)) == lists


@pytest.mark.parametrize("ragged", ["list", "pad"])
def test_lists_that_hold_arrays_or_several_types_are_structure(ragged):
    rows = [[np.ones(2), np.zeros(2)], [np.ones(2), np.zeros(2)]]
    first, second = next(mpiter.batches(rows, 2, n_processes=0, shuffle=False, ragged=ragged))
    assert (first.tolist(), second.tolist()) == ([[1, 1]] * 2, [[0, 0]] * 2)
    numbers, names = next(mpiter.batches([[1, "a"], [2, "b"]], 2, n_processes=0, shuffle=False, ragged=ragged))
    assert (numbers.tolist(), names) == ([1, 2], ["a", "b"])


UNPADDED = {
    "dimensions": [np.zeros(2), np.zeros((1, 3))],
    "None": [1, None],
    "kinds": [1, 2.5],
    "lists of arrays": [[np.ones(2)], [np.ones(2), np.ones(2)]],
    "a list and none": [{"ids": None}, {"ids": [1]}],
}


@pytest.mark.parametrize("data", UNPADDED.values(), ids=UNPADDED)
@pytest.mark.parametrize("ragged", ["raise", "pad"])
def test_a_batch_that_cannot_be_padded_is_refused_and_not_told_to_be(data, ragged):
    options = {"n_processes": 0, "shuffle": False}
    with pytest.raises(mpiter.errors.UnevenSamples, match="Pass ragged='list', a collate_fn"):
        list(mpiter.batches(mpiter.Packed(data * 2), 4, ragged=ragged, **options))
    assert len(list(mpiter.batches(mpiter.Packed(data * 2), 4, ragged="list", **options))) == 1


@pytest.mark.torch
def test_tensors_are_padded_to_a_tensor():
    torch = pytest.importorskip("torch", reason="torch is not installed: run `python3 tests --all`")
    batch = next(mpiter.batches([torch.ones(n) for n in (1, 2)], 2, n_processes=0, shuffle=False, ragged="pad"))
    assert torch.equal(batch, torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
