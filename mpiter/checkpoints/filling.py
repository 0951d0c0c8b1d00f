"""A dict of the user's gets back what was saved of it.

Guarantees that arrays and tensors stay where they are, so that whoever refers to them sees it too, and that those of
another shape or dtype are refused, by their path; named tuples and JAX's arrays come back as what they were.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..errors import StateError
from ..samples import tensors
from .files import is_jaxs


def fill(mine: dict[Any, Any], saved: dict[Any, Any], name: str) -> None:
    """Put what was saved into the dict; what wasn't stays."""
    for key, value in saved.items():
        mine[key] = _filled(mine.get(key), value, f"{name}[{key!r:.60}]")


def _filled(now: Any, saved: Any, path: str) -> Any:
    """What was saved, in what there is now as far as it fits."""
    if isinstance(now, dict) and isinstance(saved, dict):
        fill(now, saved, path)
        return now
    if isinstance(now, (list, tuple)) and isinstance(saved, (list, tuple)) and len(now) == len(saved):
        each = zip(now, saved, strict=True)
        parts = [_filled(one, part, f"{path}[{at}]") for at, (one, part) in enumerate(each)]
        return type(now)(*parts) if hasattr(now, "_fields") else type(saved)(parts)
    if now is None or not (_has_shape(now) or _has_shape(saved)):
        return saved
    if _described(now) != _described(saved):
        raise StateError(f"{path} is {_described(now)}, and {_described(saved)} was saved.")
    if is_jaxs(now):
        return sys.modules["jax"].numpy.asarray(saved)
    if isinstance(now, np.ndarray):
        now[...] = saved
    elif _has_shape(now):
        with sys.modules["torch"].no_grad():
            now.copy_(saved)
    else:
        return saved
    return now


def _has_shape(value: Any) -> bool:
    torch = tensors.torch_with("Tensor")
    return isinstance(value, np.ndarray) or is_jaxs(value) or (torch is not None and isinstance(value, torch.Tensor))


def _described(value: Any) -> str:
    if not _has_shape(value):
        return f"of type {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
