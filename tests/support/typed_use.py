"""What users write, for mypy and pyright alone: an ignored line that is no mistake is one."""

from __future__ import annotations

from typing import Any, assert_type

import mpiter
from mpiter.iterators.iterators import Batches


def of_right_programs() -> None:
    with mpiter.batches([1, 2], 2, on_error="skip", ragged="pad") as stream:
        assert_type(stream, Batches[Any])
        for x in stream:
            print(x)
    it = mpiter.MultiprocessIterator([1, 2], 2, n_processes=2)
    assert_type(iter(it), mpiter.MultiprocessIterator[Any])
    with it as same:
        assert_type(same, mpiter.MultiprocessIterator[Any])
    pairs: mpiter.SerialIterator[tuple[str, int]] = mpiter.SerialIterator([("a", 1)], 1)
    batch = next(pairs)
    assert_type(batch, mpiter.Batch[tuple[str, int]])
    assert_type([name for name, _ in batch], list[str])
    loader: mpiter.DataLoader[list[int]] = mpiter.DataLoader([1, 2], 2, collate_fn=list)
    with loader as opened:
        assert_type(opened, mpiter.DataLoader[list[int]])
    for numbers in loader:
        assert_type(numbers, list[int])
    untold = mpiter.DataLoader([1, 2], 2)
    assert_type(untold, mpiter.DataLoader[Any])
    with mpiter.Checkpoint("run.npz", loader, model={"w": 1}, every_s=100) as c:
        assert_type(c, mpiter.Checkpoint)
        for epoch in c.epochs(2):
            assert_type(epoch, int)
            for numbers in c.steps(loader):
                assert_type(numbers, list[int])
            c.step()
    assert_type(loader.stats().wait_s, float)
    assert_type(mpiter.get_worker_info(), mpiter.WorkerInfo | None)


def of_wrong_ones() -> None:
    mpiter.batches([1], 2, on_error="leave out")  # type: ignore[arg-type]
    mpiter.batches([1], 2, ragged="stack")  # type: ignore[arg-type]
    mpiter.batches([1], 2, num_workers=2)  # type: ignore[call-arg]
    mpiter.nothing  # type: ignore[attr-defined]  # noqa: B018
