"""The type variables of batches and samples; type checkers see that they default to Any, as Python can from 3.13 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)  # a sample
    B = TypeVar("B", default=Any)  # a batch that an iterator hands out
    B_co = TypeVar("B_co", covariant=True, default=Any)  # a batch that a loader hands out
else:
    from typing import TypeVar

    T = B = B_co = TypeVar("T")
