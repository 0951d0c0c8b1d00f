"""Threads copy samples ahead, in the order in which they come, up to a limit."""

from __future__ import annotations

from pathlib import Path

from stores import Watched

import mpiter
from mpiter.echo import Bundles
from mpiter.staging import Staging, staging


def read_of(store, since=0):
    """Return the samples that were read from the store, in order."""
    return list(map(int, Path(store.log).read_text().split()))[since:]


def test_samples_are_copied_in_the_order_that_will_be_wanted_up_to_a_limit(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(staging, "_AHEAD", 10)
    with mpiter.batches(range(100), 4, n_processes=0, seed=7) as plain:
        wanted = [int(index) for batch in plain for index in batch]
    store = Watched(tmp_path, 100)
    staged = Staging(tmp_path / "tier", "1MB", threads=1).of(store)
    with mpiter.batches(staged, 4, n_processes=0, seed=7) as stream:
        start = stream.state_dict()
        next(stream)
        store.wait_until_copied(10)
        assert sorted(read_of(store)) == sorted(wanted[:14])
        ahead = [index for index in read_of(store) if index not in wanted[:4]]
        assert ahead == wanted[4:14]
        stream.load_state_dict({**start, "position": 60})
        next(stream)
        store.wait_until_copied(10)
        assert sorted(read_of(store, 14)) == sorted(wanted[60:74])


def test_copies_run_ahead_of_batches_that_one_worker_makes(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "_AHEAD", 10)
    store = Watched(tmp_path, 100)
    staged = Staging(tmp_path / "tier", "1MB", threads=1).of(store)
    with mpiter.DataLoader(staged, 4, collate_fn=list) as loader:
        epoch = iter(loader)
        next(epoch)
        store.wait_until_copied(10)
        assert sorted(read_of(store)) == list(range(14))


def test_copies_run_ahead_of_bundles(tmp_path):
    store = Watched(tmp_path, 100)
    with mpiter.batches(
        Bundles(Staging(tmp_path / "1", "1MB").of(store), 2),
        4,
        n_processes=0,
        run_ahead=0,
    ) as stream:
        next(stream)
        store.wait_until_copied(50)
