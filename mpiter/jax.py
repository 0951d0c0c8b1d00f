"""Batches as JAX arrays, on the memory that the workers wrote.

Imports jax.  Arrays are passed by dlpack, without a copy if JAX can use their memory: on the CPU, and 64-bit dtypes
only with ``jax_enable_x64``.  Guarantees that a slot (a batch's memory) isn't reused while an array on it lives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: mpiter.jax needs JAX (pip install 'mpiter[jax]'); mpiter.batches does without it.", name=error.name
    ) from error

__all__ = ["arrays"]

_WIDE = {"int64", "uint64", "float64", "complex128"}


def arrays(batch: Any) -> Any:
    """Return ``batch`` with JAX arrays in place of NumPy's; containers, nested to any depth, keep their types.

    >>> import mpiter, numpy as np
    >>> for x in map(arrays, mpiter.batches([1.0, 2.0, 3.0], 2, n_processes=0, shuffle=False)):
    ...     print(x)
    [1. 2.]
    [3.]
    >>> x, names = arrays((np.ones(3, np.float32), ["a", "b", "c"]))
    >>> float(x.sum()), names
    (3.0, ['a', 'b', 'c'])
    """
    return jax.tree_util.tree_map(_array, batch)


def _array(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    needs_copy = not value.flags.writeable or not value.flags.c_contiguous or not value.dtype.isnative
    if needs_copy or (value.dtype.name in _WIDE and not jax.config.jax_enable_x64):
        return jnp.asarray(value)
    convert: Callable[[Any], Any] = jax.dlpack.from_dlpack
    return convert(value)
