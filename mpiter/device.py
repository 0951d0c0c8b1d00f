"""To the GPU: the next batch is copied while this one trains.

A door: imports torch; ``mpiter.torch`` hands it on.  The shared slots that the workers write are registered as
page-locked memory, each once, so that the copy engine reads straight from them: no pinning thread, no copy in between.
Guarantees that a slot is held until its copy's event has passed, and that no range is given back to the system, or
unmapped, while it is registered.  On the CPU the same class converts and normalises, and copies nothing.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error}: mpiter.torch needs torch (pip install torch, or pip install 'mpiter[torch]'). mpiter.DataLoader and "
        f"mpiter.batches do without it.",
        name=error.name,
    ) from error

from .errors import OptionError, warn
from .samples.batch import Batch
from .stats import Stats
from .transport.memory import arena_at


def mapped(tree: Any, change: Callable[[Any], Any]) -> Any:
    """``tree`` with ``change`` made to all that is no container; the containers stay what they are where they can."""
    if isinstance(tree, Batch):
        tree = tree.columns
    if isinstance(tree, dict):
        changed = copy.copy(tree)
        changed.update({name: mapped(value, change) for name, value in tree.items()})
        return changed
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(value, change) for value in tree))
    if isinstance(tree, (list, tuple)):
        parts = [mapped(value, change) for value in tree]
        try:
            return type(tree)(parts)
        except Exception:  # a class of the user's that is made otherwise
            return parts
    return change(tree)


class PageLocks:
    """The page-locked ranges of our arenas; each is registered when it is first seen."""

    def __init__(self, lock: Callable[[int, int], bool], unlock: Callable[[int], None]) -> None:
        self._lock, self._unlock = lock, unlock
        self._held: dict[int, bool] = {}  # address of a range -> has it been locked?
        self._watched: set[int] = set()
        self._one_at_a_time = threading.Lock()  # slots go home in other threads

    def cover(self, address: int) -> bool:
        """Is the memory at ``address`` page-locked, now or already?  Only what lies in a slot of ours ever is."""
        arena = arena_at(address)
        found = None if arena is None else arena.range_at(address)
        if arena is None or found is None:
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
    return int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0


def _cuda_unlock(address: int) -> None:
    torch.cuda.synchronize()  # a copy may still read from there
    torch.cuda.cudart().cudaHostUnregister(address)


_cuda_locks = PageLocks(_cuda_lock, _cuda_unlock)


class DevicePrefetcher:
    """The batches of ``loader`` as tensors on ``device``, one copied ahead while the last one is used.

    Args:
        loader: a ``DataLoader``, ``mpiter.batches(…)`` or any iterable of trees of tensors or arrays.
        device: where to; None is the accelerator if there is one, else the CPU.
        normalize: (mean, std), a number for each channel, in the units of the samples: taken from images (tensors of
            four dimensions, the second of as many channels) on the device, so that workers may send bytes.
        dtype: of images and of floating-point tensors; None keeps it (float32 for images that are normalised).

    What is no tensor or array comes along as it is.  ``state_dict()`` is of what was handed out, not of the batch that
    is already on its way.

    >>> import numpy as np
    >>> for x, y in DevicePrefetcher([(np.zeros((2, 1, 2, 2), np.uint8), [1, 2])], "cpu", normalize=([128], [64])):
    ...     print(x.dtype, float(x[0, 0, 0, 0]), y)
    torch.float32 -2.0 [1, 2]
    """

    def __init__(
        self,
        loader: Any,
        device: Any = None,
        *,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        dtype: Any = None,
    ) -> None:
        self.loader = loader
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        if dtype is not None and not isinstance(dtype, torch.dtype):
            raise OptionError(f"dtype={dtype!r:.40} is none of torch's; pass torch.float16, say.")
        self.dtype = dtype
        self._scale: tuple[Any, Any] | None = None
        if normalize is not None:
            mean, std = (torch.as_tensor(part, dtype=torch.float32).reshape(-1) for part in normalize)
            if len(mean) != len(std) or not bool((std > 0).all()):
                raise OptionError("normalize=(mean, std) takes as many of the one as of the other, and std above 0.")
            self._scale = tuple(part.to(self.device).reshape(1, -1, 1, 1) for part in (mean, std))
        self._state: Any = None  # the loader's, and whether its epoch was complete, where it is ahead of us
        self._was_new_epoch = False

    def __len__(self) -> int:
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.device} of {self.loader!r:.200}>"

    def stats(self) -> Stats:
        """The loader's counters: what it waits for is waited for here."""
        return self.loader.stats()  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        self._state = None
        if self.device.type == "cuda":
            return _Ahead(self)
        return map(partial(mapped, change=self._here), self.loader)  # which goes on after an error

    @property
    def is_new_epoch(self) -> bool:
        """Did the last batch complete an epoch?"""
        return bool(self.loader.is_new_epoch) if self._state is None else self._was_new_epoch

    def state_dict(self) -> Any:
        """The loader's state after the last batch handed out."""
        return self.loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Any) -> None:
        """Have the next ``iter()`` go on from there."""
        self._state = None
        self.loader.load_state_dict(state)

    def _prepared(self, tensor: Any) -> Any:
        """Converted and normalised, on the device."""
        scale = self._scale
        if scale is not None and tensor.ndim == 4:
            if tensor.shape[1] != scale[0].shape[1]:
                raise OptionError(
                    f"normalize= has {scale[0].shape[1]} channels, but there are images of shape "
                    f"{tuple(tensor.shape[1:])}; channels come first."
                )
            return tensor.float().sub(scale[0]).div_(scale[1]).to(self.dtype or torch.float32)
        if self.dtype is not None and (tensor.is_floating_point() or tensor.ndim == 4):
            return tensor.to(self.dtype)
        return tensor

    def _here(self, value: Any) -> Any:
        return self._prepared(_tensor(value).to(self.device)) if _counts(value) else value


@dataclass(slots=True)
class _Sent:
    """A batch on its way."""

    batch: Any  # on the device
    state: Any  # the loader's, after it…
    is_new_epoch: bool  # …if that tells
    arrived: Any  # the event
    host: Any  # where it is read from; not to be let go before it has arrived


class _Ahead:
    """One batch is always on its way; an error of the loader comes in the place of its batch."""

    def __init__(self, prefetcher: DevicePrefetcher) -> None:
        self._coming: _Sent | Exception | None = None
        self._used: list[_Sent] = []  # handed out; perhaps still being read
        self._prefetcher = prefetcher
        self._side = torch.cuda.Stream(prefetcher.device)
        self._source = iter(prefetcher.loader)

    def __iter__(self) -> _Ahead:
        return self

    def __next__(self) -> Any:
        coming = self._coming or self._send()
        self._coming = None
        if isinstance(coming, Exception):  # StopIteration is one
            raise coming
        self._coming = self._send()  # while the caller works on the one before
        here = torch.cuda.current_stream(self._prefetcher.device)
        here.wait_event(coming.arrived)
        # tell torch's allocator that the tensors, made on another stream, are used on this one
        mapped(coming.batch, lambda value: value.record_stream(here) if _counts(value) else None)
        self._prefetcher._state, self._prefetcher._was_new_epoch = coming.state, coming.is_new_epoch
        self._used = [sent for sent in self._used if not sent.arrived.query()]
        self._used.append(coming)
        return coming.batch

    def _send(self) -> _Sent | Exception:
        loader = self._prefetcher.loader
        try:
            host = next(self._source)
        except Exception as error:
            return error
        state = loader.state_dict() if hasattr(loader, "state_dict") else None
        with torch.cuda.stream(self._side):
            batch = mapped(host, lambda value: self._copied(_tensor(value)) if _counts(value) else value)
            arrived = torch.cuda.Event()
            arrived.record(self._side)
        return _Sent(batch, state, bool(getattr(loader, "is_new_epoch", False)), arrived, host)

    def _copied(self, tensor: Any) -> Any:
        if tensor.device.type == "cpu" and tensor.numel():
            _cuda_locks.cover(tensor.data_ptr())
        return self._prefetcher._prepared(tensor.to(self._prefetcher.device, non_blocking=True))

    def __del__(self) -> None:
        """Wait for the copies under way: their slots must not be written while they are still being read."""
        for sent in (*self._used, self._coming):
            if isinstance(sent, _Sent):
                sent.arrived.synchronize()


def _counts(value: Any) -> bool:
    """Is it for the device?"""
    return is_numeric(value) or isinstance(value, torch.Tensor)


def is_numeric(value: Any) -> bool:
    """Is it an array that a tensor can stand for?"""
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and value.dtype.isnative


def _tensor(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


# -- page-locked copies ----------------------------------------------------------------------------------------------


def can_pin() -> bool:
    if torch.accelerator.is_available() and torch.accelerator.current_accelerator().type != "mps":
        return True
    warn(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
        UserWarning,
    )
    return False


def pinned(batch: Any) -> Any:
    """``batch`` in page-locked memory: tensors, and whatever has a ``pin_memory`` of its own, as torch has it.

    These are copies, in memory that torch doesn't use again before the device has read it.  ``DevicePrefetcher`` needs
    none.
    """
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    return mapped(batch, lambda value: value.pin_memory() if hasattr(value, "pin_memory") else value)
