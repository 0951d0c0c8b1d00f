"""The crew: the workers of one iterator.

Each has a *place*, a number that its replacement inherits.  A ``Crew`` is made, and its
workers started, in the caller's thread, so that a fork happens where the caller expects
it; later the prefetch thread uses it.  Guarantees that a worker's end is reported once,
and that ``dismiss`` is idempotent, returns in bounded time, and leaves neither process
nor descriptor.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..bell import Bell
from ..errors import MpiterError, WorkerStartError, could_not_start
from ..rules import BATCHES, Door, Rules
from ..transport.memory import Arena
from ..worker.block import Block, Done, Lost, make_done
from ..worker.board import CELL, BlackBox, Board, Line
from ..worker.fetch import _fetch_run
from ..worker.sheets import Writer
from ..worker.worker import Setup, begin, forget, hurry, new_key
from . import endings
from .backends import Backend, Launch
from .endings import End, Eviction, Watch
from .starting import ServerDied
from .workers import Died, State, WorkerPool

# The time that all workers have to end.  A killed one that needs longer is stuck in a
# system call.
_FOR_THE_END_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class _Staff:
    """The workers that there are, and what they share with this process."""

    pool: WorkerPool
    board: Board
    # Takes the stacks of processes.
    box: BlackBox | None
    # Finds stuck workers, if there is a limit of time.
    watch: Watch | None

    def lines(self) -> list[Line]:
        """Return the lines on the board, with process ids filled in."""
        return self.board.lines(self.pool.pids)


# What the crew tells the loop: an answer, a lost one, or the end of a worker.
Event = Done | Lost | End


class Crew:
    def __init__(
        self,
        rules: Rules,
        backend: Backend,
        launch: Launch,
        arena: Arena,
        writer: Writer,
        bell: Bell,
    ) -> None:
        self._rules = rules
        self._launch = launch
        self._arena = arena
        self._writer = writer
        self._bell = bell
        self._name = backend.name
        self._staff: _Staff | None = None
        # The places with a worker, until its end was reported.
        self._taken: set[int] = set()
        # The places in which a worker was ready once.
        self._proven: set[int] = set()
        self._evictions: dict[int, Eviction] = {}
        # How many samples the worker in each place has fetched.
        self._samples: Counter[int] = Counter()
        # The global generators that the dataset draws from; new workers get them.
        self._drawn: set[str] = set()
        # How many workers have ended in each place; new workers get this too.
        self._ended_in: Counter[int] = Counter()
        self._must_note = not rules.shares_memory or rules.max_samples is not None
        self.dataset = new_key()  # key in the workers' registry
        self.staff()

    @property
    def is_staffed(self) -> bool:
        return self._staff is not None

    def staff(self) -> None:
        """Start all workers; there must be none yet."""
        assert self._staff is None
        rules = self._rules
        # Workers on other machines can't see the board, which then needs no arena.
        arena = self._arena if rules.shares_memory else None
        board = Board(rules.workers, arena)
        box: BlackBox | None = None
        environment: dict[str, str] | None = None
        if rules.starts_processes:
            box = BlackBox()
            environment = dict(os.environ)
        watch: Watch | None = None
        if timeout := rules.sample_timeout:
            watch = Watch(timeout)
        self._taken.update(range(rules.workers))
        setup = Setup(
            dataset=self.dataset,
            cargo=self._launch.cargo,
            writer=self._writer,
            board=board,
            box=box,
            rules=rules,
            backend=self._name,
            environment=environment,
            drawn=self._drawn,
            ended=self._ended_in,
        )
        try:
            with named_errors(rules.door):
                pool: WorkerPool = self._launch.pool(
                    rules.workers,
                    begin,
                    (setup,),
                    bell=self._bell,
                )
        except BaseException:
            self._clear(board, box, is_clean=True)
            raise
        self._staff = _Staff(pool, board, box, watch)

    def replace_workers(self) -> None:
        staff = self._staff
        if staff is None or len(self._taken) == self._rules.workers:
            return
        places = set(range(self._rules.workers))
        for worker in places - self._taken:
            with named_errors(self._rules.door):
                staff.pool.start(worker)
            self._taken.add(worker)

    def vacancies(self, most: int) -> int:
        """Return how many more blocks the workers take, if each may have ``most``.

        Without workers it is 1, for which they are then started.
        """
        if self._staff is None:
            return 1
        return self._staff.pool.vacancies(most)

    def map_async(self, block: Block) -> None:
        assert self._staff is not None
        self._staff.pool.map_async(_fetch_run, [block])

    def wait(self) -> list[Event]:
        """Wait for events and return them; there are none if only the bell rang."""
        staff = self._staff
        if staff is None:
            self._bell.wait(None)
            return []
        timeout: float | None = None
        if self._evictions:
            timeout = endings.STEP_S
        elif staff.watch is not None:
            timeout = staff.watch.interval
        events: list[Event] = []
        for told in staff.pool.wait(timeout):
            if isinstance(told, Died):
                events.append(self._ended(staff, told))
            elif isinstance(told, Lost):
                events.append(told)
            else:
                done = make_done(told)
                if done.drawn or self._must_note:
                    self._note(staff, done)
                events.append(done)
        self._look(staff)
        return events

    def _note(
        self,
        staff: _Staff,
        done: Done,
    ) -> None:
        """Record the generators in use, and retire a worker that has fetched enough."""
        worker = done.worker
        self._drawn |= done.drawn
        # A worker on another machine can't write to the board, so we do when it
        # answers.
        if not self._rules.shares_memory:
            cells = staff.board.cells(worker)
            cells[CELL.ready] = 1
            cells[CELL.since] = time.monotonic_ns()
        most = self._rules.max_samples
        if most is not None:
            self._samples[worker] += done.rows
            if self._samples[worker] >= most:
                staff.pool.retire(worker)

    def name_of(self, worker: int) -> str:
        """Return a worker in words, as its dataset sees it in ``WorkerInfo.name``."""
        return f"{self._name} worker {worker}"

    @property
    def pids(self) -> tuple[int, ...]:
        # Another thread may dismiss the workers meanwhile.
        staff = self._staff
        if self._rules.starts_processes and staff is not None:
            return tuple(staff.pool.pids.values())
        return ()

    def board(self) -> list[Line]:
        """Return the lines on the board; there are none without workers."""
        staff = self._staff
        if staff is not None:
            return staff.lines()
        return []

    def _look(self, staff: _Staff) -> None:
        """Find workers that are stuck, and take the next step in ending each."""
        watch = staff.watch
        if watch is not None and watch.is_due:
            lines: dict[int, Line] = {}
            for worker, line in enumerate(staff.lines()):
                if worker in self._taken:
                    lines[worker] = line
            for worker in watch.look(lines, staff.pool.busy(lines)):
                if worker not in self._evictions:
                    line = lines[worker]
                    limit = watch.due(line)
                    self._evictions[worker] = Eviction(
                        worker,
                        line,
                        limit,
                        staff.box,
                        self._rules.shares_memory,
                    )
        for eviction in list(self._evictions.values()):
            eviction.go_on(staff.pool)

    def _ended(
        self,
        staff: _Staff,
        told: Died,
    ) -> End:
        """Return why a worker has ended and what it was doing, and free its place."""
        worker = told.number
        code = told.code or 0
        lines = staff.board.lines()
        line = lines[worker]
        line = line._replace(pid=told.pid or line.pid)
        eviction = self._evictions.pop(worker, None)
        for place, one in enumerate(lines):
            if one.ready:
                self._proven.add(place)
        if not self._rules.shares_memory:
            line = endings.in_hand(told.blocks, line, eviction is not None)
        how = told.how or endings.ended(code)
        stack = ""
        # The code of a worker that we have killed says nothing of the reason.
        known_code = None
        if eviction is not None:
            how = eviction.how
            stack = eviction.stack
        else:
            if self._rules.starts_processes:
                known_code = told.code
            if staff.box is not None and code < 0:
                stack = staff.box.read()
                staff.box.turn_over()
        end = End(
            worker=worker,
            line=line,
            how=how,
            code=known_code,
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
            staff.board.clear(worker)
        else:
            staff.board.move(worker)
        if end.was_starting:
            # The place is proven again once a worker is ready there.
            self._proven.discard(worker)
        self._taken.discard(worker)
        return end

    def dismiss(self, timeout: float = _FOR_THE_END_S) -> bool:
        """End all workers; return False if one couldn't be ended.

        It may still write into shared memory.
        """
        # Whatever is raised meanwhile, nobody uses these workers again.
        staff = self._staff
        self._staff = None
        if staff is None:
            return True
        # Threads end after their blocks.
        hurry(self.dataset)
        is_clean = staff.pool.close(timeout)
        self._clear(staff.board, staff.box, is_clean)
        return is_clean

    def _clear(
        self,
        board: Board,
        box: BlackBox | None,
        is_clean: bool,
    ) -> None:
        """Forget the workers.

        What they had is freed, unless one of them may still write into it.
        """
        forget(self.dataset)
        if box is not None:
            box.close()
        if is_clean:
            board.close()
        for table in (self._taken, self._evictions, self._samples):
            table.clear()


@contextlib.contextmanager
def named_errors(door: Door = BATCHES) -> Iterator[None]:
    """Raise an OSError at the start of workers as an error that says what to do."""
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
