"""What the pump and its prefetch loop say to each other: where a run begins, and each batch of it.

The prefetch thread makes a ``Delivery`` when it plans a batch, fills it as workers answer, and hands it over finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..order.cursor import Cursor, Plan, Plans
from ..samples.tree import Contents
from ..worker.block import Fault
from .rooms import Room


@dataclass(slots=True, eq=False)
class Delivery:
    """What ``next()`` gets: a batch, an error in its place, nothing if all of it was left out; or the end."""

    plan: Plan
    room: Room | None = None  # None: before it is known what samples are like
    missing: int = 0  # rows that are not there yet
    odd: dict[int, Any] = field(default_factory=dict)  # samples that came as objects, by row
    asides: dict[int, Any] = field(default_factory=dict)  # values that have no column, by row
    faults: list[Fault] = field(default_factory=list)  # what has failed of it
    contents: Contents | None = None
    error: BaseException | None = None  # of the batch as a whole
    out: int = 0  # blocks with workers, which may write into its room
    is_abandoned: bool = False
    is_suspect: bool = False  # it was out when workers died: a worker that dies of a row of it is seen to do so
    is_lost: bool = False  # its room: a worker that would not die may write into it
    is_end: bool = False  # nothing was asked for: it doesn't count as handed out
    number: int = 0  # among the deliveries of its run

    @property
    def is_empty(self) -> bool:
        """Is nothing left of the batch?  Then it is passed by: the user never gets an empty one."""
        return not self.is_end and self.contents is None and self.error is None

    @property
    def holds_a_slot(self) -> bool:
        return self.contents is not None and bool(self.contents.columns) and not self.contents.copied


def ending(at: Cursor, error: BaseException | None = None) -> Delivery:
    """The end of a run, or an error that is no batch's."""
    return Delivery(Plan(-1, 0, (), at, at), error=error, is_end=True)


@dataclass(frozen=True, slots=True)
class Run:
    """Batch after batch from a place on, until another run begins elsewhere."""

    number: int
    cursor: Cursor
    seed: int
    plans: Plans
