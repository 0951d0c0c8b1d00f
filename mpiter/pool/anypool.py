"""Any other Pool, made to look like ours: ``multiprocessing.Pool``, say.

Whatever has ``map_async`` with both callbacks, and ``terminate``, will do; the callbacks may come in any thread, and
leave word for ``wait``.  Of such a Pool nothing is known of one worker alone: it is ended and made anew as a whole, and
what it promises when a worker dies is its own affair (the stock Pool waits for ever for what that had in hand).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from ..bell import Bell
from ..worker.block import Block, Lost
from ..worker.board import Line
from .member import Died, State

_FOR_THE_END_S = 2.0  # that a Pool may take to end, when it has to be made anew
_FOR_ANSWERS_S = 0.5  # that its workers have for what they have in hand


class AnyPool:
    """``make(workers, initializer, initargs)`` gives the Pool."""

    shares_fate = True  # the end of a worker is the end of all

    def __init__(
        self,
        make: Callable[..., Any],
        workers: int,
        initializer: Callable[..., object],
        initargs: tuple[Any, ...],
        *,
        bell: Bell,
    ) -> None:
        self._make = partial(make, workers, initializer, initargs)
        self._workers, self._bell = workers, bell
        self._width = workers  # of them that may be at work
        self._arrived: deque[tuple[Block, Any]] = deque()  # a block, and what came of it
        self._events: list[Any] = []
        self._out: dict[int, Block] = {}
        self._pool: Any = self._make()  # None: it has been ended, and is made anew

    def map_async(self, func: Callable[[Any], Any], blocks: Iterable[Block]) -> None:
        """Have the Pool call ``func`` with each block; ``wait`` gives what comes of it."""
        for block in blocks:
            self._out[block.number] = block
            post = partial(self._post, block)
            try:
                self._pool.map_async(func, [block], 1, post, post)
            except BaseException:
                del self._out[block.number]
                raise

    def limit(self, width: int) -> None:
        """From now on so many of its workers may be at work; the others stay, idle."""
        self._width = width

    def _post(self, block: Block, value: Any) -> None:
        """Leave word, in whichever thread the Pool calls back: of a list of one answer, or of an error."""
        self._arrived.append((block, value))
        self._bell.ring()

    def wait(self, timeout: float | None = None) -> list[Any]:
        """Wait until something happens: answers, Lost and Died, or nothing of these."""
        self._bell.wait(timeout, at_once=bool(self._arrived or self._events))
        events, self._events = self._events, []
        while self._arrived:
            block, value = self._arrived.popleft()
            if self._out.get(block.number) is block:
                del self._out[block.number]
                events.append(Lost(block.number, value) if isinstance(value, BaseException) else value[0])
        return events

    def vacancies(self, most: int) -> int:
        """How many more blocks they can take if each may have ``most``.

        It hands what it has to all of its workers, so if some are to idle there are no more than may be at work.
        """
        if self._pool is None:
            return 0
        return max(0, (most if self._width == self._workers else 1) * self._width - len(self._out))

    @property
    def pids(self) -> dict[int, int]:
        """None: it does not say."""
        return {}

    def out(self, number: int) -> int:
        """How many blocks are with any of them."""
        return len(self._out)

    def busy(self, lines: Mapping[int, Line]) -> Collection[int]:
        """Those at work; or all, if something is out and none is."""
        working = {number for number, line in lines.items() if line.active}
        return working or (set(lines) if self._out else working)

    def start(self, number: int) -> None:
        """Make the Pool anew."""
        self._pool = self._make()

    def retire(self, number: int) -> None:
        """Its workers stay."""

    def kill(self, number: int) -> None:
        """End the Pool, since this worker has to go."""
        if self._pool is None:
            return
        is_gone = _end(self._pool, _FOR_THE_END_S)
        blocks, self._pool = tuple(self._out.values()), None
        self._out.clear()
        self._events.append(Died(number, 0, 0 if is_gone else None, State.READY, blocks))
        self._bell.ring()

    def abandon(self, number: int) -> None:
        """As ``kill`` has done already."""

    def close(self, timeout: float = 5.0) -> bool:
        self._out.clear()
        return self._pool is None or _end(self._pool, timeout)


def _end(pool: Any, timeout: float) -> bool:
    """End a Pool, which may never come back from it; True if all is gone.

    Its workers may answer first: the stock Pool kills them, and one that is killed while it answers keeps the lock
    which the Pool needs to end.
    """
    end = time.monotonic() + timeout
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
