"""The engine's one seam: a hook is told what happens to the batches of one iterator.

A trace, a pilot, receipts, and a dataset that has its samples copied ahead are hooks.  ``Options.hooks`` makes them
anew for each loop, which closes them when it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..order.cursor import Cursor, Plan, Plans
    from ..worker.block import Done
    from .run import Delivery


class Hook:
    """Every method does nothing: a hook has those that it wants, and they come back at once.

    What one raises is raised by the consumer's next ``next()``.
    """

    loop: Any = None  # what fetches, once it has begun

    # -- in the prefetch thread; without workers in the consumer's -----------------------------------------------

    def planned(self, plan: Plan, plans: Plans, began: float, ended: float) -> None:
        """One more batch is on its way; ``plans`` says what comes after it."""

    def answered(self, done: Done) -> None:
        """A worker has fetched a block."""

    def queued(self, began: float, ended: float) -> None:
        """Finished batches wait for the consumer."""

    def in_flight(self, batches: int, ready: int) -> None:
        """So many batches are on their way, and so many of them are ready."""

    def lost(self, worker: int, was_asked: bool) -> None:
        """A worker is no more: it had been asked to end, or it died."""

    def resized(self, workers: int, n_prefetch: int) -> None:
        """From now on there are so many workers, and batches that may wait."""

    # -- in the consumer's thread --------------------------------------------------------------------------------

    def begun(self, cursor: Cursor, plans: Plans) -> None:
        """Batches come from here on."""

    def waited(self, began: float, ended: float) -> None:
        """``next()`` has waited for a batch."""

    def handed_out(self, delivery: Delivery, samples: int | None, began: float, ended: float) -> None:
        """The user is about to get a batch of so many samples; None: an error in its place, nothing of it, or the end.

        ``began`` and ``ended`` say when it was made ready.
        """

    def close(self) -> None:
        """Nothing more will happen; may be called again, from any thread."""
