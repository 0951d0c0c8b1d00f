"""Who makes what ``next()`` hands out of what the loop delivers.

A seam: the pump sends its loop where its composer says, and hands out what the composer makes of the deliveries.  The
core's own hands out each delivery as it is; ``mpiter.echo`` has some that hand out samples several times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..order.cursor import Cursor, Plans, batches_of
from ..order.share import Share
from .run import Delivery


class Composer(Protocol):
    """Works in the consumer's thread.  What it must know of a place beside the rest is the cursor's ``extra``."""

    name: str  # what a state must agree with; nothing for the core's own
    taken: int  # deliveries of this run that it has in its books
    is_sound: bool  # False: Ctrl-C has left the books in disorder, so that the run has to begin anew, from the cursor

    def begin(self, cursor: Cursor, plans: Plans, seed: int) -> tuple[Cursor, Plans]:
        """A run begins: where the loop is to go, and what it is to fetch there."""

    def next(self, cursor: Cursor, take: Callable[[], Delivery], sample_s: float) -> Delivery:
        """What follows on ``cursor``, made of what ``take`` gives; fetching a sample takes so long, by all workers.

        Of a batch of which nothing is left, too: a delivery without contents, which the pump passes by.
        """

    def handed_out(self) -> None:
        """The user has what ``next`` gave."""

    def extra_of(self, epoch: int) -> tuple[float, ...]:
        """The cursor's ``extra`` where an epoch begins."""

    def batches(self, length: int, batch_size: int, drop_last: bool) -> int | None:
        """How many come of an epoch of ``length`` samples; None: that is known only later."""

    def batches_before(self, cursor: Cursor, batch_size: int) -> int:
        """How many of the epoch have been handed out."""


class Straight:
    """Every delivery is handed out; ``share`` says what of an epoch is this process's."""

    name = ""
    is_sound = True

    def __init__(self, share: Callable[[], Share]) -> None:
        self._share, self.taken = share, 0

    def begin(self, cursor: Cursor, plans: Plans, seed: int) -> tuple[Cursor, Plans]:
        self.taken = 0
        return cursor, plans

    def next(self, cursor: Cursor, take: Callable[[], Delivery], sample_s: float) -> Delivery:
        return take()

    def handed_out(self) -> None:
        self.taken += 1

    def extra_of(self, epoch: int) -> tuple[float, ...]:
        return ()

    def batches(self, length: int, batch_size: int, drop_last: bool) -> int | None:
        return batches_of(length, batch_size, drop_last, self._share())

    def batches_before(self, cursor: Cursor, batch_size: int) -> int:
        return -(-cursor.position // self._share().step(batch_size))
