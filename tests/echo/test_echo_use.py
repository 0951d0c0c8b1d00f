"""What people do with an echo that its makers did not think of."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
from loaders import KINDS, makers

import mpiter
from mpiter.echo import Echo

each_kind = pytest.mark.parametrize("kind", ["stream", *KINDS])


@each_kind
def test_a_short_dataset_whose_uses_fill_a_batch_is_no_reason_to_warn(kind: str) -> None:
    echo = Echo(4, at="augmented")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if kind == "stream":
            with mpiter.batches(range(3), 8, n_processes=0, drop_last=True, echo=echo) as stream:
                assert [len(batch) for batch in stream] == [8]
        else:
            with makers(kind, 0) as loader:
                assert [len(batch) for batch in loader(range(3), 8, drop_last=True, echo=echo)] == [8]


@each_kind
@pytest.mark.parametrize("at", ["augmented", "batch"])
def test_a_dataset_whose_uses_fill_no_batch_is_warned_of(kind: str, at: Any) -> None:
    options: dict[str, Any] = {"drop_last": True, "echo": Echo(2, at=at)}
    with makers("numpy" if kind == "stream" else kind, 0) as loader:
        make = functools.partial(mpiter.batches, n_processes=0) if kind == "stream" else loader
        with pytest.warns(RuntimeWarning, match="no batch will come"):
            found = make(range(3), 8, **options)
        assert not [*found]


def test_an_echo_that_was_not_called_is_refused() -> None:
    with pytest.raises(mpiter.OptionError, match=r"is no Echo; pass mpiter\.echo\.Echo\(factor=2\)"):
        mpiter.batches(range(3), 2, n_processes=0, echo=Echo)


def test_of_a_dataset_smaller_than_the_buffer_the_length_says_how_far_apart_uses_lie() -> None:
    length, factor = 30, 2
    apart = length // (2 * factor - 1)
    echo = Echo(factor, at="augmented", shuffle_buffer=1024)
    with mpiter.batches(range(length), apart, n_processes=0, seed=0, echo=echo) as stream:
        assert all(len(set(batch.tolist())) == len(batch) for batch in stream)
    with mpiter.batches(range(length), 2 * apart + apart // 2, n_processes=0, seed=0, echo=echo) as stream:
        assert any(len(set(batch.tolist())) < len(batch) for batch in stream)
