"""Batches and checkpoints with JAX's arrays: run by test_jax.py."""

from __future__ import annotations

import gc

import jax
import numpy as np

import mpiter


def test_batches_become_jaxs_arrays_which_keep_their_values():
    samples = [{"x": np.full((8, 8), i, np.float32), "more": [np.int32(i)]} for i in range(12)]
    with mpiter.batches(samples, 4, n_processes=1, shuffle=False) as loader:
        trees = [jax.tree.map(jax.numpy.asarray, batch) for batch in loader]
        gc.collect()
        assert loader.stats().leased_batches == 0
    assert [tree["x"][:, 0, 0].tolist() for tree in trees] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [tree["more"][0].tolist() for tree in trees] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


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
