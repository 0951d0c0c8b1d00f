"""How far the loop may run ahead of the consumer, and how much goes into a task.

Runs in the prefetch thread; follows what is measured.  Guarantees that no more batches are on their way than the
workers need, beside ``n_prefetch`` that wait, and never more than the user allows or than fit into memory.
"""

from __future__ import annotations

from .course import Rules
from .crew import Crew
from .cutting import PROBE, WORTHWHILE_BYTES, cut
from .ledger import Ledger
from .stats import Tally


class RunAhead:
    """The sizes of the moment."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.cut = PROBE
        self.window = 1  # batches that may be on their way or wait to be taken…
        self._most = 1  # …with those that are done and wait for an earlier one

    def follow(self, tally: Tally, batch_size: int, room_bytes: int, most_bytes: int) -> None:
        """A task has been answered; rooms of this size may take so many bytes in all."""
        rules = self._rules
        ahead = min(rules.most_run_ahead, max(1, most_bytes // max(room_bytes, 1) - rules.reserve))
        self._most = rules.n_prefetch + ahead
        together = min(tally.tasks - 1, WORTHWHILE_BYTES // max(room_bytes, 1))  # one sample's word isn't relied upon
        self.cut = cut(tally.sample_s, batch_size, rules.workers, self._most, together)
        self.window = rules.n_prefetch + min(self.cut.batches, ahead)

    def allows(self, in_flight: int, ledger: Ledger, crew: Crew) -> bool:
        """May one more batch be on its way?

        What is done and waits for an earlier one is work for nobody: it doesn't count where a worker would idle.
        """
        if in_flight < self.window:
            return True
        return in_flight < self._most and crew.has_idle_worker and in_flight - ledger.waiting_their_turn() < self.window

    def takes_awaited(self, ledger: Ledger, crew: Crew, batch_size: int) -> int:
        """How many batches must be taken for a whole task to have room, or for anything where a worker idles."""
        missing = 1 if crew.has_idle_worker or not ledger.tasks else self.cut.rows - ledger.uncut_rows
        return max(1, -(-missing // batch_size))
