"""What a pump is, with workers and without: a place, plans for what follows, and an account of what was handed out.

Runs in the consumer's thread.  ``Pump`` and ``Alone`` bring what fetches, their ``loop``.  Guarantees that ``cursor``
tells what has been handed out; and that ``close()`` works from any thread, in any state, any number of times.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..datasets.access import about
from ..errors import UnevenSamples, name_samples
from ..order.cursor import Cursor, Plan, Plans
from ..receipts import Notes
from ..samples.batch import differing, samples_of
from ..samples.layout import Contents
from ..stats import Stats
from .options import Options
from .tally import Skipped


class Pumping:
    """``opens`` makes of a batch's contents what is handed out.

    ``counts`` says how many samples are in that, where rows are something else; None where it is no batch.  ``skipped``
    is told of what is left out, and is the owner's where that has one pump after the other.
    """

    def __init__(
        self,
        options: Options,
        opens: Callable[[Contents], Any],
        counts: Callable[[Any], int | None] | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        self.options, self._opens, self._counts = options, opens, counts
        self._all_skipped = skipped or Skipped()
        self.loop: Any = None  # what fetches
        self.is_closed = False
        self.cursor: Cursor
        self.seed = 0
        self._plans: Plans
        self._notes: Notes | None = None  # of the run, for receipts
        self._letting_go: Any = None
        self._before: Cursor | None = None  # where the user was when batches began to be passed by
        self._has_ended = False  # all of it has been handed out
        self._one_at_a_time = threading.RLock()  # next() may be called by several threads
        self._last_stats = Stats()

    def go(self, cursor: Cursor, plans: Plans | None = None, seed: int | None = None) -> None:
        """Go on from ``cursor``; whatever is on its way is dropped."""
        self.cursor = cursor
        if plans is not None:
            self._plans = plans
        if seed is not None:
            self.seed = seed
        self._before, self._has_ended = None, False

    def change(self, options: Options) -> None:
        """From the next batch on under other options."""
        was_closed = self.is_closed
        self.close()
        self.is_closed, self.options = was_closed, options

    def refresh(self) -> None:
        """Have the dataset seen as it is now."""
        if self.loop is not None and not self.loop.carries(self.options.cargo):
            self.close()
            self.is_closed = False

    def _course(self) -> Plans:
        """The plans of a run that begins here, as this rank goes through them."""
        plans = self._plans if self.options.shard is None else self._plans.shared(self.options.share())
        if (receipts := self.options.receipts) is not None:
            self._notes = Notes(receipts, self.cursor, plans, self.options.shard)
        return plans

    def _name_samples(self, error: Exception, contents: Contents, plan: Plan | None) -> None:
        """Say in the error which samples cannot be stacked."""
        if plan is not None and plan.samples is None:
            keys = [key for stretch in plan.stretches for key in stretch.indices]
            keys = [key for row, key in enumerate(keys) if row not in contents.failed]
            rows = error.rows if isinstance(error, UnevenSamples) else ()
            name_samples(error, keys, rows or differing(samples_of(contents)))

    def _in_one_step(self, after: Cursor) -> Cursor:
        """To the user, the batches passed by and this one: an epoch that ends with one of those mustn't be lost."""
        if (before := self._before) is None:
            return after
        return after._replace(is_new_epoch=after.epoch > before.epoch, previous_epoch_detail=before.epoch_detail)

    @property
    def skipped(self) -> int:
        """Samples that were left out."""
        return self._all_skipped.count

    def stats(self, looks: bool = True) -> Stats:
        """A snapshot of the counters, with what the dataset says of itself; ``looks`` as the tally has it."""
        found = self._last_stats if self.loop is None else self.loop.stats(looks)
        skipped = self._all_skipped
        return replace(found, dataset=about(self.options.dataset), skipped=skipped.count, skips=skipped.first)

    def close(self) -> None:
        """End what fetches and give everything back; batches already handed out stay valid."""
        self.is_closed = True
        loop, self.loop = self.loop, None
        if loop is not None and loop.pid == os.getpid():
            self._letting_go.detach()
            self._last_stats = loop.stats()
            loop.stop()
            loop.join()
        if self.options.receipts is not None:
            self.options.receipts.close()
