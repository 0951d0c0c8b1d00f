"""The workers of one iterator: started once, given tasks, ended in bounded time.

Runs in the consumer process.  ``Crew`` is made in the caller's thread (a fork happens where the caller expects it) and
from then on used by the prefetch thread.  Guarantees that starting ships the dataset once, and that ``dispose`` is
idempotent and leaves neither process nor descriptor.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import fetch, machine
from .backends import Backend
from .board import board_bytes, snapshot
from .envelope import seal, seal_or_hold
from .layout import PAGE
from .machine import memory_total
from .memory import Arena
from .task import Lost, Task
from .transport import Site, Transport
from .worker import Wiring, begin

_dataset_ids = itertools.count(1)
_SHARE = 8  # of the memory: what batches may take unless told otherwise


class Crew:
    """A Pool at work on one dataset."""

    def __init__(
        self,
        backend: Backend,
        transport: Transport,
        workers: int,
        batch_size: int,
        reserve: int,
        cargo: tuple[Any, Any],
        seed: int,
        returned: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self.workers = workers
        self._pool: Any = None
        self._arena: Arena | None = None
        self._transport: Transport | None = None
        self.most_bytes = memory_total() // _SHARE
        self._launch = backend.launch(cargo)
        self.dataset = os.getpid() << 32 | next(_dataset_ids)
        try:
            self._settle(backend, transport, batch_size, reserve, seed, returned, warn)
        except BaseException:
            self.dispose()
            raise

    def _settle(
        self,
        backend: Backend,
        transport: Transport,
        batch_size: int,
        reserve: int,
        seed: int,
        returned: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        board = board_bytes(self.workers)
        self._board: Any = self._shared().map if backend.shares_memory else bytearray(board)
        if self._arena is not None:
            self._arena.allocate(max(PAGE, board))
        sealer = seal_or_hold if backend.in_process else seal
        transport.bind(
            Site(batch_size, self.most_bytes, reserve, self._launch.dumps, self._shared, sealer, returned, warn)
        )
        self._transport = transport
        self._wiring = Wiring(
            dataset=self.dataset,
            cargo=self._launch.cargo,
            writer=transport.writer(),
            board=self._arena or self._board,
            workers=self.workers,
            seed=seed,
            backend=backend.name,
            environment=None if backend.in_process else dict(os.environ),
            log_level=logging.getLogger().level,
            numbers=itertools.count() if backend.in_process else None,
        )
        self._pool = self._launch.pool(self.workers, begin, (self._wiring,))

    def renew(self) -> None:
        """Replace the workers by fresh ones; none of them may have a task."""
        self._pool.dispose()
        fetch.forget(self.dataset)
        self._wiring = replace(self._wiring, numbers=self._wiring.numbers and itertools.count())
        self._pool = self._launch.pool(self.workers, begin, (self._wiring,))

    def _shared(self) -> Arena:
        """The arena, made when somebody needs it."""
        if self._arena is None:
            self._arena = Arena(min(memory_total() // 2, machine.address_space() // 4))
        return self._arena

    def submit(self, task: Task, arrived: Callable[[Any], None]) -> None:
        """Hand a task to whichever worker is free; its ticket will arrive, or that it is lost."""
        self._pool.map_async(
            fetch._fetch_run,
            [task],
            1,
            lambda tickets: arrived(tickets[0]),
            lambda error: arrived(Lost(task.number, error)),
        )

    def board(self) -> list[dict[str, int]]:
        """What each worker does right now."""
        return snapshot(self._board, 0, self.workers)

    def dispose(self, timeout: float = 5.0) -> None:
        """End the workers, then give up what they shared with us."""
        pool, self._pool = self._pool, None
        transport, self._transport = self._transport, None
        if pool is not None:
            pool.dispose(timeout)
        if transport is not None:
            transport.close()
        fetch.forget(self.dataset)
        self._launch.close()
        self._board = None
        if self._arena is not None:
            self._arena.close()
