"""torch tensors as leaves of a sample, without importing torch.

Runs in workers and in the consumer process.  Guarantees that torch is touched only when the program has already
imported it, and that torch's own way of sending tensors (one descriptor each) is never used.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def is_plain(value: Any) -> bool:
    """Is this a dense CPU tensor without gradient, whose memory an ndarray can describe?"""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return False
    if value.requires_grad or value.device.type != "cpu" or value.layout is not torch.strided:
        return False
    return not (value.is_conj() or value.is_neg() or value.dtype is torch.bfloat16)


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """The tensor's memory as an ndarray, or None where there is no such thing."""
    try:
        return value.numpy() if is_plain(value) else None
    except (TypeError, RuntimeError):  # dtypes that numpy doesn't know
        return None


def from_array(array: np.ndarray[Any, Any]) -> Any:
    """A tensor on the array's memory; it keeps the array, and so the lease, alive."""
    import torch

    return torch.from_numpy(array)


def rows(column: np.ndarray[Any, Any]) -> list[Any]:
    """One tensor a row, each a view."""
    return list(from_array(column).unbind(0)) if len(column) else []


def reducers() -> dict[type, Any]:
    """How tensors that no column can hold are pickled, for a pickler's table."""
    torch = sys.modules.get("torch")
    return {torch.Tensor: _reduce} if hasattr(torch, "Tensor") else {}  # type: ignore[union-attr]


def _reduce(tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise TypeError(
            f"it holds a tensor on {tensor.device}.  Return CPU tensors; mpiter.torch.DevicePrefetcher takes them there"
        )
    if (array := as_array(tensor)) is not None:
        return from_array, (array,)
    torch = sys.modules["torch"]
    if tensor.layout is torch.strided and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg()):
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()  # of a dtype that numpy doesn't know
        return _from_bytes, (raw, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return tensor.__reduce_ex__(5)


def _from_bytes(raw: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.from_numpy(raw).view(getattr(torch, dtype)).reshape(shape)
