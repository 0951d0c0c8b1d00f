"""A ``multiprocessing.Pool`` that we can watch and end: our own context around the stock Pool.

Runs in the consumer process.  The context records every process that the Pool makes and gives it placeholders once
all have been made: the Pool never respawns behind our back, and its asking for a replacement is how we hear of a death.
``dispose`` ends a Pool in whatever state it is, within a deadline: workers are killed first, then the Pool's threads
are let go.  It uses names that are private to the Pool, checked by a test on every Python; where they are missing it
falls back on ``terminate`` in a thread of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, queues
from multiprocessing import pool as mp_pool
from pathlib import Path
from typing import Any

from . import recordlock, starting
from .breakage import VANISHED
from .worker import NAME

Broken = Callable[[Exception | None], None]  # told, in any thread, that a worker has ended or an answer can't be read


class _NoWorker:
    """What the Pool gets in place of a replacement worker."""

    name, daemon, exitcode, pid = "mpiter-none", True, None, None

    def start(self) -> None: ...
    def terminate(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool:
        return False


class _NobodyToNotify:
    """Takes the place of the queue through which a Pool wakes its worker handler whenever no task is left."""

    def put(self, _: Any) -> None: ...


class _QuietPool(mp_pool.Pool):
    """A Pool whose worker handler sleeps until a worker dies, and whose result handler says what it dies of.

    The stock worker handler also watches the pipe of results: at each it wakes, looks after workers that need none of
    it, and spins until the result has been read: 0.4 ms of processor time a task, more than all else together.
    """

    _ctx: Any
    _quick_get: Any

    def _get_sentinels(self) -> list[Any]:
        return [self._change_notifier._reader]  # type: ignore[attr-defined]

    def _setup_queues(self) -> None:
        super()._setup_queues()  # type: ignore[misc]
        context, genuine = self._ctx, self._quick_get

        def get() -> Any:
            try:
                return genuine()
            except (OSError, EOFError):
                raise  # the end
            except Exception as error:  # no memory for it, most likely
                context.broken(error)
                raise EOFError from error

        self._quick_get = get


def _quieten(pool: Any) -> None:
    with contextlib.suppress(AttributeError):
        pool._cache.notifier = _NobodyToNotify()


def _widen_pipes(pool: Any) -> None:
    """A megabyte of pipe: the stock reader allocates all that remains of a message for each pipeful that it reads."""
    with contextlib.suppress(ImportError, AttributeError, OSError):  # not on Linux, or no pipe memory left to us
        import fcntl

        for queue in (pool._inqueue, pool._outqueue):
            fcntl.fcntl(queue._writer.fileno(), fcntl.F_SETPIPE_SZ, 1 << 20)


class WatchedContext:
    """A start method's context that remembers its processes, and whose queues outlive a worker with a lock in hand."""

    def __init__(self, method: str, workers: int, broken: Broken) -> None:
        self._base = multiprocessing.get_context(method)
        self._workers = workers
        self.broken = broken
        self._locks = recordlock.LockFile() if recordlock.AVAILABLE else None
        self.processes: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def SimpleQueue(self) -> Any:
        return queues.SimpleQueue(ctx=self)

    def Lock(self) -> Any:
        return self._base.Lock() if self._locks is None else self._locks.new_lock()

    def Process(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.processes) >= self._workers:
            self.broken(None)
            return _NoWorker()
        process = self._base.Process(*args, **kwargs)  # type: ignore[attr-defined]
        process.name = f"{NAME}{len(self.processes)}"
        self.processes.append(process)
        starting.ours.add(process)
        return process

    def close(self) -> None:
        if self._locks is not None:
            self._locks.close()


class WatchedThreads:
    """A ThreadPool whose threads we know; one that is stuck in a dataset is abandoned at the end."""

    pids: tuple[int, ...] = ()

    def __init__(self, workers: int, initializer: Any, initargs: tuple[Any, ...], broken: Broken) -> None:
        self._threads: list[threading.Thread] = []

        def begin(*args: Any) -> None:
            self._threads.append(threading.current_thread())
            initializer(*args)

        self._pool = mp_pool.ThreadPool(workers, begin, initargs)
        self.map_async = self._pool.map_async
        _quieten(self._pool)

    def fallen(self) -> dict[int, int]:
        return {}  # threads do not die

    def dispose(self, timeout: float = 5.0) -> bool:
        end = time.monotonic() + timeout
        self._pool.terminate()
        for thread in self._threads:
            thread.join(_left(end))
        return not any(thread.is_alive() for thread in self._threads)


class WatchedPool:
    """The Pool, its processes, and their orderly end."""

    def __init__(self, method: str, workers: int, initializer: Any, initargs: tuple[Any, ...], broken: Broken) -> None:
        self._context = WatchedContext(method, workers, broken)
        try:
            starting.start_tracker()
            self._pool = _QuietPool(workers, initializer, initargs, context=self._context)
        except BaseException:
            _kill([process for process in self.processes if process.pid is not None], time.monotonic() + 1.0)
            self._context.close()
            raise
        self.map_async = self._pool.map_async
        self.pids = tuple(process.pid for process in self.processes)
        _quieten(self._pool)
        _widen_pipes(self._pool)

    @property
    def processes(self) -> list[Any]:
        return self._context.processes

    def fallen(self) -> dict[int, int]:
        """The exit codes of the workers that have ended, by number."""
        codes = {number: process.exitcode for number, process in enumerate(self.processes)}
        return {number: code for number, code in codes.items() if code is not None}

    def dispose(self, timeout: float = 5.0) -> bool:
        """End all workers; False if one would not die in time (it is then left to itself)."""
        try:
            ended = _dispose(self._pool, self.processes, time.monotonic() + timeout)
        except Exception:  # a private name that this Python hasn't, most likely; whatever it is, they must go
            ended = _dispose_publicly(self._pool, self.processes, timeout)
        if ended:
            self._context.close()
        else:
            starting.leave_behind(self.processes)
        return ended


def _dispose(pool: Any, processes: list[Any], end: float) -> bool:
    handlers = pool._worker_handler, pool._task_handler, pool._result_handler
    pool._terminate.cancel()  # nothing is left to hang at interpreter exit
    pool._state = mp_pool.TERMINATE
    for handler in handlers:
        handler._state = mp_pool.TERMINATE
    pool._change_notifier.put(None)
    pool._worker_handler.join(_left(end))
    if not _kill(processes, end):
        return False
    pool._taskqueue.put(None)
    nobody_reads = not pool._result_handler.is_alive()
    readers = [pool._inqueue._reader, *([pool._outqueue._reader] if nobody_reads else [])]
    _drain(readers, pool._task_handler, end)
    pool._outqueue._writer.close()  # end of file frees the result handler, even in mid-message
    pool._result_handler.join(_left(end))
    for queue in (pool._inqueue, pool._outqueue, pool._change_notifier):
        for pipe in (queue._reader, queue._writer):
            if not pipe.closed:
                pipe.close()
    pool._cache.clear()
    for process in processes:
        process.close()
    processes.clear()
    return True


def _kill(processes: list[Any], end: float) -> bool:
    for process in processes:
        if process.exitcode is None:
            process.kill()
    for process in processes:
        process.join(_left(end))
    vanished = [process.pid for process in processes if process.exitcode == VANISHED]
    return all(process.exitcode is not None for process in processes) and _kill_by_number(vanished, end)


def _kill_by_number(pids: list[int], end: float) -> bool:
    """Workers whose fork server is gone: nobody tells us of their end, so we look."""
    for pid in filter(_is_of_a_fork_server, pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(map(_is_of_a_fork_server, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def _is_of_a_fork_server(pid: int) -> bool:
    """Does it live, and is it what we think, rather than somebody who has got its number since?"""
    try:
        return b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _drain(readers: list[Any], task_handler: threading.Thread, end: float) -> None:
    """Read what nobody will, so that a blocked task handler gets out."""
    while task_handler.is_alive() and time.monotonic() < end:
        for reader in connection.wait(readers, 0.005):
            os.read(reader.fileno(), 1 << 16)  # type: ignore[union-attr]


def _dispose_publicly(pool: Any, processes: list[Any], timeout: float) -> bool:
    """The stock way, which works as long as no worker died in the middle of a message."""
    ending = threading.Thread(target=pool.terminate, name="mpiter-ending", daemon=True)
    ending.start()
    ending.join(timeout)
    for process in processes:
        with contextlib.suppress(ValueError):
            process.kill()
    return not ending.is_alive()


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())
