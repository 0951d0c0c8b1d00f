"""The horizon: the position up to which batches have been planned, and the planned ones that workers don't have yet.

Runs in the prefetch thread.  Guarantees that each plan is made once, in order; that an order sampler's error comes
after the batches that were planned before it; and that with samplers, which have state of their own and may be replaced
between epochs, planning never crosses more than one epoch boundary ahead of the consumer.
"""

from __future__ import annotations

from collections import deque

from .cursor import Cursor, Plan, Plans
from .order import Sampled


class Horizon:
    """Plans the batches of a run, one after the other, as the loop needs them."""

    _plans: Plans
    _planned_to: Cursor | None  # None: nothing is left to plan
    _next_number = 0  # of batches, never used twice

    def __init__(self) -> None:
        self.end()

    def begin(self, cursor: Cursor, plans: Plans) -> None:
        self.end()
        self._plans, self._planned_to = plans, cursor

    def end(self) -> None:
        self._planned_to = None
        self._ahead: deque[Plan] = deque()  # planned, but not yet taken by the loop
        self._dead_end: Exception | None = None  # why planning could not go on
        self.rows = 1  # rows of the largest batch planned so far

    @property
    def is_reached(self) -> bool:
        """True if every batch of the run has been planned and taken."""
        return self._planned_to is None and not self._ahead

    def peek(self) -> Plan | None:
        """Return the next plan, the same until ``take()``; None if there is none, or none is known yet."""
        if not self._ahead and (to := self._planned_to) is not None and self._plans.knows(to):
            self._step(to)
        return self._ahead[0] if self._ahead else None

    def take(self) -> None:
        self._ahead.popleft()

    def take_dead_end(self) -> Exception | None:
        """Return the error that ended planning, if any, and forget it, since its traceback may hold the iterator."""
        why, self._dead_end = self._dead_end, None
        return why

    def is_beyond(self, epoch: int) -> bool:
        """True if planning must wait because the next batch is too far ahead of a consumer in ``epoch``."""
        to = self._ahead[0].before if self._ahead else self._planned_to
        return to is not None and isinstance(to.order, Sampled) and to.epoch > epoch + 1

    def _step(self, cursor: Cursor) -> None:
        plans: list[Plan] = []
        try:
            plans = self._plans.ahead(cursor, self._next_number)
        except Exception as error:  # raised by the order sampler
            ends = isinstance(error, StopIteration)  # raised by next(), it would end the caller's loop
            self._dead_end = RuntimeError("the order_sampler raised StopIteration") if ends else error
        self._ahead.extend(plans)
        self._next_number += len(plans)
        self._planned_to = plans[-1].after if plans else None
        self.rows = max([self.rows, *(plan.rows for plan in plans)])
