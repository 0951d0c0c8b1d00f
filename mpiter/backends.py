"""Who runs the fetches: processes, threads, or the caller.  Each backend makes a Pool; that is all the engine asks.

Runs in the consumer process, in the caller's thread.  A backend says whether its workers share memory with us and
whether they are in this very process; a backend of one's own needs the three members of ``Backend``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import sys
import warnings
from collections.abc import Callable
from operator import is_
from typing import Any, Protocol

from . import ship
from .envelope import dumps
from .errors import OptionError
from .limits import look_around
from .pool import Broken, WatchedPool, WatchedThreads
from .starting import hidden_main, own_server


class Pool(Protocol):
    """What the engine needs of whoever runs the fetches."""

    @property
    def map_async(self) -> Callable[..., Any]: ...
    @property
    def pids(self) -> tuple[int, ...]: ...  # of worker processes on this machine
    def fallen(self) -> dict[int, int]: ...  # exit codes of the workers that have ended, by number
    def dispose(self, timeout: float = ...) -> bool: ...


class Launch(Protocol):
    """One crew about to start: the packed dataset, and the Pool that goes with it."""

    cargo: Any

    def dumps(self, value: Any) -> bytes: ...
    def carries(self, cargo: Any) -> bool: ...  # is it what is on the way, unchanged?
    def pool(self, workers: int, initializer: Any, initargs: tuple[Any, ...], broken: Broken) -> Pool: ...
    def close(self) -> None: ...


class Backend(Protocol):
    """Makes Pools, and knows how things get to their workers."""

    name: str
    shares_memory: bool  # with this process: shared slots can be used
    in_process: bool  # the workers are threads of this very process, or the caller

    def launch(self, cargo: tuple[Any, Any]) -> Launch: ...


class Process:
    """Worker processes on this machine.

    ``start_method`` is "fork", "forkserver" or "spawn".  Left unset it is forkserver on Linux and spawn elsewhere, on
    every Python; a dataset that cannot be pickled at all is then forked instead, with a warning.
    """

    name, shares_memory, in_process = "process", True, False

    def __init__(self, start_method: str | None = None) -> None:
        known = multiprocessing.get_all_start_methods()
        if start_method is not None and start_method not in known:
            raise OptionError(f"start_method={start_method!r} is not available here; use one of {', '.join(known)}.")
        self.start_method = start_method

    def __repr__(self) -> str:
        return f"Process(start_method={self.start_method!r})"

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        """Pack the dataset for the journey, by the first way that works."""
        method = self.start_method or ("forkserver" if sys.platform == "linux" else "spawn")
        if method == "fork":
            return _Processes(ship.Kept(cargo), method)
        try:
            return _Processes(ship.Shipment(cargo), method)
        except MemoryError:
            raise  # no way of packing it would be smaller
        except Exception as error:
            failure = error
        try:  # what cannot travel by value may be importable from the caller's script
            return _Processes(ship.Shipment(cargo, by_value=False), method, imports_main=True)
        except Exception:
            explained = ship.explain(cargo[0], "dataset", failure)
        if self.start_method or "fork" not in multiprocessing.get_all_start_methods() or _cuda_is_up():
            raise explained from failure
        warnings.warn(f"{explained} Forking the workers instead.", RuntimeWarning, stacklevel=2)
        return _Processes(ship.Kept(cargo), "fork")


class _Processes:
    """Processes about to start by one method."""

    def __init__(self, cargo: ship.Kept | ship.Shipment, method: str, imports_main: bool = False) -> None:
        self.cargo, self._method, self._imports_main = cargo, method, imports_main

    def dumps(self, value: Any) -> bytes:
        """Forked workers know our ``__main__``, as do those that import it; others get what they need by value."""
        if self._method == "fork" or self._imports_main:
            return dumps(value)
        return ship.by_value(value)

    def carries(self, cargo: Any) -> bool:
        return self.cargo.holds(cargo)

    def pool(self, workers: int, initializer: Any, initargs: tuple[Any, ...], broken: Broken) -> Pool:
        if self._method == "fork":
            look_around()
        with own_server(), contextlib.nullcontext() if self._imports_main else hidden_main():
            return WatchedPool(self._method, workers, initializer, initargs, broken)

    def close(self) -> None:
        self.cargo.close()


def _cuda_is_up() -> bool:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return bool(cuda is not None and cuda.is_available() and cuda.is_initialized())


class Thread:
    """Threads of this process: for decoders that release the GIL, and for free-threaded Python."""

    name, shares_memory, in_process = "thread", True, True

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        return _InProcess(cargo, WatchedThreads)


class Serial:
    """The caller itself: no thread, no process, ordinary tracebacks and debuggers."""

    name, shares_memory, in_process = "serial", True, True

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        return _InProcess(cargo, Nobody)


class _InProcess:
    """What threads and the caller have in common: nothing has to travel."""

    def __init__(self, cargo: tuple[Any, Any], make_pool: Callable[..., Pool]) -> None:
        self.cargo = ship.Kept(cargo)
        self.pool = make_pool

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def carries(self, cargo: Any) -> bool:
        """The very objects, however they have changed."""
        return all(map(is_, self.cargo.open(), cargo))

    def close(self) -> None: ...


class Nobody:
    """A Pool of no workers: whoever submits does the work."""

    pids: tuple[int, ...] = ()

    def __init__(self, workers: int, initializer: Any, initargs: tuple[Any, ...], broken: Broken) -> None:
        initializer(*initargs)

    def fallen(self) -> dict[int, int]:
        return {}

    def map_async(
        self, func: Any, iterable: Any, chunksize: Any = None, callback: Any = None, error_callback: Any = None
    ) -> None:
        callback([func(item) for item in iterable])

    def dispose(self, timeout: float = 5.0) -> bool:
        return True


_BY_NAME: dict[str, Callable[[], Backend]] = {"process": Process, "thread": Thread, "serial": Serial}


def backend_for(backend: Any) -> Backend:
    """The backend that the ``backend=`` argument asks for."""
    if isinstance(backend, str) and backend in _BY_NAME:
        return _BY_NAME[backend]()
    if isinstance(backend, (str, type)) or not hasattr(backend, "launch"):
        names = ", ".join(map(repr, _BY_NAME))
        raise OptionError(f"backend={backend!r:.60} is unknown; use {names} or an object such as mpiter.Process().")
    return backend  # type: ignore[no-any-return]
