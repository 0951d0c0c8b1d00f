"""Tests of batches and checkpoints with JAX's arrays, which test_jax.py runs."""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest

import mpiter

X = jax.numpy.arange(24.0).reshape(8, 3)
Y = jax.numpy.arange(8)
ONE_BY_ONE = [(X[i], {"y": Y[i]}) for i in range(8)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("data", [(X, {"y": Y}), X], ids=["samples", "an array"])
def test_samples_of_jaxs_arrays_are_stacked(data, workers):
    dataset = ONE_BY_ONE if data is not X else X
    batches = [*mpiter.batches(dataset, 4, n_processes=workers, shuffle=False)]
    for at, batch in enumerate(batches):
        found = jax.tree.leaves(batch)
        wanted = jax.tree.leaves(data)
        for column, whole in zip(found, wanted, strict=True):
            assert type(column) is np.ndarray
            assert column.dtype == whole.dtype
            assert (column == whole[4 * at : 4 * at + 4]).all()


@pytest.mark.parametrize("workers", [0, 1])
def test_columns_of_jaxs_arrays_are_gathered(workers):
    for columns in ((X, Y), {"x": X, "y": Y}):
        batch = next(mpiter.batches(columns, 4, n_processes=workers, seed=0))
        x, y = batch.values() if isinstance(batch, dict) else batch
        assert type(x) is type(y) is np.ndarray
        assert (x == np.asarray(X)[y]).all()
        # The user may change the array.
        x += 1


def test_a_list_has_jaxs_arrays_as_they_were():
    with mpiter.MultiprocessIterator(ONE_BY_ONE, 4, shuffle=False, n_processes=1) as it:
        next(it)
        batch = next(it)
    for (x, rest), (other, wanted) in zip(batch, ONE_BY_ONE[4:], strict=True):
        assert type(x) is type(other)
        assert (x == other).all()
        assert rest == wanted


def test_batches_become_jaxs_arrays_which_keep_their_values():
    samples = [
        {"x": np.full((8, 8), i, np.float32), "more": [np.int32(i)]} for i in range(12)
    ]
    with mpiter.batches(samples, 4, n_processes=1, shuffle=False) as loader:
        trees = [jax.tree.map(jax.numpy.asarray, batch) for batch in loader]
        gc.collect()
        assert loader.stats().leased_batches == 0
    assert [tree["x"][:, 0, 0].tolist() for tree in trees] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert [tree["more"][0].tolist() for tree in trees] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_jaxs_arrays_of_several_lengths_lie_end_to_end(workers):
    rows = [jax.numpy.arange(1 + at % 3) for at in range(32)]
    options = {"n_processes": workers, "shuffle": False}
    for number, found in enumerate(mpiter.batches(rows, 8, ragged="jagged", **options)):
        wanted = rows[8 * number : 8 * number + 8]
        assert type(found.values) is np.ndarray
        assert (found.values == np.concatenate(wanted)).all()
    with mpiter.MultiprocessIterator(
        rows, 8, repeat=False, shuffle=False, n_processes=1
    ) as it:
        for row, wanted in zip(
            (row for batch in it for row in batch), rows, strict=True
        ):
            assert isinstance(row, jax.Array)
            assert (row == wanted).all()


def test_a_checkpoint_holds_them_as_numpys(tmp_path):
    states = {"w": jax.numpy.ones(3), "half": jax.numpy.ones(2, jax.numpy.bfloat16)}
    with mpiter.Checkpoint(tmp_path / "run.npz", model=states) as c:
        c.step()
    found = mpiter.Checkpoint.read(tmp_path / "run.npz")["model"]
    assert {type(array) for array in found.values()} == {np.ndarray}
    assert (found["w"].dtype, found["w"].tolist()) == (np.float32, [1.0, 1.0, 1.0])
    assert (found["half"].dtype, found["half"].tolist()) == (
        jax.numpy.bfloat16,
        [1.0, 1.0],
    )
    other = {"w": jax.numpy.zeros(3), "half": jax.numpy.zeros(2, jax.numpy.bfloat16)}
    with mpiter.Checkpoint(tmp_path / "run.npz", model=other):
        assert all(
            isinstance(array, jax.Array) and array.tolist() == [1.0] * len(array)
            for array in other.values()
        )
