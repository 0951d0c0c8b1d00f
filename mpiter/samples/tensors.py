"""torch tensors as leaves of a sample, without importing torch.

Runs in workers and in the consumer process.  Guarantees that torch is touched only when the program has already
imported it, and that torch's own way of sending tensors (one descriptor each) is never used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


def torch_with(name: str) -> Any:
    """Return torch if the program has imported it and torch has the attribute ``name``; else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, name) else None


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a dense CPU tensor without gradient as an ndarray on the same memory; None for anything else."""
    if type(value).__module__ != "torch":  # the usual case comes first: this runs for each value
        return None
    torch = torch_with("Tensor")
    if torch is None or type(value) is not torch.Tensor:
        return None
    if value.requires_grad or value.device.type != "cpu" or value.layout is not torch.strided:
        return None
    if value.is_conj() or value.is_neg() or value.dtype is torch.bfloat16:
        return None
    try:
        return value.numpy()  # type: ignore[no-any-return]
    except (TypeError, RuntimeError):  # dtypes that numpy doesn't know
        return None


def from_array(array: np.ndarray[Any, Any]) -> Any:
    """Return a tensor on the array's memory, which it keeps alive, or on a copy if the array is read-only."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch has no read-only tensors


def reducers() -> dict[type, Any]:
    """Return reducers for tensors, which refuse those that processes can't share."""
    torch = torch_with("nn")
    return {} if torch is None else {torch.Tensor: _reduce, torch.nn.Parameter: _reduce}


def _reduce(tensor: Any) -> Any:
    if tensor.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"it is a tensor on {tensor.device}, which processes cannot share.  Keep data on the CPU; "
            f"mpiter.torch.DevicePrefetcher takes it there"
        )
    if (array := as_array(tensor)) is not None:
        return from_array, (array,)
    if (raw := as_bytes(tensor)) is not None:
        return from_bytes, raw
    if str(tensor.layout) == "torch.sparse_coo" and not tensor.requires_grad:  # torch never frees unpickled ones
        return _sparse, (tensor._indices(), tensor._values(), tuple(tensor.shape), tensor.is_coalesced())
    return tensor.__reduce_ex__(5)


def _sparse(indices: Any, values: Any, shape: Sequence[int], is_coalesced: bool) -> Any:
    import torch

    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)


def as_bytes(value: Any) -> tuple[np.ndarray[Any, Any], str, tuple[int, ...]] | None:
    """Return the bytes, dtype and shape of a dense CPU tensor; None if these don't describe it completely."""
    torch = torch_with("Tensor")
    if torch is None or type(value) is not torch.Tensor or value.layout is not torch.strided:
        return None
    if value.device.type != "cpu" or value.is_nested or value.is_quantized:
        return None
    if value.requires_grad or value.is_conj() or value.is_neg():
        return None
    try:
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    except RuntimeError:  # elements smaller than a byte, say
        return None
    return raw, str(value.dtype).removeprefix("torch."), tuple(value.shape)


def from_bytes(raw: np.ndarray[Any, Any], dtype: str, shape: Sequence[int]) -> Any:
    import torch

    # Not getattr(), which would import a submodule that a damaged state names.
    kind = vars(torch).get(dtype)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"{dtype!r:.60} is no dtype of torch's")
    return torch.from_numpy(raw).view(kind).reshape(shape)
