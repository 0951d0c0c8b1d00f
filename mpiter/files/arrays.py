"""Arrow's arrays as NumPy sees them: nulls, numbers, and where lists begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


def nulls_in(array: pa.Array) -> NDArray[Any] | None:
    """Return which values are null; None if none is."""
    if not array.null_count:
        return None
    found: NDArray[Any] = array.is_null().to_numpy(zero_copy_only=False)
    return found


def filled(array: pa.Array) -> NDArray[Any]:
    """Return numbers, with anything where whole numbers or truth values are null."""
    from pyarrow import types

    if array.null_count and not has_nan(array.type):
        array = array.fill_null(False if types.is_boolean(array.type) else 0)
    found: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def offsets_in(array: Any) -> NDArray[np.int64]:
    """Return where each list begins among the values, and where the last one ends."""
    from pyarrow import types

    found: NDArray[np.int64]
    if types.is_fixed_size_list(array.type):
        found = np.arange(array.offset, array.offset + len(array) + 1)
        found *= array.type.list_size
        return found
    found = array.offsets.to_numpy().astype(np.int64)
    return found


def is_list(kind: pa.DataType) -> bool:
    from pyarrow import types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def has_nan(kind: pa.DataType) -> bool:
    """True for numbers among which a null is NaN or NaT."""
    from pyarrow import types

    return bool(types.is_floating(kind) or types.is_temporal(kind))


def is_number(kind: pa.DataType) -> bool:
    from pyarrow import types

    tests = (
        types.is_integer,
        types.is_floating,
        types.is_boolean,
        types.is_timestamp,
        types.is_date,
        types.is_duration,
    )
    return any(test(kind) for test in tests)


def has_arrays(lists: Any) -> bool:
    """True for lists of numbers that are arrays, unless they are null."""
    kind = lists.type.value_type
    if not is_number(kind):
        return False
    return has_nan(kind) or not lists.values.null_count
