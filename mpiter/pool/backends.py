"""Who runs the fetches: processes, threads, or the caller.  Each backend with workers makes a Pool; the engine asks no
more.

Runs in the consumer process, in the caller's thread.  A backend says whether its workers share memory with us and
whether they are in this very process; a backend of one's own needs the members of ``Backend``.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import is_
from typing import Any, ClassVar, Protocol

from .. import script
from ..datasets import ship
from ..errors import OptionError, WorkerStartError, warn
from ..samples.envelope import dumps
from ..samples.tensors import torch_with
from ..worker.board import Line
from .anypool import AnyPool
from .pool import Pool
from .starting import as_workers_start, start_server
from .threads import Threads


class Workers(Protocol):
    """What the engine needs of whoever runs the fetches: our own Pool, or any other by way of ``AnyPool``."""

    shares_fate: bool  # the end of a worker is the end of all

    def map_async(self, func: Callable[[Any], Any], blocks: Iterable[Any]) -> None: ...
    def wait(self, timeout: float | None = ...) -> list[Any]: ...  # Done, Lost and Died
    def start(self, number: int) -> None: ...
    def retire(self, number: int) -> None: ...
    def kill(self, number: int) -> None: ...
    def abandon(self, number: int) -> None: ...  # one that was killed and would not die
    def close(self, timeout: float = ...) -> bool: ...
    def vacancies(self, most: int) -> int: ...
    def out(self, number: int) -> int: ...
    def busy(self, lines: Mapping[int, Line]) -> Collection[int]: ...  # those who have something to do
    @property
    def pids(self) -> dict[int, int]: ...  # of worker processes on this machine, by number


class Launch(Protocol):
    """One crew about to start: the packed dataset, and the Pool that goes with it."""

    cargo: Any
    grows: bool  # do workers come and go one by one?

    def dumps(self, value: Any) -> bytes: ...
    def carries(self, cargo: Any) -> bool: ...  # is it what is on the way, unchanged?
    def pool(self, workers: int, initializer: Any, initargs: tuple[Any, ...], **calls: Any) -> Workers: ...
    def close(self) -> None: ...


class Backend(Protocol):
    """Makes Pools, and knows how things get to their workers.

    It may say from how many seconds on (``dear_s``) a batch is split over the workers.
    """

    name: str
    shares_memory: bool  # with this process: shared slots can be used; else its processes are others' to start and end
    in_process: bool  # the workers are threads of this very process

    def launch(self, cargo: tuple[Any, Any]) -> Launch: ...


class Process:
    """Worker processes on this machine.

    ``start_method`` is "fork", "forkserver" or "spawn".  Left unset it is forkserver on Linux and spawn elsewhere, on
    every Python; a dataset that cannot be pickled at all is then forked instead, with a warning.

    ``pool`` makes another Pool than ours, ``pool(workers, initializer, initargs)``: ``multiprocessing.Pool`` itself,
    say, for comparison; its start method is its own.  It promises what it promises: of a worker that is killed, the
    stock Pool tells nobody, and only ``sample_timeout`` goes on from there.

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
        if pool is not None and not callable(pool):
            raise OptionError(f"pool={pool!r:.60} cannot be called; pass what makes a Pool, not a Pool.")
        self.pool = pool
        known = multiprocessing.get_all_start_methods()
        if start_method is not None and start_method not in known:
            raise OptionError(f"start_method={start_method!r} is not available here; use one of {', '.join(known)}.")
        self.start_method = start_method

    def __repr__(self) -> str:
        return f"Process(start_method={self.start_method!r})" if self.pool is None else f"Process(pool={self.pool!r})"

    def prepare(self) -> None:
        """Start what takes time, if we may and there is anything: workers come from it later."""
        if self.pool is None and self._method == "forkserver" and not multiprocessing.current_process().daemon:
            with contextlib.suppress(OSError, RuntimeError):  # it will be missed, and said so, when workers start
                start_server()

    @property
    def _method(self) -> str:
        return self.start_method or ("forkserver" if sys.platform == "linux" else "spawn")

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        """Pack the dataset for the journey, by the first way that works."""
        if multiprocessing.current_process().daemon:
            raise WorkerStartError(
                "this is a daemonic process (a worker of multiprocessing.Pool, say, or of another loader), which may "
                "not have children. Pass n_processes=0 (num_workers=0) or backend='thread', or make the process with "
                "daemon=False."
            )
        method = self._method
        if method == "fork":
            return _Processes(ship.Kept(cargo), method)
        try:
            return _Processes(ship.Shipment(cargo), method, self.pool)
        except (MemoryError, Warning):
            raise  # no way of packing it would be smaller, and who makes errors of warnings is to have them
        except Exception as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # it isn't the dataset's
            failure = error
        with contextlib.suppress(Exception):  # what cannot travel by value may be importable from the caller's script
            if script.is_guarded():
                return _Processes(ship.Shipment(cargo, by_value=False), method, self.pool, imports_main=True)
        explained = ship.explain(cargo[0], "dataset", failure)
        may_fork = not (self.start_method or explained.is_handle or _cuda_is_up())
        if not may_fork or "fork" not in multiprocessing.get_all_start_methods():
            raise explained from failure
        warn(f"{explained} Forking the workers instead.")
        return _Processes(ship.Kept(cargo), "fork")


class _Processes:
    """Processes about to start by one method."""

    def __init__(
        self, cargo: ship.Kept | ship.Shipment, method: str, make: Any = None, imports_main: bool = False
    ) -> None:
        self.cargo, self._method, self._make, self._imports_main = cargo, method, make, imports_main
        self.grows = make is None

    def dumps(self, value: Any) -> bytes:
        """Forked workers know our ``__main__``, as do those that import it; others get what they need by value."""
        if self._method == "fork" or self._imports_main:
            return dumps(value)
        return ship.by_value(value)

    def carries(self, cargo: Any) -> bool:
        return self.cargo.holds(cargo)

    def pool(self, workers: int, initializer: Any, initargs: tuple[Any, ...], **calls: Any) -> Workers:
        if self._make is None:
            context = multiprocessing.get_context(self._method)
            return _Pool(self._imports_main, workers, initializer, initargs, context=context, **calls)
        return AnyPool(self._start, workers, initializer, initargs, **calls)

    def _start(self, *args: Any) -> Any:
        with as_workers_start(self._imports_main):
            return self._make(*args)

    def close(self) -> None:
        self.cargo.close()


class _Pool(Pool):
    """Our own, whose processes start as ``starting`` has it."""

    def __init__(self, imports_main: bool, *args: Any, **kwargs: Any) -> None:
        self._imports_main = imports_main
        super().__init__(*args, **kwargs)

    def start(self, number: int) -> None:
        with as_workers_start(self._imports_main):
            super().start(number)


def _cuda_is_up() -> bool:
    torch = torch_with("cuda")
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized())


class Thread:
    """Threads of this process: for decoders that release the GIL, and for free-threaded Python.

    >>> from mpiter import batches
    >>> list(batches([10, 20, 30], 2, n_processes=2, shuffle=False, backend=Thread()))
    [array([10, 20]), array([30])]
    """

    name, shares_memory, in_process = "thread", True, True

    def launch(self, cargo: tuple[Any, Any]) -> Launch:
        return _InProcess(cargo)


class Serial:
    """The caller itself: no thread, no process, ordinary tracebacks and debuggers.

    >>> from mpiter import batches
    >>> list(batches([10, 20, 30], 2, shuffle=False, backend=Serial()))
    [array([10, 20]), array([30])]
    """

    name, shares_memory, in_process = "serial", True, True


class _InProcess:
    """Threads: nothing has to travel."""

    grows = True
    pool: ClassVar[Any] = Threads

    def __init__(self, cargo: tuple[Any, Any]) -> None:
        self.cargo = ship.Kept(cargo)

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def carries(self, cargo: Any) -> bool:
        """The very objects, however they have changed."""
        return all(map(is_, self.cargo.open(), cargo))

    def close(self) -> None: ...


# Wings add theirs.
BY_NAME: dict[str, Callable[[], Backend | Serial]] = {"process": Process, "thread": Thread, "serial": Serial}


def backend_for(backend: Any) -> Backend | Serial:
    """The backend that the ``backend=`` argument asks for."""
    if isinstance(backend, str) and backend in BY_NAME:
        return BY_NAME[backend]()
    if isinstance(backend, (str, type)) or not (hasattr(backend, "launch") or isinstance(backend, Serial)):
        names = ", ".join(map(repr, BY_NAME))
        raise OptionError(f"backend={backend!r:.60} is unknown; use {names} or an object such as mpiter.Process().")
    return backend  # type: ignore[no-any-return]
