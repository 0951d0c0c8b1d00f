"""What users write, for mypy alone: an ignored line that is no mistake is one (`warn_unused_ignores`)."""

from __future__ import annotations

from typing import assert_type

import mpiter
from mpiter.iterators.generate import Batches


def of_right_programs() -> None:
    with mpiter.batches([1, 2], 2, on_error="skip", ragged="pad") as stream:
        assert_type(stream, Batches)
        for x in stream:
            print(x)
    it = mpiter.MultiprocessIterator([1, 2], 2, n_processes=2)
    assert_type(iter(it), mpiter.MultiprocessIterator)
    with it as same:
        assert_type(same, mpiter.MultiprocessIterator)
    loader: mpiter.DataLoader[int] = mpiter.DataLoader([1, 2], 2, seeding="worker")
    with loader as opened:
        assert_type(opened, mpiter.DataLoader[int])
    assert_type(loader.stats().wait_s, float)
    assert_type(mpiter.get_worker_info(), mpiter.WorkerInfo | None)


def of_wrong_ones() -> None:
    mpiter.batches([1], 2, on_error="leave out")  # type: ignore[arg-type]
    mpiter.batches([1], 2, ragged="stack")  # type: ignore[arg-type]
    mpiter.batches([1], 2, num_workers=2)  # type: ignore[call-arg]
    mpiter.DataLoader([1], 2, seeding="epoch")  # type: ignore[arg-type]
    mpiter.nothing  # type: ignore[attr-defined]  # noqa: B018
