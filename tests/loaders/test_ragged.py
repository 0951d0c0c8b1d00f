"""A batch of samples that differ in shape is an error, a list, or padded."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import mpiter
from mpiter.samples.jagged import Jagged


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
# Samples, and the error that describes them.
UNEVEN = {
    "arrays": (
        ROWS,
        r"uneven: ndarray \(2,\) of int64 in its row 0, "
        r"ndarray \(3,\) of int64 in row 1.*ragged='list'",
    ),
    "in a tuple": ([(row, 0) for row in ROWS], r"at \[0\]: ndarray \(2,\)"),
    "in a dict": (
        [{"x": {"y": row}} for row in ROWS],
        r"at \['x'\]\['y'\]: ndarray \(2,\)",
    ),
    "None": (
        [1, 2, None, 3],
        "2 in its row 0, None in row 1|None in its row 0, 3 in row 1|None in row 2",
    ),
    "numbers": (
        [np.zeros(1), np.zeros(())] * 2,
        r"uneven: ndarray \(1,\) of float64 in its row 0, ndarray \(\) of",
    ),
    "lists": (
        [[1, 2], [3], [4], [5]],
        r"uneven: list of 2 in its row 0, list of 1 in row 1"
        r".*ragged='list' or 'pad' or 'jagged'",
    ),
    "lists in a dict": (
        [{"ids": [1] * n} for n in (2, 1, 2, 2)],
        r"at \['ids'\]: list of 2 in its row 0, list of 1",
    ),
    "dtypes": (
        [np.zeros(2, "f4"), np.zeros(2)] * 2,
        "of float32 in its row 0, .* of float64 in row 1",
    ),
}
# Each way reads in the dataset's order, or in the given one.
WAYS = {
    "batches": lambda data, workers, order=None, **options: mpiter.batches(
        data,
        4,
        n_processes=workers,
        order_sampler=lambda *_: np.array(order or range(len(data))),
        **options,
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
        *(
            (way, workers, *UNEVEN["arrays"])
            for way, workers in ((WAYS["batches"], 0), (WAYS["sampler"], 1))
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_samples_that_fit_no_array_are_refused_by_place_and_shape(
    way, workers, data, says
):
    with (
        way(mpiter.Packed(data), workers) as batches,
        pytest.raises(mpiter.errors.UnevenSamples, match=says),
    ):
        list(batches)


@pytest.mark.parametrize(
    ("way", "workers", "backend"),
    [*((way, 0, "process") for way in WAYS.values()), (WAYS["loader"], 1, "thread")],
)
def test_the_samples_that_do_not_fit_are_named_by_their_index(way, workers, backend):
    rows = [np.zeros(2)] * 6 + [np.zeros(3)] + [np.zeros(2)]
    order = [7, 6, 5, 4, 3, 2, 1, 0]
    with (
        way(rows, workers, order, backend=backend) as batches,
        pytest.raises(mpiter.errors.UnevenSamples) as raised,
    ):
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
    made = functools.partial(
        mpiter.DataLoader,
        range(9),
        num_workers=workers,
        collate_fn=refuses,
        backend=backend,
    )
    assert "[dataset[i] for i in [8, 3, 5]]" in notes_of(made(3, sampler=[8, 3, 5]))
    notes = notes_of(made(None, sampler=[8]))
    assert "sample 8 in row 0; dataset[8] repeats it" in notes


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


@every_way
def test_they_lie_end_to_end_if_asked_and_a_batch_of_one_row_is_an_array(way, workers):
    data = mpiter.Packed([(row, len(row)) for row in [*ROWS, ROWS[1]]])
    with way(data, workers, ragged="jagged") as batches:
        first, *rest = batches
    rows, lengths = first
    assert rows.values.tolist() == [0, 1, 0, 1, 2, 0, 1, 0, 1]
    assert rows.offsets.tolist() == [0, 2, 5, 7, 9]
    assert lengths.tolist() == [2, 3, 2, 2]
    for rows, _ in rest:
        assert rows.tolist() == [[0, 1, 2]]
        assert Jagged.of(rows).offsets.tolist() == [0, 3]


TOKENS = [[1, 2], [3], [], [4, 5], [6, 7, 8]]


@every_way
@pytest.mark.parametrize(
    "within", [lambda ids: ids, lambda ids: {"ids": ids}], ids=["alone", "in a dict"]
)
def test_lists_are_lists_or_padded_in_each_batch_alike(way, workers, within):
    data = [within(ids) for ids in TOKENS]

    def found(ragged):
        with way(data, workers, ragged=ragged) as batches:
            return [
                batch["ids"] if isinstance(batch, dict) else batch for batch in batches
            ]

    kept = [TOKENS[:4], TOKENS[4:]] if way is not WAYS["sampler"] else [TOKENS[:4]]
    assert found("list") == kept
    ends = np.cumsum([0, 2, 1, 0, 2]).tolist()
    jagged = found("jagged")
    assert jagged[0].values.tolist() == [1, 2, 3, 4, 5]
    assert jagged[0].offsets.tolist() == ends
    padded = found("pad")
    assert padded[0].tolist() == [[1, 2], [3, 0], [0, 0], [4, 5]]
    assert padded[0].dtype == np.int64
    assert [batch.tolist() for batch in padded[1:]] == [[[6, 7, 8]] for _ in kept[1:]]


def test_long_lists_and_huge_integers():
    options = {"n_processes": 0, "shuffle": False, "ragged": "pad"}
    assert next(mpiter.batches([[1] * 300, [2] * 290], 2, **options)).sum(
        axis=1
    ).tolist() == [300, 580]
    for lists in ([[1 << 70], [1, 2]], [["a"], ["b", "c"]]):
        assert next(mpiter.batches(lists, 2, **options)) == lists


@pytest.mark.parametrize("ragged", ["list", "pad", "jagged"])
def test_lists_that_hold_arrays_or_several_types_are_structure(ragged):
    rows = [[np.ones(2), np.zeros(2)], [np.ones(2), np.zeros(2)]]
    first, second = next(
        mpiter.batches(rows, 2, n_processes=0, shuffle=False, ragged=ragged)
    )
    assert (first.tolist(), second.tolist()) == ([[1, 1]] * 2, [[0, 0]] * 2)
    numbers, names = next(
        mpiter.batches(
            [[1, "a"], [2, "b"]], 2, n_processes=0, shuffle=False, ragged=ragged
        )
    )
    assert (numbers.tolist(), names) == ([1, 2], ["a", "b"])


UNPADDED = {
    "dimensions": [np.zeros(2), np.zeros((1, 3))],
    "None": [1, None],
    "kinds": [1, 2.5],
    "lists of arrays": [[np.ones(2)], [np.ones(2), np.ones(2)]],
    "a list and none": [{"ids": None}, {"ids": [1]}],
}


@pytest.mark.parametrize("data", UNPADDED.values(), ids=UNPADDED)
@pytest.mark.parametrize("ragged", ["raise", "pad", "jagged"])
def test_a_batch_that_cannot_be_padded_is_refused_and_not_told_to_be(data, ragged):
    options = {"n_processes": 0, "shuffle": False}
    with pytest.raises(
        mpiter.errors.UnevenSamples, match="Pass ragged='list', a collate_fn"
    ):
        list(mpiter.batches(mpiter.Packed(data * 2), 4, ragged=ragged, **options))
    assert (
        len(list(mpiter.batches(mpiter.Packed(data * 2), 4, ragged="list", **options)))
        == 1
    )


@pytest.mark.torch
def test_tensors_are_padded_to_a_tensor():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    batch = next(
        mpiter.batches(
            [torch.ones(n) for n in (1, 2)],
            2,
            n_processes=0,
            shuffle=False,
            ragged="pad",
        )
    )
    assert torch.equal(batch, torch.tensor([[1.0, 0.0], [1.0, 1.0]]))


@pytest.mark.torch
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_torchs_loader_lays_rows_end_to_end_in_a_nested_tensor(workers, kind):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    from mpiter.torch import DataLoader, DevicePrefetcher

    rows = [np.full(1 + index % 5, index) for index in range(64)]
    if kind == "tensor":
        rows = [torch.from_numpy(row) for row in rows]
    data = [{"row": row, "name": str(at), "n": at} for at, row in enumerate(rows)]
    with DataLoader(data, 8, num_workers=workers, ragged="jagged") as loader:
        for number, batch in enumerate(DevicePrefetcher(loader, "cpu")):
            mine = range(8 * number, 8 * number + 8)
            assert batch["row"].layout is torch.jagged
            for row, wanted in zip(batch["row"].unbind(), mine, strict=True):
                assert torch.equal(row, torch.as_tensor(rows[wanted]))
            assert batch["name"] == [*map(str, mine)]
            assert batch["n"].tolist() == [*mine]
    with DataLoader(data, 8, num_workers=workers, ragged="pad") as loader:
        assert next(iter(loader))["row"].shape == (8, 5)
    with DataLoader(data, 8, num_workers=workers, ragged="list") as loader:
        assert [len(row) for row in next(iter(loader))["row"]] == [
            1,
            2,
            3,
            4,
            5,
            1,
            2,
            3,
        ]
    with (
        DataLoader(data, 8, num_workers=workers) as loader,
        pytest.raises(RuntimeError, match="equal size"),
    ):
        next(iter(loader))


@pytest.mark.torch
def test_a_nested_tensor_is_on_the_memory_of_its_rows():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    from mpiter.torch.tensors import parts_of_rows, settled

    rows = Jagged.of([np.zeros((2, 3), "f4"), np.ones((1, 3), "f4")])
    (found,) = settled((rows,), pins=False)
    assert found.layout is torch.jagged
    for part, own in zip(
        parts_of_rows(found), (rows.values, rows.offsets), strict=True
    ):
        assert part.data_ptr() == own.ctypes.data


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("ragged", ["pad", "jagged", "list"])
def test_rows_of_several_lengths_keep_their_byte_order(ragged, workers):
    rows = [np.arange(length + 1, dtype=">i4") for length in range(4)]
    with mpiter.DataLoader(rows, 4, ragged=ragged, num_workers=workers) as loader:
        [batch] = loader
    found = batch.values if ragged == "jagged" else batch[0]
    assert found.dtype == np.dtype(">i4")
