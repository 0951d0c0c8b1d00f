"""One generation of workers: started together, given tasks, watched, and ended together.

Runs in the consumer process, in the prefetch thread but for the first start.  What a generation shares with us besides
the rooms (its board, its black box, its Pool) is its own, so that a worker that cannot be ended disturbs nobody.
Guarantees that ``end`` comes back in bounded time, whatever the workers do, and says whether all are gone.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import blackbox, breakage, fetch, machine
from .backends import Backend, Launch
from .blackbox import BlackBox
from .board import Line, board_bytes, snapshot
from .breakage import Breakage, Casualty
from .errors import MpiterError, could_not_start
from .memory import Arena
from .task import Lost, Task
from .transport import Writer
from .watch import Watch
from .worker import Wiring, begin

_FOR_STACKS_S = 0.5  # that stuck workers have to show theirs: a stopped one never does


@dataclass(frozen=True, slots=True)
class Terms:
    """What every generation of a crew has in common."""

    backend: Backend
    launch: Launch
    dataset: int  # key in the registry
    workers: int
    seed: int
    sample_timeout: float | None
    most_samples: int | None  # that all its workers together fetch before they are replaced


class Shift:
    """A Pool at work, and our eyes on it."""

    def __init__(
        self, number: int, terms: Terms, writer: Writer, arena: Arena | None, broken: Callable[[Breakage], None]
    ) -> None:
        self.number = number
        self._terms, self._arena = terms, arena
        in_process = terms.backend.in_process
        self._lay_out_board(board_bytes(terms.workers))
        self._box = None if in_process else BlackBox()
        self._watch = Watch(terms.sample_timeout) if terms.sample_timeout else None
        self._answers = self._samples = 0
        self._oom_kills = machine.out_of_memory_kills()
        wiring = Wiring(
            dataset=terms.dataset,
            cargo=terms.launch.cargo,
            writer=writer,
            board=arena or self._board,
            board_at=self._board_at,
            box=self._box,
            workers=terms.workers,
            seed=terms.seed,
            backend=terms.backend.name,
            environment=None if in_process else dict(os.environ),
            log_level=logging.getLogger().level,
            numbers=itertools.count() if in_process else None,
        )
        try:
            self._pool = terms.launch.pool(
                terms.workers, begin, (wiring,), lambda error: broken(Breakage(number, error=error))
            )
        except BaseException as error:
            self._clear(is_clean=True)
            if isinstance(error, (OSError, RuntimeError)) and not isinstance(error, MpiterError):
                raise could_not_start(error) from error
            raise

    def _lay_out_board(self, size: int) -> None:
        if self._arena is None:
            self._board, self._board_at = memoryview(bytearray(size)), 0
            return
        self._board, self._board_at = memoryview(self._arena.map), self._arena.allocate(size)
        self._board[self._board_at : self._board_at + size] = bytes(size)

    def submit(self, task: Task, arrived: Callable[[Any], None]) -> None:
        """Hand a task to whichever worker is free; its ticket will arrive, or that it is lost."""
        self._pool.map_async(
            fetch._fetch_run,
            [task],
            1,
            lambda tickets: arrived(tickets[0]),
            lambda error: arrived(Lost(task.number, error)),
        )

    def answered(self, samples: int) -> None:
        """A task has come back with so many samples: a sign of life."""
        self._answers += 1
        self._samples += samples

    @property
    def has_answered(self) -> bool:
        """Does at least one of its workers work?"""
        return self._answers > 0

    @property
    def is_worn(self) -> bool:
        """Has it fetched all that it should?"""
        most = self._terms.most_samples
        return most is not None and self._samples >= most

    @property
    def pids(self) -> tuple[int, ...]:
        return self._pool.pids

    def board(self) -> list[Line]:
        """What each worker does right now; its number is known before it has written any line itself."""
        lines = snapshot(self._board, self._board_at, self._terms.workers)
        return [line._replace(pid=pid) for line, pid in zip(lines, self.pids, strict=True)] if self.pids else lines

    @property
    def interval(self) -> float | None:
        """How long to wait at most until the next look."""
        return None if self._watch is None else self._watch.interval

    def look(self) -> Breakage | None:
        """Is somebody stuck?  To be asked while tasks are out, as often as one likes."""
        if self._watch is None or not self._watch.is_due:
            return None
        stopped = [worker for worker, pid in enumerate(self.pids) if blackbox.is_stopped(pid)]
        stuck = self._watch.look(self.board(), self._answers, stopped)
        return None if stuck is None else Breakage(self.number, tuple(stuck))

    def casualties(self, broken: Breakage) -> tuple[Casualty, ...]:
        """Who has died or is stuck; to be asked before the end of the others."""
        lines = self.board()
        if broken.stuck is None:
            return tuple(self._dead(worker, lines[worker], code) for worker, code in self._pool.fallen().items())
        suspects = broken.stuck or [at for at, line in enumerate(lines) if blackbox.condition(line.pid)]
        end = time.monotonic() + _FOR_STACKS_S
        return tuple(self._stuck(worker, lines[worker], end) for worker in suspects)

    def _dead(self, worker: int, line: Line, code: int) -> Casualty:
        out_of_memory = machine.out_of_memory_kills() > self._oom_kills
        stack = self._box.read() if self._box is not None and code < 0 else ""
        return Casualty(worker, line, breakage.ended(code), breakage.cause(code, out_of_memory), stack)

    def _stuck(self, worker: int, line: Line, end: float) -> Casualty:
        if self._box is None:
            stack = blackbox.thread_stack(line.pid)
        else:
            stack = "" if blackbox.is_stopped(line.pid) else self._box.ask(line.pid, end)
        doing = "made no progress" if line.ready else "was not ready to work"
        what = f"{doing} for {self._watch.due(line) if self._watch else 0:g} s"
        return Casualty(worker, line, what, blackbox.condition(line.pid), stack)

    def end(self, timeout: float) -> bool:
        """End all workers; False if one would not go."""
        is_clean: bool = self._pool.dispose(timeout)
        self._clear(is_clean)
        return is_clean

    def _clear(self, is_clean: bool) -> None:
        fetch.forget(self._terms.dataset)
        if self._box is not None:
            self._box.close()
        self._board.release()
        if self._arena is not None and is_clean:
            self._arena.free(self._board_at, board_bytes(self._terms.workers))
