"""Batches as JAX arrays, on the memory that the workers wrote.

A door: imports jax.  The arrays go over by dlpack, without a copy where JAX takes them so: on the CPU, and dtypes of 64
bits only with ``jax_enable_x64``.  Guarantees that a slot stays leased as long as any array on it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: mpiter.jax needs JAX (pip install jax, or pip install 'mpiter[jax]'). mpiter.batches does without "
        f"it, and jax.numpy.asarray takes its arrays.",
        name=error.name,
    ) from error

__all__ = ["arrays", "each"]

_WIDE = {"int64", "uint64", "float64", "complex128"}


def arrays(batch: Any) -> Any:
    """``batch`` with JAX arrays in place of NumPy's; containers of any depth stay what they are.

    >>> import numpy as np
    >>> x, names = arrays((np.ones(3, np.float32), ["a", "b", "c"]))
    >>> float(x.sum()), names
    (3.0, ['a', 'b', 'c'])
    """
    return jax.tree_util.tree_map(_array, batch)


def each(batches: Any) -> Iterator[Any]:
    """The batches of a loader as JAX arrays, one by one.

    >>> import jax, mpiter
    >>> for x in each(mpiter.batches([1.0, 2.0, 3.0], 2, n_processes=0, shuffle=False)):
    ...     print(isinstance(x, jax.Array), x)
    True [1. 2.]
    True [3.]
    """
    return map(arrays, batches)


def _array(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    needs_copy = not value.flags.writeable or not value.flags.c_contiguous or not value.dtype.isnative
    if needs_copy or (value.dtype.name in _WIDE and not jax.config.jax_enable_x64):
        return jnp.asarray(value)
    convert: Callable[[Any], Any] = jax.dlpack.from_dlpack
    return convert(value)
