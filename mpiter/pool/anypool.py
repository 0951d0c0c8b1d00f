"""Any other Pool, made to look like ours: ``multiprocessing.Pool``, say, or a ``ThreadPool``.

Whoever has ``map_async`` with both callbacks, and ``terminate``, will do; the callbacks may come in any thread, and are
passed on by ``wait``.  Of such a Pool nothing is known of one worker alone: it is ended and made anew as a whole, and
what it promises when a worker dies is its own affair (the stock Pool waits for ever for what that had in hand).
"""

from __future__ import annotations

import itertools
import math
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
        self._width = workers  # of them that may be at work
        self._arrived: deque[tuple[int, Callable[[Any], object], Any]] = deque()
        self._out: dict[int, list[Any]] = {}
        self._waiting: deque[tuple[int, tuple[Any, ...]]] = deque()  # for a Pool, or until one more may be at work
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
        answered, failed = partial(self._post, number, callback), partial(self._post, number, error_callback)
        self._waiting.append((number, (func, items, chunksize, answered, failed)))
        self._hand_on()

    def limit(self, width: int) -> None:
        """From now on so many of its workers may be at work; the others stay, idle."""
        self._width = width
        self._hand_on()

    def _hand_on(self) -> None:
        """Give the Pool what it may have: it hands that to all of its workers, so no more than may be at work."""
        most = math.inf if self._width == self._workers else self._width
        while self._waiting and not self._has_ended and len(self._out) < most:
            number, asked = self._waiting.popleft()
            self._out[number] = asked[1]
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
                self._hand_on()
                callback(value)

    @property
    def vacancies(self) -> int:
        return MOST_OUT * self._width - self.out(0)

    @property
    def has_idle_worker(self) -> bool:
        return self.out(0) < self._width

    @property
    def pids(self) -> dict[int, int]:
        """Nobody says."""
        return {}

    def out(self, number: int) -> int:
        """Tasks that are with somebody, or wait here."""
        return len(self._out) + len(self._waiting)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """Who works; or everybody, if something is out and nobody does."""
        working = {number for number, line in lines.items() if line.active}
        return working or (set(lines) if self._out else working)

    def start(self, number: int) -> None:
        """Make the Pool anew."""
        self._pool = self._make()
        self._has_ended = False
        self._hand_on()

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
        self._waiting.clear()
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
        comes_back(pool.join, min(_FOR_ANSWERS_S, timeout))
    return comes_back(pool.terminate, end - time.monotonic())


def comes_back(step: Callable[[], object], timeout: float) -> bool:
    thread = threading.Thread(target=step, name="mpiter-ending", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # from Python 3.12 on none starts while the interpreter ends, which ends the stock Pool itself
        return False
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
