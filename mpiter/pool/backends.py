"""Backends: what runs the workers.

A backend packs the dataset for its workers, and makes a Pool of them.  Runs in the
consumer process, in the caller's thread.
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
from importlib import import_module
from typing import Any

from ..datasets import ship
from ..errors import (
    DatasetNotPicklable,
    MpiterError,
    OptionError,
    WorkerStartError,
    warn,
)
from ..rules import DEAR_S
from ..samples.byvalue import name_classes
from ..samples.envelope import dumps
from ..samples.tensors import torch_with
from ..setting import Setting
from .anypool import AnyPool, StockPool, Threads
from .pool import Pool
from .starting import import_once, keep_standard_descriptors, start_server

# What is sent to the workers: the dataset, and the function that they call first.
Cargo = tuple[Any, Callable[[Any], Any] | None]
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
    cargo: Cargo,
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


class Backend:
    """What runs the workers; derive from it to bring a kind of workers of your own.

    Give it a ``name``, and override ``pool``.  That makes a Pool with two verbs of
    ``multiprocessing.Pool``, ``map_async`` with callbacks and ``terminate``; any
    executor or cluster that calls a function elsewhere can have them.  The dataset then
    travels by pickle, and samples with the answers.  Docs: "Extending mpiter".

    A backend whose Pool can also start and end single workers overrides ``launch``
    instead.  Then workers that die or hang are replaced, with nothing lost.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> import mpiter
    >>> class FuturesPool:
    ...     def __init__(self, workers, initializer, initargs):
    ...         self.executor = ThreadPoolExecutor(workers, "my", initializer, initargs)
    ...     def map_async(self, func, items, chunksize, callback, error_callback):
    ...         def answered(future):
    ...             try:
    ...                 answer = future.result()
    ...             except BaseException as error:
    ...                 error_callback(error)
    ...             else:
    ...                 callback([answer])
    ...         for item in items:
    ...             self.executor.submit(func, item).add_done_callback(answered)
    ...     def terminate(self):
    ...         self.executor.shutdown(cancel_futures=True)
    >>> class Futures(mpiter.Backend):
    ...     name = "futures"
    ...     in_process = True
    ...     def pool(self, workers, initializer, initargs):
    ...         return FuturesPool(workers, initializer, initargs)
    >>> with mpiter.batches(range(5), 2, shuffle=False, backend=Futures()) as stream:
    ...     print(*stream)
    [0 1] [2 3] [4]
    """

    # For messages, and for what a worker's ``get_worker_info()`` tells.
    name = "a backend"
    # The workers are threads of this process.
    in_process = False
    # The workers share memory with this process, so that samples are written straight
    # into batches.  If they are processes, mpiter starts and ends them.
    shares_memory = False
    # Seconds from which on a batch is split over the workers.  It is more where sending
    # a task is dear.
    dear_s = DEAR_S

    def check(self, setting: Setting) -> None:
        """Raise an OptionError if the workers can't serve this iterator or loader.

        Called when that is made.
        """

    def count_workers(self) -> int | None:
        """Return how many workers there are if the user names no number.

        None: one for each core.
        """
        return None

    def prepare(self) -> None:
        """Begin what takes time: workers will be needed soon."""

    def pool(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
    ) -> StockPool:
        """Return a Pool of so many workers.

        Each must call ``initializer(*initargs)`` once, before anything else.
        """
        raise OptionError(
            f"{type(self).__name__} needs a method pool(workers, initializer, "
            "initargs); see mpiter.Backend."
        )

    def _working_pool(
        self,
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
    ) -> StockPool:
        """Return the Pool; raise an OptionError if it isn't one."""
        pool = self.pool(workers, initializer, initargs)
        for verb in ("map_async", "terminate"):
            if not callable(getattr(pool, verb, None)):
                raise OptionError(
                    f"pool() of {type(self).__name__} returned "
                    f"{type(pool).__name__}, which has no method {verb}(); see "
                    "mpiter.Backend."
                )
        return pool

    def launch(self, cargo: Cargo) -> Launch:
        """Return the dataset, packed for the workers, and what makes their Pool.

        Called when the first batch is asked for, and again when the dataset changes.
        """
        if self.shares_memory:
            raise OptionError(
                f"{type(self).__name__}.shares_memory says that mpiter starts and ends "
                "its processes, so it needs a launch() of its own: leave it out."
            )
        make = partial(AnyPool, self._working_pool)
        if self.in_process:
            return Launch(ship.Shared(cargo), make, pickle.dumps)
        return packed(cargo, ship.Copied, make)


class Process(Backend):
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

    def launch(self, cargo: Cargo) -> Launch:
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
        return Launch(ship.Forked(cargo), pool, dumps)


class Thread(Backend):
    """Worker threads in this process, for decoders that release the GIL.

    And for free-threaded Python.
    """

    name = "thread"
    shares_memory = True
    in_process = True

    def launch(self, cargo: Cargo) -> Launch:
        return Launch(ship.Shared(cargo), Threads, dumps)


_HERE: dict[str, Callable[[], Backend]] = {
    "process": Process,
    "thread": Thread,
}


def _elsewhere() -> dict[str, Callable[[], Backend]]:
    """Return the backends in ``mpiter.remote`` by name.

    The core never imports that package by itself: only its user's word does.
    """
    remote = import_module("mpiter.remote")
    found: dict[str, Callable[[], Backend]] = remote.BY_NAME
    return found


def backend_for(backend: Backend | str) -> Backend:
    """Return the backend for the ``backend=`` argument, a name or an object."""
    if isinstance(backend, Backend):
        return backend
    known = _HERE
    if isinstance(backend, str):
        if backend not in known:
            known = {**_HERE, **_elsewhere()}
        if backend in known:
            return known[backend]()
    names = ", ".join(map(repr, {**_HERE, **_elsewhere()}))
    raise OptionError(
        f"backend={backend!r:.60} is unknown; use {names}, or an object such as "
        "mpiter.Process() or an mpiter.Backend of yours."
    )
