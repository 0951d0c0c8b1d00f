"""The engine: plans batches ahead of the consumer, has them fetched, and hands them over in order.

Runs in a background thread of its own, or in the consumer's for the serial backend.  It waits in one place, the Pool's
``wait``, which brings tickets and the ends of workers; who wants anything else of it (another run, the end, another
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

from ..bell import Bell
from ..errors import WorkerStartError, could_not_start
from ..order.horizon import Horizon
from ..pool.crew import Callbacks, Crew
from ..pool.endings import End
from ..pool.starting import never_interrupted
from ..rules import Rules
from ..stats import Stats, Tally
from ..transport.transport import Transport
from ..worker.board import Line
from ..worker.mail import Inbox
from ..worker.task import Lost, Task, Ticket
from .communicator import Terminated, _Communicator
from .first_sample import FirstSample
from .ledger import Ledger
from .outcome import delivery_of, named, not_sent
from .recovery import Recovery, doings
from .run import Delivery, Run
from .runahead import RunAhead

_CLOSE_S = 4.5  # how long an end may take


class _PrefetchLoop:
    """Plan → task → ticket → batch, for one iterator."""

    def __init__(self, rules: Rules, transport: Transport, make_crew: Callable[..., Crew]) -> None:
        self.pid = os.getpid()
        self.tally, self.mail = Tally(), Inbox()
        self._rules, self._transport, self._make_crew = rules, transport, make_crew
        self._bell = Bell()
        self._runs: deque[Run] = deque()  # to go from now on
        self._communicator: _Communicator[Delivery] = _Communicator(rules.n_prefetch, self._note)
        self._ledger = Ledger(rules.in_order)
        self._recovery = Recovery()
        self._crew: Crew | None = None
        self._thread: threading.Thread | None = None
        self._run: Run
        self._horizon = Horizon()
        self._first = FirstSample(rules, transport)
        self._phase: FirstSample | RunAhead = self._first
        self._ended = False  # the end has been delivered
        self._task_numbers = itertools.count()
        self._stopping = self._has_vacancy = self._is_hungry = False

    # -- the consumer's side -------------------------------------------------------------------------------------

    def launch(self, run: Run, threaded: bool) -> None:
        """Start the workers, in the caller's thread, then the loop."""
        self._crew = self._make_crew(
            Callbacks(self._bell, self.mail.warn, self._lose_worker, self._ledger.destinations)
        )
        self._communicator.reset(run.number)
        self._begin(run)
        if threaded:
            thread = threading.Thread(target=self._work, name="mpiter-prefetch", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise could_not_start(error) from error
            self._thread = thread

    def go(self, run: Run) -> None:
        """Drop all that is on its way and go on from another place."""
        self._communicator.reset(run.number)
        self._runs.append(run)
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

    def was_hungry(self) -> bool:
        was, self._is_hungry = self._is_hungry, False
        return was

    @property
    def pids(self) -> tuple[int, ...]:
        return self._crew.pids if self._crew else ()

    @property
    def lines(self) -> list[Line]:
        """What each worker does right now."""
        return self._crew.board() if self._crew else []

    def doings(self) -> str:
        """What the workers are at, for a consumer who has to wait."""
        return doings(self._crew, self._ledger) if self._crew else ""

    def stats(self) -> Stats:
        transport, slots = self._transport, getattr(self._transport, "slots", None)
        size, in_flight = transport.room_bytes if self._crew else 0, self._in_flight
        return Stats(
            **self.tally.counters(),
            **self.tally.look(),
            workers=self._rules.workers if self._thread is not None else 0,
            restarts=self._recovery.restarts,
            ready_batches=len(self._communicator),
            in_flight_batches=in_flight,
            in_flight_bytes=in_flight * size,
            room_bytes=size,
            **(slots.counters(self._communicator.count(lambda delivery: delivery.holds_a_slot)) if slots else {}),
        )

    # -- the loop ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
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
            while self._runs:
                self._begin(self._runs.popleft())
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
        crew, ledger, phase, waiting = self._crew, self._ledger, self._phase, self._communicator.waiting
        rows, vacancies = phase.sizes.rows, phase.vacancies(crew, ledger, self._horizon)
        while vacancies > 0:
            while ledger.uncut_rows < rows and self._plan():
                pass
            if not ledger.uncut_rows:
                break
            if ledger.uncut_rows < rows and phase.can_wait(ledger, waiting) and not self._horizon.is_reached:
                break
            if not crew.is_staffed:
                crew.staff()
            self._submit()
            vacancies -= 1
        if not self._ended:
            crew.replace_workers()
        self._has_vacancy = vacancies > 0
        self.tally.in_flight(self._in_flight, self._transport.room_bytes)

    def _plan(self) -> bool:
        """Enter one more batch into the ledger, if there is room for it."""
        if not self._may_plan or (plan := self._horizon.peek()) is None or not self._phase.enter(plan, self._ledger):
            return False
        self._horizon.take()
        return True

    @property
    def _in_flight(self) -> int:
        return self._ledger.batches + self._communicator.waiting

    @property
    def _may_plan(self) -> bool:
        horizon = self._horizon
        if horizon.is_reached or horizon.is_beyond(self._epoch_taken):
            return False
        assert self._crew is not None
        allowed = self._phase.allows(self._in_flight, self._ledger, self._crew, horizon)
        self._is_hungry |= allowed and horizon.is_hidden
        return allowed and not horizon.is_hidden

    def _submit(self) -> None:
        """Cut a task and hand it to a worker."""
        assert self._crew is not None
        sizes, number = self._phase.sizes, next(self._task_numbers)
        asked = self._ledger.cut(number, sizes.rows)
        task = Task(self._crew.dataset, self._run.number, number, self._run.seed, sizes.budget_ns, *asked)
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
        for delivery in deliveries:
            if delivery.contents is not None:
                self._transport.follow(delivery.contents)
        if self._horizon.is_reached and not (self._ended or self._ledger.batches):
            self._ended = True
            deliveries.append(Delivery(self._run.cursor, error=self._horizon.take_dead_end(), counts=False))
        if deliveries:
            self._deliver(deliveries)
        return len(deliveries) < len(found)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Number them, so that the consumer notices if one is lost on the last yard, and queue them."""
        for delivery in deliveries:
            delivery.number = self._delivered
            self._delivered += 1
        self._communicator.put(deliveries, self._run.number)

    def _wait(self) -> None:
        """Wait until something happens."""
        assert self._crew is not None
        if self._thread is None and len(self._communicator):
            return  # for whom?
        awaited = []  # batches that the consumer must take before there is something to do
        if self._has_vacancy and not self._horizon.is_reached:
            rows = self._horizon.rows
            awaited.append(self._phase.takes_awaited(self._ledger, self._communicator.waiting, self._crew, rows))
        if self._communicator.excess and (self._ledger.deliverable() or not self._ledger.batches):
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

    def _begin(self, run: Run) -> None:
        self._ledger.abandon()
        self._recovery.forget()
        self._run, self._epoch_taken = run, run.cursor.epoch
        self._horizon.begin(run.cursor, run.plans)
        self._ended, self._delivered = False, 0

    def _settle(self, ticket: Ticket) -> None:
        self.mail.post(ticket.mail)
        assembly = self._ledger.probed(ticket)
        again = self._ledger.settle(ticket)
        if self._crew is not None:
            self._crew.answered(ticket.worker, ticket.rows)
        if ticket.startup is not None:
            self._send_home()
            raise WorkerStartError(f"worker {ticket.worker} could not start:\n\n{ticket.startup}")
        self.tally.answered(ticket.seconds, ticket.rows, again)
        if assembly is not None and ticket.rows and not assembly.abandoned:
            try:
                self._first.take_in(ticket, assembly, self._ledger)
            finally:  # a room of that size may be refused
                if self._phase is self._first and self._transport.is_laid_out:
                    self._phase = RunAhead(self._rules, self._transport)
        if self._crew is not None:
            self._phase.follow(self.tally, self._horizon.rows, self._transport.room_bytes, self._crew.most_bytes)

    def _send_home(self) -> None:
        """End workers that are no use; the next attempt starts new ones."""
        if self._crew is not None:
            self._ledger.recall_all(quarantined=not self._crew.dismiss())

    def _fail(self, error: BaseException) -> None:
        """Something is wrong with more than one batch: the consumer hears of it and may try again."""
        self._ledger.abandon()
        self._horizon.end()
        self._ended = True
        self._deliver([Delivery(self._run.cursor, error=named(error), counts=False)])

    def _dispose(self) -> None:
        self._communicator.terminate()
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.dispose(_CLOSE_S)
        self._bell.close()
        self._ledger = Ledger()
