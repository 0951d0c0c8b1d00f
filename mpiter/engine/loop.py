"""The engine's turns: plan batches ahead of the consumer, have them fetched, hand them over in order.

Runs in the prefetch loop's thread.  It waits in one place, the Pool's
``wait``, which brings tickets and the ends of workers; who wants anything else of it (another run, the end, another
look at what there is room for) leaves word and rings its bell.  Guarantees that run-ahead is bounded in batches and
bytes, and that whatever goes wrong is delivered to the consumer.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from .. import machine
from ..bell import Bell
from ..errors import WorkerStartError
from ..order.horizon import Horizon
from ..pool.crew import Crew
from ..pool.endings import End
from ..rules import Rules
from ..stats import Stats
from ..transport.transport import Transport
from ..worker.mail import Inbox
from ..worker.task import Lost, Task, Ticket
from .communicator import Terminated, _Communicator
from .first_sample import FirstSample
from .ledger import Ledger
from .observing import Observer, Observing
from .outcome import delivery_of, named, not_sent
from .pilot import Pilot, Setting, Steady
from .recovery import Recovery
from .run import Delivery, Run
from .runahead import RunAhead
from .tally import Tally


class _Loop:
    """Plan → task → ticket → batch, for one iterator."""

    def __init__(
        self,
        rules: Rules,
        transport: Transport,
        make_crew: Callable[..., Crew],
        tally: Tally | None = None,
        pilot: Pilot | None = None,
        observe: Callable[[], Observer] | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.tally, self.mail = tally or Tally(), Inbox()
        self._pilot: Pilot = pilot or Steady()
        self._rules, self._transport, self._make_crew = rules, transport, make_crew
        self._bell, self._observing = Bell(), Observing(observe, self.mail.warn)
        self._runs: deque[Run] = deque()  # to go from now on
        self._communicator: _Communicator[Delivery] = _Communicator(rules.n_prefetch, self._note)
        self._ledger = Ledger(rules.in_order, is_blind=not rules.shares_memory)
        self._recovery = Recovery(skips=rules.skips_errors)
        self._crew: Crew | None = None
        self._thread: threading.Thread | None = None
        self._run: Run
        self._horizon = Horizon()
        self._first = FirstSample(rules, transport)
        self._phase: FirstSample | RunAhead = self._first
        self._ended = False  # the end has been delivered
        self._task_numbers = itertools.count()
        self._stopping = self._has_vacancy = self._is_hungry = self._wait_lasts = False

    def _turn(self) -> None:
        try:
            while self._runs:
                self._begin(self._runs.popleft())
            self._taken = self._communicator.taken  # what is taken from now on may make room for more
            self._keep_busy()
            self._hand_over()
            self._wait()
        except Terminated:
            raise
        except BaseException as error:
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
        self.tally.in_flight(self._in_flight, self._transport.room_bytes, self._communicator.waiting)

    def _plan(self) -> bool:
        """Enter one more batch into the ledger, if there is room for it."""
        began = time.monotonic()
        if not self._may_plan or (plan := self._horizon.peek()) is None or not self._phase.enter(plan, self._ledger):
            return False
        self._horizon.take()
        self._observing.planned(plan, self._run.plans)
        self.tally.ordered(began, time.monotonic())
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
        task = Task(
            self._crew.dataset, self._run.number, number, self._run.seed, sizes.budget_ns, *asked, time.monotonic()
        )
        try:
            self._crew.submit(task, self._take_in)
        except BaseException:
            self._ledger.recall([number])
            raise

    def _hand_over(self) -> None:
        """Put finished batches, and the end, into the communicator, unless it is full."""
        if self._communicator.excess:
            return
        began, finished = time.monotonic(), self._ledger.completed()
        deliveries = [delivery_of(assembly, self._rules, self.tally) for assembly in finished]
        for assembly, delivery in zip(finished, deliveries, strict=True):
            delivery.plan, delivery.faults = assembly.plan, assembly.faults
        if finished:
            self._recovery.progress()
        for delivery in deliveries:
            if delivery.contents is not None:
                self._transport.follow(delivery.contents)
        if self._horizon.is_reached and not (self._ended or self._ledger.batches):
            self._ended = True
            deliveries.append(Delivery(self._run.cursor, error=self._horizon.take_dead_end(), counts=False))
        if deliveries:
            self.tally.delivered(began, time.monotonic())
            self._deliver(deliveries)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Number them, so that the consumer notices if one is lost on the last yard, and queue them."""
        for delivery in deliveries:
            delivery.number = self._delivered
            self._delivered += 1
        self._communicator.put(deliveries, self._run.number)

    def _wait(self) -> None:
        """Wait until something happens."""
        assert self._crew is not None
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
        self.tally.lost(end.worker, end.was_asked)
        if end.was_asked:
            self.tally.renewals += end.worker < self._crew.width
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
            self._crew.answered(ticket.worker, ticket.rows, ticket.drawn)
        if ticket.startup is not None:
            self._send_home()
            raise WorkerStartError(f"worker {ticket.worker} could not start:\n\n{ticket.startup}")
        self.tally.answered(ticket, again)
        if assembly is not None and ticket.rows and not assembly.abandoned:
            try:
                self._first.take_in(ticket, assembly, self._ledger)
            finally:  # a room of that size may be refused
                if self._phase is self._first and self._transport.is_laid_out:
                    self._phase = RunAhead(self._rules, self._transport, self._setting)
        if self._crew is not None:
            self._steer(self._crew)
            self._phase.follow(self.tally, self._horizon.rows, self._transport.room_bytes, self._crew.most_bytes)

    @property
    def _setting(self) -> Setting:
        width = self._rules.workers if self._crew is None else self._crew.width
        return Setting(width, self._communicator.n_prefetch)

    def _steer(self, crew: Crew) -> None:
        """Do as the pilot says, once there is something to see: while workers come and go there isn't."""
        if isinstance(self._phase, FirstSample) or not crew.is_settled:
            return
        wanted = self._pilot.look(self.tally.batches, self._setting, partial(self.stats, looks=False))
        if wanted is not None:
            crew.resize(wanted.workers)
            self._communicator.n_prefetch = wanted.n_prefetch
            self._phase.setting = wanted
            self.tally.resized(*wanted)

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

    # -- for everybody -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """There may be something to do; from any thread."""
        self._bell.ring()

    @property
    def room_bytes(self) -> int:
        """Of one batch."""
        return self._transport.room_bytes if self._crew else 0

    @property
    def pids(self) -> tuple[int, ...]:
        return self._crew.pids if self._crew else ()

    def stats(self, looks: bool = True) -> Stats:
        slots = getattr(self._transport, "slots", None)
        size, in_flight, pids = self.room_bytes, self._in_flight, self.pids
        workers = self._setting.workers
        return Stats(
            **self.tally.counters(),
            **self.tally.look(looks),
            workers=workers,
            threads=workers if self._rules.in_process else 0,
            worker_bytes=sum(map(machine.own_bytes, pids)),
            worker_cpu_s=sum(machine.cpu_s(pid) or 0.0 for pid in pids),
            restarts=self._recovery.restarts,
            ready_batches=len(self._communicator),
            in_flight_batches=in_flight,
            in_flight_bytes=in_flight * size,
            room_bytes=size,
            **(slots.counters(self._communicator.count(lambda delivery: delivery.holds_a_slot)) if slots else {}),
        )

    def _note(self, delivery: Delivery) -> None:
        self._epoch_taken = delivery.after.epoch
