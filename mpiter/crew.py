"""The workers of one iterator through all their generations, and what they share with us.

Runs in the consumer process.  ``Crew`` is made, and staffed for the first time, in the caller's thread (a fork happens
where the caller expects it), and from then on used by the prefetch thread.  Guarantees that the dataset is shipped
once, that there is at most one shift of workers, and that ``bury`` and ``dispose`` are idempotent and leave neither
process nor descriptor.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import machine
from .backends import Backend
from .board import Line
from .breakage import Breakage, Report
from .envelope import Apart, Sealer, seal
from .memory import Arena
from .shift import Shift, Terms
from .task import Task
from .transport import Site, Transport

_dataset_ids = itertools.count(1)
_SHARE = 8  # of the memory: what batches may take unless told otherwise
_LAST_RESPECTS_S = 2.0  # for a worker to go when it is killed: more, and it sits in the kernel


@dataclass(frozen=True, slots=True)
class Muster:
    """What a crew is made of."""

    backend: Backend
    transport: Transport
    workers: int
    batch_size: int
    reserve: int  # rooms that the engine needs for itself
    cargo: tuple[Any, Any]
    seed: int
    sample_timeout: float | None
    max_samples: int | None  # that a worker fetches before it is replaced


@dataclass(frozen=True, slots=True)
class Calls:
    """Whom a crew tells of what; each may be called in any thread."""

    returned: Callable[[Any], object]  # a room that was asked for in vain may have become free
    warn: Callable[[str], None]  # something for the user to know
    broken: Callable[[Breakage], None]  # a worker has died


class Crew:
    """Workers for one dataset, at most one shift of them at a time."""

    def __init__(self, muster: Muster, calls: Calls) -> None:
        self._calls = calls
        self._shift: Shift | None = None
        self._shifts = 0
        self._is_proven = False  # a shift was ready in full once: a worker that dies early is an accident, then
        self._arena: Arena | None = None
        self._transport: Transport | None = None
        self.most_bytes = machine.memory_total() // _SHARE
        self.dataset = os.getpid() << 32 | next(_dataset_ids)
        self._shares_memory = muster.backend.shares_memory
        self._launch = muster.backend.launch(muster.cargo)
        self._terms = Terms(
            backend=muster.backend,
            launch=self._launch,
            dataset=self.dataset,
            workers=muster.workers,
            seed=muster.seed,
            sample_timeout=muster.sample_timeout,
            most_samples=None if muster.max_samples is None else muster.max_samples * muster.workers,
        )
        try:
            self._transport = self._bound(muster)
            self.staff()
        except BaseException:
            self.dispose()
            raise

    def _bound(self, muster: Muster) -> Transport:
        sealer: Sealer = Apart if muster.backend.in_process else seal
        site = Site(
            batch_size=muster.batch_size,
            most_bytes=self.most_bytes,
            reserve=muster.reserve,
            dumps=self._launch.dumps,
            arena=self._shared,
            sealer=sealer,
            returned=self._calls.returned,
            warn=self._calls.warn,
        )
        muster.transport.bind(site)
        return muster.transport

    def _shared(self) -> Arena:
        """The arena, made when somebody needs it."""
        if self._arena is None:
            self._arena = Arena(min(machine.memory_total() // 2, machine.address_space() // 4))
        return self._arena

    def carries(self, cargo: Any) -> bool:
        """Is ``cargo`` what was shipped?"""
        return self._launch.carries(cargo)

    @property
    def is_staffed(self) -> bool:
        return self._shift is not None

    def staff(self) -> None:
        """Start a shift; there must be none."""
        assert self._shift is None
        assert self._transport is not None
        self._shifts += 1
        arena = self._shared() if self._shares_memory else None
        self._shift = Shift(self._shifts, self._terms, self._transport.writer(), arena, self._calls.broken)

    def submit(self, task: Task, arrived: Callable[[Any], None]) -> None:
        """Hand a task to whichever worker is free; its ticket will arrive, or that it is lost."""
        assert self._shift is not None
        self._shift.submit(task, arrived)

    def answered(self, samples: int) -> None:
        """A task has come back with so many samples."""
        if self._shift is not None:
            self._shift.answered(samples)

    @property
    def is_worn(self) -> bool:
        """Have the workers fetched as many samples as they should in their lives?"""
        return self._shift is not None and self._shift.is_worn

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker processes of the moment."""
        shift = self._shift
        return () if shift is None else shift.pids

    def board(self) -> list[Line]:
        """What each worker does right now."""
        shift = self._shift
        with contextlib.suppress(ValueError):  # it has just ended
            return [] if shift is None else shift.board()
        return []

    @property
    def interval(self) -> float | None:
        """How long to wait at most until the next look at the workers."""
        return None if self._shift is None else self._shift.interval

    def look(self) -> Breakage | None:
        """Is somebody stuck?"""
        return None if self._shift is None else self._shift.look()

    def autopsy(self, broken: Breakage) -> Report | None:
        """End the shift that is broken and report on it; None if it has ended before."""
        shift = self._shift
        if shift is None or shift.number != broken.shift:
            return None
        casualties, was_proven = shift.casualties(broken), self._is_proven
        has_answered, is_clean = shift.has_answered, self.bury()
        return Report(casualties, is_clean, has_answered, is_proven=was_proven or self._is_proven)

    def bury(self, timeout: float = _LAST_RESPECTS_S) -> bool:
        """End the workers; False if one would not go, which may then still write into the rooms it was given."""
        shift, self._shift = self._shift, None
        if shift is None:
            return True
        self._is_proven |= all(line.ready for line in shift.board())
        return shift.end(timeout)

    def dispose(self, timeout: float = 5.0) -> None:
        """End the workers, then give up what they shared with us."""
        self.bury(timeout)
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        self._launch.close()
        if self._arena is not None:
            self._arena.close()
