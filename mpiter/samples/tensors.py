"""torch tensors as leaves of a sample, without importing torch.

Runs in workers and in the consumer process.  Guarantees that torch is touched only when
the program has already imported it, and that torch's own way of sending tensors (one
descriptor each) is never used.  A tensor in shared memory that belongs to the dataset
stays in that memory (``shared``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

_Array = np.ndarray[Any, Any]


def torch_with(name: str) -> Any:
    """Return torch if it has the attribute ``name``; None if it isn't imported.

    While the program imports torch, some attributes are still missing.
    """
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, name) else None


def is_torchs(dataset: object, name: Literal["Subset", "TensorDataset"]) -> bool:
    """Return True if ``dataset`` is of that class of torch's, and of none derived."""
    torch = torch_with("utils")
    if torch is None:
        return False
    return type(dataset) is getattr(torch.utils.data, name)


def as_array(value: Any) -> _Array | None:
    """Return a dense CPU tensor without gradient as an ndarray on the same memory.

    None for anything else.
    """
    # The usual case comes first: this runs for each value.
    if type(value).__module__ != "torch":
        return None
    if type(value) is not getattr(sys.modules.get("torch"), "Tensor", None):
        return None
    try:
        return value.numpy()  # type: ignore[no-any-return]
    except (TypeError, RuntimeError):
        # Other devices, other layouts, dtypes that NumPy doesn't know, values with a
        # gradient, or whose sign or conjugation is yet to be applied: torch itself
        # refuses to show these as an array.
        return None


def from_array(array: _Array) -> torch.Tensor:
    """Return a tensor on the array's memory, which it keeps alive.

    It is on a copy if the array is read-only, since torch has no read-only tensors.
    """
    import torch

    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def reducers() -> dict[type, Callable[[Any], Any]]:
    """Return reducers for tensors, which refuse those that processes can't share."""
    torch = torch_with("nn")
    if torch is None:
        return {}
    return {torch.Tensor: _reduce, torch.nn.Parameter: _reduce}


def _reduce(tensor: torch.Tensor) -> Any:
    if tensor.device.type not in ("cpu", "meta"):
        raise TypeError(
            f"it is a tensor on {tensor.device}, which processes cannot share.  Keep "
            "data on the CPU; mpiter.torch.DevicePrefetcher takes it there"
        )
    array = as_array(tensor)
    if array is not None:
        return from_array, (array,)
    raw = as_bytes(tensor)
    if raw is not None:
        return from_bytes, raw
    # Torch never frees a sparse tensor that its own reduction has made.
    if str(tensor.layout) == "torch.sparse_coo" and not tensor.requires_grad:
        return _sparse, (
            tensor._indices(),
            tensor._values(),
            tuple(tensor.shape),
            tensor.is_coalesced(),
        )
    return tensor.__reduce_ex__(5)


def shared(value: Any) -> tuple[Any, ...] | None:
    """Return the reduction by which another process gets ``value`` on the same memory.

    The process must be on this machine.  None unless it is a CPU tensor, or the storage
    of one, that the program has put into shared memory.
    """
    if type(value).__module__ not in ("torch", "torch.storage"):
        return None
    torch = torch_with("UntypedStorage")
    if torch is None:
        return None
    if type(value) is torch.Tensor:
        is_dense = value.device.type == "cpu" and value.layout is torch.strided
        if is_dense and _is_shared(value.untyped_storage()):
            reduction: tuple[Any, ...] = value.__reduce_ex__(5)
            return reduction
        return None
    if type(value) is torch.storage.TypedStorage:
        storage = value._untyped_storage
        if _is_shared(storage):
            return _typed, (storage, value.dtype)
        return None
    if type(value) is not torch.UntypedStorage or not _is_shared(value):
        return None
    if torch.multiprocessing.get_sharing_strategy() == "file_system":
        return _named_storage, value._share_filename_cpu_()
    return _open_storage, (os.getpid(), *value._share_fd_cpu_())


def _is_shared(storage: torch.UntypedStorage) -> bool:
    """Return True for shared memory of torch's own.

    Torch doesn't keep the descriptor of a mapped file.
    """
    return bool(
        storage.device.type == "cpu"
        and storage.nbytes()
        and storage.is_shared()
        and storage.filename is None
    )


def _typed(
    storage: torch.UntypedStorage, dtype: torch.dtype
) -> torch.storage.TypedStorage:
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def _named_storage(
    manager: bytes,
    name: bytes,
    size: int,
) -> torch.UntypedStorage:
    import torch

    return torch.UntypedStorage._new_shared_filename_cpu(manager, name, size)


def _open_storage(
    pid: int,
    fd: int,
    size: int,
) -> torch.UntypedStorage:
    """Return the storage on the file that process ``pid`` has open as ``fd``."""
    import torch

    # No descriptor is sent, since a fork server takes at most 250 of them for a worker.
    own = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return torch.UntypedStorage._new_shared_fd_cpu(own, size)
    finally:
        os.close(own)


def _sparse(
    indices: torch.Tensor,
    values: torch.Tensor,
    shape: Sequence[int],
    is_coalesced: bool,
) -> torch.Tensor:
    import torch

    return torch.sparse_coo_tensor(
        indices, values, shape, is_coalesced=is_coalesced, check_invariants=False
    )


def as_bytes(value: Any) -> tuple[_Array, str, tuple[int, ...]] | None:
    """Return the bytes, dtype and shape of a dense CPU tensor.

    None if these don't describe it completely.
    """
    torch = torch_with("Tensor")
    if torch is None or type(value) is not torch.Tensor:
        return None
    if value.layout is not torch.strided:
        return None
    if value.device.type != "cpu":
        return None
    if value.is_nested or value.is_quantized or value.requires_grad:
        return None
    # The bytes don't tell that the sign or the conjugation is yet to be applied.
    if value.is_conj() or value.is_neg():
        return None
    try:
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy()
    except RuntimeError:
        # Some dtypes have elements that are smaller than a byte.
        return None
    dtype = str(value.dtype).removeprefix("torch.")
    return raw, dtype, tuple(value.shape)


def nbytes_of(value: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements, on any device; 0 for a sparse one."""
    torch = sys.modules["torch"]
    if value.layout is torch.strided or value.is_nested:
        return int(value.nbytes)
    return 0


def brought_home(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a model as a plain one in this process's memory."""
    torch = sys.modules["torch"]
    if value.layout is not torch.strided or value.device.type == "meta":
        return value
    home = value.detach().cpu().resolve_conj().resolve_neg()
    return home.as_subclass(torch.Tensor)


def from_bytes(
    raw: _Array,
    dtype: str,
    shape: Sequence[int],
) -> torch.Tensor:
    import torch

    # Not getattr(), which would import a submodule that a damaged state names.
    kind = vars(torch).get(dtype)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"{dtype!r:.60} is no dtype of torch's")
    return torch.from_numpy(raw).view(kind).reshape(shape)
