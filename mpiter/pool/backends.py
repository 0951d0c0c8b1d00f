"""Backends: what runs the workers.  A backend packs the dataset for its workers, and makes a Pool of them.

Runs in the consumer process, in the caller's thread.  A backend also says whether its workers share memory with this
process, and whether they are threads of it.  A backend of your own needs the members of ``Backend``.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any, Protocol

from ..datasets import ship
from ..errors import MpiterError, OptionError, WorkerStartError, warn
from ..samples.byvalue import name_classes
from ..samples.envelope import dumps
from ..samples.tensors import torch_with
from .anypool import AnyPool, Threads
from .pool import Pool
from .starting import start_server

_REMEDY = "Open such things in worker_init or on first use, and leave them out in __getstate__."  # forking doesn't help


@dataclass(frozen=True)
class Launch:
    """A packed dataset, and the function that makes the Pool for it."""

    cargo: Any  # the packed dataset: has ``open``, ``holds`` and ``close``
    pool: Callable[..., Any]  # takes (workers, initializer, initargs, bell=)
    dumps: Callable[[Any], bytes]  # pickles something for the workers


def packed(cargo: tuple[Any, Any], hold: Any, pool: Callable[..., Any]) -> Launch:
    """Return the launch for workers that can't be forked; ``hold`` keeps the dataset's buffers."""
    try:
        return Launch(ship.Shipment(cargo, hold=hold), pool, ship.by_value)
    except (MemoryError, Warning, MpiterError):
        raise
    except Exception as error:
        raise ship.explain(cargo[0], "dataset", error, _REMEDY) from error


class Backend(Protocol):
    """The interface of a backend, which packs a dataset and makes the Pool for it.

    The optional attribute ``dear_s`` is the number of seconds from which on a batch is split over the workers.
    """

    name: str
    shares_memory: bool  # with this process, so that slots can be used; else others start and end its processes
    in_process: bool  # the workers are threads of this process

    def launch(self, cargo: tuple[Any, Any]) -> Launch: ...


class Process:
    """Worker processes on this machine.

    ``start_method`` is "fork", "forkserver" or "spawn".  The default is forkserver on Linux and spawn elsewhere, on
    every Python; if the dataset can't be pickled, workers are then forked instead, with a warning.

    ``pool`` makes another Pool than ours, by ``pool(workers, initializer, initargs)``: ``multiprocessing.Pool``, say,
    for comparison.  It has its own start method and its own handling of failures: ``multiprocessing.Pool`` doesn't
    report a worker that was killed, so only ``sample_timeout`` notices it.

    >>> from mpiter import batches
    >>> list(batches([10, 20, 30], 2, n_processes=1, shuffle=False, backend=Process("spawn")))
    [array([10, 20]), array([30])]
    """

    name, shares_memory, in_process = "process", True, False

    def __init__(self, start_method: str | None = None, *, pool: Callable[..., Any] | None = None) -> None:
        if pool is not None and start_method is not None:
            raise OptionError(
                f"start_method={start_method!r} is for our own Pool; pass multiprocessing.get_context("
                f"{start_method!r}).Pool as pool=."
            )
        self.pool = pool
        known = multiprocessing.get_all_start_methods()
        if start_method is not None and start_method not in known:
            raise OptionError(f"start_method={start_method!r} is not available here; use one of {', '.join(known)}.")
        self.start_method = start_method

    def __repr__(self) -> str:
        return f"Process(start_method={self.start_method!r})" if self.pool is None else f"Process(pool={self.pool!r})"

    def prepare(self) -> None:
        """Start the fork server ahead, if this backend uses one, so that workers start sooner."""
        if self.pool is None and self._method == "forkserver" and not multiprocessing.current_process().daemon:
            with contextlib.suppress(OSError, RuntimeError):  # starting the workers will report it
                start_server()

    @property
    def _method(self) -> str:
        return self.start_method or ("forkserver" if sys.platform == "linux" else "spawn")

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        """Return the dataset packed in the first way that works, with the function that makes its Pool."""
        if multiprocessing.current_process().daemon:
            raise WorkerStartError(
                "this is a daemonic process (a worker of multiprocessing.Pool, say, or of another loader), which may "
                "not have children. Pass n_processes=0 (num_workers=0) or backend='thread', or make the process with "
                "daemon=False."
            )
        method = self._method
        if method == "fork":
            return self._launched(ship.Kept(cargo), method)
        try:
            return self._launched(ship.Shipment(cargo), method)
        except (MemoryError, Warning):
            raise  # other ways take no less memory, and a warning turned into an error must be seen
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # too many open files: not the dataset's fault
            failure = error
        explained = ship.explain(cargo[0], "dataset", failure)
        may_fork = not (self.pool or self.start_method or explained.is_handle or _cuda_is_up())
        if not may_fork or "fork" not in multiprocessing.get_all_start_methods():
            raise explained from failure
        warn(f"{explained} Forking the workers instead.")
        return self._launched(ship.Kept(cargo), "fork")

    def _launched(self, cargo: ship.Kept | ship.Shipment, method: str) -> Launch:
        """Return the launch; later pickles are by reference if workers have ``__main__``, else by value."""
        pickles = dumps if method == "fork" else ship.by_value
        if method == "fork":
            name_classes()
        if self.pool is not None:
            return Launch(cargo, partial(AnyPool, self.pool), pickles)
        return Launch(cargo, partial(Pool, context=multiprocessing.get_context(method)), pickles)


def _cuda_is_up() -> bool:
    torch = torch_with("cuda")
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized())


class Thread:
    """Worker threads in this process: for decoders that release the GIL, and for free-threaded Python.

    >>> from mpiter import batches
    >>> list(batches([10, 20, 30], 2, n_processes=2, shuffle=False, backend="thread"))
    [array([10, 20]), array([30])]
    """

    name, shares_memory, in_process = "thread", True, True

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        return Launch(_TheVeryObjects(cargo), Threads, pickle.dumps)


class _TheVeryObjects(ship.Kept):
    """A cargo (dataset and ``worker_init``) for threads, which use the caller's own objects."""

    def holds(self, cargo: Any) -> bool:
        return all(map(is_, self._cargo, cargo))  # the same objects, even if modified


# Packages that attach from outside, such as ``mpiter.remote``, add theirs.
BY_NAME: dict[str, Callable[[], Backend]] = {"process": Process, "thread": Thread}


def backend_for(backend: Any) -> Backend:
    """Return the backend for the ``backend=`` argument, a name or an object."""
    if isinstance(backend, str) and backend in BY_NAME:
        return BY_NAME[backend]()
    if isinstance(backend, (str, type)) or not hasattr(backend, "launch"):
        names = ", ".join(map(repr, BY_NAME))
        raise OptionError(f"backend={backend!r:.60} is unknown; use {names} or an object such as mpiter.Process().")
    return backend  # type: ignore[no-any-return]
