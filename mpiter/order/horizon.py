"""How far the plans reach: the next batch to be asked for, and why there is none.

Runs in the prefetch thread.  Guarantees that plans are made one after the other, each once; that an order sampler's
error comes after the batches that were planned before it; and that with samplers, which have state of their own and may
be replaced between epochs, planning never crosses more than one boundary ahead of the consumer.
"""

from __future__ import annotations

from .cursor import Cursor, Plan, Plans
from .order import Sampled


class Horizon:
    """Where planning has got to on one course."""

    def __init__(self) -> None:
        self._plans: Plans
        self._batch_number = 0  # never used twice
        self._planned_to: Cursor | None = None  # None: nothing is left to plan
        self._next: Plan | None = None  # planned, but there was no room for it yet
        self.dead_end: Exception | None = None  # why planning could not go on
        self.rows = 1  # of the largest batch so far

    def begin(self, cursor: Cursor, plans: Plans) -> None:
        """Go on from here."""
        self._plans, self._planned_to, self._next, self.dead_end, self.rows = plans, cursor, None, None, 1

    def end(self) -> None:
        """Nothing is left to do."""
        self._planned_to = self._next = self.dead_end = None

    @property
    def is_reached(self) -> bool:
        """Is there nothing more to plan?"""
        return self._planned_to is None and self._next is None

    def peek(self) -> Plan | None:
        """The next batch, the same until it is taken; None if there is none, or if it will be known only later."""
        to = self._planned_to
        if self._next is None and to is not None and self._plans.knows(to):
            self._next = self._step(to)
        return self._next

    def take(self) -> None:
        """The batch that ``peek`` has shown is on its way."""
        self._next = None

    def take_dead_end(self) -> Exception | None:
        """Why planning could not go on; told once, for its traceback may hold the iterator itself."""
        why, self.dead_end = self.dead_end, None
        return why

    def is_beyond(self, epoch: int) -> bool:
        """Is planning too far ahead of a consumer in ``epoch``?"""
        to = self._planned_to if self._next is None else self._next.before  # which is planned already
        return to is not None and isinstance(to.order, Sampled) and to.epoch > epoch + 1

    def _step(self, cursor: Cursor) -> Plan | None:
        try:
            plan = self._plans.step(cursor, self._batch_number)
        except Exception as error:  # the order sampler's
            ends = isinstance(error, StopIteration)  # which would mean something else to whoever calls next()
            self.dead_end = RuntimeError("the order_sampler raised StopIteration") if ends else error
            plan = None
        self._batch_number += 1
        self._planned_to = plan.after if plan else None
        self.rows = max(self.rows, plan.rows if plan else 1)
        return plan
