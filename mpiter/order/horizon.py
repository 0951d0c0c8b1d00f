"""How far the plans reach: the next batch to be asked for, and why there is none.

Runs in the prefetch thread.  Guarantees that plans are made one after the other, each once; that an order sampler's
error comes after the batches that were planned before it; and that with samplers, which have state of their own and may
be replaced between epochs, planning never crosses more than one boundary ahead of the consumer.
"""

from __future__ import annotations

from collections import deque

from .cursor import Cursor, Plan, Plans
from .order import Sampled


class Horizon:
    """The place up to which a run is planned."""

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
        self._ahead: deque[Plan] = deque()  # planned, but there was no room for them yet
        self._dead_end: Exception | None = None  # why planning could not go on
        self.rows = 1  # of the largest batch so far

    @property
    def is_reached(self) -> bool:
        """Is there nothing more to plan?"""
        return self._planned_to is None and not self._ahead

    def peek(self) -> Plan | None:
        """The next plan, the same until ``take``; None if there is none, or none is known yet."""
        if not self._ahead and (to := self._planned_to) is not None and self._plans.knows(to):
            self._step(to)
        return self._ahead[0] if self._ahead else None

    def take(self) -> None:
        self._ahead.popleft()

    def take_dead_end(self) -> Exception | None:
        """The error that ended planning; returned once, since its traceback may hold the iterator."""
        why, self._dead_end = self._dead_end, None
        return why

    def is_beyond(self, epoch: int) -> bool:
        """Is planning too far ahead of a consumer in ``epoch``?"""
        to = self._ahead[0].before if self._ahead else self._planned_to
        return to is not None and isinstance(to.order, Sampled) and to.epoch > epoch + 1

    def _step(self, cursor: Cursor) -> None:
        plans: list[Plan] = []
        try:
            plans = self._plans.ahead(cursor, self._next_number)
        except Exception as error:  # the order sampler's
            ends = isinstance(error, StopIteration)  # which would end the caller's loop
            self._dead_end = RuntimeError("the order_sampler raised StopIteration") if ends else error
        self._ahead.extend(plans)
        self._next_number += len(plans)
        self._planned_to = plans[-1].after if plans else None
        self.rows = max([self.rows, *(plan.rows for plan in plans)])
