"""What the pump and its prefetch loop say to each other: where a run begins, and what comes back.

Values, passed between the consumer's thread and the prefetch thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..order.cursor import Cursor, Plan, Plans
from ..samples.layout import Contents
from ..worker.block import Fault


@dataclass(slots=True)
class Delivery:
    """What ``next()`` gets: a batch, an error in its place, nothing if all of it was left out; or the end."""

    after: Cursor
    contents: Contents | None = None
    error: BaseException | None = None
    plan: Plan | None = None  # what was asked for; None: nothing was, and it doesn't count as handed out
    faults: Sequence[Fault] = ()  # what has failed of it
    number: int = 0  # among the deliveries of its run

    @property
    def is_empty(self) -> bool:
        """Is nothing left of the batch?  Then it is passed by: the user never gets an empty one."""
        return self.plan is not None and self.contents is None and self.error is None

    @property
    def holds_a_slot(self) -> bool:
        return self.contents is not None and bool(self.contents.columns) and not self.contents.copied


@dataclass(frozen=True, slots=True)
class Run:
    """Batch after batch from a place on, until somebody wants to go on from elsewhere."""

    number: int
    cursor: Cursor
    seed: int
    plans: Plans
