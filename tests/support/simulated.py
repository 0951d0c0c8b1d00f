"""The prefetch loop with a fake crew and a fake transport, in one thread: every order of events can be had.

A run is a function of the choices that are made in it: whenever the loop waits, one of the things that may happen next
happens.  ``explore`` goes through all of them, or through as many as are asked for.
"""

from __future__ import annotations

import itertools
import random
import select
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mpiter.engine.prefetch import _PrefetchLoop
from mpiter.engine.run import Run
from mpiter.order.cursor import Cursor, Pace
from mpiter.order.order import Sequential
from mpiter.pool.endings import End
from mpiter.pool.pool import MOST_OUT
from mpiter.rules import Rules
from mpiter.samples.envelope import seal
from mpiter.worker.board import Line
from mpiter.worker.task import Fault, Task, Ticket


class Choices:
    """A path through a tree: the first few branches are given, from there on the first is taken, or any."""

    def __init__(self, given: Sequence[int] = (), rng: random.Random | None = None) -> None:
        self._given, self._rng = given, rng
        self.made: list[tuple[int, int]] = []  # which, of how many

    def among(self, count: int) -> int:
        at = len(self.made)
        chosen = self._given[at] if at < len(self._given) else self._rng.randrange(count) if self._rng else 0
        self.made.append((chosen, count))
        return chosen


def explore(run: Callable[[Choices], object], most: int = 10**9) -> int:
    """Every path of ``run``, or the first ``most``, one after the other; how many."""
    given: list[int] = []
    for number in itertools.count(1):
        choices = Choices(given)
        _explained(run, choices)
        made = choices.made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        if not made or number == most:
            return number
        given = [chosen for chosen, _ in made[:-1]] + [made[-1][0] + 1]
    raise AssertionError


def wander(run: Callable[[Choices], object], paths: int) -> None:
    """So many paths at random, the same ones each time."""
    for seed in range(paths):
        _explained(run, Choices(rng=random.Random(seed)))


def _explained(run: Callable[[Choices], object], choices: Choices) -> None:
    try:
        run(choices)
    except BaseException as error:
        error.add_note(f"choices: {[chosen for chosen, _ in choices.made]}")
        raise


@dataclass(frozen=True)
class Case:
    """What is loaded, and what may happen meanwhile."""

    batches: int = 3
    batch_size: int = 2
    workers: int = 2
    n_prefetch: int = 1
    run_ahead: int = 1
    rooms: int = 6  # there are no more, however long one waits
    row_s: float = 1e-6  # cheap rows go a batch to a task, dear ones (60e-3) one by one
    in_order: bool = True
    skips_errors: bool = False
    deaths: int = 0  # of workers
    stuck: int = 0  # of them would not die
    shortfalls: int = 0  # answers that leave something undone
    faults: int = 0
    restarts: int = 0
    keeps: bool = False  # the user keeps batches for a while
    fails_first: bool = False  # the first sample raises


class Room:
    """A batch's memory: where rows are written by workers that have its address."""

    brief = b"brief"

    def __init__(self, number: int, rows: int) -> None:
        self.address = (number,)
        self.rows: list[Any] = [None] * rows
        self.state = "open"  # then discarded, or leased and returned
        self.is_quarantined = False

    def write(self, row: int, key: int) -> None:
        assert self.state == "open" or self.is_quarantined, f"a worker writes into a room that is {self.state}"
        self.rows[row] = key

    def put(self, row: int, sample: Any) -> None:
        self.write(row, sample)

    def fail(self, row: int) -> None:
        self.rows[row] = "failed"

    def receive(self, payload: Any) -> None:
        assert self.state == "open", f"an answer for a room that is {self.state}"

    def contents(self) -> Any:
        assert self.state == "open"
        self.state = "copied" if self.is_quarantined else "leased"
        return SimpleNamespace(rows=list(self.rows), odd={}, apart=[], copied=self.is_quarantined, room=self)

    def discard(self) -> None:
        assert self.state == "open", f"a room that is {self.state} is discarded"
        self.state = "discarded"

    def quarantine(self) -> None:
        self.is_quarantined = True


class Transport:
    """So many rooms, and a plan after the first sample."""

    room_bytes = 1

    def __init__(self, most: int) -> None:
        self.is_laid_out, self.all, self._most = False, list[Room](), most

    def lay_out(self, sample: Any) -> None:
        assert not self.is_laid_out
        self.is_laid_out = True

    def follow(self, contents: Any) -> None: ...

    @property
    def out(self) -> int:
        return sum(room.state in ("open", "leased") for room in self.all)

    def room(self, rows: int) -> Room | None:
        if self.out >= self._most:
            return None
        self.all.append(Room(len(self.all) + 1, rows))
        return self.all[-1]


@dataclass
class Out:
    """A task with a worker."""

    task: Task
    worker: int
    take_in: Callable[[Any], None]


class Crew:
    """Workers that do what the choices say, when the loop waits."""

    dataset, most_bytes, is_staffed, is_settled, pids = 1, 1 << 30, True, True, ()

    def __init__(self, world: World, callbacks: Any) -> None:
        self._world, self.callbacks = world, callbacks
        self.out: list[Out] = []

    @property
    def width(self) -> int:
        return self._world.case.workers

    @property
    def vacancies(self) -> int:
        return MOST_OUT * self._world.case.workers - len(self.out)

    @property
    def has_idle_worker(self) -> bool:
        return len({out.worker for out in self.out}) < self._world.case.workers

    def submit(self, task: Task, take_in: Callable[[Any], None]) -> None:
        load = Counter(out.worker for out in self.out)
        worker = min(range(self._world.case.workers), key=lambda at: (load[at], at))
        assert load[worker] < MOST_OUT
        assert not any(out.task.number == task.number for out in self.out)
        self.out.append(Out(task, worker, take_in))

    def wait(self) -> None:
        self._world.something_happens()

    def dismiss(self) -> bool:
        self.out.clear()
        return True

    def board(self) -> list[Line]:
        return []

    def dispose(self, timeout: float) -> None: ...
    def staff(self) -> None: ...
    def replace_workers(self) -> None: ...
    def answered(self, worker: int, rows: int, drawn: frozenset[str]) -> None: ...


@dataclass
class World:
    """One run: the loop, its workers, its consumer."""

    case: Case
    choices: Choices
    left: dict[str, int] = field(default_factory=dict)
    got: list[Any] = field(default_factory=list)  # deliveries of this run
    kept: list[Room] = field(default_factory=list)  # by the user
    stuck: list[tuple[Room, int, int]] = field(default_factory=list)  # what those who would not die may still write

    def __post_init__(self) -> None:
        case = self.case
        names = ("deaths", "stuck", "shortfalls", "faults", "restarts")
        self.left = {name: getattr(case, name) for name in names}
        rules = Rules(
            workers=case.workers,
            n_prefetch=case.n_prefetch,
            run_ahead=case.run_ahead,
            skips_errors=case.skips_errors,
            in_order=case.in_order,
        )
        self.transport = Transport(case.rooms)
        self.faulty: set[int] = {0} if case.fails_first else set()
        self.loop = _PrefetchLoop(rules, self.transport, self._make_crew)  # type: ignore[arg-type]
        self.loop._staff(self._new_run(0))
        self.loop._thread = SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]
        self.loop._communicator._not_full = self  # type: ignore[assignment]
        self.sleeps = False  # for ever, if nobody had come
        self.ended = False

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """The loop's thread waits until the consumer has taken enough."""
        while not is_so():
            self._take()

    def notify(self) -> None: ...

    notify_all = notify

    def _make_crew(self, callbacks: Any) -> Crew:
        self.crew = Crew(self, callbacks)
        return self.crew

    def _new_run(self, run: int) -> Run:
        pace = Pace(self.case.batch_size, wrap=False, epochs=1)
        return Run(run, Cursor(0, 0, False, Sequential(self.case.batches * self.case.batch_size)), 0, pace)

    def run(self) -> None:
        """To the end of what there is, and of what was still on its way."""
        try:
            for _ in range(400):
                if self.is_over:
                    break
                self.loop._turn()
                assert not self.sleeps, "the loop waited, and nothing was left that could wake it"
            else:
                raise AssertionError("it goes round and round")
            self.check()
        finally:
            self.loop.stop()
            self.loop._dispose()

    @property
    def is_over(self) -> bool:
        return self.ended and not (self.crew.out or self.kept or self.stuck)

    # -- what may happen -----------------------------------------------------------------------------------------

    def something_happens(self) -> None:
        """Of all that may happen one thing, and another, until one of them wakes the loop."""
        while not (self._has_rung() or self.is_over):
            events = list(self._events())
            self.sleeps = not events
            assert events, "the loop waits, and nothing is left that could wake it"
            if events[self.choices.among(len(events))]():
                return
        self.crew.callbacks.bell.hush()

    def _has_rung(self) -> bool:
        return bool(select.select([self.crew.callbacks.bell], [], [], 0)[0])

    def _events(self) -> Iterator[Callable[[], object]]:
        """Those of workers are True: the Pool hears of them by itself."""
        first = {}
        for out in self.crew.out:
            first.setdefault(out.worker, out)
        for out in first.values():
            yield lambda out=out: self._answer(out, self._rows(out))
            if self.left["shortfalls"] and self._rows(out) > 1:
                yield lambda out=out: self._fall_short(out)
            if self.left["faults"]:
                yield lambda out=out: self._raise_in(out)
        if self.left["deaths"]:
            for worker in first:
                yield lambda worker=worker: self._kill(worker)
                if self.left["stuck"]:
                    yield lambda worker=worker: self._kill(worker, is_gone=False)
        if len(self.loop._communicator):
            yield self._take
            if self.left["restarts"]:
                yield self._restart
        if self.kept:
            yield self._let_go
        if self.stuck:
            yield self._write_late

    def _rows(self, out: Out) -> int:
        return sum(piece.rows for piece in out.task.pieces)

    def _answer(self, out: Out, rows: int) -> bool:
        """The worker has fetched so many rows of its task, and the loop hears of it."""
        self.crew.out.remove(out)
        payloads, faults, left = [], [], rows
        for piece in out.task.pieces:
            payloads.append(self._fetch(piece, min(left, piece.rows), faults))
            left -= min(left, piece.rows)
            if not left:
                break
        seconds = rows * self.case.row_s
        ticket = Ticket(out.task.number, out.task.run, out.worker, rows, seconds, tuple(payloads), tuple(faults))
        out.take_in(ticket)
        return True

    def _fetch(self, piece: Any, rows: int, faults: list[Fault]) -> Any:
        room = self._room(piece)
        payload = []
        for row, key in enumerate(piece.keys[:rows], piece.row):
            if key in self.faulty:
                where = piece.position + row - piece.row
                faults.append(Fault(piece.batch, row, key, piece.epoch, where, "worker", "ValueError", "", None))
            elif room is None:
                payload.append((row, seal([key]).part(0, 1).bytes()))
            else:
                room.write(row, key)
        return payload

    def _room(self, piece: Any) -> Room | None:
        return self.transport.all[piece.address[0] - 1] if piece.address else None

    def _fall_short(self, out: Out) -> bool:
        self.left["shortfalls"] -= 1
        return self._answer(out, self._rows(out) - 1)

    def _raise_in(self, out: Out) -> bool:
        self.left["faults"] -= 1
        self.faulty.add(out.task.pieces[-1].keys[-1])
        return self._answer(out, self._rows(out))

    def _kill(self, worker: int, is_gone: bool = True) -> bool:
        self.left["deaths"] -= 1
        self.left["stuck"] -= not is_gone
        lost = [out for out in self.crew.out if out.worker == worker]
        self.crew.out = [out for out in self.crew.out if out.worker != worker]
        piece = lost[0].task.pieces[0]
        line = Line(100 + worker, 1, 0, lost[0].task.number, piece.batch, piece.row, 0, 1)
        if not is_gone and (room := self._room(piece)) is not None:
            self.stuck.append((room, piece.row, piece.keys[0]))
        self.crew.callbacks.ended(
            End(worker, line, "was killed", tasks=tuple(o.task.number for o in lost), is_gone=is_gone)
        )
        return True

    def _write_late(self) -> None:
        """A worker that would not die does what it was about to do."""
        room, row, key = self.stuck.pop()
        assert room.state != "leased", "the user sees it"
        assert room.is_quarantined or room.state == "open", "it is somebody else's memory by now"
        room.rows[row] = key

    def _take(self) -> None:
        delivery = self.loop._communicator.get(lambda: True, lambda waited: None)
        self.got.append(delivery)
        self.ended = not delivery.counts
        assert delivery.number == len(self.got) - 1, "a delivery is lost, or comes twice"
        if (room := _leased(delivery)) is not None:
            self.kept.append(room)
            if not self.case.keeps:
                self._let_go()

    def _let_go(self) -> None:
        self.kept.pop(0).state = "returned"
        self.loop.wake()

    def _restart(self) -> None:
        self.left["restarts"] -= 1
        self.got.clear()
        self.ended = False
        for delivery in [*self.loop._communicator._queue, *self.loop._communicator._line]:
            if (room := _leased(delivery)) is not None:
                room.state = "returned"  # nobody holds what was queued
        self.loop.go(self._new_run(self.case.restarts - self.left["restarts"]))

    # -- what must be true ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Every batch once, in order, with every row where it belongs; nothing kept that nobody holds."""
        case, last = self.case, self.got.pop()
        if last.error is not None:
            raise last.error
        wanted = {at: self._wanted(at) for at in range(case.batches)}
        come = [_rows(delivery.contents) for delivery in self.got if delivery.contents is not None]
        come = [[row for row in rows if row != "failed" or not case.skips_errors] for rows in come]
        assert len(self.got) == case.batches, "not each batch has a delivery"
        missing = [at for at, rows in wanted.items() if rows not in come and not self._may_fail(at)]
        assert not missing, f"batches {missing} are missing among {come}"
        assert all(rows in wanted.values() for rows in come), f"rows that are wrong: {come}"
        assert len({tuple(rows) for rows in come}) == len(come), f"a batch came twice: {come}"
        assert come == sorted(come) or not case.in_order, f"out of order: {come}"
        ledger = self.loop._ledger
        assert (ledger.batches, ledger.tasks, ledger.uncut_rows) == (0, 0, 0), "the book is not empty"
        lost = [room.address for room in self.transport.all if room.state in ("open", "leased")]
        assert not lost, f"rooms {lost} are lost"

    def _wanted(self, batch: int) -> list[int]:
        size = self.case.batch_size
        return [key for key in range(batch * size, (batch + 1) * size) if key not in self.faulty]

    def _may_fail(self, batch: int) -> bool:
        """A row of it has raised, or may have ended two workers."""
        return len(self._wanted(batch)) < self.case.batch_size or self.case.deaths > 1


def _leased(delivery: Any) -> Room | None:
    """The room that a delivery's user holds."""
    room = getattr(delivery.contents, "room", None)
    return room if room is not None and room.state == "leased" else None


def _rows(contents: Any) -> list[Any]:
    """What is in a batch; those of one row that came before there was a plan are as they came."""
    return contents.rows if hasattr(contents, "room") else [contents.asides[0][0]]
