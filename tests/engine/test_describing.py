"""``repr()`` of an iterator or loader says in a line what it is and where it is.

It does so in every state.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mpiter
from mpiter.engine.options import Options


class Samples:
    """A dataset that allows only ``len()``."""

    def __len__(self) -> int:
        return 1003

    def __getitem__(self, index: int) -> int:
        return index

    def __repr__(self) -> str:
        raise AssertionError("it is not asked")


class Stream:
    def __iter__(self) -> Iterator[int]:
        return iter(range(20))


def test_an_iterator_says_what_it_is_and_where() -> None:
    stream = mpiter.batches(Samples(), 10, n_processes=0, epochs=2, drop_last=True)
    assert repr(stream) == (
        "<Batches: Samples of 1,003 samples, batches of 10, no workers; epoch 0, "
        "batch 0 of 100>"
    )
    for _ in range(103):
        next(stream)
    assert repr(stream).endswith("; epoch 1, batch 3 of 100>")
    assert repr(copy.copy(stream)) == repr(stream)
    stream.close()
    assert repr(stream).endswith("; epoch 1, batch 3 of 100; closed>")
    with mpiter.batches(
        (np.zeros(9), np.zeros(9)), 2, shard=(1, 2), backend="thread", n_processes=3
    ) as columns:
        next(columns)
        told = (
            "<Batches: tuple of columns of 9 samples, batches of 2, 3 workers; epoch "
            "0, batch 1 of 3>"
        )
        assert repr(columns) == told
    endless = mpiter.SerialIterator(range(7), 5)
    next(endless), next(endless)
    assert repr(endless) == (
        "<SerialIterator: range of 7 samples, batches of 5, no workers; epoch 1, "
        "sample 3 of 7>"
    )


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: mpiter.DataLoader(Samples(), 10, num_workers=1, backend="thread"),
            "Samples of 1,003 samples, batches of 10, 1 worker; epoch 0, batch 1 of "
            "101",
        ),
        (
            lambda: mpiter.DataLoader(Stream(), 3),
            "Stream, batches of 3, no workers; epoch 0, batch 1",
        ),
        (
            lambda: mpiter.DataLoader(range(5), batch_sampler=[[1, 2], [3]]),
            "range of 5 samples, batches by a list, no workers; epoch 0, batch 1 of 2",
        ),
        (
            lambda: mpiter.DataLoader(range(5), None),
            "range of 5 samples, no batching, no workers; epoch 0, batch 1 of 5",
        ),
    ],
)
def test_a_loader_and_its_epoch_say_what_they_are_and_where(
    make: Any, told: str
) -> None:
    with make() as loader:
        assert repr(loader) == f"<DataLoader: {told.replace('batch 1', 'batch 0')}>"
        epoch = iter(loader)
        next(epoch)
        assert repr(loader) == f"<DataLoader: {told}>"
        assert repr(epoch) == f"<Epoch of DataLoader: {told}>"
        list(epoch)
        assert "epoch 1, batch 0" in repr(loader)
    assert repr(loader).endswith("; closed>")


@pytest.mark.torch
def test_a_loader_for_torch_says_the_same() -> None:
    torch = pytest.importorskip(
        "torch", reason="torch is not installed: python3 tests --all"
    )
    from mpiter.torch import DataLoader

    with DataLoader(
        torch.utils.data.TensorDataset(torch.zeros(10)), 4, shuffle=True
    ) as loader:
        next(iter(loader))
        told = (
            "<DataLoader: TensorDataset of 10 samples, batches of 4, no workers; "
            "epoch 0, batch 1 of 3>"
        )
        assert repr(loader) == told


def test_a_checkpoint_says_what_it_saves_and_how_far_it_is(tmp_path: Any) -> None:
    loader = mpiter.DataLoader(range(6), 2)
    with mpiter.Checkpoint(tmp_path / "run.npz", loader, model={}) as c:
        list(c.steps(loader))
        told = (
            f"<Checkpoint: {tmp_path}/run.npz; 0 (DataLoader), model (dict); epoch 0, "
            "3 steps finished>"
        )
        assert repr(c) == told
    assert repr(c).endswith("; not in use>")


@pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)
def test_nothing_raises_before_an_object_is_made_or_in_a_forked_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (
        mpiter.batches(range(2), 1, n_processes=0).__class__,
        mpiter.DataLoader,
        mpiter.Checkpoint,
    ):
        assert f"{kind.__name__} object at" in repr(kind.__new__(kind))
    with mpiter.batches(
        range(20), 2, n_processes=1, backend="thread", shuffle=False
    ) as stream:
        next(stream)
        told = repr(stream)
        if (child := os.fork()) == 0:
            os._exit(repr(stream) != told)
        assert os.waitpid(child, 0)[1] == 0
        monkeypatch.setattr(Options, "share", lambda self: 1 / 0)
        assert "Batches object at" in repr(stream)
