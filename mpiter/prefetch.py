"""The engine: plans batches ahead of the consumer, has them fetched, and hands them over in order.

Runs in a background thread of its own, or in the consumer's for the serial backend.  It waits in one place, the Pool's
``wait``, which brings tickets and the ends of workers; who wants anything else of it (another course, the end, another
look at what there is room for) leaves word and rings its bell.  Guarantees that run-ahead is bounded in batches and
bytes, that whatever goes wrong is delivered to the consumer, and that it ends its workers itself, so that it can be
stopped from any thread, the garbage collector's included.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .bell import Bell
from .communicator import Terminated, _Communicator
from .course import Course, Delivery, Rules
from .crew import Calls, Crew
from .endings import End
from .errors import WorkerStartError, could_not_start
from .horizon import Horizon
from .ledger import Ledger, first_sample
from .mail import Inbox
from .outcome import delivery_of, named, not_received, not_sent
from .recovery import Recovery, doings
from .runahead import RunAhead
from .starting import never_interrupted
from .stats import Stats, Tally
from .task import Lost, Task, Ticket
from .transport import Transport

_CLOSE_S = 4.5  # how long an end may take


class _PrefetchLoop:
    """Plan → task → ticket → batch, for one iterator."""

    def __init__(self, rules: Rules, transport: Transport, make_crew: Callable[..., Crew]) -> None:
        self.pid = os.getpid()
        self.tally = Tally()
        self.mail = Inbox()
        self._rules, self._transport, self._make_crew = rules, transport, make_crew
        self._bell = Bell()
        self._courses: deque[Course] = deque()  # to go from now on
        self._communicator: _Communicator[Delivery] = _Communicator(rules.n_prefetch, self._note)
        self._ledger = Ledger(rules.in_order)
        self._recovery = Recovery()
        self._crew: Crew | None = None
        self._thread: threading.Thread | None = None
        self._course: Course
        self._horizon = Horizon()
        self._ended = False  # the end has been delivered
        self._task_numbers = itertools.count()
        self._stopping = self._has_vacancy = False
        self._ahead = RunAhead(rules)

    # -- the consumer's side -------------------------------------------------------------------------------------

    def launch(self, course: Course, threaded: bool) -> None:
        """Start the workers, in the caller's thread, then the loop."""
        self._crew = self._make_crew(Calls(self._bell, self.mail.warn, self._lose_worker, self._ledger.places))
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
        self._courses.append(course)
        self.wake()

    def get(self, stalled: Callable[[float], None], glance_s: float) -> Delivery:
        """The next delivery, waiting for it; ``stalled`` is told from time to time how long."""
        while self._thread is None and not len(self._communicator):
            self._turn()
        return self._communicator.get(self._is_alive, stalled, glance_s)

    def _is_alive(self) -> bool:
        return self._thread is None or self._thread.is_alive()

    def _note(self, delivery: Delivery) -> None:
        self._epoch_taken = delivery.after.epoch

    def stop(self) -> None:
        """Ask for the end; from any thread, at any time."""
        self._stopping = True
        self._communicator.terminate()
        self.wake()
        if self._thread is None:
            self._dispose()

    def wake(self) -> None:
        """There may be something to do; from any thread."""
        self._bell.ring()

    def join(self, timeout: float = _CLOSE_S) -> None:
        """Wait until everything is gone; ``stop`` comes before."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout + 0.3)
            if not self._thread.is_alive():
                self._dispose()

    def carries(self, cargo: Any) -> bool:
        """Would the workers see the same if ``cargo`` were sent to them now?"""
        return self._crew is not None and self._crew.carries(cargo)

    @property
    def is_hungry(self) -> bool:
        return self._horizon.is_hidden and self._in_flight < self._ahead.window

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
            **(slots.counters(self._communicator.count(lambda delivery: delivery.holds_a_slot)) if slots else {}),
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
            while self._courses:
                self._begin(self._courses.popleft())
            self._taken = self._communicator.taken  # what is taken from now on may make room for more
            self._keep_busy()
            if not self._hand_over():
                self._wait()
        except Terminated:
            raise
        except BaseException as error:
            if self._thread is None and not isinstance(error, Exception):
                raise  # Ctrl-C in the caller's own thread
            self._fail(error)

    def _keep_busy(self) -> None:
        """Give the workers what they can take: plan batches, and cut tasks of full size or of what there is."""
        assert self._crew is not None
        crew, ledger, rows = self._crew, self._ledger, self._ahead.cut.rows
        vacancies = crew.vacancies if self._transport.planned else 1 - ledger.tasks
        while vacancies > 0:
            while ledger.uncut_rows < rows and self._plan():
                pass
            if not ledger.uncut_rows:
                break
            if ledger.uncut_rows < rows and ledger.tasks >= self._rules.workers and not self._horizon.is_reached:
                break  # it would keep nobody busy for long
            if not crew.is_staffed:
                crew.staff()
            self._submit()
            vacancies -= 1
        if not self._ended:
            crew.fill_places()
        self._has_vacancy = vacancies > 0
        self.tally.in_flight(self._in_flight, self._transport.room_bytes)

    def _plan(self) -> bool:
        """Enter one more batch into the ledger, if there is room for it."""
        if not self._may_plan or (plan := self._horizon.peek()) is None:
            return False
        room = self._transport.room(plan.rows) if self._transport.planned else None
        if room is None and self._transport.planned:
            return False  # we shall hear when there is one
        self._horizon.take()
        self._ledger.enter(plan, room)
        return True

    @property
    def _in_flight(self) -> int:
        return self._ledger.batches + self._communicator.waiting

    @property
    def _may_plan(self) -> bool:
        if self._horizon.is_reached or self._horizon.is_hidden:
            return False
        if not self._transport.planned:
            return self._ledger.batches == 0  # a first sample is on its way
        assert self._crew is not None
        if not self._ahead.allows(self._in_flight, self._ledger, self._crew):
            return False
        return not self._horizon.is_beyond(self._epoch_taken)

    def _submit(self) -> None:
        """Cut a task and hand it to a worker."""
        assert self._crew is not None
        course, number = self._course, next(self._task_numbers)
        order = self._ahead.cut.budget_ns, *self._ledger.cut(number, self._ahead.cut.rows)
        task = Task(self._crew.dataset, course.generation, number, course.seed, *order)
        try:
            self._crew.submit(task, self._take_in)
        except BaseException:  # Ctrl-C in the serial backend's dataset, most likely
            self._ledger.recall([number])
            raise

    def _hand_over(self) -> bool:
        """Put finished batches, and the end, into the communicator, unless it is full; did any come to nothing?"""
        if self._communicator.excess:
            return False
        finished = self._ledger.completed()
        found = [delivery_of(assembly, self._rules, self.tally) for assembly in finished]
        deliveries = [delivery for delivery in found if delivery is not None]
        if finished:
            self._recovery.progress()
        if self._horizon.is_reached and not (self._ended or self._ledger.batches):
            self._ended = True
            deliveries.append(Delivery(self._course.cursor, error=self._horizon.take_dead_end(), counts=False))
        if deliveries:
            self._deliver(deliveries)
        return len(deliveries) < len(found)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Number them, so that the consumer notices if one is lost on the last yard, and queue them."""
        for delivery in deliveries:
            delivery.number = self._delivered
            self._delivered += 1
        self._communicator.put(deliveries, self._course.generation)

    def _wait(self) -> None:
        """Wait until something happens."""
        assert self._crew is not None
        if self._thread is None and len(self._communicator):
            return  # for whom?
        awaited = []  # batches that the consumer must take before there is something to do
        if self._has_vacancy and not self._horizon.is_reached:
            awaited.append(self._ahead.takes_awaited(self._ledger, self._crew, self._course.plans.batch_size))
        if self._communicator.excess and (self._ledger.has_completed or not self._ledger.batches):
            awaited.append(self._communicator.excess)
        if awaited:
            self._communicator.call_when_taken(self._taken + min(awaited), self.wake)
        self._crew.wait()

    def _take_in(self, event: Ticket | Lost) -> None:
        """A task has been answered, or never will be."""
        if isinstance(event, Ticket):
            self._settle(event)
        else:
            self._ledger.recall([event.number])
            raise not_sent(event.error)

    def _lose_worker(self, end: End) -> None:
        """A worker is no more."""
        assert self._crew is not None
        if end.was_asked:
            self.tally.renewals += 1
            return
        try:
            self._recovery.recover(end, self._ledger)
        except Exception:
            self._send_home()
            raise

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
            self._crew.answered(ticket.worker, ticket.rows)
        if ticket.startup is not None:
            self._send_home()
            raise WorkerStartError(f"worker {ticket.worker} could not start:\n\n{ticket.startup}")
        self.tally.answered(ticket.seconds, ticket.rows, again)
        if not self._transport.planned and ticket.generation == self._course.generation:
            self._plan_from(ticket)
        if self._transport.planned:
            assert self._crew is not None
            size, most = self._transport.room_bytes, self._crew.most_bytes
            self._ahead.follow(self.tally, self._course.plans.batch_size, size, most)

    def _send_home(self) -> None:
        """End workers that are no use; the next attempt starts new ones."""
        if self._crew is not None:
            self._ledger.recall_all(quarantined=not self._crew.dismiss())

    def _plan_from(self, ticket: Ticket) -> None:
        """The first sample is here: lay out the columns, and let the rest of its batch follow."""
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
        self._bell.close()
        self._ledger = Ledger()
