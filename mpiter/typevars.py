"""Type variables of batches and samples: Any unless the user names a type.

Defaults of type variables come with Python 3.13; before it only type checkers know them.
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
