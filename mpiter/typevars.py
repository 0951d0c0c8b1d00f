"""What type checkers know of datasets and batches.

The defaults of type variables are Python's own from 3.13 on.  An iterator is generic in
the type of its dataset, and a loader too: a checker finds a batch's type in the
overloads of ``DatasetIterator.__next__`` and of ``Stacks.__next__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Generic, Literal, Never, Protocol, overload

    import numpy as np
    from typing_extensions import TypeVar

    Ways = Literal["raise", "list", "pad", "jagged"]
    # With these options, what is stacked into an array comes as one, or as an error.
    Even = Literal["raise", "pad"]

    T = TypeVar("T", default=Any)  # a sample
    T_co = TypeVar("T_co", covariant=True)
    Data = TypeVar("Data")  # a dataset
    Data_co = TypeVar("Data_co", covariant=True, default=Any)
    # The option ``ragged``.
    Ragged = TypeVar("Ragged", bound=Ways, default=Literal["raise"])
    Ragged_co = TypeVar("Ragged_co", bound=Ways, covariant=True, default=Any)
    # A loader's ``batch_size``.
    Size_co = TypeVar("Size_co", bound=int | None, covariant=True, default=Any)
    # A batch that an iterator hands out.
    B = TypeVar("B", default=Any)
    # A batch that a loader hands out.
    B_co = TypeVar("B_co", covariant=True, default=Any)

    class ByDataset:
        """Stands for a batch whose type follows from the dataset's.

        That is so where a loader has no ``collate_fn``.
        """

    # What ``collate_fn`` returns.
    Made_co = TypeVar("Made_co", covariant=True, default=ByDataset)

    class Samples(Protocol[T_co]):
        """A dataset of samples, as far as its type tells."""

        def __getitem__(self, index: int, /) -> T_co: ...

    # Columns, or a tuple or dict of samples.
    Parts = tuple[Any, ...] | Mapping[Any, Any]
    Array = np.ndarray[Any, np.dtype[np.number[Any] | np.bool_]]
    # What is stacked into an array.  An int beyond int64 isn't, nor is an array
    # of objects whose type doesn't say so: batches of these are lists.
    Value = int | float | complex | np.number[Any] | np.bool_ | Array
    # Only Any fits Never: the samples' type, or a part of it, isn't known.
    Untold = (
        Samples[Never]
        | Samples[tuple[Never, Any] | tuple[Any, Never]]
        | Samples[
            tuple[Never, Any, Any] | tuple[Any, Never, Any] | tuple[Any, Any, Never]
        ]
        | Samples[dict[Any, Never]]
    )

    class Stacks(Generic[Data_co, Ragged_co]):
        """An iterator of stacked batches."""

        @overload
        def __next__(self: Stacks[Never] | Stacks[Mapping[Any, Never]]) -> Any: ...
        @overload
        def __next__(self: Stacks[Array]) -> Array: ...
        @overload
        def __next__(self: Stacks[tuple[Array, Array]]) -> tuple[Array, Array]: ...
        @overload
        def __next__(
            self: Stacks[tuple[Array, Array, Array]],
        ) -> tuple[Array, Array, Array]: ...
        @overload
        def __next__(self: Stacks[Mapping[str, Array]]) -> dict[str, Array]: ...
        @overload
        def __next__(self: Stacks[Parts | Untold]) -> Any: ...
        @overload
        def __next__(self: Stacks[Samples[Value], Even]) -> Array: ...
        @overload
        def __next__(
            self: Stacks[Samples[tuple[Value, Value]], Even],
        ) -> tuple[Array, Array]: ...
        @overload
        def __next__(
            self: Stacks[Samples[tuple[Value, Value, Value]], Even],
        ) -> tuple[Array, Array, Array]: ...
        @overload
        def __next__(
            self: Stacks[Samples[dict[str, Array]], Even],
        ) -> dict[str, Array]: ...
        @overload
        def __next__(self) -> Any: ...
        def __next__(self) -> Any: ...
else:
    from typing import Generic, TypeVar

    T = Data = B = B_co = TypeVar("T")
    Data_co = TypeVar("Data_co")
    Ragged = TypeVar("Ragged")
    Ragged_co = TypeVar("Ragged_co")
    Made_co = TypeVar("Made_co")
    Size_co = TypeVar("Size_co")
    Stacks = Generic
