"""Options that are whole numbers may be NumPy's integers."""

from __future__ import annotations

import json

import numpy as np

import mpiter


def test_whole_numbers_may_be_numpys():
    samples = [*range(40)]
    whole = np.uint8
    with mpiter.DataLoader(samples, whole(7), shuffle=True, num_workers=2) as loader:
        assert sorted(index for batch in loader for index in batch.tolist()) == samples
        json.dumps(loader.state_dict())
    found = []
    for rank in range(2):
        shard = mpiter.Shard(whole(rank), whole(2))
        with mpiter.batches(
            samples, whole(13), n_processes=2, epochs=1, shard=shard
        ) as part:
            found += [index for batch in part for index in batch.tolist()]
    assert sorted(found) == samples
