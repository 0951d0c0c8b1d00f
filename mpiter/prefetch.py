"""The engine: plans batches ahead of the consumer, has them fetched, and hands them over in order.

Runs in a background thread of its own, or in the consumer's for the serial backend.  Everything that happens to it
(tickets, returned slots, restarts, the end) arrives in one inbox, the one place where it waits.  Guarantees that
run-ahead is bounded in batches and bytes, that whatever goes wrong is delivered to the consumer, and that it ends its
workers itself, so that it can be stopped from any thread, the garbage collector's included.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from .breakage import Breakage
from .communicator import Terminated, _Communicator
from .course import Course, Delivery, Rules
from .crew import Calls, Crew
from .cutting import PROBE, cut
from .errors import SampleNotSendable, WorkerStartError, could_not_start
from .horizon import Horizon
from .ledger import Ledger, first_sample
from .mail import Inbox
from .outcome import delivery_of, named, not_received
from .recovery import Recovery, doings
from .starting import never_interrupted
from .stats import Stats, Tally
from .task import Lost, Task, Ticket
from .transport import Transport

_CLOSE_S = 4.5  # how long an end may take
_WAKE = object()


class _PrefetchLoop:
    """Plan → task → ticket → batch, for one iterator."""

    def __init__(self, rules: Rules, transport: Transport, make_crew: Callable[..., Crew]) -> None:
        self.pid = os.getpid()
        self.tally = Tally()
        self.mail = Inbox()
        self._rules, self._transport, self._make_crew = rules, transport, make_crew
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._communicator: _Communicator[Delivery] = _Communicator(rules.n_prefetch, self._note)
        self._ledger = Ledger(rules.in_order)
        self._recovery = Recovery()
        self._crew: Crew | None = None
        self._thread: threading.Thread | None = None
        self._course: Course
        self._horizon = Horizon()
        self._ended = False  # the end has been delivered
        self._task_numbers = itertools.count()
        self._wants_room = False
        self._stopping = False
        self._cut = PROBE
        self._window = 1  # how many batches may be on their way or waiting

    # -- the consumer's side -------------------------------------------------------------------------------------

    def launch(self, course: Course, threaded: bool) -> None:
        """Start the workers, in the caller's thread, then the loop."""
        self._crew = self._make_crew(Calls(self._inbox.put, self.mail.warn, self._inbox.put))
        self._communicator.reset(course.generation)
        self._begin(course)
        if threaded:
            thread = threading.Thread(target=self._run, name="mpiter-prefetch", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise could_not_start(error) from error
            self._thread = thread

    def restart(self, course: Course) -> None:
        """Drop all that is on its way and go on from another place."""
        self._communicator.reset(course.generation)
        self._inbox.put(course)

    def get(self, stalled: Callable[[float], None], glance_s: float) -> Delivery:
        """The next delivery, waiting for it; ``stalled`` is told from time to time how long."""
        while self._thread is None and not len(self._communicator):
            self._turn()
        return self._communicator.get(self._is_alive, stalled, glance_s)

    def _note(self, delivery: Delivery) -> None:
        self._epoch_taken = delivery.after.epoch

    def _is_alive(self) -> bool:
        return self._thread is None or self._thread.is_alive()

    def stop(self) -> None:
        """Ask for the end; from any thread, at any time."""
        self._stopping = True
        self._communicator.terminate()
        self._inbox.put(None)

    @property
    def has_thread(self) -> bool:
        return self._thread is not None

    def join(self, timeout: float = _CLOSE_S) -> None:
        """Wait until everything is gone."""
        if self._thread is None:
            self._dispose()
        elif self._thread is not threading.current_thread():
            self._thread.join(timeout + 0.3)
            if not self._thread.is_alive():
                self._dispose()

    def carries(self, cargo: Any) -> bool:
        """Would the workers see the same if ``cargo`` were sent to them now?"""
        return self._crew is not None and self._crew.carries(cargo)

    @property
    def is_hungry(self) -> bool:
        return self._horizon.is_hidden and self._in_flight < self._window

    @property
    def pids(self) -> tuple[int, ...]:
        return self._crew.pids if self._crew else ()

    @property
    def is_starting(self) -> bool:
        """Is no worker ready yet?"""
        return self._crew is None or not any(line.ready for line in self._crew.board())

    def doings(self) -> str:
        """What the workers are at, for a consumer who has to wait."""
        return doings(self._crew, self._ledger) if self._crew else ""

    def stats(self) -> Stats:
        transport, slots = self._transport, getattr(self._transport, "slots", None)
        size, in_flight = transport.room_bytes if self._crew else 0, self._in_flight
        return Stats(
            **self.tally.counters(),
            restarts=self._recovery.restarts,
            ready_batches=len(self._communicator),
            in_flight_batches=in_flight,
            in_flight_bytes=in_flight * size,
            room_bytes=size,
            **(slots.counters(self._communicator.waiting) if slots else {}),
        )

    # -- the loop ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        never_interrupted()
        try:
            while not self._stopping:
                self._turn()
        except Terminated:
            pass
        finally:
            self._dispose()

    def _turn(self) -> None:
        try:
            self._take_in_what_is_there()
            self._plan_ahead()
            self._submit()
            if not self._hand_over():
                self._wait()
        except Terminated:
            raise
        except BaseException as error:
            if self._thread is None and not isinstance(error, Exception):
                raise  # Ctrl-C in the caller's own thread
            self._fail(error)

    def _plan_ahead(self) -> None:
        """Enter batches into the ledger as long as there is room for them."""
        self._wants_room = False
        while self._may_plan:
            if self._ledger.uncut_rows >= self._cut.rows:
                self._submit()  # before room for another is made, which may take its time
            if (plan := self._horizon.peek()) is None:
                break
            room = self._transport.room(plan.rows) if self._transport.planned else None
            self._wants_room = room is None and self._transport.planned
            if self._wants_room:
                break
            self._horizon.take()
            self._ledger.enter(plan, room)
        self.tally.in_flight(self._in_flight, self._in_flight * self._transport.room_bytes)

    @property
    def _in_flight(self) -> int:
        return self._ledger.batches + self._communicator.waiting

    @property
    def _may_plan(self) -> bool:
        if self._horizon.is_reached or self._horizon.is_hidden:
            return False
        if not self._transport.planned:
            return self._ledger.batches == 0  # a first sample is on its way
        return self._in_flight < self._window and not self._horizon.is_beyond(self._epoch_taken)

    @property
    def _most_run_ahead(self) -> int:
        most, size, crew = self._rules.most_run_ahead, self._transport.room_bytes, self._crew
        return min(most, max(1, crew.most_bytes // size - self._rules.reserve)) if size and crew else most

    def _submit(self) -> None:
        """Cut tasks: of full size, or of what there is while a worker has nothing to do."""
        assert self._crew is not None
        ledger = self._ledger
        if self._crew.is_worn:
            if ledger.tasks:
                return  # their last tasks first
            self._crew.bury()
            self.tally.renewals += 1
        if ledger.uncut_rows and not self._crew.is_staffed:
            self._crew.staff()
        while ledger.tasks < self._cut.tasks and ledger.uncut_rows:
            rows, course, number = self._cut.rows, self._course, next(self._task_numbers)
            if ledger.uncut_rows < rows and ledger.tasks >= self._rules.workers and not self._horizon.is_reached:
                return
            order = self._cut.budget_ns, *ledger.cut(number, rows)
            task = Task(self._crew.dataset, course.generation, number, course.seed, *order)
            try:
                self._crew.submit(task, self._inbox.put)
            except BaseException:  # Ctrl-C in the serial backend's dataset, most likely
                ledger.recall(number)
                raise

    def _hand_over(self) -> bool:
        """Put the finished batches, or the end, into the communicator; False if there is nothing to put."""
        finished = [delivery_of(assembly, self._rules, self.tally) for assembly in self._ledger.completed()]
        if finished:
            self._recovery.progress()
        if not finished and self._horizon.is_reached and not (self._ended or self._ledger.batches):
            self._ended = True
            finished = [Delivery(self._course.cursor, error=self._horizon.dead_end, counts=False)]
        self._deliver([delivery for delivery in finished if delivery])
        return bool(finished)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Number them, so that the consumer notices if one is lost on the last yard, and queue them."""
        numbered = [replace(delivery, number=at) for at, delivery in enumerate(deliveries, self._delivered)]
        self._delivered += len(numbered)
        self._communicator.put(numbered, self._course.generation)

    def _wait(self) -> None:
        """Wait until something happens."""
        has_capacity = self._transport.planned and self._ledger.tasks < self._cut.tasks
        if has_capacity and not (self._horizon.is_reached or self._wants_room):
            taken = self._communicator.taken
            if self._may_plan:
                return  # the consumer has taken something since we planned
            self._communicator.call_on_take(self.wake, taken)
        assert self._crew is not None
        with contextlib.suppress(Empty):
            self._take_in(self._inbox.get(timeout=self._crew.interval if self._ledger.tasks else None))
        if self._ledger.tasks and (stuck := self._crew.look()) is not None:
            self._take_in(stuck)

    def _take_in_what_is_there(self) -> None:
        with contextlib.suppress(Empty):
            while not self._inbox.empty():
                self._take_in(self._inbox.get_nowait())

    def wake(self) -> None:
        """There may be something to do."""
        self._inbox.put(_WAKE)

    def _take_in(self, event: Any) -> None:
        if event is None:
            raise Terminated
        if isinstance(event, Ticket):
            self._settle(event)
        elif isinstance(event, Course):
            self._begin(event)
        elif isinstance(event, Breakage):
            assert self._crew is not None
            self._recovery.recover(event, self._crew, self._ledger, self._take_in_what_is_there)
        elif isinstance(event, Lost):
            self._ledger.recall(event.number)
            raise SampleNotSendable(f"a worker could not send its answer: {event.error}") from event.error

    def _begin(self, course: Course) -> None:
        self._ledger.abandon()
        self._recovery.forget()
        self._course = course
        self._horizon.begin(course.cursor, course.plans)
        self._epoch_taken = course.cursor.epoch
        self._ended, self._delivered = False, 0

    def _settle(self, ticket: Ticket) -> None:
        self.mail.post(ticket.mail)
        again = self._ledger.settle(ticket)
        if self._crew is not None:
            self._crew.answered(ticket.rows)
        if ticket.startup is not None:
            self._send_home()
            raise WorkerStartError(f"worker {ticket.worker} could not start:\n\n{ticket.startup}")
        self.tally.tasks += 1
        self.tally.cut_again += again
        self.tally.timed(ticket.seconds, ticket.rows)
        if not self._transport.planned and ticket.generation == self._course.generation:
            self._plan_from(ticket)
        if self._transport.planned:
            most = self._rules.n_prefetch + self._most_run_ahead
            tally, rows, size = self.tally, self._course.plans.batch_size, self._transport.room_bytes
            self._cut = cut(tally.sample_s, rows, self._rules.workers, most, tally.tasks - 1, size)
            self._window = self._rules.n_prefetch + min(self._cut.batches, self._most_run_ahead)

    def _send_home(self) -> None:
        """End workers that are no use; the next attempt starts new ones."""
        if self._crew is not None:
            self._ledger.recall_all(quarantined=not self._crew.bury())

    def _plan_from(self, ticket: Ticket) -> None:
        """The first sample has arrived: lay out the columns, and let the rest of its batch follow."""
        assembly, row = self._ledger.probed(ticket)
        if not ticket.faults:
            try:
                sample = first_sample(ticket)
            except Exception as problem:
                assembly.error = not_received(problem)
                self._ledger.drop_rest(assembly)
                return
            self._transport.plan(sample)
            room = self._transport.room(assembly.plan.rows)
            assert room is not None, "the first room is there or raises"
            room.place(row, sample)
            self._ledger.seat(assembly, room)
        elif not self._rules.skips_errors:
            self._ledger.drop_rest(assembly)

    def _fail(self, error: BaseException) -> None:
        """Something is wrong with more than one batch: the consumer hears of it and may try again."""
        self._ledger.abandon()
        self._horizon.end()
        self._ended = True
        self._deliver([Delivery(self._course.cursor, error=named(error), counts=False)])

    def _dispose(self) -> None:
        self._communicator.terminate()
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.dispose(_CLOSE_S)
        self._ledger = Ledger()
