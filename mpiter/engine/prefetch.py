"""The prefetch loop: a thread that plans batches ahead of the consumer, has them
fetched, and hands them over in order.

It waits in one place: for answers, for the ends of workers, and for its bell, which
other threads ring.  Guarantees that batches in flight are bounded in number and in
bytes; that every error is delivered to the consumer; and that any thread can stop the
loop, even the garbage collector's, since it ends its workers itself.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import machine
from ..bell import Bell
from ..errors import Notices, WorkerStartError
from ..order.cursor import Cursor, Horizon, Plans
from ..pool.crew import named_errors
from ..pool.endings import End
from ..pool.starting import never_interrupted
from ..rules import Rules
from ..stats import Stats
from ..worker import home
from ..worker.block import Block, Done, Lost
from ..worker.board import Line
from .communicator import Terminated, _Communicator
from .delivery import OBJECTS, Delivery, ending, finish, named, not_sendable
from .hook import Hook, Hooks
from .ledger import Ledger
from .recovery import Recovery
from .tally import Skipped, Tally
from .team import Team

_CLOSE_S = 4.5  # that closing may take
# Blocks with one worker: one that it fetches, one in its pipe…
_MOST_OUT = 2
# …but none waits behind a block that takes so long: another worker could take it.
_DEAR_BLOCK_S = 0.01


class Run(NamedTuple):
    """The batches from the position ``cursor`` on, until another run begins."""

    number: int
    cursor: Cursor
    seed: int
    plans: Plans


class _PrefetchLoop:
    """The loop of one iterator; ``hire`` makes its workers, from the bell and a
    function that warns the user.
    """

    _run: Run

    def __init__(
        self,
        rules: Rules,
        hire: Callable[[Bell, Callable[[str], None]], Team],
        skipped: Skipped,
        hooks: Hooks,
    ) -> None:
        self.pid = os.getpid()
        self.born = home.generation
        self.tally, self.notices = Tally(skipped), Notices()
        self._rules = rules
        self._hire = hire
        self._bell = Bell()
        self._hooks = hooks
        hooks.warn = self.notices.add
        # That were asked for and not yet begun.
        self._runs: deque[Run] = deque()
        self.communicator = _Communicator(rules.n_prefetch, self._has_taken)
        self._recovery = Recovery(skips=rules.skips_errors)
        # A Team, while there is one.
        self._team: Any = None
        self.ledger = Ledger(rules)
        self._thread: threading.Thread | None = None
        self._horizon = Horizon()
        self._ended = False  # the end has been delivered
        self._events: deque[Done | Lost | End] = deque()  # still to be handled
        self._numbers = itertools.count()
        # Deliveries that the consumer has taken.
        self._taken = 0
        # There is no slot for another batch.
        self._lacks_room = False
        # There is more to do once the consumer takes a delivery…
        self._is_held_up = False
        self._waits_for_room = False  # …which then rings the bell
        self._stopping = False

    def launch(self, run: Run) -> None:
        """Start the workers, in the caller's thread, then the loop's thread."""
        self.staff(run)
        thread = threading.Thread(
            target=self._work, name="mpiter-prefetch", daemon=True
        )
        with named_errors():
            thread.start()
        self._thread = thread

    def staff(self, run: Run) -> None:
        """Start the workers, and begin ``run``."""
        self._team = self._hire(self._bell, self.notices.add)
        self.ledger = Ledger(self._rules, self._team.rooms.give_back)
        self.communicator.reset(run.number)
        self._begin(run)

    def go(self, run: Run) -> None:
        """Drop all batches in flight and continue with ``run``."""
        self.communicator.reset(run.number)
        self._runs.append(run)
        self.wake()

    def _has_taken(self, delivery: Delivery) -> None:
        self._epoch_taken = delivery.plan.after.epoch
        self._taken += 1
        if self._waits_for_room:
            self._waits_for_room = False
            self._bell.ring()

    def wake(self) -> None:
        """Have the loop look for something to do; may be called from any thread."""
        self._bell.ring()

    def stop(self) -> None:
        """Ask the loop to end; may be called from any thread, at any time."""
        self._stopping = True
        self.communicator.terminate()
        self.wake()
        if self._thread is None:
            self._dispose()

    def close(self) -> None:
        """End the loop, and wait until it has ended its workers."""
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S + 0.3)

    def carries(self, cargo: Any) -> bool:
        """Return True if sending ``cargo`` to the workers now would change nothing for
        them.
        """
        return (team := self._team) is not None and team.carries(cargo)

    @property
    def lines(self) -> list[Line]:
        """Each worker's line on the board: shared integers that say which row it is
        fetching.
        """
        lines: list[Line] = []
        if team := self._team:
            lines = team.crew.board()
        return lines

    @property
    def pids(self) -> tuple[int, ...]:
        return team.crew.pids if (team := self._team) else ()

    def stats(self) -> Stats:
        queued = [delivery.contents for delivery in self.communicator.queue.copy()]
        team = self._team
        in_flight = len(self.ledger.batches) + len(queued)
        waiting = sum(
            not found.copied for found in queued if found is not None and found.columns
        )
        return Stats(
            **self.tally.look(),
            workers=self._rules.workers,
            worker_bytes=sum(map(machine.own_bytes, self.pids)),
            restarts=self._recovery.restarts,
            ready_batches=len(queued),
            in_flight_batches=in_flight,
            in_flight_bytes=in_flight * team.rooms.bytes if team else 0,
            leased_batches=max(0, team.rooms.slots.leased - waiting) if team else 0,
        )

    # -- its thread --------------------------------------------------------------------

    def _work(self) -> None:
        never_interrupted()
        try:
            while not self._stopping:
                self.turn()
        except Terminated:
            pass
        finally:
            self._dispose()

    def turn(self) -> None:
        """Make one pass of the loop: send blocks, hand over finished batches, wait, and
        handle what has happened.
        """
        try:
            while self._runs:
                self._begin(self._runs.popleft())
            self._is_held_up = self._lacks_room = False
            taken = self._taken
            delivered = self._delivered
            self._feed()
            self._hand_over()
            if self._lacks_room and delivered != self._delivered:
                # Copies were handed over, and their rooms are free.
                return
            # Set before the look below: from now on each take rings the bell.
            self._waits_for_room = self._is_held_up
            if self._is_held_up and taken != self._taken:
                self._waits_for_room = False
                # Meanwhile the consumer has taken some.
                return
            if not self._events:
                self._events.extend(self._team.crew.wait())
            self._waits_for_room = False
            while self._events:
                event = self._events.popleft()
                if type(event) is Done:
                    self._settle(event)
                elif type(event) is End and not event.was_asked:
                    self._hooks.tell(Hook.lost, event.worker)
                    self._recover(event)
                elif type(event) is Lost:
                    self.ledger.recall([event.number])
                    raise not_sendable(
                        "a worker could not send its answer", event.error
                    )
        except Terminated:
            raise
        except BaseException as error:
            self._fail(error)

    def _feed(self) -> None:
        """Send blocks (rows of one batch) to the workers that can take one."""
        team = self._team
        ledger = self.ledger
        crew, rooms, (parts, most_out, most_in_flight) = (
            team.crew,
            team.rooms,
            self._measure(team),
        )
        for _ in range(crew.vacancies(most_out)):
            if not ledger.uncut and not self._plan(rooms, most_in_flight):
                break
            if not crew.is_staffed:
                crew.staff()
                break  # no worker is ready
            block = ledger.cut(
                next(self._numbers),
                parts,
                crew.dataset,
                self._run.seed,
                time.monotonic(),
            )
            try:
                crew.map_async(block)
            except BaseException:
                ledger.recall([block.number])
                raise
        if not self._ended:
            crew.replace_workers()
        ready = len(self.communicator.queue)
        self._hooks.tell(Hook.in_flight, len(ledger.batches) + ready, ready)

    def _measure(self, team: Team) -> tuple[int, int, int]:
        """Return three numbers: the equal blocks to cut a batch into (0: send one row,
        to see a sample), the blocks that a worker may have, and the batches that may be
        in flight.
        """
        rules = self._rules
        rooms = team.rooms
        horizon = self._horizon
        most = rules.most
        workers = rules.workers
        if size := rooms.bytes:
            most = min(
                most,
                max(1, rooms.slots.most_bytes // size - rules.reserve)
                + rules.n_prefetch,
            )
        if rooms.is_new:
            horizon.peek()  # which sets horizon.rows
            if rooms.waits_for_a_sample(horizon.rows):
                return 0, 1, most
        batch_s = self.tally.sample_s * horizon.rows
        if batch_s > rules.dear_s or most <= workers:
            parts = workers
        else:
            parts = 1
        return parts, _MOST_OUT if batch_s < parts * _DEAR_BLOCK_S else 1, most

    def _plan(self, rooms: Any, most_in_flight: int) -> bool:
        """Plan one more batch and add it to the ledger; return False if the order or
        the memory has none to give.
        """
        horizon = self._horizon
        room = OBJECTS
        in_flight = len(self.ledger.batches) + len(self.communicator.queue)
        if in_flight >= most_in_flight or horizon.is_beyond(self._epoch_taken):
            self._is_held_up = not horizon.is_reached
            return False
        began = time.monotonic()
        if (plan := horizon.peek()) is None:
            return False
        if (
            not rooms.waits_for_a_sample(plan.rows)
            and (room := rooms.take(plan.rows)) is None
        ):
            # Until a slot comes home, which rings the bell.
            self._lacks_room = True
            return False
        self.ledger.enter(plan, room)
        horizon.take()
        self._hooks.tell(Hook.planned, plan, self._run.plans, began, time.monotonic())
        return True

    def _begin(self, run: Run) -> None:
        self.ledger.abandon()
        self._recovery.begin_anew()
        self._run = run
        self._epoch_taken = run.cursor.epoch
        self._horizon.begin(run.cursor, run.plans)
        self._ended = False
        self._delivered = 0

    def _settle(self, done: Done) -> None:
        """Handle a worker's answer: note its rows as done, and store what came with
        it.
        """
        self.notices.add(*done.notices)
        if done.startup is not None:
            self._send_home()
            raise WorkerStartError(
                f"worker {done.worker} could not start: {done.startup}"
            )
        found = self.ledger.settle(done)
        self.tally.fetched(done.rows, done.seconds, done.cpu_s)
        if found is not None:
            block, batch = found
            if done.payload is not None:
                try:
                    self._open(block, batch, *done.payload)
                except BaseException as problem:
                    # Unpickling runs the user's code: if it raises SystemExit, this
                    # batch fails, as for any error.
                    what = (
                        "a sample was sent but cannot be unpickled here: "
                        f"{type(problem).__name__}"
                    )
                    batch.error = not_sendable(what, problem)
                if not block.brief:
                    self._place(batch)
            ends = (
                done.faults
                and not self._rules.skips_errors
                and any(fault.ends_row for fault in done.faults)
            )
            if batch.error or ends:
                self.ledger.ask_no_more(batch)
        self._hooks.tell(Hook.answered, done)

    def _open(
        self, block: Block, batch: Delivery, columns: Any, rows: list[int], sealed: Any
    ) -> None:
        """Store the samples that were sent with an answer, instead of through shared
        memory.
        """
        rooms = self._team.rooms
        if columns is not None:
            rooms.fill(batch.room, block.row, block.rows, columns)
        values: Sequence[Any]
        if sealed is None:
            values = ()
        else:
            values = self._team.opens(sealed)
        if not block.brief:
            batch.odd.update(zip([block.row + at for at in rows], values, strict=True))
            return
        for at, value in zip(rows, values, strict=True):
            if at >= 0:
                batch.odd[block.row + at] = value
                self.tally.odd_rows += 1
            else:
                batch.asides[block.row + ~at] = value

    def _place(self, batch: Delivery) -> None:
        """Write samples that came as objects into the columns of their batch, once the
        layout is known.
        """
        rooms = self._team.rooms
        found = [batch]
        if rooms.is_new and batch.odd:
            rooms.learn(next(iter(batch.odd.values())), batch.plan.rows)
            found = list(self.ledger.batches.values())
            for one in found:
                one.room = rooms.take(one.plan.rows) or OBJECTS
        for one in found:
            rooms.place(one)

    def _hand_over(self) -> None:
        """Put finished batches, and the end of the run, into the communicator, as far
        as it has room.
        """
        ledger = self.ledger
        rooms = self._team.rooms
        room = self._rules.n_prefetch - len(self.communicator.queue)
        deliveries = ledger.completed(room)
        for batch in deliveries:
            finish(batch, self._rules, self.tally, rooms.contents)
            if batch.contents is None:
                rooms.give_back(batch)
        if deliveries:
            self._recovery.finished(deliveries)
        if len(deliveries) >= room:
            self._is_held_up = True
            if room <= 0:
                return
        if self._horizon.is_reached and not (self._ended or ledger.batches):
            self._ended = True
            deliveries.append(ending(self._run.cursor, self._horizon.take_dead_end()))
        if deliveries:
            self._deliver(deliveries)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Number the deliveries, so that the consumer notices if Ctrl-C loses one, and
        queue them.
        """
        for delivery in deliveries:
            delivery.number = self._delivered
            self._delivered += 1
        self.communicator.put(deliveries, self._run.number)

    def _recover(self, end: End) -> None:
        """Handle the death of a worker: its rows are sent again."""
        try:
            self._recovery.recover(end, self.ledger)
        except Exception:
            self._send_home()
            raise

    def _send_home(self) -> None:
        """End all workers; the next run starts new ones."""
        for end in self._events:
            # Another worker ended at the same time.
            if type(end) is End:
                self.ledger.recall(end.blocks, is_lost=not end.is_gone)
                self._recovery.restarts += not end.was_asked
        self._events.clear()
        is_lost = not self._team.crew.dismiss()
        self.ledger.recall(list(self.ledger.out), is_lost)

    def _fail(self, error: BaseException) -> None:
        """Deliver an error that concerns more than one batch; the consumer may try
        again.
        """
        self.ledger.abandon()
        self._horizon.end()
        self._ended = True
        self._deliver([ending(self._run.cursor, named(error))])

    def _dispose(self) -> None:
        self.communicator.terminate()
        self._recovery.begin_anew()
        team = self._team
        self._team = None
        if team is not None:
            team.close(_CLOSE_S)
        self._bell.close()
        self._hooks.tell(Hook.close)
        self.ledger = Ledger(self._rules)
