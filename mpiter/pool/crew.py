"""The workers of one iterator, each in its place.

Runs in the consumer process.  ``Crew`` is made, and its workers started, in the caller's thread (a fork happens where
the caller expects it), and from then on used by the prefetch thread.  Guarantees that a worker's end is told once and
concerns its own place alone, and that ``dismiss`` is idempotent, comes back in bounded time and leaves neither process
nor descriptor.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .. import machine
from ..errors import MpiterError, could_not_start
from ..rules import Rules
from ..transport.memory import Arena
from ..worker.blackbox import BlackBox
from ..worker.block import Block, Done
from ..worker.board import Board, Line
from ..worker.fetch import _fetch_run
from ..worker.registry import forget, new_key
from ..worker.sheets import Writer
from ..worker.worker import Setup, begin
from . import endings
from .anypool import AnyPool
from .backends import Backend, Launch, Workers
from .endings import End, Eviction
from .member import Died, State
from .watch import Watch

_FOR_AN_EXIT_S = 1.0  # that a worker has to leave when it has done its last block
_FOR_THE_END_S = 2.0  # that all have to go when they are killed: more, and they sit in the kernel


class Crew:
    """Workers for one dataset: as many as there should be, or none."""

    def __init__(self, rules: Rules, backend: Backend, launch: Launch, arena: Arena, writer: Writer, bell: Any) -> None:
        self._rules, self._launch, self._arena, self._writer, self._bell = rules, launch, arena, writer, bell
        self._name, self._in_process, self._is_here = backend.name, backend.in_process, backend.shares_memory
        self._are_ours = self._is_here and not self._in_process  # processes of this machine that we start and end
        self._pool: Workers | None = None
        self.width = rules.workers if rules.workers_first is None else rules.workers_first  # workers there should be
        self._taken: set[int] = set()  # places with a worker, until we are told of its end
        self._proven: set[int] = set()  # numbers under which a worker was ready once
        self._evictions: dict[int, Eviction] = {}
        self._samples: Counter[int] = Counter()  # that the worker in each place has fetched
        self._drawn: set[str] = set()  # the global generators that the dataset draws from: new workers are told
        self._starts: Counter[int] = Counter()  # of replacements in each place, so that none draws what another drew
        self._retiring: dict[int, float] = {}  # workers that end after their last block: until when they may take
        self._has_answered = self._is_settled = False
        self.dataset = new_key()  # key in the registry
        self.staff()

    # -- workers come ------------------------------------------------------------------------------------------------

    @property
    def is_staffed(self) -> bool:
        return self._pool is not None

    def staff(self) -> None:
        """Start all workers; there must be none."""
        assert self._pool is None
        self._board = Board(self._rules.workers, self._arena if self._is_here else None)
        self._box = BlackBox() if self._are_ours else None
        self._watch = Watch(timeout) if (timeout := self._rules.sample_timeout) else None
        self._oom_kills = machine.out_of_memory_kills()
        self._has_answered = False
        self._taken.update(self._places)
        setup = Setup(
            dataset=self.dataset,
            cargo=self._launch.cargo,
            writer=self._writer,
            board=self._board,
            box=self._box,
            rules=self._rules,
            backend=self._name,
            environment=dict(os.environ) if self._are_ours else None,
            log_level=logging.getLogger().level,
            drawn=self._drawn,
            starts=self._starts,
        )
        try:
            self._pool = self._launch.pool(len(self._places), begin, (setup,), bell=self._bell)
        except BaseException as error:
            self._clear(is_clean=True)
            if isinstance(error, (OSError, RuntimeError)) and not isinstance(error, MpiterError):
                raise could_not_start(error) from error
            raise
        self.resize(self.width)

    def resize(self, width: int) -> None:
        """From now on so many workers: new ones come beside the others, who goes ends after its last block."""
        self.width, self._is_settled = width, False
        if isinstance(self._pool, AnyPool):
            self._pool.limit(width)
        elif self._pool is not None:
            for worker in self._taken.difference(self._places, self._retiring):
                self._retire(self._pool, worker)

    def _retire(self, pool: Workers, worker: int) -> None:
        pool.retire(worker)
        self._retiring[worker] = math.inf

    @property
    def _places(self) -> range:
        """Where there should be a worker: of a Pool that is made as a whole, all of its own."""
        return range(self.width if self._launch.grows else self._rules.workers)

    def replace_workers(self) -> None:
        """Start a worker in each place that has none and should."""
        for worker in self._places:
            if worker not in self._taken and self._pool is not None:
                self._starts[worker] += 1
                try:
                    self._pool.start(worker)
                except MpiterError:
                    raise
                except (OSError, RuntimeError) as error:
                    raise could_not_start(error) from error
                self._taken.add(worker)

    @property
    def is_settled(self) -> bool:
        """Have all come who should be there, and those gone who shouldn't?"""
        if self._pool is not None and not self._is_settled:
            ready = all(line.ready for line in self._board.lines()[: self.width])
            is_full = ready and len(self._taken) == self.width and not self._retiring
            self._is_settled = self._pool.shares_fate or is_full
        return self._is_settled

    # -- what they do ------------------------------------------------------------------------------------------------

    def vacancies(self, most: int) -> int:
        """How many more blocks they can be given now, if each may have ``most``; one if there are to be workers yet."""
        return 1 if self._pool is None else self._pool.vacancies(most)

    def map_async(self, block: Block) -> None:
        """Hand a block to the worker that has least to do; ``wait`` gives what comes of it."""
        assert self._pool is not None
        self._pool.map_async(_fetch_run, [block])

    def wait(self) -> list[Any]:
        """Wait until something happens: Done, Lost and End, or nothing of these."""
        pool = self._pool
        if pool is None:
            self._bell.wait(None)
            return []
        usual = None if self._watch is None else self._watch.interval
        is_urgent = self._evictions or any(end != math.inf for end in self._retiring.values())
        events = pool.wait(endings.STEP_S if is_urgent else usual)
        for at, event in enumerate(events):
            if type(event) is Done:
                self._answered(pool, event)
            elif type(event) is Died:
                events[at] = self._ended(pool, event)
        self._look(pool)
        return events

    def _answered(self, pool: Workers, done: Done) -> None:
        """A worker has answered, and may have seen the dataset draw from global generators."""
        worker, self._has_answered = done.worker, True
        self._drawn |= done.drawn
        self._proven.add(worker)
        if not self._is_here:  # what we hear is all that there is on the board
            self._board.heard(worker)
        if (most := self._rules.max_samples) is not None:
            self._samples[worker] += done.rows
            if self._samples[worker] >= most and not pool.shares_fate and worker not in self._retiring:
                self._retire(pool, worker)

    @property
    def pids(self) -> tuple[int, ...]:
        """The worker processes of the moment."""
        pool = self._pool
        if pool is None or not self._are_ours:
            return ()
        return tuple(pool.pids.values()) or tuple(line.pid for line in self._board.lines() if line.pid)

    def board(self) -> list[Line]:
        """What each worker does right now; its number is known before it has written any line itself."""
        return [] if self._pool is None else self._board.lines(self._pool.pids)

    def publish(self, began: float, waits: float, figures: Sequence[float]) -> None:
        """On the board, for whoever looks at it from another process; there must be workers."""
        self._board.publish(began, waits, figures)

    # -- and how they end --------------------------------------------------------------------------------------------

    def _look(self, pool: Workers) -> None:
        """End those that are stuck, step by step."""
        if self._watch is not None and self._watch.is_due:
            lines = {worker: line for worker, line in enumerate(self.board()) if worker in self._taken}
            for worker in self._watch.look(lines, pool.busy(lines)):
                if worker not in self._evictions:
                    line = lines[worker]
                    self._evictions[worker] = Eviction(worker, line, self._watch.due(line), self._box, self._is_here)
        for worker, end in list(self._retiring.items()):
            if end == math.inf and not pool.out(worker):
                self._retiring[worker] = time.monotonic() + _FOR_AN_EXIT_S
            elif time.monotonic() > end and worker not in self._evictions:
                self._evictions[worker] = Eviction(worker, self.board()[worker], _FOR_AN_EXIT_S, None, self._is_here)
        for eviction in list(self._evictions.values()):
            eviction.go_on(pool)

    def _ended(self, pool: Workers, told: Died) -> End:
        """A worker is no more: find out why, and leave its place to the next."""
        worker, code, lines = told.number, told.code or 0, self._board.lines()
        by_the_killer = machine.out_of_memory_kills() > self._oom_kills
        line, eviction = lines[worker]._replace(pid=told.pid or lines[worker].pid), self._evictions.pop(worker, None)
        line = line if self._is_here else endings.in_hand(told.blocks, line, eviction is not None)
        end = End(
            worker=worker,
            line=line,
            how=eviction.how if eviction else told.how or endings.ended(code),
            cause=eviction.cause if eviction else "" if told.how else endings.cause(code, by_the_killer),
            stack=eviction.stack if eviction else self._stack(code),
            blocks=tuple(block.number for block in told.blocks),
            is_gone=told.code is not None,
            was_asked=told.state is State.RETIRING and not told.blocks,
            was_stuck=eviction is not None,
            is_proven=worker in self._proven or bool(line.ready),
            others_work=self._has_answered,
        )
        for place in range(len(lines)) if pool.shares_fate else [worker]:
            self._evictions.pop(place, None)
            self._samples[place] = 0
            self._retiring.pop(place, None)
            if end.is_gone:
                self._board.clear(place)
            else:
                self._board.move(place)
        self._proven.update(at for at, one in enumerate(lines) if one.ready)
        if end.was_starting:
            self._proven.discard(worker)  # until another one is ready there
        self._taken.discard(worker)
        return end

    def _stack(self, code: int) -> str:
        if self._box is None or code >= 0:
            return ""
        text = self._box.read()
        self._box.turn_over()
        return text

    def dismiss(self, timeout: float = _FOR_THE_END_S) -> bool:
        """End all workers; False if one would not go, which may then still write into the rooms it was given."""
        pool, self._pool = self._pool, None
        if pool is None:
            return True
        if not pool.shares_fate:
            for worker in endings.in_slow_samples(self._board.lines(), pool.pids):
                pool.kill(worker)  # the others end the ordinary way, if they do so soon
        is_clean = pool.close(timeout)
        self._clear(is_clean)
        return is_clean

    def _clear(self, is_clean: bool) -> None:
        forget(self.dataset)
        if self._box is not None:
            self._box.close()
        if is_clean:
            self._board.close()
        for table in (self._taken, self._evictions, self._samples, self._retiring):
            table.clear()
