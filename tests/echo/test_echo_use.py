"""What people do with an echo that its makers did not think of."""

from __future__ import annotations

import warnings

import pytest

import mpiter
from mpiter.echo import Echo


@pytest.mark.parametrize("kind", ["stream", "loader"])
def test_a_short_dataset_whose_uses_fill_a_batch_is_no_reason_to_warn(kind: str) -> None:
    echo = Echo(4, at="augmented")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if kind == "stream":
            with mpiter.batches(range(3), 8, n_processes=0, drop_last=True, echo=echo) as stream:
                assert [len(batch) for batch in stream] == [8]
        else:
            with mpiter.DataLoader(range(3), 8, drop_last=True, echo=echo) as loader:
                assert [len(batch) for batch in loader] == [8]


@pytest.mark.parametrize("at", ["augmented", "batch"])
def test_a_dataset_whose_uses_fill_no_batch_is_warned_of(at: str) -> None:
    with pytest.warns(RuntimeWarning, match="no batch will come"):
        mpiter.batches(range(3), 8, n_processes=0, drop_last=True, echo=Echo(2, at=at)).close()  # type: ignore[arg-type]


def test_an_echo_that_was_not_called_is_refused() -> None:
    with pytest.raises(mpiter.OptionError, match=r"is no Echo; pass mpiter\.echo\.Echo\(factor=2\)"):
        mpiter.batches(range(3), 2, n_processes=0, echo=Echo)
