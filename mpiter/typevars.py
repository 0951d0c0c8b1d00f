"""Type variables of what users are given: Any unless they say otherwise, to whoever checks types.

Defaults of type variables are Python 3.13's; before that only those who check types know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    B = TypeVar("B", default=Any)
    B_co = TypeVar("B_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")  # a sample
    B = TypeVar("B")  # what an iterator hands out
    B_co = TypeVar("B_co", covariant=True)  # what a loader does
