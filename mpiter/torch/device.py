"""Copies batches to the GPU: the next one is copied while this one is trained on.

The *slots* of shared memory that the workers write batches into are page-locked, each
once, so that the GPU copies directly from them: no pinning thread, no copy in between.
Guarantees that a slot isn't overwritten before its copy to the GPU has finished, and
that no page-locked memory is returned to the system or unmapped.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ..errors import OptionError
from ..samples.batch import Batch
from ..transport.memory import arena_at
from .tensors import nested, parts_of_rows

# The means and the standard deviations of the channels.
_Scaling = tuple[Sequence[float], Sequence[float]] | None


def mapped(tree: object, change: Callable[[Any], Any]) -> Any:
    """Return ``tree`` with ``change`` applied to each value in its containers.

    The containers keep their types if possible.
    """
    if isinstance(tree, Batch):
        tree = tree.columns
    if isinstance(tree, dict):
        changed = copy.copy(tree)
        parts = {name: mapped(value, change) for name, value in tree.items()}
        changed.update(parts)
        return changed
    if isinstance(tree, (list, tuple)):
        values = [mapped(value, change) for value in tree]
        try:
            if hasattr(tree, "_fields"):
                return type(tree)(*values)
            return type(tree)(values)
        except TypeError:
            # The constructor of a subclass may take other arguments.
            return values
    return change(tree)


class PageLocks:
    """The page-locked ranges of mpiter's arenas (shared memory).

    Each is locked when it is first seen.
    """

    def __init__(
        self,
        lock: Callable[[int, int], bool],
        unlock: Callable[[int], None],
    ) -> None:
        self._lock = lock
        self._unlock = unlock
        # Whether locking a range has succeeded, by its address.
        self._held: dict[int, bool] = {}
        self._watched: set[int] = set()  # addresses of arenas
        # An arena may release a range in another thread, at any time.
        self._one_at_a_time = threading.Lock()

    def cover(self, address: int) -> bool:
        """Lock the range that ``address`` lies in, unless it is locked already.

        False if that fails, or if the address lies in no arena.
        """
        arena = arena_at(address)
        if arena is None:
            return False
        found = arena.range_at(address)
        if found is None:
            return False
        start, size = found
        with self._one_at_a_time:
            if start not in self._held:
                if arena.address not in self._watched:
                    self._watched.add(arena.address)
                    arena.watch(self._gone)
                self._held[start] = self._lock(start, size)
            return self._held[start]

    def _gone(self, start: int) -> None:
        with self._one_at_a_time:
            if self._held.pop(start, False):
                self._unlock(start)


def _cuda_lock(address: int, size: int) -> bool:
    runtime = torch.cuda.cudart()
    return int(runtime.cudaHostRegister(address, size, 0)) == 0


def _cuda_unlock(address: int) -> None:
    torch.cuda.synchronize()  # a copy may still read from there
    torch.cuda.cudart().cudaHostUnregister(address)


_cuda_locks = PageLocks(_cuda_lock, _cuda_unlock)


class DevicePrefetcher:
    """Iterates over the batches of ``loader`` as tensors on ``device``.

    The next batch is copied while the last one is used.

    Args:
        loader: a ``DataLoader``, ``mpiter.batches(…)`` or any iterable of tensors,
            arrays, or containers of them.
        device: the target device; None is CUDA if it is available, else the CPU.
        normalize: (mean, std), a number for each channel, in the units of the samples:
            images (tensors of four dimensions, channels second) are normalised on the
            device, so that workers may send bytes.
        dtype: of images and of floating-point tensors; None keeps it (float32 for
            images that are normalised).

    Rows of several lengths (``ragged="jagged"``) become a nested tensor there.  Values
    that are no tensor or array are left unchanged.  ``state_dict()`` is the
    state after the last batch handed out, not after the one that is being copied;
    ``stats()`` and ``close()`` are the loader's.

    >>> import numpy as np
    >>> batches = [(np.zeros((2, 1, 2, 2), np.uint8), [1, 2])]
    >>> for x, y in DevicePrefetcher(batches, "cpu", normalize=([128], [64])):
    ...     print(x.dtype, float(x[0, 0, 0, 0]), y)
    torch.float32 -2.0 [1, 2]
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device | str | None = None,
        *,
        normalize: _Scaling = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise OptionError(
                f"dtype={dtype!r:.60} is no dtype of torch's; use one such as "
                "torch.float16."
            )
        self.loader: Any = loader
        usual = "cuda" if torch.cuda.is_available() else "cpu"
        if device is None:
            device = usual
        self.device = torch.device(device)
        self.dtype = dtype
        self._scale: tuple[torch.Tensor, torch.Tensor] | None = None
        if normalize is not None:
            means, deviations = normalize
            mean = torch.as_tensor(means, dtype=torch.float32).reshape(-1)
            std = torch.as_tensor(deviations, dtype=torch.float32).reshape(-1)
            is_positive = bool((std > 0).all())
            if len(mean) != len(std) or not is_positive:
                raise OptionError(
                    "normalize: mean and std need equal lengths, and each std must be "
                    "above 0."
                )
            # In this shape they apply to the channels of a batch of images.
            shape = (1, -1, 1, 1)
            self._scale = (
                mean.to(self.device).reshape(shape),
                std.to(self.device).reshape(shape),
            )
        # The loader's state after the last batch handed out.  None unless the loader is
        # a batch ahead.
        self._state: dict[str, Any] | None = None
        self._was_new_epoch = False
        self._was_in_pass = 0
        self._tokens_then: int | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        if self.device.type == "cuda":
            return _Ahead(self)
        # map() goes on after an error of the loader; a generator would be at its end.
        return map(partial(mapped, change=self._here), self.loader)

    @property
    def is_new_epoch(self) -> bool:
        """True if the last batch handed out completed an epoch."""
        if self._state is None:
            return bool(self.loader.is_new_epoch)
        return self._was_new_epoch

    @property
    def step_tokens(self) -> int:
        """The loader's ``step_tokens`` of the last batch handed out."""
        if self._state is None or self._tokens_then is None:
            return int(self.loader.step_tokens)
        return self._tokens_then

    @property
    def passes(self) -> int:
        """The number of the loader's passes before that of the last batch."""
        if self._state is None:
            return getattr(self.loader, "passes", 0)
        return self._was_in_pass

    def end_pass(self) -> bool:
        """Count the present pass as ended if all its batches were handed out.

        Return True unless the pass is known to go on.
        """
        if self.is_new_epoch and hasattr(self.loader, "end_pass"):
            self._state = None
            self.loader.end_pass()
        return True

    def __getattr__(self, name: str) -> Any:
        """Return ``stats`` or ``close``, which are the loader's."""
        if name in ("stats", "close"):
            return getattr(self.loader, name)
        return object.__getattribute__(self, name)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state after the last batch handed out."""
        state = self._state
        if state is None:
            state = self.loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next ``iter()`` go on from where ``state`` was saved."""
        self._state = None
        self.loader.load_state_dict(state)

    def _prepared(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor converted and normalised; it is on the device already."""
        scale = self._scale
        if scale is not None and tensor.ndim == 4:
            mean, std = scale
            if tensor.shape[1] != mean.shape[1]:
                channels = (
                    f"{mean.shape[1]} channels, but there are images of shape "
                    f"{tuple(tensor.shape[1:])}"
                )
                raise OptionError(f"normalize= has {channels}; channels come first.")
            scaled = tensor.float().sub(mean).div_(std)
            return scaled.to(self.dtype or torch.float32)
        if self.dtype is None:
            return tensor
        if tensor.is_floating_point() or tensor.ndim == 4:
            return tensor.to(self.dtype)
        return tensor

    def _here(self, value: object) -> Any:
        return self._moved(value, lambda tensor: tensor.to(self.device))

    def _moved(
        self,
        value: object,
        move: Callable[[torch.Tensor], torch.Tensor],
    ) -> Any:
        """Return a tensor, an array or rows of several lengths on the device.

        ``move`` brings tensors there.  Any other value is returned as it is.
        """
        parts = parts_of_rows(value)
        if parts is not None and _counts(parts[0]):
            values, offsets = parts
            there = self._prepared(move(_tensor(values)))
            return nested(there, move(offsets), offsets)
        if not _counts(value):
            return value
        return self._prepared(move(_tensor(value)))


@dataclass(slots=True)
class _Sent:
    """A batch that is being copied to the device, or has been."""

    batch: Any  # on the device
    # The loader's state after this batch; None if it has none.
    state: dict[str, Any] | None
    is_new_epoch: bool
    passes: int
    # The loader's ``step_tokens``; None if it has none.
    tokens: int | None
    # The event behind the copy, which shows whether that has finished.
    arrived: torch.cuda.Event
    # The batch in the host's memory, kept until the copy has finished.
    host: Any


class _Ahead:
    """Iterates over a loader and copies one batch ahead.

    An error of the loader is raised in place of its batch.
    """

    def __init__(self, prefetcher: DevicePrefetcher) -> None:
        self._coming: _Sent | Exception | None = None
        # Batches that were handed out, and whose copies may not have finished.
        self._used: list[_Sent] = []
        self._prefetcher = prefetcher
        self._side = torch.cuda.Stream(prefetcher.device)
        self._source = iter(prefetcher.loader)

    def __iter__(self) -> _Ahead:
        return self

    def __next__(self) -> Any:
        coming = self._coming or self._send()
        self._coming = None
        if isinstance(coming, Exception):  # also StopIteration
            raise coming
        # The next batch is copied while the caller works on this one.
        self._coming = self._send()
        here = torch.cuda.current_stream(self._prefetcher.device)
        here.wait_event(coming.arrived)

        def use_here(value: Any) -> None:
            # The tensors were made on the other stream.  Unless torch's allocator knows
            # that this one uses them too, it may give their memory away too early.
            for tensor in parts_of_rows(value) or (value,):
                if _counts(tensor):
                    tensor.record_stream(here)

        mapped(coming.batch, use_here)
        self._prefetcher._state = coming.state
        self._prefetcher._was_new_epoch = coming.is_new_epoch
        self._prefetcher._was_in_pass = coming.passes
        self._prefetcher._tokens_then = coming.tokens
        self._used = [sent for sent in self._used if not sent.arrived.query()]
        self._used.append(coming)
        return coming.batch

    def _send(self) -> _Sent | Exception:
        loader = self._prefetcher.loader
        try:
            host = next(self._source)
        except Exception as error:
            return error
        state = None
        if hasattr(loader, "state_dict"):
            state = loader.state_dict()
        with torch.cuda.stream(self._side):
            batch = mapped(host, self._copied)
            arrived = torch.cuda.Event()
            arrived.record(self._side)
        is_new_epoch = bool(getattr(loader, "is_new_epoch", False))
        passes = getattr(loader, "passes", 0)
        tokens = getattr(loader, "step_tokens", None)
        return _Sent(batch, state, is_new_epoch, passes, tokens, arrived, host)

    def _copied(self, value: object) -> Any:
        """Return a tensor or an array on the device; any other value as it is."""
        return self._prefetcher._moved(value, self._send_tensor)

    def _send_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and tensor.numel():
            _cuda_locks.cover(tensor.data_ptr())
        return tensor.to(self._prefetcher.device, non_blocking=True)

    def __del__(self) -> None:
        """Wait until all copies have finished.

        Workers may write into the slots once the batches in them are dropped, so none
        may be dropped before.
        """
        for sent in (*self._used, self._coming):
            if isinstance(sent, _Sent):
                sent.arrived.synchronize()


def _counts(value: object) -> bool:
    """True for what is copied to the device.

    These are tensors, and arrays whose memory a tensor can share.
    """
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc" and value.dtype.isnative
    return isinstance(value, torch.Tensor)


def _tensor(value: np.ndarray[Any, Any] | torch.Tensor) -> torch.Tensor:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return value
