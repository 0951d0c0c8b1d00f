"""The phase before the rooms: samples are fetched one at a time, until one has come that says what a room looks like.

Runs in the prefetch thread, in the place of ``RunAhead``.  A batch that is begun in this phase is asked for its first
sample only; it is seated, and the rest of it asked for, when that has come.
"""

from __future__ import annotations

from ..order.cursor import Plan
from ..order.horizon import Horizon
from ..pool.crew import Crew
from ..rules import Rules
from ..transport.transport import Loose, Room, Transport
from ..worker.task import Ticket
from .cutting import PROBE
from .ledger import Assembly, Ledger, first_sample
from .outcome import not_received
from .tally import Tally


class FirstSample:
    """What may be asked for while nobody knows what samples are like."""

    sizes = PROBE

    def __init__(self, rules: Rules, transport: Transport) -> None:
        self._rules, self._transport = rules, transport

    def vacancies(self, crew: Crew, ledger: Ledger, horizon: Horizon) -> int:
        """How many tasks may be given now: one, but where a batch is one row, one to each worker."""
        return crew.vacancies if horizon.rows == 1 else 1 - ledger.tasks

    def allows(self, in_flight: int, ledger: Ledger, crew: Crew, horizon: Horizon) -> bool:
        """May one more batch be begun?

        Its samples may wait for those of the other workers, if each batch is one row: nobody may idle then.
        """
        if ledger.batches == 0 or not crew.has_idle_worker:
            return ledger.batches == 0
        return in_flight < self._rules.most and horizon.peek() is not None and horizon.rows == 1

    def enter(self, plan: Plan, ledger: Ledger) -> bool:
        """Begin a batch."""
        ledger.enter(plan, None)
        return True

    def can_wait(self, ledger: Ledger, waiting: int) -> bool:
        """Never: everybody waits for this sample."""
        return False

    def takes_awaited(self, ledger: Ledger, waiting: int, crew: Crew, batch_size: int) -> int:
        """How many batches must be taken before there is something to do."""
        return 1

    def follow(self, tally: Tally, batch_size: int, room_bytes: int, most_bytes: int) -> None:
        """One sample's word isn't relied upon."""

    def take_in(self, ticket: Ticket, assembly: Assembly, ledger: Ledger) -> None:
        """A first sample has come, or failed; of batches that were begun together, one after the other."""
        if any(fault.ends_row for fault in ticket.faults):
            ledger.go_on_without(assembly, self._rules.skips_errors)
            return
        try:
            sample = first_sample(ticket)
        except Exception as problem:
            assembly.error = not_received(problem)
            ledger.go_on_without(assembly, skips=False)
            return
        room: Room | None = Loose() if self._transport.is_laid_out else None
        if room is None:
            self._transport.lay_out(sample)
            room = self._transport.room(assembly.plan.rows)
            assert room is not None, "the first room is there or raises"
        room.put(assembly.asked - 1, sample)
        ledger.seat(assembly, room)
