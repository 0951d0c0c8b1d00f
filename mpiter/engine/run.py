"""What the pump and its prefetch loop say to each other: where a run begins, and what comes back.

Values, passed between the consumer's thread and the prefetch thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..order.cursor import Cursor, Plans
from ..samples.layout import Contents


@dataclass(slots=True)
class Delivery:
    """What ``next()`` gets: a batch, an error in its place, or neither at the end."""

    after: Cursor
    contents: Contents | None = None
    error: BaseException | None = None
    counts: bool = True  # as handed out: ``after`` is where the consumer then stands
    number: int = 0  # among the deliveries of its run
    samples: int | None = None  # of the batch, if a row isn't one
    fresh: int | None = None  # of these, if not all of them come for the first time

    @property
    def holds_a_slot(self) -> bool:
        return self.contents is not None and not self.contents.copied


@dataclass(frozen=True, slots=True)
class Run:
    """Batch after batch from a place on, until somebody wants to go on from elsewhere."""

    number: int
    cursor: Cursor
    seed: int
    plans: Plans


class NothingLeft(Exception):
    """All samples of a batch were left out, and whoever draws the next ones has to be asked for more."""
