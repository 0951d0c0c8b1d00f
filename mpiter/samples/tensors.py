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
    """torch, if the program has imported it, with this name in it; else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, name) else None


def as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """The memory of a dense CPU tensor without gradient as an ndarray; None for anything else."""
    if type(value).__module__ != "torch":  # as most values: each sample's are asked
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
    """A tensor on the array's memory, which it keeps alive; on a copy of read-only memory."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch knows nothing read-only


def reducers() -> dict[type, Any]:
    """Reducers for tensors, and for what only looks as if it could travel."""
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
    if str(tensor.layout) == "torch.sparse_coo" and not tensor.requires_grad:  # torch keeps those that it unpickles
        return _sparse, (tensor._indices(), tensor._values(), tuple(tensor.shape), tensor.is_coalesced())
    return tensor.__reduce_ex__(5)


def _sparse(indices: Any, values: Any, shape: Sequence[int], is_coalesced: bool) -> Any:
    import torch

    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=False)


def as_bytes(value: Any) -> tuple[np.ndarray[Any, Any], str, tuple[int, ...]] | None:
    """The bytes, dtype and shape of a dense CPU tensor; None if it holds more than these."""
    torch = torch_with("Tensor")
    if torch is None or type(value) is not torch.Tensor or value.layout is not torch.strided:
        return None
    if value.device.type != "cpu" or value.is_nested or value.is_quantized:
        return None
    if value.requires_grad or value.is_conj() or value.is_neg():
        return None
    try:
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    except RuntimeError:  # bits of no whole byte, say
        return None
    return raw, str(value.dtype).removeprefix("torch."), tuple(value.shape)


def from_bytes(raw: np.ndarray[Any, Any], dtype: str, shape: Sequence[int]) -> Any:
    import torch

    kind = getattr(torch, dtype)
    return torch.from_numpy(raw).view(kind).reshape(shape) if len(raw) else torch.empty(*shape, dtype=kind)
