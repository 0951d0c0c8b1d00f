"""Runs the prefetch loop in one thread, with a fake team, in any order of events.

A run depends only on the choices that are made in it.  Whenever the loop waits, one of
the events that are possible next happens.  ``explore`` goes through all choices, and
``wander`` through some.
"""

from __future__ import annotations

import itertools
import random
import select
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from mpiter.engine.communicator import Terminated
from mpiter.engine.delivery import OBJECTS
from mpiter.engine.hooks import Hooks
from mpiter.engine.prefetch import Run, _PrefetchLoop
from mpiter.engine.tally import Skipped
from mpiter.errors import LeafError, SampleNotSendable
from mpiter.order.cursor import Cursor, Pace
from mpiter.order.order import Sequential
from mpiter.pool.endings import End
from mpiter.rules import Rules
from mpiter.worker.block import Block, Done, Fault, Lost
from mpiter.worker.board import Line
from mpiter.worker.sheets import Payload


class Choices:
    """A path through a tree.

    Its first branches are given.  After them, the first branch is taken, or any if
    there is a generator.
    """

    def __init__(
        self, given: Sequence[int] = (), rng: random.Random | None = None
    ) -> None:
        self._given = given
        self._rng = rng
        # Each choice is a pair: the branch, and the number of branches.
        self.made: list[tuple[int, int]] = []

    def among(self, count: int) -> int:
        at = len(self.made)
        chosen = 0
        if at < len(self._given):
            chosen = self._given[at]
        elif self._rng:
            chosen = self._rng.randrange(count)
        self.made.append((chosen, count))
        return chosen


def explore(run: Callable[[Choices], object]) -> int:
    """Go through every path of ``run``, and return how many there are."""
    given: list[int] = []
    for number in itertools.count(1):
        choices = Choices(given)
        _explained(run, choices)
        made = choices.made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        if not made:
            return number
        given = [chosen for chosen, _ in made[:-1]] + [made[-1][0] + 1]
    raise AssertionError


def wander(run: Callable[[Choices], object], paths: int) -> None:
    """Go through so many random paths, the same ones each time."""
    for seed in range(paths):
        _explained(run, Choices(rng=random.Random(seed)))


def _explained(run: Callable[[Choices], object], choices: Choices) -> None:
    try:
        run(choices)
    except BaseException as error:
        error.add_note(f"choices: {[chosen for chosen, _ in choices.made]}")
        raise


# A worker has at most so many blocks.
MOST_OUT = 64


@dataclass(frozen=True)
class Case:
    """What is loaded, and how often each event may happen meanwhile."""

    batches: int = 3
    batch_size: int = 2
    workers: int = 2
    n_prefetch: int = 1
    run_ahead: int | None = None
    # There are never more rooms than this.
    rooms: int = 8
    # At 60e-3 seconds a row, batches are cut into several blocks.  At 6e-3, each worker
    # has one block.
    row_s: float = 1e-6
    # If true, rows travel with the answer, and workers don't write into rooms.
    travels: bool = False
    in_order: bool = True
    skips_errors: bool = False
    # If true, several events may have happened when the loop looks.
    at_once: bool = False
    deaths: int = 0
    # So many of the deaths are of workers that can't be killed.
    stuck: int = 0
    faults: int = 0
    # So many answers can't be sent.
    losses: int = 0
    restarts: int = 0
    closes: int = 0
    # If true, the user keeps batches for a while.
    keeps: bool = False
    # If true, the first sample raises.
    fails_first: bool = False
    # A leaf of the program's can't take these samples apart.
    refused: tuple[int, ...] = ()


def is_odd(key: int) -> bool:
    """Return whether the sample fits no column."""
    return key % 5 == 4


class Room:
    """The memory of a batch, which workers write to if they have its address."""

    brief = b"a layout"
    # A layout says whether the rows may differ in length; these never do.
    layout = None

    def __init__(self, number: int, travels: bool, rows: int) -> None:
        self.number = number
        self.address = None if travels else number
        self.rows: list[Any] = [None] * rows
        # After that it is discarded, or leased and then returned.  Or it is lost,
        # because a worker that can't be killed may write to it at any time.
        self.state = "open"
        # If true, its return wakes the loop.
        self.rings = False

    def write(self, row: int, key: int) -> None:
        assert self.state in ("open", "lost"), (
            f"a worker writes into a room that is {self.state}"
        )
        self.rows[row] = key


class Rooms:
    """A number of rooms, whose layout is known after the first sample."""

    bytes = 1
    are_settled = True
    slots = SimpleNamespace(leased=0, most_bytes=1 << 30)

    def __init__(self, most: int, travels: bool, refused: tuple[int, ...]) -> None:
        self.is_new = True
        self.all: list[Room] = []
        self._refused = refused
        self._most = most
        self._travels = travels

    def waits_for_a_sample(self, rows: int) -> bool:
        return self.is_new

    def learn(self, sample: Any, rows: int) -> None:
        assert self.is_new
        if sample in self._refused:
            raise LeafError
        self.is_new = False

    def take(self, rows: int) -> Any:
        if self.is_new:
            return OBJECTS
        out = [room for room in self.all if room.state not in ("discarded", "returned")]
        if len(out) < self._most:
            self.all.append(Room(len(self.all), self._travels, rows))
            return self.all[-1]
        for room in out:
            room.rings |= room.state == "leased"
        return None if any(room.state == "open" for room in out) else OBJECTS

    def fill(self, room: Room, row: int, rows: int, keys: list[Any]) -> None:
        assert self._travels
        assert len(keys) == rows
        for at, key in enumerate(keys, row):
            room.write(at, key)

    def place(self, batch: Any) -> dict[int, LeafError]:
        errors = {}
        for row, key in list(batch.odd.items()):
            if batch.room is OBJECTS or is_odd(key):
                continue
            if key in self._refused:
                errors[row] = LeafError()
            else:
                batch.room.write(row, batch.odd.pop(row))
        return errors

    def contents(self, batch: Any, failed: Any) -> Any:
        """Return what the user gets, which are the keys of the batch."""
        room = batch.room
        is_lost = batch.is_lost
        if room is OBJECTS:
            keys = [None] * batch.plan.rows
        else:
            keys = room.rows
        keys = [
            batch.odd.get(row, key) for row, key in enumerate(keys) if row not in failed
        ]
        if room is not OBJECTS:
            assert room.state == "open", f"a room that is {room.state} is handed over"
            room.state = "lost" if is_lost else "leased"
        return SimpleNamespace(
            keys=keys, room=None if is_lost else room, copied=is_lost, columns=[]
        )

    def give_back(self, batch: Any) -> None:
        room = batch.room
        batch.room = OBJECTS
        if room is not OBJECTS:
            assert room.state == "open", f"a room that is {room.state} is discarded"
            room.state = "lost" if batch.is_lost else "discarded"


class Crew:
    """Workers that do what the choices say while the loop waits."""

    dataset = 1
    is_staffed = True
    pids = ()

    def __init__(self, world: World) -> None:
        self._world = world
        self.workers = world.case.workers
        # Pairs of a worker and a block that it has.
        self.out: list[tuple[int, Block]] = []
        self.wait = world.something_happens

    def name_of(self, worker: int) -> str:
        return f"worker {worker}"

    def of(self, worker: int) -> list[Block]:
        return [block for number, block in self.out if number == worker]

    def vacancies(self, most: int) -> int:
        return sum(
            max(0, most - len(self.of(worker))) for worker in range(self.workers)
        )

    def map_async(self, block: Block) -> None:
        load = Counter(worker for worker, _ in self.out)
        worker = min(range(self.workers), key=lambda at: (load[at], at))
        assert load[worker] < MOST_OUT
        assert block.number not in [other.number for _, other in self.out]
        self._world.begun.add(block.batch)
        self.out.append((worker, block))

    def dismiss(self) -> bool:
        self.out.clear()
        return True

    def board(self) -> list[Line]:
        return []

    def staff(self) -> None: ...
    def replace_workers(self) -> None: ...


@dataclass
class World:
    """The loop, its workers and its consumer, on one path."""

    case: Case
    choices: Choices
    # Deliveries of this run that the consumer has taken.
    got: list[Any] = field(default_factory=list)
    # Batches of this run of which workers have got a block.
    begun: set[int] = field(default_factory=set)
    # Rooms of batches that the user keeps.
    kept: list[Room] = field(default_factory=list)
    # Rows that workers which can't be killed may still write.
    stuck: list[tuple[Room, int, int]] = field(default_factory=list)
    ended = False
    # The loop waits though no event is left, so it would wait for ever.
    sleeps = False

    def __post_init__(self) -> None:
        case = self.case
        names = ("deaths", "stuck", "faults", "losses", "restarts", "closes")
        self.left = {name: getattr(case, name) for name in names}
        self.runs = 0
        rules = Rules(
            workers=case.workers,
            n_prefetch=case.n_prefetch,
            run_ahead=case.run_ahead,
            skips_errors=case.skips_errors,
            in_order=case.in_order,
        )
        run_ahead = case.run_ahead
        if run_ahead is None:
            # Workers have more blocks that are tiny.
            blocks = MOST_OUT if case.row_s * case.batch_size < 1e-4 else 2
            run_ahead = blocks * case.workers + 1
        self.most = case.n_prefetch + run_ahead
        self.rooms = Rooms(case.rooms, case.travels, case.refused)
        self.crew = Crew(self)
        self.closed = 0
        self.faulty: set[int] = {0} if case.fails_first else set()
        self.loop = _PrefetchLoop(rules, self._hire, Skipped(), Hooks())  # type: ignore[arg-type]
        self.loop.staff(self._new_run())
        self.loop._thread = SimpleNamespace(is_alive=lambda: True)  # type: ignore[assignment]

    def _hire(self, bell: Any, warn: Any) -> Any:
        self.bell = bell
        return SimpleNamespace(
            crew=self.crew,
            rooms=self.rooms,
            opens=list,
            carries=lambda cargo: True,
            close=self._has_closed,
        )

    def _has_closed(self, timeout: float) -> None:
        self.closed += 1

    def _new_run(self) -> Run:
        self.runs += 1
        pace = Pace(self.case.batch_size, wrap=False, epochs=1)
        order = Sequential(self.case.batches * self.case.batch_size)
        return Run(self.runs, Cursor(0, 0, False, order), 0, pace)

    def run(self) -> None:
        """Run until all batches and events are used up, or until the loop is closed."""
        try:
            for _ in range(400):
                if self.is_over:
                    break
                self.loop.turn()
                self.check_bounds()
                assert not self.sleeps, (
                    "the loop waited, and nothing was left that could wake it"
                )
            else:
                raise AssertionError("it goes round and round")
            if not self.loop.communicator.is_terminated:
                self.check()
        except Terminated:
            assert self.loop.communicator.is_terminated
        finally:
            self.loop.stop()
            self.loop._dispose()
            self.loop._dispose()
        assert self.closed == 1

    @property
    def is_over(self) -> bool:
        return self.loop.communicator.is_terminated or (
            self.ended and not (self.crew.out or self.kept or self.stuck)
        )

    # -- what may happen ---------------------------------------------------------------

    def something_happens(self) -> list[Any]:
        """Let one possible event happen after the other, until one wakes the loop."""
        self.check_bounds()
        told: list[Any] = []
        while not (self._has_rung() or self.is_over):
            events = list(self._events())
            self.sleeps = not (events or told)
            assert not self.sleeps, (
                "the loop waits, and nothing is left that could wake it"
            )
            # Once there is something to tell, the loop may also look at once.
            chosen = self.choices.among(len(events) + bool(told))
            if chosen == len(events):
                break
            event = events[chosen]()
            if event is not None:
                told.append(event)
                if not self.case.at_once:
                    break
        self.bell.hush()
        return told

    def _has_rung(self) -> bool:
        return bool(select.select([self.bell], [], [], 0)[0])

    def _events(self) -> Iterator[Callable[[], Any]]:
        """Yield the events that are possible now.

        Those of workers return what the crew tells the loop.
        """
        for worker in sorted({worker for worker, _ in self.crew.out}):
            block = self.crew.of(worker)[0]
            yield partial(self._answer, worker, block)
            if self.left["faults"]:
                yield partial(self._raise_in, worker, block)
            if self.left["losses"]:
                yield partial(self._lose, worker, block)
            if self.left["deaths"]:
                yield partial(self._kill, worker)
                if self.left["stuck"]:
                    yield partial(self._kill, worker, is_gone=False)
        if len(self.loop.communicator.queue):
            yield self._take
        if self.left["restarts"]:
            yield self._restart
        if self.left["closes"]:
            yield self._close
        if self.kept:
            yield self._let_go
        if self.stuck:
            yield self._write_late

    def _answer(self, worker: int, block: Block) -> Done:
        """Let the worker answer its block."""
        self.crew.out.remove((worker, block))
        faults: list[Fault] = []
        rows: list[int] = []
        keys: list[int] = []
        columns: list[Any] = []
        for at in range(block.rows):
            place, key = block.sample(at)  # type: ignore[misc]
            columns.append(key)
            is_refused = bool(block.brief) and key in self.case.refused
            if key in self.faulty or is_refused:
                batch, row, epoch, position = place
                raised = "worker", "ValueError", "", None
                faults.append(Fault(batch, row, key, epoch, position, *raised))
            elif not block.brief or is_odd(key):
                rows.append(at)
                keys.append(key)
            elif block.address is not None:
                self.rooms.all[block.address].write(block.row + at, key)
        travels = block.brief and block.address is None
        payload: Payload | None = None
        if travels or rows:
            payload = Payload(
                columns if travels else None,
                keys if rows else None,
                rows,
            )
        return Done(
            block.number,
            worker,
            block.rows,
            block.rows * self.case.row_s,
            tuple(faults),
            payload=payload,
        )

    def _raise_in(self, worker: int, block: Block) -> Done:
        self.left["faults"] -= 1
        self.faulty.add(block.sample(block.rows - 1)[1])  # type: ignore[index]
        return self._answer(worker, block)

    def _lose(self, worker: int, block: Block) -> Lost:
        self.left["losses"] -= 1
        self.crew.out.remove((worker, block))
        return Lost(block.number, TypeError("cannot pickle it"))

    def _kill(self, worker: int, is_gone: bool = True, active: int = 1) -> End:
        self.left["deaths"] -= 1
        self.left["stuck"] -= not is_gone
        lost = self.crew.of(worker)
        self.crew.out = [
            (other, block) for other, block in self.crew.out if other != worker
        ]
        for block in lost:
            if not is_gone and block.address is not None:
                room = self.rooms.all[block.address]
                self.stuck.append((room, block.row, block.sample(0)[1]))  # type: ignore[index]
        line = Line(100 + worker, 1, lost[0].number, 0, 0, active)
        return End(
            worker,
            line,
            "was killed",
            blocks=tuple(block.number for block in lost),
            is_gone=is_gone,
        )

    def _write_late(self) -> None:
        """Let a worker that can't be killed write what it was about to write."""
        room, row, key = self.stuck.pop()
        room.write(row, key)

    def _take(self) -> None:
        delivery = self.loop.communicator.get(lambda waited: None)
        self.got.append(delivery)
        assert delivery.number == len(self.got) - 1, (
            "a delivery is lost, or comes twice"
        )
        self.ended = delivery.is_end
        if isinstance(delivery.error, SampleNotSendable) and self.ended:
            # The user tries again.
            self._go()
        elif (room := _leased(delivery)) is not None:
            self.kept.append(room)
            if not self.case.keeps:
                self._let_go()

    def _let_go(self) -> None:
        self._return(self.kept.pop(0))

    def _return(self, room: Room) -> None:
        room.state = "returned"
        if room.rings:
            self.loop.wake()

    def _restart(self) -> None:
        self.left["restarts"] -= 1
        self._go()

    def _go(self) -> None:
        self.got.clear()
        self.begun.clear()
        self.ended = False
        for room in filter(None, map(_leased, self.loop.communicator.queue)):
            # Nothing refers any more to the batches that were queued.
            self._return(room)
        self.loop.go(self._new_run())

    def _close(self) -> None:
        self.left["closes"] -= 1
        self.loop.stop()

    # -- what must be true -------------------------------------------------------------

    def check_bounds(self) -> None:
        """Check how many batches wait in the queue, and how many are in flight."""
        queue = self.loop.communicator.queue
        waiting = sum(not delivery.is_end for delivery in queue)
        assert waiting <= self.case.n_prefetch, f"{waiting} wait"
        ahead = len(self.begun) - len(self.got)
        assert ahead <= self.most, f"{ahead} are on their way"

    def check(self) -> None:
        """Check that every batch came once, in order, with every row in its place.

        No room may be left that nothing refers to.
        """
        case = self.case
        last = self.got.pop()
        if last.error is not None:
            raise last.error
        wanted = {at: self._wanted(at) for at in range(case.batches)}
        come = [
            delivery.contents.keys
            for delivery in self.got
            if delivery.contents is not None
        ]
        assert len(self.got) == case.batches, "not each batch has a delivery"
        missing = [
            at
            for at, keys in wanted.items()
            if keys not in come and not self._may_fail(at)
        ]
        assert not missing, f"batches {missing} are missing among {come}"
        full = [key for keys in come for key in keys]
        assert len(set(full)) == len(full), f"a sample came twice: {come}"
        whole = all(keys in wanted.values() for keys in come)
        assert whole or (case.skips_errors and case.deaths > 1), (
            f"rows that are wrong: {come}"
        )
        assert come == sorted(come) or not case.in_order, f"out of order: {come}"
        ledger = self.loop.ledger
        entries = len(ledger.batches), len(ledger.out), len(ledger.uncut)
        assert entries == (0, 0, 0), "the book is not empty"
        left = [
            room.number for room in self.rooms.all if room.state in ("open", "leased")
        ]
        assert not left, f"rooms {left} are lost"
        lost = sum(room.state == "lost" for room in self.rooms.all)
        assert lost <= 2 * (case.stuck - self.left["stuck"]), (
            "rooms are given up that no worker may write into"
        )

    def _wanted(self, batch: int) -> list[int]:
        size = self.case.batch_size
        return [
            key
            for key in range(batch * size, (batch + 1) * size)
            if key not in self.faulty and key not in self.case.refused
        ]

    def _may_fail(self, batch: int) -> bool:
        """Return whether a row of it has raised, or may have ended two workers."""
        return len(self._wanted(batch)) < self.case.batch_size or self.case.deaths > 1


def _leased(delivery: Any) -> Room | None:
    """Return the room that is leased with a delivery, if any."""
    room = getattr(delivery.contents, "room", None)
    if room is None or room is OBJECTS or room.state != "leased":
        return None
    return room
