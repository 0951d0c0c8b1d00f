"""Workers, memory and time that are not real: what the engine's own loop runs on in a simulation.

In one thread.  Time is a number that jumps from one event to the next.  Processor time is shared by all who want some:
with k of them on a machine of ``capacity`` c(k), each is served at c(k)/k.  Guarantees that a run depends on nothing
but what it is given; it assumes of workers what ``pool.Pool`` promises: two tasks each, and the least loaded is next.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..bell import Bell
from ..pool.pool import MOST_OUT
from ..samples.envelope import seal
from ..worker.board import Line
from ..worker.task import Task, Ticket

SHARE = 8  # of the memory: what batches may take, as for real workers
_LOOK_S = 1e-3  # a worker looks at the clock once in so long…
_LOOK_ROWS = 16  # …or in so many rows
_SAMPLE = ((0, seal([0]).part(0, 1).bytes()),)  # what comes back of a first row


class Service(NamedTuple):
    """What something takes: seconds of a processor, then seconds of waiting (for a disk, a network, a GPU)."""

    cpu_s: float
    wait_s: float = 0.0


class Clock:
    """What is to happen, and when."""

    def __init__(self, capacity: Sequence[float]) -> None:
        self.now = 0.0
        self._capacity = capacity
        self._served = 0.0  # processor seconds that each who wanted some since the beginning has had
        self._working: list[tuple[float, int, float, Callable[[], object]]] = []
        self._waiting: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()

    def spend(self, cpu_s: float, wait_s: float, then: Callable[[], object]) -> None:
        """Call ``then`` after so much work, and so much waiting."""
        if cpu_s > 0:
            heapq.heappush(self._working, (self._served + cpu_s, next(self._count), wait_s, then))
        else:
            heapq.heappush(self._waiting, (self.now + wait_s, next(self._count), then))

    def step(self) -> None:
        """On to the next event, and to all others of that moment."""
        at = self._next()
        while self._next() <= at:
            working = self._working
            if working and (not self._waiting or self._done_at() <= self._waiting[0][0]):
                self._pass(self._done_at())
                self._served, _, wait_s, then = heapq.heappop(working)
                if wait_s > 0:
                    self.spend(0.0, wait_s, then)
                else:
                    then()
            else:
                self._pass(self._waiting[0][0])
                heapq.heappop(self._waiting)[2]()

    def _next(self) -> float:
        working = self._done_at() if self._working else float("inf")
        waiting = self._waiting[0][0] if self._waiting else float("inf")
        return min(working, waiting)

    def _done_at(self) -> float:
        return self.now + max(0.0, self._working[0][0] - self._served) / self._rate()

    def _rate(self) -> float:
        count, capacity = len(self._working), self._capacity
        return capacity[min(count, len(capacity)) - 1] / count

    def _pass(self, to: float) -> None:
        if self._working:
            self._served += (to - self.now) * self._rate()
        self.now = to


class Rooms:
    """A transport: so many batches fit."""

    def __init__(self, room_bytes: int, most: int, freed: Callable[[], object]) -> None:
        self.room_bytes, self.is_laid_out = room_bytes, False
        self.out = 0
        self._most, self._freed, self._is_refused = most, freed, False

    def lay_out(self, sample: Any) -> None:
        self.is_laid_out = True

    def room(self, rows: int) -> _Room | None:
        if self.out >= self._most:
            self._is_refused = True
            return None
        self.out += 1
        return _Room(rows, self)

    def free(self) -> None:
        self.out -= 1
        if self._is_refused:
            self._is_refused = False
            self._freed()

    def follow(self, contents: Any) -> None: ...


class _Room:
    """One batch's memory: only whether it is taken."""

    address: tuple[int, ...] = (1,)
    brief = b"room"

    def __init__(self, rows: int, rooms: Rooms) -> None:
        self._rows, self._rooms = rows, rooms

    def contents(self) -> Any:
        return SimpleNamespace(rows=self._rows, odd=(), copied=False, free=self.discard)

    def discard(self) -> None:
        self._rooms.free()

    def receive(self, payload: Any) -> None: ...
    def put(self, row: int, sample: Any) -> None: ...
    def fail(self, row: int) -> None: ...
    def quarantine(self) -> None: ...


class _Worker:
    """One that fetches rows at the pace that it is told."""

    def __init__(self, number: int, crew: Crew) -> None:
        self.number, self._crew, self._clock = number, crew, crew.clock
        self.out: deque[tuple[Task, float, Callable[[Any], None]]] = deque()
        self.is_ready = self.is_retiring = False
        self._clock.spend(0.0, crew.start_s, self._ready)

    def _ready(self) -> None:
        self.is_ready = True
        self._crew.assign()
        self.end_if_retired()

    def end_if_retired(self) -> None:
        if self.is_retiring and self.is_ready and not self.out:
            self._crew.leaves(self)

    def give(self, task: Task, arrived: Callable[[Any], None]) -> None:
        self.out.append((task, self._clock.now, arrived))
        if len(self.out) == 1:
            self._begin()

    def _begin(self) -> None:
        if self._crew.task_s > 0:
            self._clock.spend(self._crew.task_s, 0.0, self._fetch)
        else:
            self._fetch()

    def _fetch(self) -> None:
        self._began, self._rows, self._cpu_s = self._clock.now, 0, 0.0
        task = self.out[0][0]
        self._parts = self._crew.parts(task)
        self._deadline = self._began + task.budget_ns / 1e9
        self._next_part()

    def _next_part(self) -> None:
        part = None if self._rows and self._clock.now > self._deadline else next(self._parts, None)
        if part is None:
            self._answer()
            return
        rows, cpu_s, wait_s = part
        self._rows += rows
        self._cpu_s += cpu_s
        self._clock.spend(cpu_s, wait_s, self._next_part)

    def _answer(self) -> None:
        task, sent, arrived = self.out.popleft()
        seconds, queue_s = self._clock.now - self._began, self._began - sent
        payloads = (_SAMPLE,) * len(task.pieces)
        ticket = Ticket(task.number, task.run, self.number, self._rows, seconds, payloads)
        ticket = ticket._replace(began=self._began, queue_s=queue_s, cpu_s=self._cpu_s)
        if self.out:
            self._begin()
        self._crew.answers(ticket, arrived)
        self.end_if_retired()


class Crew:
    """The workers, who come and go as those of ``pool.crew`` do."""

    dataset, is_staffed, pids = 1, True, ()

    def __init__(
        self,
        clock: Clock,
        samples: Sequence[Service],
        width: int,
        task_s: float,
        start_s: float,
        memory_bytes: int,
        happens: Callable[[], object],
    ) -> None:
        self.clock, self.width, self.task_s, self.start_s = clock, width, task_s, start_s
        self.most_bytes = memory_bytes // SHARE
        self.busy_s = 0.0
        self._cpu, self._wait = [one.cpu_s for one in samples], [one.wait_s for one in samples]
        self._happens, self._has_answered = happens, False
        self._backlog: deque[tuple[Task, Callable[[Any], None]]] = deque()
        self._workers = {number: _Worker(number, self) for number in range(width)}

    def parts(self, task: Task) -> Iterator[tuple[int, float, float]]:
        """What a task's rows take, as many at a time as go by between two looks at the clock."""
        cpu, wait, count = self._cpu, self._wait, len(self._cpu)
        rows, cpu_s, wait_s = 0, 0.0, 0.0
        for piece in task.pieces:
            for key in piece.keys:
                rows, cpu_s, wait_s = rows + 1, cpu_s + cpu[key % count], wait_s + wait[key % count]
                if rows == _LOOK_ROWS or cpu_s + wait_s >= _LOOK_S:
                    yield rows, cpu_s, wait_s
                    rows, cpu_s, wait_s = 0, 0.0, 0.0
        if rows:
            yield rows, cpu_s, wait_s

    # -- what the loop asks of a crew --------------------------------------------------------------------------------

    @property
    def _able(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.is_ready and not worker.is_retiring]

    @property
    def vacancies(self) -> int:
        able = self._able
        return (sum(MOST_OUT - len(worker.out) for worker in able) if able else 1) - len(self._backlog)

    @property
    def has_idle_worker(self) -> bool:
        return any(not worker.out for worker in self._able)

    @property
    def present(self) -> int:
        """Workers of the moment, those included that start or are about to end."""
        return len(self._workers)

    @property
    def is_settled(self) -> bool:
        return len(self._workers) == self.width == len(self._able)

    def submit(self, task: Task, arrived: Callable[[Any], None]) -> None:
        self._backlog.append((task, arrived))
        self.assign()

    def assign(self) -> None:
        """Hand out what waits."""
        while self._backlog:
            chosen = min(self._able, key=lambda worker: len(worker.out), default=None)
            if chosen is None or len(chosen.out) >= MOST_OUT:
                return
            chosen.give(*self._backlog.popleft())

    def answers(self, ticket: Ticket, arrived: Callable[[Any], None]) -> None:
        self.busy_s += ticket.seconds
        self._has_answered = True
        arrived(ticket)
        self.assign()

    def resize(self, width: int) -> None:
        self.width = width
        for worker in list(self._workers.values()):
            worker.is_retiring = worker.is_retiring or worker.number >= width
            worker.end_if_retired()
        self.replace_workers()

    def leaves(self, worker: _Worker) -> None:
        """A worker has done its last task."""
        self._workers.pop(worker.number, None)
        self.replace_workers()

    def replace_workers(self) -> None:
        for number in range(self.width):
            if number not in self._workers:
                self._workers[number] = _Worker(number, self)

    def wait(self) -> None:
        """Until a task is answered, or the loop is called."""
        while not self._has_answered and not self._happens():
            self.clock.step()
        self._has_answered = False

    def answered(self, worker: int, rows: int, drawn: frozenset[str]) -> None: ...
    def staff(self) -> None: ...
    def dispose(self, timeout: float = 0.0) -> None: ...

    def dismiss(self) -> bool:
        return True

    def board(self) -> list[Line]:
        return []


class Call(Bell):
    """A bell that nobody else hears: it needs no descriptor."""

    def __init__(self) -> None:
        self.has_rung = False
        self.ring = self._ring

    def _ring(self) -> None:
        self.has_rung = True

    def hush(self) -> None:
        self.has_rung = False

    def close(self) -> None: ...
