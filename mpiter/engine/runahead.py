"""How far the loop may run ahead of the consumer: how many batches may be on their way.

Runs in the prefetch thread; follows what is measured.  Guarantees that no more batches are on their way than the
workers need, beside ``n_prefetch`` that wait, and never more than the user allows or than fit into memory.
"""

from __future__ import annotations

from ..order.cursor import Plan
from ..order.horizon import Horizon
from ..pool.crew import Crew
from ..rules import Rules
from ..transport.transport import Transport
from .cutting import PROBE, WORTHWHILE_BYTES, cut
from .ledger import Ledger
from .pilot import Setting
from .tally import Tally


class RunAhead:
    """What is allowed at the moment, once it is known what samples are like."""

    def __init__(self, rules: Rules, transport: Transport, setting: Setting) -> None:
        self._rules, self._transport, self.setting = rules, transport, setting
        self.sizes = PROBE
        self.window = 1  # batches that may be on their way or wait to be taken…
        self._most = 1  # …with those that are done and wait for an earlier one

    def follow(self, tally: Tally, batch_size: int, room_bytes: int, most_bytes: int) -> None:
        """A task has been answered; rooms of this size may take so many bytes in all."""
        rules, (workers, n_prefetch) = self._rules, self.setting
        reserve = rules.reserve - rules.n_prefetch + n_prefetch
        ahead = min(rules.most_run_ahead(workers), max(1, most_bytes // max(room_bytes, 1) - reserve))
        self._most = n_prefetch + ahead
        together = min(tally.tasks - 1, WORTHWHILE_BYTES // max(room_bytes, 1))  # one sample's word isn't relied upon
        self.sizes = cut(tally.sample_s, batch_size, workers, self._most, together, rules.dear_s)
        self.window = n_prefetch + min(self.sizes.batches, ahead)

    def vacancies(self, crew: Crew, ledger: Ledger, horizon: Horizon) -> int:
        """How many tasks may be given now."""
        return crew.vacancies

    def enter(self, plan: Plan, ledger: Ledger) -> bool:
        """Begin a batch, unless there is no room: we shall hear when there is one."""
        room = self._transport.room(plan.rows)
        if room is not None:
            ledger.enter(plan, room)
        return room is not None

    def allows(self, in_flight: int, ledger: Ledger, crew: Crew, horizon: Horizon) -> bool:
        """May one more batch be on its way?

        What is with workers, or done, and waits for an earlier one is work for nobody else: it doesn't count where a
        worker would idle.
        """
        if in_flight < self.window:
            return True
        return in_flight < self._most and crew.has_idle_worker and in_flight - ledger.held_up() < self.window

    def can_wait(self, ledger: Ledger, waiting: int) -> bool:
        """Is there time until a whole task has room?  Every worker has one, or the consumer has enough to take."""
        return ledger.tasks >= self.setting.workers or self._is_enough(waiting + ledger.deliverable())

    def _is_enough(self, ready: int) -> bool:
        """Most of what may be on its way is there to be taken: a task for each take would only wake everybody."""
        return 4 * ready >= 3 * self.window

    def takes_awaited(self, ledger: Ledger, waiting: int, crew: Crew, batch_size: int) -> int:
        """How many batches must be taken for a whole task to have room, or for anything where there is no time."""
        ready = waiting + ledger.deliverable()
        if not self._is_enough(ready) and (crew.has_idle_worker or not ledger.tasks):
            return 1
        missing = -(-(self.sizes.rows - ledger.uncut_rows) // batch_size)
        return max(1, missing if ledger.tasks else min(missing, ready))  # more than there are can't be taken
