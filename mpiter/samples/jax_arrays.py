"""JAX's arrays as leaves of a sample and as columns, without importing JAX.

Guarantees that JAX is touched only where the program has it loaded, or where a batch
has arrays of it.  Columns are NumPy's, whose memory JAX's functions take as it is;
single samples have JAX's arrays again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import jax

_Array = np.ndarray[Any, Any]


def is_array_type(kind: type) -> bool:
    """Return True for the type of JAX's arrays."""
    # The usual case comes first, since this runs for each value.
    if kind.__name__ != "ArrayImpl":
        return False
    return kind.__module__.partition(".")[0] == "jaxlib"


def as_array(value: object) -> _Array | None:
    """Return an array of JAX's as one of NumPy's, if possible on the same memory.

    None for anything else.
    """
    if not is_array_type(type(value)):
        return None
    try:
        return np.asarray(value)
    except RuntimeError:
        # JAX's memory was given away, or parts of it lie in other processes.
        return None


def from_array(array: _Array) -> jax.Array:
    """Return an array of JAX's with the values of ``array``."""
    import jax.numpy

    return jax.numpy.asarray(array)
