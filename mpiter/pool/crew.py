"""The crew: the workers of one iterator.  Each has a *place*, a number that its
replacement inherits.

A ``Crew`` is made, and its workers started, in the caller's thread, so that a fork
happens where the caller expects it; later the prefetch thread uses it.  Guarantees that
a worker's end is reported once, and that ``dismiss`` is idempotent, returns in bounded
time, and leaves neither process nor descriptor.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ..errors import MpiterError, WorkerStartError, could_not_start
from ..rules import BATCHES, Door, Rules
from ..transport.memory import Arena
from ..worker.block import Block, Done, make_done
from ..worker.board import CELL, BlackBox, Board, Line
from ..worker.fetch import _fetch_run
from ..worker.sheets import Writer
from ..worker.worker import Setup, begin, forget, new_key
from . import endings
from .backends import Backend, Launch
from .endings import End, Eviction, Watch
from .starting import ServerDied
from .workers import Died, State

# The time that all have to end; a killed one that needs longer is stuck in a system
# call.
_FOR_THE_END_S = 2.0


class Crew:
    def __init__(
        self,
        rules: Rules,
        backend: Backend,
        launch: Launch,
        arena: Arena,
        writer: Writer,
        bell: Any,
    ) -> None:
        self._rules = rules
        self._launch = launch
        self._arena = arena
        self._writer = writer
        self._bell = bell
        self._name = backend.name
        self._is_here = backend.shares_memory
        # Processes on this machine that we start and end.
        self._are_ours = self._is_here and not backend.in_process
        # ``Workers``, or an object with its methods.
        self._pool: Any = None
        # Places with a worker, until its end was reported.
        self._taken: set[int] = set()
        # Places in which a worker was ready once.
        self._proven: set[int] = set()
        self._evictions: dict[int, Eviction] = {}
        # Fetched by the worker in each place.
        self._samples: Counter[int] = Counter()
        # Global generators that the dataset draws from; new workers get them.
        self._drawn: set[str] = set()
        # How many workers have ended in each place; new workers get this too.
        self._ended_in: Counter[int] = Counter()
        self._must_note = not self._is_here or rules.max_samples is not None
        self.dataset = new_key()  # key in the workers' registry
        self.staff()

    @property
    def is_staffed(self) -> bool:
        return self._pool is not None

    def staff(self) -> None:
        """Start all workers; there must be none yet."""
        assert self._pool is None
        self._board = Board(self._rules.workers, self._arena if self._is_here else None)
        self._box = None
        if self._are_ours:
            self._box = BlackBox()
        self._watch = None
        if timeout := self._rules.sample_timeout:
            self._watch = Watch(timeout)
        self._taken.update(range(self._rules.workers))
        known = (
            self.dataset,
            self._launch.cargo,
            self._writer,
            self._board,
            self._box,
            self._rules,
            self._name,
        )
        if self._are_ours:
            environment = dict(os.environ)
        else:
            environment = None
        setup = Setup(
            *known, environment=environment, drawn=self._drawn, ended=self._ended_in
        )
        try:
            with named_errors(self._rules.door):
                self._pool = self._launch.pool(
                    self._rules.workers, begin, (setup,), bell=self._bell
                )
        except BaseException:
            self._clear(is_clean=True)
            raise

    def replace_workers(self) -> None:
        if self._pool is None or len(self._taken) == self._rules.workers:
            return
        for worker in {*range(self._rules.workers)} - self._taken:
            with named_errors(self._rules.door):
                self._pool.start(worker)
            self._taken.add(worker)

    def vacancies(self, most: int) -> int:
        """Return the number of further blocks for the workers, if each may have
        ``most``; 1 if there are no workers.
        """
        if self._pool is None:
            return 1
        count: int = self._pool.vacancies(most)
        return count

    def map_async(self, block: Block) -> None:
        self._pool.map_async(_fetch_run, [block])

    def wait(self) -> list[Any]:
        """Wait for events; return answers (Done), Lost and End, or an empty list if
        only the bell rang.
        """
        pool = self._pool
        if pool is None:
            self._bell.wait(None)
            return []
        usual = None if self._watch is None else self._watch.interval
        events: list[Any] = pool.wait(endings.STEP_S if self._evictions else usual)
        for at, event in enumerate(events):
            if type(event) is tuple:
                events[at] = done = make_done(event)
                if done.drawn or self._must_note:
                    self._note(pool, done)
            elif type(event) is Died:
                events[at] = self._ended(event)
        self._look(pool)
        return events

    def _note(self, pool: Any, done: Done) -> None:
        """Record the global generators in use, and retire a worker that has reached its
        limit.
        """
        worker = done.worker
        self._drawn |= done.drawn
        # Such workers can't write to the board themselves.
        if not self._is_here:
            cells = self._board.cells(worker)
            cells[CELL.ready], cells[CELL.since] = 1, time.monotonic_ns()
        if (most := self._rules.max_samples) is not None:
            self._samples[worker] += done.rows
            if self._samples[worker] >= most:
                pool.retire(worker)

    @property
    def pids(self) -> tuple[int, ...]:
        if self._are_ours and (pool := self._pool) is not None:
            return tuple(pool.pids.values())
        return ()

    def board(self) -> list[Line]:
        """Return the lines on the board (shared integers: what each worker fetches),
        with process ids filled in.
        """
        if (pool := self._pool) is not None:
            return self._board.lines(pool.pids)
        return []

    def _look(self, pool: Any) -> None:
        """Find workers that are stuck, and take the next step in ending each."""
        if self._watch is not None and self._watch.is_due:
            lines = {
                worker: line
                for worker, line in enumerate(self.board())
                if worker in self._taken
            }
            for worker in self._watch.look(lines, pool.busy(lines)):
                if worker not in self._evictions:
                    line = lines[worker]
                    self._evictions[worker] = Eviction(
                        worker, line, self._watch.due(line), self._box, self._is_here
                    )
        for eviction in list(self._evictions.values()):
            eviction.go_on(pool)

    def _ended(self, told: Died) -> End:
        """Return why a worker has ended and what it was doing, and free its place."""
        worker = told.number
        code = told.code or 0
        lines = self._board.lines()
        line = lines[worker]._replace(pid=told.pid or lines[worker].pid)
        eviction = self._evictions.pop(worker, None)
        self._proven.update(place for place, one in enumerate(lines) if one.ready)
        if self._is_here:
            line = line
        else:
            line = endings.in_hand(told.blocks, line, eviction is not None)
        how = told.how or endings.ended(code)
        stack = ""
        if eviction is not None:
            how = eviction.how
            stack = eviction.stack
        elif self._box is not None and code < 0:
            stack = self._box.read()
            self._box.turn_over()
        end = End(
            worker=worker,
            line=line,
            how=how,
            code=told.code if self._are_ours and eviction is None else None,
            stack=stack,
            blocks=tuple(block.number for block in told.blocks),
            is_gone=told.code is not None,
            was_asked=told.state is State.RETIRING and not told.blocks,
            was_stuck=eviction is not None,
            is_proven=worker in self._proven,
            others_work=bool(self._proven),
        )
        self._samples[worker] = 0
        self._ended_in[worker] += 1
        if end.is_gone:
            self._board.clear(worker)
        else:
            self._board.move(worker)
        if end.was_starting:
            # Until a worker is ready there again.
            self._proven.discard(worker)
        self._taken.discard(worker)
        return end

    def dismiss(self, timeout: float = _FOR_THE_END_S) -> bool:
        """End all workers; return False if one couldn't be ended, and may still write
        into shared memory.
        """
        pool = self._pool
        self._pool = None
        if pool is None:
            return True
        is_clean: bool = pool.close(timeout)
        self._clear(is_clean)
        return is_clean

    def _clear(self, is_clean: bool) -> None:
        """Forget the workers; what they had is freed unless one of them may still write
        into it.
        """
        forget(self.dataset)
        if self._box is not None:
            self._box.close()
        if is_clean:
            self._board.close()
        for table in (self._taken, self._evictions, self._samples):
            table.clear()


@contextlib.contextmanager
def named_errors(door: Door = BATCHES) -> Iterator[None]:
    """Raise an OSError at the start of workers as an error that names the system's
    limits, or the way around.
    """
    try:
        yield
    except MpiterError:
        raise
    except ServerDied as error:
        raise WorkerStartError(
            "the fork server, which starts workers, has died twice over one of them: "
            "it was killed, or a module ended it that it imports "
            "(multiprocessing.set_forkserver_preload). See standard error. "
            f"{door.way_around}"
        ) from error
    except (OSError, RuntimeError) as error:
        raise could_not_start(error) from error
