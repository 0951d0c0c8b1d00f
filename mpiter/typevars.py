"""The type variables of datasets, samples and batches; type checkers see their defaults, as Python can from 3.13 on.

An iterator is generic in the type of its dataset, from which a checker finds the type of a batch: see the overloads of
``DatasetIterator.__next__`` and of ``Batches.__next__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal, Never, Protocol

    import numpy as np
    from typing_extensions import TypeVar

    Ragged = Literal["raise", "list", "pad"]

    T = TypeVar("T", default=Any)  # a sample
    T_co = TypeVar("T_co", covariant=True)
    D = TypeVar("D")  # a dataset
    D_co = TypeVar("D_co", covariant=True, default=Any)
    R = TypeVar("R", bound=Ragged, default=Literal["raise"])  # the ``ragged`` option
    R_co = TypeVar("R_co", bound=Ragged, covariant=True, default=Any)
    B = TypeVar("B", default=Any)  # a batch that an iterator hands out
    B_co = TypeVar("B_co", covariant=True, default=Any)  # a batch that a loader hands out

    class Samples(Protocol[T_co]):
        """A dataset of samples, as far as its type tells."""

        def __getitem__(self, index: int, /) -> T_co: ...

    Parts = tuple[Any, ...] | Mapping[Any, Any]  # columns, or a tuple or dict of samples
    Array = np.ndarray[Any, np.dtype[np.number[Any] | np.bool_]]
    # What is stacked into an array.  An int of more than 64 bits isn't, nor is an array of objects whose type doesn't
    # say so: batches of these are lists.
    Stacked = int | float | complex | np.number[Any] | np.bool_ | Array
    # Only Any fits Never: the samples' type, or a part of it, isn't known.
    Untold = Samples[Never] | Samples[tuple[Never, Any] | tuple[Any, Never]]
else:
    from typing import TypeVar

    T = D = D_co = B = B_co = TypeVar("T")
    R = R_co = TypeVar("R")
