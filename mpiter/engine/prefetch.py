"""The prefetch loop: a thread that plans batches, has them fetched, hands them over.

It works ahead of the consumer and waits in one place: for answers, for the ends of
workers, and for its bell, which other threads ring.  Guarantees that batches in flight
are bounded in number and in bytes; that every error is delivered to the consumer; and
that any thread can stop the loop, even the garbage collector's, since it ends its
workers itself.
"""

from __future__ import annotations

import enum
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from .. import machine
from ..bell import Bell
from ..errors import (
    LeafError,
    Notices,
    OptionError,
    WorkerCrashed,
    WorkerStartError,
)
from ..hook import Hook
from ..order.cursor import Cursor, Horizon, Plan, Plans
from ..order.order import Sequential
from ..pool.backends import Cargo
from ..pool.crew import Event, named_errors
from ..pool.endings import End
from ..pool.starting import never_interrupted
from ..rules import Rules
from ..samples.tree import Contents
from ..stats import Stats
from ..worker import home
from ..worker.block import Block, Done, Lost
from ..worker.board import Line
from ..worker.sheets import Payload
from .communicator import Terminated, _Communicator
from .delivery import OBJECTS, Delivery, Room, ending, finish, named, not_sendable
from .hooks import Hooks, ToldPlan
from .ledger import Ledger
from .recovery import Recovery
from .rooms import Rooms
from .tally import Skipped, Tally
from .team import Team

# The time that closing may take.
_CLOSE_S = 4.5
# A worker has two blocks: one that it fetches, and one in its pipe, so that it needn't
# wait for the loop.
_USUALLY_OUT = 2
# It has more if they take less than this in all, since waking it takes as long as such
# a block, and planning many batches at once takes longer.  They come to this many at
# the most ...
_IN_PIPE_S = 0.005
_MOST_OUT = 64
# ... and their batches to this many bytes, unless ``run_ahead`` is given.
_CHEAP_BYTES = 1 << 25
# Only blocks that take less than this.
_CHEAP_BLOCK_S = 0.001
# So many batches may be in flight, for samples that are under way at the same time, as
# long as it isn't known how large they are.
_MOST_BEGUN = 64
# No second block waits behind one that takes this long, since a worker that is idle
# sooner could fetch it.
_DEAR_BLOCK_S = 0.01


class Run(NamedTuple):
    """The batches from the position ``cursor`` on, until another run begins."""

    number: int
    cursor: Cursor
    seed: int
    plans: Plans


class _NoPlans(Plans):
    """Plans of no batch at all."""

    def step(
        self,
        cursor: Cursor,
        number: int = 0,
    ) -> Plan | None:
        return None

    def end_at(self, cursor: Cursor) -> bool:
        return True


# Stands for the run of a loop, or of a pump, that hasn't got one yet.
NO_RUN = Run(0, Cursor(0, 0, False, Sequential(0)), 0, _NoPlans())


class Phase(enum.Enum):
    """What the loop does, if it isn't to stop; only its own thread changes this."""

    FETCHING = "it plans the batches of a run, and hands them over when they are done"
    RESTING = "no run has begun, or the end of the last one is in the queue or taken"


class Halt(enum.Enum):
    """Why the loop can't send another block now."""

    WORKERS = "each worker has as many blocks as it may have; an answer changes that"
    PLANS = "nothing is left to plan, or it isn't known yet; both ring the bell"
    SLOT = "a batch could be planned if it had a slot; a dropped batch rings the bell"
    TAKE = "enough batches are in flight; the consumer has to take one"


class _PrefetchLoop:
    """The loop of one iterator.

    ``hire`` makes its workers, from the bell and a function that warns the user.
    ``dataset`` is only asked for words for its keys.

    ::

                     staff() or go()            no batch of the run is left,
                     begins a run               or an error has ended it
        RESTING ───────────────────► FETCHING ───────────────────────────► RESTING …

    In either phase any thread may ``stop`` it.  The communicator then is terminated,
    which the loop's thread sees: it ends the workers, and itself.
    """

    def __init__(
        self,
        rules: Rules,
        hire: Callable[[Bell, Callable[[str], None]], Team],
        skipped: Skipped,
        hooks: Hooks,
        dataset: object = None,
    ) -> None:
        self.pid = os.getpid()
        self.born = home.generation
        self.tally = Tally(skipped)
        self.notices = Notices()
        self._rules = rules
        self._hire = hire
        self._bell = Bell()
        self._hooks = hooks
        hooks.warn = self.notices.add
        self._phase = Phase.RESTING
        self._run = NO_RUN
        # Runs that were asked for and haven't begun.
        self._runs: deque[Run] = deque()
        self.communicator = _Communicator(rules.n_prefetch, self._has_taken)
        self._recovery = Recovery(skips=rules.skips_errors, dataset=dataset)
        # The workers and their memory, from ``staff`` until ``_dispose``.
        self._team: Team | None = None
        self.ledger = Ledger(rules)
        self._thread: threading.Thread | None = None
        self._horizon = Horizon()
        # What ``wait`` has returned and isn't handled yet.
        self._events: deque[Event] = deque()
        # Numbers of blocks, never used twice.
        self._numbers = itertools.count()
        # The number of deliveries of this run that were queued.
        self._delivered = 0
        # The number of the furthest batch among them, and the place behind it.
        self._furthest = -1
        self._end = NO_RUN.cursor
        # The number of deliveries that the consumer has taken.
        self._taken = 0
        # The epoch that the consumer is in.
        self._epoch_taken = 0
        # The consumer is to ring the bell when it takes a delivery.
        self._rings = False

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
        # First, so that the queue takes nothing of the earlier run any more.
        self.communicator.reset(run.number)
        self._runs.append(run)
        self.wake()

    def _has_taken(self, delivery: Delivery) -> None:
        self._epoch_taken = delivery.plan.after.epoch
        # The count comes before the look at the flag: ``turn`` sets the flag and then
        # looks at the count, so one of both sees the other.
        self._taken += 1
        if self._rings:
            self._rings = False
            self._bell.ring()

    def wake(self) -> None:
        """Have the loop look for something to do; may be called from any thread."""
        self._bell.ring()

    def stop(self) -> None:
        """Ask the loop to end; may be called from any thread, at any time."""
        self.communicator.terminate()
        self.wake()
        # There is no thread yet that would do it.
        if self._thread is None:
            self._dispose()

    def close(self) -> None:
        """End the loop, and wait until it has ended its workers."""
        self.stop()
        # The garbage collector may call this in the loop's own thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S + 0.3)

    def carries(self, cargo: Cargo) -> bool:
        """Return True if sending ``cargo`` to the workers would change nothing."""
        team = self._team
        return team is not None and team.carries(cargo)

    @property
    def lines(self) -> list[Line]:
        """Each worker's line on the board: integers that say which row it fetches."""
        lines: list[Line] = []
        if team := self._team:
            lines = team.crew.board()
        return lines

    @property
    def pids(self) -> tuple[int, ...]:
        pids: tuple[int, ...] = ()
        if team := self._team:
            pids = team.crew.pids
        return pids

    def stats(self) -> Stats:
        queued: list[Contents | None] = []
        for delivery in self.communicator.queue.copy():
            if not delivery.is_end:
                queued.append(delivery.contents)
        in_flight = len(self.ledger.batches) + len(queued)
        in_flight_bytes = 0
        leased = 0
        if team := self._team:
            in_flight_bytes = in_flight * team.rooms.bytes
            # Batches in the queue have their leases, but the user hasn't got them.
            waiting = 0
            for found in queued:
                if found is not None and found.columns and not found.copied:
                    waiting += 1
            leased = max(0, team.rooms.slots.leased - waiting)
        return replace(
            self.tally.look(),
            workers=self._rules.workers,
            _concurrency=self._rules.concurrency,
            worker_bytes=sum(map(machine.own_bytes, self.pids)),
            restarts=self._recovery.restarts,
            ready_batches=len(queued),
            in_flight_batches=in_flight,
            in_flight_bytes=in_flight_bytes,
            leased_batches=leased,
        )

    # -- its thread --------------------------------------------------------------------

    def _work(self) -> None:
        never_interrupted()
        try:
            while not self.communicator.is_terminated:
                self.turn()
        except Terminated:
            pass
        finally:
            self._dispose()

    def turn(self) -> None:
        """Send blocks, hand over finished batches, wait, and handle what has happened.

        This is one pass of the loop.
        """
        team = self._team
        assert team is not None
        try:
            while self._runs:
                self._begin(self._runs.popleft())
            taken = self._taken
            delivered = self._delivered
            halt = self._feed(team)
            is_full = self._hand_over(team)
            # Batches that were handed over as copies have freed their slots in this
            # very thread, for which no bell rings.  Waiting now could last forever.
            if halt is Halt.SLOT and delivered != self._delivered:
                return
            # The consumer rings the bell only while this is set.  So it is set before
            # the look at the count below: each take from now on either shows in the
            # count or rings.
            needs_take = is_full or halt is Halt.TAKE
            self._rings = needs_take
            # The consumer took a batch between the count above and the flag: nothing
            # rings for that one, so go round again instead of waiting for the bell.
            if needs_take and taken != self._taken:
                self._rings = False
                return
            # If handling one event raised an error, those that came with it are left.
            if not self._events:
                self._events.extend(team.crew.wait())
            self._rings = False
            while self._events:
                event = self._events.popleft()
                if type(event) is Done:
                    self._settle(team, event)
                elif type(event) is End and not event.was_asked:
                    self._hooks.tell(Hook.lost, event.worker)
                    self._recover(team, event)
                elif type(event) is Lost:
                    # The error ends this run.  Without the recall the ledger would
                    # wait for the block, and never give its room back.
                    self.ledger.recall([event.number])
                    # The Pool has ended with its workers, and answers nothing more; or
                    # it isn't one.
                    if isinstance(event.error, (WorkerCrashed, OptionError)):
                        self._send_home(team)
                        raise event.error
                    raise not_sendable(
                        "a worker could not send its answer", event.error
                    )
        except Terminated:
            raise
        except BaseException as error:
            # Code of the user's runs in this thread too, such as an order sampler, and
            # may raise anything.  The consumer gets the error, and the loop goes on.
            self._fail(error)

    def _feed(self, team: Team) -> Halt:
        """Send blocks (rows of one batch) to the workers that can take one.

        Return why it stops.
        """
        ledger = self.ledger
        crew = team.crew
        rooms = team.rooms
        parts, most_out, most_in_flight = self._measure(team)
        halt = Halt.WORKERS
        for _ in range(crew.vacancies(most_out)):
            if not ledger.uncut:
                why = self._plan(rooms, most_in_flight)
                if why is not None:
                    halt = why
                    break
            # All workers were ended after an error.  New ones are started only now that
            # there is work for them, and none of them is ready yet.
            if not crew.is_staffed:
                crew.staff()
                break
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
                # No worker has the block, so no answer and no death would settle it.
                ledger.recall([block.number])
                raise
        # After the end of a run nothing is fetched, and a new worker would be idle.
        ready = len(self.communicator.queue)
        if self._phase is Phase.FETCHING:
            crew.replace_workers()
        elif ready:
            # The last of them is the end of the run.
            ready -= 1
        in_flight = len(ledger.batches) + ready
        self._hooks.tell(Hook.in_flight, in_flight, ready)
        return halt

    def _measure(self, team: Team) -> tuple[int, int, int]:
        """Return into how many blocks to cut a batch, and how many a worker may have.

        The third number is how many batches may be in flight.  0 blocks: send one row,
        to see a sample.
        """
        rules = self._rules
        rooms = team.rooms
        horizon = self._horizon
        most = rules.most
        workers = rules.workers
        # Where batches are large, memory bounds their number: the slots that the loop
        # needs while the user keeps batches are left out of the count.
        size = rooms.bytes
        fetched = 0
        if size:
            slots = rooms.slots.most_bytes // size
            fetched = max(1, slots - rules.reserve)
            most = min(most, fetched + rules.n_prefetch)
        if rooms.is_new:
            # The horizon knows the rows of a batch once that batch is planned.
            horizon.peek()
            if rooms.waits_for_a_sample(horizon.rows):
                return 0, 1, most
        # A batch that takes long is split over the workers, and so is each one where
        # no more batches than workers may be in flight: else some would be idle.
        parts = 1
        batch_s = self.tally.sample_s * horizon.rows
        if batch_s > rules.dear_s or most <= workers:
            parts = workers
        block_s = batch_s / parts
        most_out = 1
        if block_s < _DEAR_BLOCK_S:
            most_out = _USUALLY_OUT
        fits = 0
        # Until a sample was measured nothing is known of a block.
        if 0 < block_s < _CHEAP_BLOCK_S and rooms.are_settled:
            most_out = min(_MOST_OUT, int(_IN_PIPE_S / block_s))
            fits = min(_CHEAP_BYTES // size, fetched)
        if rules.rows_begun > 1:
            # While one that takes long is waited for, so many others may come and go.
            rows = -(-horizon.rows // parts)
            most_out = max(most_out, 1 - (-4 * rules.rows_begun // rows))
            fits = fetched if size else _MOST_BEGUN
        if rules.run_ahead is None:
            wanted = rules.n_prefetch + most_out * workers + 1
            most = max(most, min(wanted, fits))
        return parts, most_out, most

    def _plan(
        self,
        rooms: Rooms,
        most_in_flight: int,
    ) -> Halt | None:
        """Plan one more batch and add it to the ledger, or return why not."""
        horizon = self._horizon
        in_flight = len(self.ledger.batches) + len(self.communicator.queue)
        if in_flight >= most_in_flight or horizon.is_beyond(self._epoch_taken):
            # Only a take can change this, unless there is nothing left to plan.
            if horizon.is_reached:
                return Halt.PLANS
            return Halt.TAKE
        began = time.monotonic()
        plan = horizon.peek()
        if plan is None:
            return Halt.PLANS
        room: Room | None = OBJECTS
        if not rooms.waits_for_a_sample(plan.rows):
            room = rooms.take(plan.rows)
        if room is None:
            return Halt.SLOT
        self.ledger.enter(plan, room)
        horizon.take()
        if self._hooks:
            told = ToldPlan(plan)
            ended = time.monotonic()
            self._hooks.tell(Hook.planned, told, self._run.plans, began, ended)
        return None

    def _begin(self, run: Run) -> None:
        self.ledger.abandon()
        self._recovery.begin_anew()
        self._run = run
        self._phase = Phase.FETCHING
        self._delivered = 0
        self._furthest = -1
        self._end = run.cursor
        self._epoch_taken = run.cursor.epoch
        self._horizon.begin(run.cursor, run.plans)

    def _settle(
        self,
        team: Team,
        done: Done,
    ) -> None:
        """Note the rows of a worker's answer as done, and store what came with it."""
        self.notices.add(*done.notices)
        if done.startup is not None:
            # Each worker starts in the same way, so the others would fail too.
            self._send_home(team)
            raise WorkerStartError(
                f"worker {done.worker} could not start: {done.startup}"
            )
        found = self.ledger.settle(done)
        self.tally.fetched(done.rows, done.seconds, done.cpu_s)
        if found is not None:
            block, batch = found
            if done.payload is not None:
                try:
                    self._open(team, block, batch, done.payload)
                except BaseException as problem:
                    # Unpickling runs the user's code.  Whatever it raises, even
                    # SystemExit, only this batch fails.
                    what = (
                        "a sample was sent but cannot be unpickled here: "
                        f"{type(problem).__name__}"
                    )
                    batch.error = not_sendable(what, problem)
                if not block.brief:
                    self._place(team, block, batch, done.worker)
            # The other rows of a batch that ends in an error would be fetched in vain.
            ends = False
            if batch.faults and not self._rules.skips_errors:
                ends = any(fault.ends_row for fault in batch.faults)
            if batch.error or ends:
                self.ledger.ask_no_more(batch)
        self._hooks.tell(Hook.answered, done)

    def _open(
        self,
        team: Team,
        block: Block,
        batch: Delivery,
        payload: Payload,
    ) -> None:
        """Store samples that were sent with an answer, not through shared memory."""
        first = block.row
        if payload.columns is not None:
            team.rooms.fill(batch.room, first, block.rows, payload.columns)
        batch.store(first, payload, team.opens)
        # Before there are columns, no sample is odd.
        if block.brief:
            self.tally.odd_rows += len(payload.odd_rows)

    def _place(
        self,
        team: Team,
        block: Block,
        batch: Delivery,
        worker: int,
    ) -> None:
        """Write samples that came as objects into the columns of their batch.

        The first sample of all decides what columns there are.  ``block`` is the one
        that ``worker`` has answered.
        """
        rooms = team.rooms
        found = [batch]
        while rooms.is_new and batch.odd:
            row, first = next(iter(batch.odd.items()))
            try:
                rooms.learn(first, batch.plan.rows)
            except LeafError as error:
                # It is a sample of this block: those before it have been learned from,
                # or have failed.
                batch.fail(row, error, block, team.crew.name_of(worker))
                continue
            # The batches that are under way were planned when there were no rooms.
            found = list(self.ledger.batches.values())
            for one in found:
                one.room = rooms.take(one.plan.rows) or OBJECTS
        for one in found:
            for row, problem in rooms.place(one).items():
                # Of other batches no samples have come before there were rooms.
                one.fail(row, problem, block, team.crew.name_of(worker))

    def _hand_over(self, team: Team) -> bool:
        """Put finished batches, and the end of the run, into the communicator.

        Return True if it has no room for more, so that others may be left.
        """
        ledger = self.ledger
        rooms = team.rooms
        room = self.communicator.room
        deliveries = ledger.completed(room)
        for batch in deliveries:
            finish(batch, self._rules, self.tally, rooms.contents)
            if batch.contents is None:
                rooms.give_back(batch)
        if deliveries:
            self._recovery.finished(deliveries)
            self._deliver(deliveries)
        is_full = len(deliveries) >= room
        nothing_left = self._horizon.is_reached and not ledger.batches
        if nothing_left and self._phase is Phase.FETCHING:
            dead_end = self._horizon.take_dead_end()
            self._deliver([self._ending(dead_end)])
            is_full = False
        return is_full

    def _ending(self, error: BaseException | None) -> Delivery:
        """Return the end of the run, after which nothing of it is fetched any more.

        It isn't a batch, so it takes no room in the communicator.
        """
        self._phase = Phase.RESTING
        return ending(self._end, error)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Number the deliveries and queue them.

        By the numbers the consumer notices that Ctrl-C has lost one on its way.
        """
        for delivery in deliveries:
            delivery.number = self._delivered
            self._delivered += 1
            # Batches may be handed over as they finish, not as they were planned.
            plan = delivery.plan
            if plan.number > self._furthest:
                self._furthest = plan.number
                self._end = plan.after
        self.communicator.put(deliveries, self._run.number)

    def _recover(
        self,
        team: Team,
        end: End,
    ) -> None:
        """Have the rows of a dead worker sent again.

        If that is pointless, end all workers and raise the error.
        """
        try:
            self._recovery.recover(end, self.ledger)
        except Exception:
            # The workers keep dying, or one can't start.  The run ends with this error,
            # and if the consumer tries again, all of them begin anew.
            self._send_home(team)
            raise

    def _send_home(self, team: Team) -> None:
        """End all workers; the next run starts new ones."""
        # Other workers have ended at the same time.  These ends are never handled, so
        # their blocks are recalled here.
        for end in self._events:
            if type(end) is End:
                self.ledger.recall(end.blocks, is_lost=not end.is_gone)
                self._recovery.restarts += not end.was_asked
        self._events.clear()
        # A worker that can't be ended may still write, so its rooms are never used
        # again; which one it was isn't known, so this holds for all of them.
        is_lost = not team.crew.dismiss()
        self.ledger.recall(list(self.ledger.out), is_lost)

    def _fail(self, error: BaseException) -> None:
        """Deliver an error that concerns more than one batch.

        It ends the run.  The consumer may try again, which begins another.
        """
        self.ledger.abandon()
        self._horizon.end()
        # The consumer gets the end of a run once, and asks for nothing after it.
        if self._phase is Phase.FETCHING:
            end = self._ending(named(error))
            self._deliver([end])

    def _dispose(self) -> None:
        # First, so that a consumer that is waiting raises an error at once instead of
        # when the workers have ended.
        self.communicator.terminate()
        self._recovery.begin_anew()
        # Other threads may ask for stats: they must not find memory that is closed.
        team = self._team
        self._team = None
        if team is not None:
            team.close(_CLOSE_S)
        self._bell.close()
        self._hooks.tell(Hook.close)
        self.ledger = Ledger(self._rules)
