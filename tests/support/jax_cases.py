"""Batches as JAX arrays, without a copy: run by test_jax.py."""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest
import reference

import mpiter
import mpiter.jax


def batches(sample, length=12):
    return mpiter.batches([sample(i) for i in range(length)], 4, n_processes=1, shuffle=False)


def test_arrays_lie_where_the_workers_wrote_them_and_keep_the_slot():
    with batches(lambda i: {"x": np.full((8, 8), i, np.float32), "more": [np.int32(i)]}) as loader:
        kept, places = [], []
        for batch in loader:
            places.append(batch["x"].ctypes.data)
            kept.append(mpiter.jax.arrays(batch))
        assert [tree["x"].unsafe_buffer_pointer() for tree in kept] == places
        assert [np.asarray(tree["more"][0]).tolist() for tree in kept] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert loader.stats().leased_batches == 3
        del kept, batch
        gc.collect()
        assert loader.stats().leased_batches == 0


def test_dtypes_of_up_to_32_bits_stay_and_are_not_copied_and_wider_ones_are_what_jax_makes_of_them():
    narrow, wide = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "c8"], ["i8", "u8", "f8", "c16"]
    with batches(lambda i: {dtype: np.full(16, i, dtype) for dtype in narrow + wide}) as loader:
        for batch in loader:
            tree = mpiter.jax.arrays(batch)
            for dtype in narrow:
                assert tree[dtype].dtype == batch[dtype].dtype
                assert tree[dtype].unsafe_buffer_pointer() == batch[dtype].ctypes.data, dtype
            for dtype in narrow + wide:
                assert np.array_equal(np.asarray(tree[dtype]), batch[dtype]), dtype


def test_what_is_no_number_comes_along():
    tree = mpiter.jax.arrays((np.ones(2, np.float32), ["a", None], np.array(["b"])))
    assert isinstance(tree[0], jax.Array)
    assert tree[1] == ["a", None]
    assert tree[2].tolist() == ["b"]


def test_the_batches_of_a_loader():
    with mpiter.DataLoader([np.full(2, i, np.float32) for i in range(4)], 2) as loader:
        assert [float(x.sum()) for x in map(mpiter.jax.arrays, loader)] == [2.0, 10.0]


def test_a_checkpoint_holds_them_as_numpys(tmp_path):
    states = {"w": jax.numpy.ones(3), "half": jax.numpy.ones(2, jax.numpy.bfloat16)}
    with mpiter.Checkpoint(tmp_path / "run.npz", model=states) as c:
        c.step()
    found = mpiter.Checkpoint.read(tmp_path / "run.npz")["model"]
    assert {type(array) for array in found.values()} == {np.ndarray}
    assert (found["w"].dtype, found["w"].tolist()) == (np.float32, [1.0, 1.0, 1.0])
    assert (found["half"].dtype, found["half"].tolist()) == (jax.numpy.bfloat16, [1.0, 1.0])
    other = {"w": jax.numpy.zeros(3), "half": jax.numpy.zeros(2, jax.numpy.bfloat16)}
    with mpiter.Checkpoint(tmp_path / "run.npz", model=other):
        assert all(isinstance(array, jax.Array) and array.tolist() == [1.0] * len(array) for array in other.values())


@pytest.mark.parametrize("name", reference.public("mpiter.jax"))
def test_the_example_of_a_public_name_runs_as_it_stands(name):
    reference.run(name)
