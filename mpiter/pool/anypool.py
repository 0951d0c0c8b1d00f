"""Any other Pool, made to look like ours: ``multiprocessing.Pool``, a ``ThreadPool``, or the caller himself.

Whoever has ``map_async`` with both callbacks, and ``terminate``, will do; the callbacks may come in any thread, and are
passed on by ``wait``.  Of such a Pool nothing is known of one worker alone: it is ended and made anew as a whole, and
what it promises when a worker dies is its own affair (the stock Pool waits for ever for what that had in hand).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import partial
from multiprocessing import connection
from multiprocessing.pool import ThreadPool
from typing import Any

from ..bell import Bell
from ..worker.board import Line
from .member import Exit, State
from .pool import MOST_OUT

_FOR_THE_END_S = 2.0  # that a Pool may take to end, when it has to be made anew
_FOR_ANSWERS_S = 0.5  # that its workers have for what they have in hand


class AnyPool:
    """``make(workers, initializer, initargs)`` gives the Pool."""

    shares_fate = True  # who ends a worker ends all

    def __init__(
        self,
        make: Callable[..., Any],
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
        *,
        bell: Bell,
        ended: Callable[[Exit], object],
        destinations: Any = None,
    ) -> None:
        self._make = partial(make, workers, initializer, initargs)
        self._workers, self._bell, self._tell = workers, bell, ended
        self._arrived: deque[tuple[int, Callable[[Any], object], Any]] = deque()
        self._out: dict[int, list[Any]] = {}
        self._waiting: list[tuple[Any, ...]] = []  # what was asked for between two Pools
        self._numbers = itertools.count()
        self._pool = self._make()
        self._has_ended = False

    def map_async(
        self,
        func: Callable[[Any], Any],
        iterable: Any,
        chunksize: int | None = None,
        callback: Any = None,
        error_callback: Any = None,
    ) -> None:
        """As it is; the callbacks are called by ``wait``."""
        number, items = next(self._numbers), list(iterable)
        self._out[number] = items
        answered, failed = partial(self._post, number, callback), partial(self._post, number, error_callback)
        asked = func, items, chunksize, answered, failed
        if self._has_ended:
            self._waiting.append(asked)
            return
        try:
            self._pool.map_async(*asked)
        except BaseException:  # Ctrl-C in the caller's own thread, most likely
            del self._out[number]
            raise

    def _post(self, number: int, callback: Callable[[Any], object], value: Any) -> None:
        """In whichever thread the Pool calls back."""
        self._arrived.append((number, callback, value))
        self._bell.ring()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until something happens, and pass it on."""
        if not self._arrived:
            connection.wait([self._bell.fileno()], timeout)
        self._bell.hush()
        while self._arrived:
            number, callback, value = self._arrived.popleft()
            if self._out.pop(number, None) is not None:
                callback(value)

    @property
    def vacancies(self) -> int:
        return MOST_OUT * self._workers - len(self._out)

    @property
    def has_idle_worker(self) -> bool:
        return len(self._out) < self._workers

    @property
    def pids(self) -> dict[int, int]:
        """Nobody says."""
        return {}

    def out(self, number: int) -> int:
        """Tasks that are with somebody."""
        return len(self._out)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """Who works; or everybody, if something is out and nobody does."""
        working = {number for number, line in lines.items() if line.active}
        return working or (set(lines) if self._out else working)

    def start(self, number: int) -> None:
        """Make the Pool anew."""
        self._pool = self._make()
        self._has_ended = False
        while self._waiting:
            self._pool.map_async(*self._waiting.pop(0))

    def retire(self, number: int) -> None:
        """Its workers stay."""

    def kill(self, number: int) -> None:
        """End the Pool, since this worker has to go."""
        self._has_ended = True
        is_gone = _end(self._pool, _FOR_THE_END_S)
        items = tuple([item for some in self._out.values() for item in some])
        self._out.clear()
        self._tell(Exit(number, 0, 0 if is_gone else None, State.READY, items))

    def abandon(self, number: int) -> None:
        """As ``kill`` has done already."""

    def dispose(self, timeout: float = 5.0) -> bool:
        self._out.clear()
        return _end(self._pool, timeout)


def _end(pool: Any, timeout: float) -> bool:
    """End a Pool, which may never come back from it; True if all is gone.

    Its workers may answer first: the stock Pool kills them, and one that is killed while it answers keeps the lock
    which the Pool needs to end.
    """
    end = time.monotonic() + timeout
    if isinstance(pool, Threads):
        return pool.end(end)
    if hasattr(pool, "close") and hasattr(pool, "join"):
        pool.close()
        _comes_back(pool.join, min(_FOR_ANSWERS_S, timeout))
    return _comes_back(pool.terminate, end - time.monotonic())


def _comes_back(step: Callable[[], object], timeout: float) -> bool:
    thread = threading.Thread(target=step, name="mpiter-ending", daemon=True)
    thread.start()
    thread.join(max(0.0, timeout))
    return not thread.is_alive()


class Threads(ThreadPool):
    """A ThreadPool that knows its threads: one that is stuck in a dataset is left to itself."""

    def __init__(self, workers: int, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        self._threads: list[threading.Thread] = []
        super().__init__(workers, self._begin, (initializer, initargs))

    def _begin(self, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        self._threads.append(threading.current_thread())
        initializer(*initargs)

    def end(self, end: float) -> bool:
        self.terminate()
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class Nobody:
    """A Pool of no workers: whoever submits does the work."""

    def __init__(self, workers: int, initializer: Callable[..., object], initargs: tuple[Any, ...]) -> None:
        initializer(*initargs)

    def map_async(self, func: Any, iterable: Any, chunksize: Any, callback: Any, error_callback: Any) -> None:
        callback([func(item) for item in iterable])

    def terminate(self) -> None: ...
