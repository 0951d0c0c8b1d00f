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
    """torch, if the program has imported it, at least as far as this name of it; else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, name) else None


def is_plain(value: Any) -> bool:
    """Is this a dense CPU tensor without gradient, whose memory an ndarray can describe?"""
    if type(value).__module__ != "torch":  # as most values: each sample's are asked
        return False
    torch = torch_with("Tensor")
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


def device_of(value: Any) -> str:
    """What kind of device the tensor, or whatever it is, lies on."""
    torch = torch_with("Tensor")
    return value.device.type if torch is not None and isinstance(value, torch.Tensor) else "cpu"


def from_array(array: np.ndarray[Any, Any]) -> Any:
    """A tensor on the array's memory, which it keeps alive, and so the lease; of read-only memory, on a copy."""
    import torch

    return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch knows nothing read-only


def rows(column: np.ndarray[Any, Any]) -> list[Any]:
    """One tensor a row, each a view."""
    return list(from_array(column).unbind(0)) if len(column) else []


def reducers() -> dict[type, Any]:
    """How tensors that no column can hold are pickled, for a pickler's table."""
    torch = torch_with("Tensor")
    return {} if torch is None else {torch.Tensor: _reduce}


def _reduce(tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise TypeError(
            f"it holds a tensor on {tensor.device}.  Return CPU tensors; mpiter.torch.DevicePrefetcher takes them there"
        )
    if (array := as_array(tensor)) is not None:
        return from_array, (array,)
    if (raw := as_bytes(tensor)) is not None:
        return from_bytes, raw
    if (parts := _sparse_parts(tensor)) is not None:
        return _sparse, (*parts, str(tensor.layout).removeprefix("torch."), tuple(tensor.shape))
    return tensor.__reduce_ex__(5)


def _sparse_parts(tensor: Any) -> tuple[Any, ...] | None:
    """What a sparse tensor consists of: torch itself keeps all that it unpickles, for ``torch.load`` to look at."""
    import torch

    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout is torch.strided:
        return None
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values(), tensor.is_coalesced()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return None


def _sparse(first: Any, second: Any, third: Any, layout: str, shape: Sequence[int]) -> Any:
    import torch

    if layout == "sparse_coo":
        return torch.sparse_coo_tensor(first, second, shape, is_coalesced=third, check_invariants=False)
    kind = getattr(torch, layout)
    return torch.sparse_compressed_tensor(first, second, third, shape, layout=kind, check_invariants=False)


def as_bytes(value: Any) -> tuple[np.ndarray[Any, Any], str, tuple[int, ...]] | None:
    """Bytes, dtype and shape of a dense CPU tensor, of whatever dtype; None where they aren't all there is to it."""
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
