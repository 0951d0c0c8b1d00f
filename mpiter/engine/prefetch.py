"""The prefetch loop: a thread that plans batches ahead of the consumer, has them fetched, and hands them over in order.

It waits in one place: for answers, for the ends of workers, and for its bell, which other threads ring when they want
another run (batches from another position on), the end, or a new look at the free memory.  Guarantees that batches in
flight are bounded in number and in bytes; that every error is delivered to the consumer; and that the loop ends its
workers itself, so that any thread can stop it, even the garbage collector's.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from .. import machine
from ..bell import Bell
from ..errors import WorkerStartError, could_not_start
from ..order.cursor import Horizon
from ..pool.endings import End
from ..pool.starting import never_interrupted
from ..rules import Rules
from ..samples.tree import Contents
from ..stats import Stats
from ..worker import home
from ..worker.block import Block, Done, Lost
from ..worker.board import Line
from ..worker.mail import Inbox
from .communicator import Terminated, _Communicator
from .hook import Hook, Hooks
from .ledger import Ledger
from .outcome import finish, named, not_sendable
from .pilot import Look
from .recovery import Recovery, doings
from .rooms import OBJECTS
from .run import Delivery, Run, ending
from .tally import Skipped, Tally
from .team import Team

_CLOSE_S = 4.5  # that closing may take
_MOST_OUT = 2  # blocks with one worker: one that it fetches, one in its pipe…
_DEAR_BLOCK_S = 0.01  # …but none waits behind a block that takes so long: another worker could take it


class _PrefetchLoop:
    """The loop of one iterator; ``hire`` makes its workers, from the bell and a function that warns the user."""

    def __init__(
        self,
        rules: Rules,
        hire: Callable[[Bell, Callable[[str], None]], Team],
        skipped: Skipped | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.pid, self.born = os.getpid(), home.generation
        self.tally, self.mail = Tally(skipped or Skipped()), Inbox()
        self._rules, self._hire = rules, hire
        self._bell, self._hooks = Bell(), Hooks() if hooks is None else hooks
        self._runs: deque[Run] = deque()  # that were asked for and not yet begun
        self._communicator: _Communicator[Delivery] = _Communicator(rules.n_prefetch, self._has_taken)
        self._recovery = Recovery(skips=rules.skips_errors)
        self._team: Any = None  # a Team, while there is one
        self._ledger = Ledger(lambda room, is_lost: None)
        self._thread: threading.Thread | None = None
        self._hooks.begin(self)
        self._run: Run
        self._horizon = Horizon()
        self._ended = False  # the end has been delivered
        self._events: deque[Done | Lost | End] = deque()  # still to be handled
        self._numbers = itertools.count()
        self._taken = 0  # deliveries that the consumer has taken
        self._lacks_room = False  # there is no slot for another batch
        self._is_held_up = False  # there is more to do once the consumer takes a delivery…
        self._waits_for_room = False  # …which then rings the bell
        self._stopping = False

    # -- for the consumer ----------------------------------------------------------------------------------------

    def launch(self, run: Run) -> None:
        """Start the workers, in the caller's thread, then the loop's thread."""
        self.staff(run)
        thread = threading.Thread(target=self._work, name="mpiter-prefetch", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise could_not_start(error) from error
        self._thread = thread

    def staff(self, run: Run) -> None:
        """Start the workers, and begin ``run``."""
        self._team = self._hire(self._bell, self.mail.warn)
        self._ledger = Ledger(self._team.rooms.give_back, self._rules.in_order, not self._rules.shares_memory)
        self._communicator.reset(run.number)
        self._begin(run)

    def go(self, run: Run) -> None:
        """Drop all batches in flight and continue with ``run``."""
        self._communicator.reset(run.number)
        self._runs.append(run)
        self.wake()

    def get(self, stalled: Callable[[float], None], glance_s: float) -> Delivery:
        """Wait for the next delivery; every ``glance_s`` seconds ``stalled`` is called with the time waited."""
        return self._communicator.get(self._is_alive, stalled, glance_s)

    def _has_taken(self, delivery: Delivery) -> None:
        self._epoch_taken = delivery.plan.after.epoch
        self._taken += 1
        if self._waits_for_room:
            self._waits_for_room = False
            self._bell.ring()

    def _is_alive(self) -> bool:
        return self._thread is None or self._thread.is_alive()

    def wake(self) -> None:
        """Have the loop look for something to do; may be called from any thread."""
        self._bell.ring()

    def stop(self) -> None:
        """Ask the loop to end; may be called from any thread, at any time."""
        self._stopping = True
        self._communicator.terminate()
        self.wake()
        if self._thread is None:
            self._dispose()

    def join(self, timeout: float = _CLOSE_S) -> None:
        """Wait until the loop has ended its workers; call ``stop`` before."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout + 0.3)
            if not self._thread.is_alive():
                self._dispose()

    def carries(self, cargo: Any) -> bool:
        """Return True if sending ``cargo`` to the workers now would change nothing for them."""
        return (team := self._team) is not None and team.carries(cargo)

    # -- for a pilot, in the loop's thread -------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if no worker is starting or ending."""
        return (team := self._team) is not None and team.crew.is_settled

    @property
    def width(self) -> int:
        """The number of workers."""
        return self._rules.workers if (team := self._team) is None else team.crew.width

    def resize(self, workers: int) -> None:
        """Change the number of workers."""
        self._team.crew.resize(workers)
        self._hooks.tell(Hook.resized, workers)

    # -- what is going on --------------------------------------------------------------------------------------------

    @property
    def lines(self) -> list[Line]:
        """Each worker's line on the board: shared integers that say which row it is fetching."""
        return team.crew.board() if (team := self._team) else []

    def doings(self) -> str:
        """Say in words what the workers are doing."""
        return doings(self.lines, self._ledger)

    @property
    def room_bytes(self) -> int:
        """The bytes of one batch's memory."""
        return team.rooms.bytes if (team := self._team) else 0

    @property
    def pids(self) -> tuple[int, ...]:
        return team.crew.pids if (team := self._team) else ()

    def look(self) -> Look:
        """Return the measurements that a pilot decides by."""
        tally, worker_bytes = self.tally, sum(map(machine.own_bytes, self.pids))
        seconds = 0.0 if tally.began is None else time.monotonic() - tally.began
        counted = tally.batches, seconds, tally.wait_s, tally.fetch_s
        return Look(*counted, self._in_flight, self.room_bytes, worker_bytes)

    def stats(self) -> Stats:
        in_flight, team = self._in_flight, self._team
        waiting = self._communicator.count(lambda delivery: delivery.holds_a_slot)
        return Stats(
            **self.tally.counters(),
            **self.tally.look(),
            workers=self.width,
            worker_bytes=sum(map(machine.own_bytes, self.pids)),
            restarts=self._recovery.restarts,
            ready_batches=len(self._communicator.queue),
            in_flight_batches=in_flight,
            in_flight_bytes=in_flight * self.room_bytes,
            leased_batches=max(0, team.rooms.slots.leased - waiting) if team else 0,
        )

    # -- its thread ----------------------------------------------------------------------------------------------

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
        """Make one pass of the loop: send blocks, hand over finished batches, wait, and handle what has happened."""
        try:
            while self._runs:
                self._begin(self._runs.popleft())
            self._is_held_up = self._lacks_room = False
            taken, delivered = self._taken, self._delivered
            self._feed()
            self._hand_over()
            if self._lacks_room and delivered != self._delivered:
                return  # copies were handed over, and their rooms are free
            self._waits_for_room = self._is_held_up  # set before the look below: from now on each take rings the bell
            if self._is_held_up and taken != self._taken:
                self._waits_for_room = False
                return  # meanwhile the consumer has taken some
            if not self._events:
                self._events.extend(self._team.crew.wait())
            self._waits_for_room = False
            while self._events:
                event = self._events.popleft()
                if type(event) is Done:
                    self._settle(event)
                elif type(event) is End:
                    self._lose_worker(event)
                elif type(event) is Lost:
                    self._ledger.recall([event.number])
                    raise not_sendable("a worker could not send its answer", event.error)
        except Terminated:
            raise
        except BaseException as error:
            self._fail(error)

    # -- down ----------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Send blocks (rows of one batch) to the workers that can take one."""
        team, ledger = self._team, self._ledger
        crew, rooms, (parts, most_out, most_in_flight) = team.crew, team.rooms, self._measure(team)
        for _ in range(crew.vacancies(most_out)):
            if not ledger.uncut and not self._plan(rooms, most_in_flight):
                break
            if not crew.is_staffed:
                crew.staff()
                break  # no worker is ready
            block = ledger.cut(next(self._numbers), parts, crew.dataset, self._run.seed, time.monotonic())
            try:
                crew.map_async(block)
            except BaseException:
                ledger.recall([block.number])
                raise
        if not self._ended:
            crew.replace_workers()
        ready = len(self._communicator.queue)
        self._hooks.tell(Hook.in_flight, len(ledger.batches) + ready, ready)

    def _measure(self, team: Team) -> tuple[int, int, int]:
        """Return three numbers: the equal blocks to cut a batch into (0: send one row, to see a sample), the blocks
        that a worker may have, and the batches that may be in flight."""
        rules, rooms, horizon, width = self._rules, team.rooms, self._horizon, team.crew.width
        most = rules.n_prefetch + rules.ahead(width)
        if size := rooms.bytes:
            most = min(most, max(1, team.most_bytes // size - rules.reserve) + rules.n_prefetch)
        if rooms.is_new:
            horizon.peek()  # which sets horizon.rows
            if rooms.waits_for_a_sample:
                return 0, 1, most
        batch_s = self.tally.sample_s * horizon.rows
        parts = width if batch_s > rules.dear_s or most <= width else 1
        return parts, _MOST_OUT if batch_s < parts * _DEAR_BLOCK_S else 1, most

    @property
    def _in_flight(self) -> int:
        return len(self._ledger.batches) + len(self._communicator.queue)

    def _plan(self, rooms: Any, most_in_flight: int) -> bool:
        """Plan one more batch and add it to the ledger; return False if the order or the memory has none to give."""
        horizon, room = self._horizon, None
        if self._in_flight >= most_in_flight or horizon.is_beyond(self._epoch_taken):
            self._is_held_up = not horizon.is_reached
            return False
        began = time.monotonic()
        if (plan := horizon.peek()) is None:
            return False
        if not rooms.waits_for_a_sample and (room := rooms.take(plan.rows)) is None:
            self._lacks_room = True  # until a slot comes home, which rings the bell
            return False
        self._ledger.enter(plan, room)
        horizon.take()
        self._hooks.tell(Hook.planned, plan, self._run.plans, began, time.monotonic())
        return True

    def _begin(self, run: Run) -> None:
        self._ledger.abandon()
        self._recovery.forget()
        self._run, self._epoch_taken = run, run.cursor.epoch
        self._horizon.begin(run.cursor, run.plans)
        self._ended, self._delivered = False, 0

    # -- up ------------------------------------------------------------------------------------------------------

    def _settle(self, done: Done) -> None:
        """Handle a worker's answer: note its rows as done, and store what came with it."""
        if done.mail:
            self.mail.post(done.mail)
        if done.startup is not None:
            self._send_home()
            raise WorkerStartError(f"worker {done.worker} could not start:\n\n{done.startup}")
        found = self._ledger.settle(done)
        self.tally.fetched(done.rows, done.seconds, done.cpu_s)
        if found is not None:
            block, batch = found
            if done.payload is not None:
                try:
                    self._open(block, batch, *done.payload)
                except Exception as problem:
                    what = f"a sample was sent but cannot be unpickled here: {type(problem).__name__}"
                    batch.error = not_sendable(what, problem)
                if not block.brief:
                    self._place(batch)
            ends = done.faults and not self._rules.skips_errors and any(fault.ends_row for fault in done.faults)
            if batch.error or ends:
                self._ledger.ask_no_more(batch)
        self._hooks.tell(Hook.answered, done)

    def _open(self, block: Block, batch: Delivery, columns: Any, rows: list[int], sealed: Any) -> None:
        """Store the samples that were sent with an answer, instead of through shared memory."""
        rooms = self._team.rooms
        if columns is not None and batch.room is not None:
            rooms.fill(batch.room, block.row, block.rows, columns)
        values: Sequence[Any] = () if sealed is None else self._team.opens(sealed)
        if not block.brief:
            are_all = len(rows) == block.rows  # then there is nothing to do for each row
            where = range(block.row, block.row + len(rows)) if are_all else [block.row + at for at in rows]
            batch.odd.update(zip(where, values, strict=True))
            return
        for at, value in zip(rows, values, strict=True):
            if at >= 0:
                batch.odd[block.row + at] = value
                self.tally.odd_rows += 1
            else:
                batch.asides[block.row + ~at] = value

    def _place(self, batch: Delivery) -> None:
        """Write samples that came as objects into the columns of their batch, once the layout is known."""
        rooms, found = self._team.rooms, [batch]
        if rooms.is_new and batch.odd:
            rooms.learn(next(iter(batch.odd.values())))
            found = self._ledger.seat(rooms.take)
        for one in found:
            rooms.place(one.room or OBJECTS, one.odd, one.asides)

    def _hand_over(self) -> None:
        """Put finished batches, and the end of the run, into the communicator, as far as it has room."""
        ledger, room = self._ledger, self._communicator.n_prefetch - len(self._communicator.queue)
        deliveries = ledger.completed(room)
        for batch in deliveries:
            finish(batch, self._rules, self.tally, self._contents)
            if batch.contents is None:
                self._team.rooms.give_back(batch.room or OBJECTS, batch.is_lost)
        if deliveries:
            self._recovery.progress()
        if len(deliveries) >= room:
            self._is_held_up = True
            if room <= 0:
                return
        if self._horizon.is_reached and not (self._ended or ledger.batches):
            self._ended = True
            deliveries.append(ending(self._run.cursor, self._horizon.take_dead_end()))
        if deliveries:
            self._deliver(deliveries)

    def _contents(self, batch: Delivery, failed: frozenset[int]) -> Contents:
        found = batch.room or OBJECTS, batch.plan.rows, batch.odd, batch.asides, failed, batch.is_lost
        contents: Contents = self._team.rooms.contents(*found)
        self.tally.copies += contents.copied
        return contents

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Number the deliveries, so that the consumer notices if Ctrl-C loses one, and queue them."""
        for delivery in deliveries:
            delivery.number = self._delivered
            self._delivered += 1
        self._communicator.put(deliveries, self._run.number)

    def _lose_worker(self, end: End) -> None:
        """Handle the end of a worker: after a death its rows are sent again."""
        self._hooks.tell(Hook.lost, end.worker, end.was_asked)
        if end.was_asked:
            return
        try:
            self._recovery.recover(end, self._ledger)
        except Exception:
            self._send_home()
            raise

    # -- the end -------------------------------------------------------------------------------------------------

    def _send_home(self) -> None:
        """End all workers; the next run starts new ones."""
        for end in self._events:
            if type(end) is End:  # another worker ended at the same time
                self._ledger.recall(end.blocks, is_lost=not end.is_gone)
                self._recovery.restarts += not end.was_asked
        self._events.clear()
        self._ledger.recall_all(is_lost=not self._team.crew.dismiss())

    def _fail(self, error: BaseException) -> None:
        """Deliver an error that concerns more than one batch; the consumer may try again."""
        self._ledger.abandon()
        self._horizon.end()
        self._ended = True
        self._deliver([ending(self._run.cursor, named(error))])

    def _dispose(self) -> None:
        self._communicator.terminate()
        team, self._team = self._team, None
        if team is not None:
            team.close(_CLOSE_S)
        self._bell.close()
        self._hooks.tell(Hook.close)
        self._ledger = Ledger(lambda room, is_lost: None)
