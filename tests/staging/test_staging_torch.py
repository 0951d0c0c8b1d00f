"""Staging behind ``mpiter.torch.DataLoader``."""

from __future__ import annotations

import pytest
from loader_kinds import NO_TORCH
from stores import Watched

torch = pytest.importorskip("torch", reason=NO_TORCH)

from torch.utils import data  # noqa: E402

from mpiter.staging import Staging  # noqa: E402
from mpiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": None},
        {"drop_last": True},
        {"collate_fn": list},
        {"batch_sampler": data.BatchSampler(data.SequentialSampler(range(100)), 4, False), "batch_size": 1},
    ],
    ids=["plainly", "one by one", "drop_last", "collate_fn", "batch_sampler"],
)
def test_copies_run_ahead_where_torch_goes_through_the_dataset_in_sequence(options, tmp_path):
    store = Watched(tmp_path, 100)
    staging = Staging(tmp_path / "tier", "1MB")
    with DataLoader(staging.of(store), **{"batch_size": 4, **options}) as loader:
        batches = iter(loader)
        next(batches)
        store.wait_until_copied(50)
        assert len(list(batches)) == len(loader) - 1
    assert staging.stats().hits >= 50
