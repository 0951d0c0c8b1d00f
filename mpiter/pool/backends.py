"""Backends: what runs the workers.

A backend packs the dataset for its workers, and makes a Pool of them.  Runs in the
consumer process, in the caller's thread.  A backend of your own needs the members of
``Backend``.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..datasets import ship
from ..errors import (
    DatasetNotPicklable,
    MpiterError,
    OptionError,
    WorkerStartError,
    warn,
)
from ..samples.byvalue import name_classes
from ..samples.envelope import dumps
from ..samples.tensors import torch_with
from .anypool import Threads
from .pool import Pool
from .starting import import_once, keep_standard_descriptors, start_server

# What helps where forking the workers wouldn't.
_REMEDY = (
    "Open such things in worker_init or on first use, and leave them out in "
    "__getstate__."
)


@dataclass(frozen=True)
class Launch:
    """A packed dataset, and the function that makes the Pool for it."""

    # The packed dataset, which has ``open``, ``holds`` and ``close``.
    cargo: Any
    # Takes (workers, initializer, initargs, bell=).
    pool: Callable[..., Any]
    # Pickles something for the workers.
    dumps: Callable[[Any], bytes]


def packed(
    cargo: tuple[Any, Any],
    hold: Any,
    pool: Callable[..., Any],
    remedy: str = _REMEDY,
) -> Launch:
    """Return the launch for workers to which the dataset is sent.

    ``hold`` keeps its buffers.  If it can't be pickled, the error ends with ``remedy``.
    """
    try:
        return Launch(ship.Shipment(cargo, hold=hold), pool, ship.by_value)
    except (MemoryError, Warning, MpiterError):
        raise
    except Exception as error:
        # That too many files are open is not the dataset's fault.
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ship.explain(cargo[0], "dataset", error, remedy) from error


class Backend(Protocol):
    """The interface of backends.

    The optional ``dear_s`` is the seconds from which on a batch is split over the
    workers.
    """

    name: str
    # The workers share memory with this process, so that slots can be used.  If they
    # don't, others start and end their processes.
    shares_memory: bool
    # The workers are threads of this process.
    in_process: bool

    def launch(self, cargo: tuple[Any, Any]) -> Launch: ...


class Process:
    """Worker processes on this machine.

    ``start_method`` is "fork", "forkserver" or "spawn".  The default is forkserver on
    Linux and spawn elsewhere, on every Python; if the dataset can't be pickled, workers
    are then forked instead, with a warning.

    >>> from mpiter import batches
    >>> spawned = Process("spawn")
    >>> list(batches([1, 2, 3], 2, n_processes=1, shuffle=False, backend=spawned))
    [array([1, 2]), array([3])]
    """

    name = "process"
    shares_memory = True
    in_process = False

    def __init__(self, start_method: str | None = None) -> None:
        known = multiprocessing.get_all_start_methods()
        if start_method not in (None, *known):
            raise OptionError(
                f"start_method={start_method!r} is not available here; use one of "
                f"{', '.join(known)}."
            )
        self._may_fork = start_method is None and "fork" in known
        usual = "forkserver" if sys.platform == "linux" else "spawn"
        self.start_method = start_method or usual

    def __repr__(self) -> str:
        return f"Process(start_method={self.start_method!r})"

    def prepare(self) -> None:
        """Start the fork server ahead, if one is used: workers then start sooner."""
        keep_standard_descriptors()
        is_daemon = multiprocessing.current_process().daemon
        if self.start_method == "forkserver" and not is_daemon:
            # If this fails, so does starting the workers, which reports it.
            with contextlib.suppress(OSError, RuntimeError):
                start_server()

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        """Return the dataset packed in the first way that works, and its Pool."""
        if multiprocessing.current_process().daemon:
            raise WorkerStartError(
                "this is a daemonic process (a worker of multiprocessing.Pool, say, "
                "or of another loader), which may not have children. Pass "
                "n_processes=0 (num_workers=0) or backend='thread', or make it not a "
                "daemon."
            )
        keep_standard_descriptors()
        if self.start_method != "fork":
            context = multiprocessing.get_context(self.start_method)
            pool = partial(Pool, context=context)
            try:
                launch = packed(cargo, ship.Mapped, pool, ship.REMEDY)
            except DatasetNotPicklable as error:
                if not self._may_fork or error.is_handle:
                    raise
                # Once CUDA has been initialized, no forked process can use it.
                cuda = getattr(torch_with("cuda"), "cuda", None)
                if cuda is not None and cuda.is_initialized():
                    raise
                warn(f"{error} Forking the workers instead.")
            else:
                if self.start_method == "forkserver":
                    # Only what earlier workers have imported, too, is worth an import
                    # in the server: the first workers are mostly the only ones.
                    import_once(launch.cargo.modules & ship.modules_of_the_past)
                return launch
        name_classes()
        pool = partial(Pool, context=multiprocessing.get_context("fork"))
        return Launch(ship.Kept(cargo), pool, dumps)


class Thread:
    """Worker threads in this process, for decoders that release the GIL.

    And for free-threaded Python.
    """

    name = "thread"
    shares_memory = True
    in_process = True

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        kept = ship.Kept(cargo, is_shared=True)
        return Launch(kept, Threads, dumps)


# Packages that attach from outside, such as ``mpiter.remote``, add theirs here.
BY_NAME: dict[str, Callable[[], Backend]] = {
    "process": Process,
    "thread": Thread,
}


def backend_for(backend: Backend | str) -> Backend:
    """Return the backend for the ``backend=`` argument, a name or an object."""
    if isinstance(backend, str) and backend in BY_NAME:
        return BY_NAME[backend]()
    if isinstance(backend, (str, type)) or not hasattr(backend, "launch"):
        names = ", ".join(map(repr, BY_NAME))
        raise OptionError(
            f"backend={backend!r:.60} is unknown; use {names} or an object such as "
            "mpiter.Process()."
        )
    return backend
