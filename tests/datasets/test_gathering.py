"""Without workers, columns are gathered in one copy, as if samples were stacked."""

from __future__ import annotations

import gc
from collections import namedtuple
from functools import partial

import numpy as np
import pytest

import mpiter

LENGTH = 40
RNG = np.random.default_rng(3)
WIDE = RNG.random((LENGTH, 3, 4, 2))
PAIR = namedtuple("PAIR", "x y")
COLUMNS = {
    "numbers": (RNG.random(LENGTH, np.float32), np.arange(LENGTH)),
    "blocks": (WIDE, np.arange(LENGTH) % 2 == 0),
    "transposed": (WIDE.transpose(0, 2, 3, 1), np.arange(LENGTH)[::-1]),
    "columns first": (
        np.asfortranarray(RNG.random((LENGTH, 5))),
        np.arange(2 * LENGTH)[::2],
    ),
    "dates": (
        np.arange("2020-01", "2023-05", dtype="M8[M]"),
        np.arange(LENGTH).astype("m8[s]"),
    ),
    "big-endian": (np.arange(LENGTH, dtype=">i4"), np.arange(LENGTH)),
    "texts": (np.array([f"{i}" for i in range(LENGTH)]), np.arange(LENGTH)),
    "a list": (np.arange(LENGTH), [f"{i}" for i in range(LENGTH)]),
    "objects": (np.arange(LENGTH), np.array([None, "a"] * (LENGTH // 2), object)),
    "a dict": {"x": WIDE, "y": np.arange(LENGTH)},
    "named": PAIR(WIDE, np.arange(LENGTH)),
    "frozen": (np.frombuffer(WIDE.tobytes()).reshape(LENGTH, -1), np.arange(LENGTH)),
}


class Rows:
    """The same samples, read one by one."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        if isinstance(self.columns, dict):
            return {name: column[index] for name, column in self.columns.items()}
        return tuple.__new__(
            type(self.columns), [column[index] for column in self.columns]
        )


def _parts(batch):
    return [*batch.values()] if isinstance(batch, dict) else [*batch]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_are_what_stacking_their_rows_gives(name, shuffle):
    taking = partial(
        mpiter.batches, batch_size=7, n_processes=0, shuffle=shuffle, seed=1, epochs=2
    )
    for batch, wanted in zip(
        taking(COLUMNS[name]), taking(Rows(COLUMNS[name])), strict=True
    ):
        assert type(batch) is type(wanted)
        for part, other in zip(_parts(batch), _parts(wanted), strict=True):
            assert type(part) is type(other)
            assert len(part) == len(other)
            assert list(map(str, part)) == list(map(str, other))
            if isinstance(part, np.ndarray):
                assert part.dtype == other.dtype
                assert part.flags.c_contiguous
                assert part.flags.writeable


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_batch_is_the_users_own_memory(shuffle):
    x = np.zeros((LENGTH, 3))
    y = np.zeros(LENGTH)
    for batch in mpiter.batches((x, y), 8, n_processes=0, shuffle=shuffle, epochs=2):
        for part in batch:
            part += 1
            assert (part == 1).all()
    assert not x.any()
    assert not y.any()


def test_a_list_of_rows_is_the_users_own_memory_in_each_batch():
    x = np.zeros((LENGTH, 3))
    y = np.zeros(LENGTH)
    for batch in mpiter.SerialIterator((x, y), 8, repeat=False, shuffle=False):
        for row, _ in batch:
            row += 1
    assert not x.any()


def test_what_is_written_to_a_column_is_in_the_next_batch():
    x = np.zeros(LENGTH)
    stream = mpiter.batches((x, x), 8, n_processes=0, shuffle=False)
    for _ in range(3):
        next(stream)
    x[:] = 5
    assert (next(stream)[0] == 5).all()


def test_the_error_of_a_row_that_is_not_there_names_it():
    def sampler(order, position):
        return np.where(order == 20, LENGTH + 3, order)

    stream = mpiter.batches(
        (WIDE, np.arange(LENGTH)), 8, n_processes=0, order_sampler=sampler
    )
    with pytest.raises(IndexError) as caught:
        list(stream)
    assert f"dataset[{LENGTH + 3}]" in "".join(caught.value.__notes__)
    # The batches after it still come.
    assert len(list(stream)) == 2


def test_keys_that_are_no_numbers_of_rows_give_what_the_columns_give_for_them():
    keys = [(index, index % 3) for index in range(LENGTH)]
    for batch in mpiter.DataLoader((WIDE, WIDE), 8, sampler=keys):
        assert batch[0].shape == (8, 4, 2)
    marks = [True, False] * 16
    with pytest.raises(mpiter.errors.UnevenSamples):
        list(
            mpiter.DataLoader(
                (np.zeros((8, 2))[:, ::-1], np.zeros(8)), 8, sampler=marks
            )
        )


@pytest.mark.parametrize(
    "key", [lambda at: (at,), lambda at: (at, 1), lambda at: [at, 1]]
)
@pytest.mark.parametrize("columns", [(WIDE, WIDE), {"x": WIDE, "y": WIDE[::-1]}])
def test_keys_that_are_tuples_or_lists_give_what_the_columns_give_for_them(
    columns, key
):
    keys = [*map(key, range(20))]
    for batch, wanted in zip(
        mpiter.DataLoader(columns, 4, sampler=keys),
        mpiter.DataLoader(Rows(columns), 4, sampler=keys),
        strict=True,
    ):
        for part, other in zip(_parts(batch), _parts(wanted), strict=True):
            assert np.array_equal(part, other)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_tensors_are_gathered_as_torch_collates_them(shape):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    from torch.utils.data import DataLoader, TensorDataset

    from mpiter.torch import DataLoader as Ours

    strided = torch.rand(2 * LENGTH, *shape)[::2]
    parts = (
        torch.rand(LENGTH, *shape),
        torch.arange(LENGTH),
        strided,
        torch.rand(LENGTH, *shape).bfloat16(),
    )
    for tensors in (parts, parts[:3]):
        dataset = TensorDataset(*tensors)
        torch.manual_seed(4)
        wanted = list(DataLoader(dataset, 7, shuffle=True))
        torch.manual_seed(4)
        found = list(Ours(dataset, 7, shuffle=True))
        for batch, other in zip(found, wanted, strict=True):
            assert type(batch) is type(other)
            for part, right in zip(batch, other, strict=True):
                assert part.dtype == right.dtype
                assert torch.equal(part, right)
    dataset = TensorDataset(torch.rand(LENGTH, *shape, requires_grad=True))
    assert all(batch.requires_grad for (batch,) in Ours(dataset, 7))


@pytest.mark.torch
def test_a_way_to_collate_tensors_that_is_registered_is_taken_in_each_batch(
    monkeypatch,
):
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    from torch.utils.data import TensorDataset, _utils

    from mpiter.torch import DataLoader

    def total(tensors, *, collate_fn_map=None):
        return sum(tensor.item() for tensor in tensors)

    monkeypatch.setitem(_utils.collate.default_collate_fn_map, torch.Tensor, total)
    assert list(DataLoader(TensorDataset(torch.arange(9)), 3)) == [[3], [12], [21]]


@pytest.mark.torch
def test_rows_that_a_tensor_dataset_has_no_more_are_an_error():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    dataset = torch.utils.data.TensorDataset(torch.arange(LENGTH))
    stream = mpiter.batches(dataset, 8, n_processes=0, shuffle=False)
    assert [len(next(stream)[0]) for _ in range(3)] == [8, 8, 8]
    dataset.tensors = (torch.arange(28),)
    with pytest.raises(IndexError):
        next(stream)


@pytest.mark.torch
def test_a_subset_is_read_by_the_indices_that_it_has_now():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    indices = [*range(16)]
    subset = torch.utils.data.Subset(
        torch.utils.data.TensorDataset(torch.arange(LENGTH)), indices
    )
    stream = mpiter.batches(subset, 4, n_processes=0, shuffle=False)
    assert next(stream)[0].tolist() == [0, 1, 2, 3]
    indices[4:8] = [7, -1, 7, 5]
    assert next(stream)[0].tolist() == [7, LENGTH - 1, 7, 5]
    indices[9] = LENGTH
    with pytest.raises(IndexError):
        next(stream)


@pytest.mark.torch
def test_tensors_in_columns_come_as_tensors():
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: run `python3 tests --all`"
    )
    x = torch.arange(LENGTH)
    y = np.arange(LENGTH)
    for xs, ys in mpiter.batches((x, y), 8, n_processes=0, seed=0, epochs=2):
        assert isinstance(xs, torch.Tensor)
        assert isinstance(ys, np.ndarray)
        assert xs.tolist() == ys.tolist()
        xs += 1
    assert x.tolist() == y.tolist()
    gc.collect()
