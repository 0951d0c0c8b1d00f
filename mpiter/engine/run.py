"""What pump and prefetch loop pass to each other: the run to begin, and the deliveries of it.

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
    """One batch on its way to ``next()``, which gets its contents or an error; or the mark that the run has ended."""

    plan: Plan
    room: Room | None = None  # None: before it is known what samples are like
    missing: int = 0  # rows that haven't been fetched yet
    odd: dict[int, Any] = field(default_factory=dict)  # samples that came as objects, by row
    asides: dict[int, Any] = field(default_factory=dict)  # values that have no column, by row
    faults: list[Fault] = field(default_factory=list)  # samples that failed
    contents: Contents | None = None
    error: BaseException | None = None  # of the batch as a whole
    out: int = 0  # blocks with workers, which may write into its room
    is_abandoned: bool = False
    is_suspect: bool = False  # a worker died while it had rows of it: they are fetched one by one
    is_lost: bool = False  # a worker that could not be ended may write into its room
    is_end: bool = False  # the end of the run, not a batch
    number: int = 0  # among the deliveries of its run

    @property
    def is_empty(self) -> bool:
        """True if all samples were left out; ``next()`` then skips it, since the user never gets an empty batch."""
        return not self.is_end and self.contents is None and self.error is None

    @property
    def holds_a_slot(self) -> bool:
        return self.contents is not None and bool(self.contents.columns) and not self.contents.copied


def ending(at: Cursor, error: BaseException | None = None) -> Delivery:
    """Return the delivery that ends a run; ``error`` is one that concerns no single batch, if there is one."""
    return Delivery(Plan(-1, 0, (), at, at), error=error, is_end=True)


@dataclass(frozen=True, slots=True)
class Run:
    """The batches from the position ``cursor`` on, until another run begins."""

    number: int
    cursor: Cursor
    seed: int
    plans: Plans
