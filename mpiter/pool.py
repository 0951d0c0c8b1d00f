"""A ``multiprocessing.Pool`` that we can watch and end: our own context around the stock Pool.

Runs in the consumer process.  The context records every process that the Pool makes and gives it placeholders once
all have been made, so that the Pool never respawns behind our back.  ``dispose`` ends a Pool in whatever state it is,
within a deadline: workers are killed first, then the locks that a dead worker may have held are healed, then the
Pool's threads are let go.  It uses names that are private to the Pool, checked by a test on every Python; where they
are missing it falls back on ``terminate`` in a thread of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import forkserver as mp_forkserver
from multiprocessing import pool as mp_pool
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker, spawn
from typing import Any

from .worker import NAME

_LOCK_PATIENCE = 0.1  # seconds; a lock held longer belongs to a dead worker


class _NoWorker:
    """What the Pool gets in place of a replacement worker."""

    name, daemon, exitcode, pid = "mpiter-none", True, None, None

    def start(self) -> None: ...
    def terminate(self) -> None: ...
    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool:
        return False


_ours: weakref.WeakSet[Any] = weakref.WeakSet()  # worker processes that this process has started


def _disown() -> None:
    """In a fork of the consumer: its workers are not the child's, whose normal exit would terminate them."""
    children: set[Any] = getattr(mp_process, "_children", set())
    children.difference_update(set(_ours))
    _ours.clear()
    server = getattr(mp_forkserver, "_forkserver", None)
    for name in ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid"):  # the parent's; ours is to start
        if hasattr(server, name):
            setattr(server, name, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown)


class _NobodyToNotify:
    """Takes the place of the queue through which a Pool wakes its worker handler whenever no task is left."""

    def put(self, _: Any) -> None: ...


class _QuietPool(mp_pool.Pool):
    """A Pool whose worker handler sleeps until the end.

    The stock one also watches the pipe of results: at each it wakes, looks after workers that need no looking after,
    and spins until the result has been read: 0.4 ms of processor time a task, more than all else together.
    """

    def _get_sentinels(self) -> list[Any]:
        return [self._change_notifier._reader]  # type: ignore[attr-defined]


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
    """A start method's context that remembers its processes."""

    def __init__(self, method: str, workers: int) -> None:
        self._base = multiprocessing.get_context(method)
        self._workers = workers
        self.processes: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def Process(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.processes) >= self._workers:
            return _NoWorker()
        process = self._base.Process(*args, **kwargs)  # type: ignore[attr-defined]
        process.name = f"{NAME}{len(self.processes)}"
        self.processes.append(process)
        _ours.add(process)
        return process


_starting = threading.RLock()


@contextlib.contextmanager
def hidden_main() -> Iterator[None]:
    """Start workers without importing the caller's script: what it defines travels by value."""
    with _starting:
        genuine, here = spawn.get_preparation_data, threading.get_ident()

        def without_main(name: str) -> dict[str, Any]:
            data = genuine(name)
            if threading.get_ident() == here:
                for key in ("init_main_from_name", "init_main_from_path"):
                    data.pop(key, None)
            return data

        spawn.get_preparation_data = without_main
        try:
            yield
        finally:
            spawn.get_preparation_data = genuine


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back while workers start: before they ignore it themselves they inherit our mask and handler.

    The mask alone would not do: another thread (of a numerical library, say) may take the signal for us.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    if callable(handler):
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # what is pending comes now, to the handler above
        if callable(handler):
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def _start_tracker() -> None:
    """multiprocessing's resource tracker lets interrupts through when it starts: not in the midst of our workers."""
    if not hasattr(signal, "pthread_sigmask"):
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WatchedThreads:
    """A ThreadPool whose threads we know; one that is stuck in a dataset is abandoned at the end."""

    def __init__(self, workers: int, initializer: Any, initargs: tuple[Any, ...]) -> None:
        self._threads: list[threading.Thread] = []

        def begin(*args: Any) -> None:
            self._threads.append(threading.current_thread())
            initializer(*args)

        self._pool = mp_pool.ThreadPool(workers, begin, initargs)
        self.map_async = self._pool.map_async
        _quieten(self._pool)

    def dispose(self, timeout: float = 5.0) -> bool:
        end = time.monotonic() + timeout
        self._pool.terminate()
        for thread in self._threads:
            thread.join(_left(end))
        return not any(thread.is_alive() for thread in self._threads)


class WatchedPool:
    """The Pool, its processes, and their orderly end."""

    def __init__(self, method: str, workers: int, initializer: Any, initargs: tuple[Any, ...]) -> None:
        self._context = WatchedContext(method, workers)
        _start_tracker()
        self._pool = _QuietPool(workers, initializer, initargs, context=self._context)
        self.map_async = self._pool.map_async
        _quieten(self._pool)
        _widen_pipes(self._pool)

    @property
    def processes(self) -> list[Any]:
        return self._context.processes

    def dispose(self, timeout: float = 5.0) -> bool:
        """End all workers; False if one would not die in time (it is then left to itself)."""
        try:
            return _dispose(self._pool, self._context.processes, time.monotonic() + timeout)
        except AttributeError:
            return _dispose_publicly(self._pool, self._context.processes, timeout)


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
    for lock in (pool._inqueue._rlock, pool._outqueue._wlock):
        if lock is not None:  # no live worker owns it: take it, or give up a dead one's hold
            lock.acquire(timeout=_LOCK_PATIENCE)
            lock.release()
    pool._taskqueue.put(None)
    _drain(pool._inqueue._reader, pool._task_handler, end)
    pool._outqueue._writer.close()  # end of file frees the result handler, even in mid-message
    pool._result_handler.join(_left(end))
    for queue in (pool._inqueue, pool._outqueue, pool._change_notifier):
        for connection in (queue._reader, queue._writer):
            if not connection.closed:
                connection.close()
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
    return all(process.exitcode is not None for process in processes)


def _drain(reader: Any, task_handler: threading.Thread, end: float) -> None:
    """Read what nobody will, so that a blocked task handler gets out."""
    while task_handler.is_alive() and time.monotonic() < end:
        if reader.poll(0.005):
            os.read(reader.fileno(), 1 << 16)


def _dispose_publicly(pool: Any, processes: list[Any], timeout: float) -> bool:
    """The stock way, which works as long as no worker died with a lock in hand."""
    ending = threading.Thread(target=pool.terminate, name="mpiter-ending", daemon=True)
    ending.start()
    ending.join(timeout)
    for process in processes:
        with contextlib.suppress(ValueError):
            process.kill()
    return not ending.is_alive()


def _left(end: float) -> float:
    return max(0.0, end - time.monotonic())
