"""What a pump is, with workers and without: a place, plans for what follows, and an account of what was handed out.

Runs in the consumer's thread.  ``Pump`` and ``Alone`` bring what fetches, their ``loop``.  Guarantees that ``cursor``
tells what has been handed out; and that ``close()`` works from any thread, in any state, any number of times.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..datasets.access import about
from ..errors import IteratorClosed, UnevenSamples, name_samples
from ..order.cursor import Cursor, Plan, Plans
from ..receipts import Notes
from ..samples.batch import differing, samples_of
from ..samples.layout import Contents
from ..stats import Stats
from . import lifetime
from .options import Options
from .run import Delivery
from .tally import Skipped

Late = Callable[[float, float, str], Exception]  # the limit, the seconds waited, what the workers do → what is said


class Pumping:
    """``opens`` makes of a batch's contents what is handed out.

    ``late`` says what becomes of a batch that has been overdue for longer than ``dataset_timeout``: a warning, which is
    given, or an error, which is raised.  ``counts`` says how many samples are in what ``opens`` has made, where rows
    are something else; None where it is no batch.  ``skipped`` is told of what is left out, and is the owner's where
    that has one pump after the other.
    """

    loop: Any = None  # what fetches
    is_closed = False
    cursor: Cursor
    seed = 0
    _plans: Plans
    _notes: Notes | None = None  # of the run, for receipts
    _letting_go: Any = None
    _before: Cursor | None = None  # where the user was when batches began to be passed by
    _has_ended = False  # all of it has been handed out
    _has_stopped = False  # the run: another one begins with the next batch
    _taken = 0  # deliveries of the run that have been handed out

    def __init__(
        self,
        options: Options,
        opens: Callable[[Contents], Any],
        late: Late,
        counts: Callable[[Any], int | None] | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        self.options, self._opens, self._late, self._counts = options, opens, late, counts
        self._all_skipped = skipped or Skipped()
        self._one_at_a_time = threading.RLock()  # next() may be called by several threads
        self._last_stats = Stats()

    def go(self, cursor: Cursor, plans: Plans | None = None, seed: int | None = None) -> None:
        """Go on from ``cursor``; whatever is on its way is dropped."""
        self.cursor = cursor
        if plans is not None:
            self._plans = plans
        if seed is not None:
            self.seed = seed
        self._before, self._has_ended, self._has_stopped = None, False, True

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

    # -- handing out ---------------------------------------------------------------------------------------------

    def next(self, passed: Callable[[], object] | None = None) -> Any:
        """The next batch of which anything is left; StopIteration when there is none.

        ``passed`` is called for each of which nothing is: the cursor is then behind it.
        """
        with self._one_at_a_time:
            while True:
                if self._has_ended:
                    raise StopIteration
                loop = self._ready()
                delivery = self._take(loop)
                if not delivery.is_empty:
                    return self._hand_out(loop, delivery)
                self._before = self._before or self.cursor
                self._advance(delivery)
                if passed is not None:
                    passed()

    def start(self) -> None:
        """Fetch ahead from now on, not only when a batch is asked for."""
        with self._one_at_a_time:
            self._ready()

    def _ready(self) -> Any:
        """What fetches, with a run under way."""
        if self.is_closed:
            raise IteratorClosed("the iterator is closed; make a new one.")
        if self.loop is None or self.loop.pid != os.getpid():  # the parent's: this process has been forked
            self.loop = None
            if self._plans.end_at(self.cursor):
                self._has_ended = True
                raise StopIteration
            self._launch()
        if self._has_stopped:
            self._begin(self.loop)
        self._has_stopped = False
        return self.loop

    def _launch(self) -> None:
        """Make the loop."""
        raise NotImplementedError

    def _begin(self, loop: Any) -> None:
        """Have another run begin."""
        raise NotImplementedError

    def _take(self, loop: Any) -> Delivery:
        """What comes next."""
        raise NotImplementedError

    def _hand_out(self, loop: Any, delivery: Delivery) -> Any:
        contents, plan = delivery.contents, delivery.plan
        if contents is None:
            self._advance(delivery)
            if delivery.error is not None:
                raise delivery.error
            self._has_ended = True
            raise StopIteration
        began = time.monotonic()
        try:
            batch = self._opens(contents)
        except Exception as error:  # samples that cannot be stacked; unlike Ctrl-C, they would come again
            self._advance(delivery)
            self._name_samples(error, contents, plan)
            raise
        loop.tally.opened(began, time.monotonic())
        if self._counts is not None:
            samples = self._counts(batch)
        elif plan.samples is not None:
            samples = plan.samples - len(delivery.faults)
        else:
            samples = contents.rows - len(contents.failed)
        if samples is not None:
            loop.tally.handed_out(samples, loop.room_bytes)
        self._advance(delivery, has_come=True)
        return batch

    def _advance(self, delivery: Delivery, has_come: bool = False) -> None:
        """In this order: whatever Ctrl-C leaves undone, the next ``next()`` then goes on from the cursor."""
        plan, is_skipped, is_end = delivery.plan, delivery.is_empty, delivery.is_end
        if self._notes is not None and not is_end:
            self._notes.batch(plan, delivery.faults, is_skipped, is_failed=not (has_come or is_skipped))
        elif self._notes is not None and delivery.error is None:
            self._notes.end()
        if not is_end:
            after, before = plan.after, self._before
            if before is not None:  # to the user all this is one step: an epoch that ends within it mustn't be lost
                is_new, detail = after.epoch > before.epoch, before.epoch_detail
                after = after._replace(is_new_epoch=is_new, previous_epoch_detail=detail)
            self.cursor = after
            if not is_skipped:
                self._before = None
        self._taken += 1

    def _name_samples(self, error: Exception, contents: Contents, plan: Plan) -> None:
        """Say in the error which samples cannot be stacked."""
        if plan.samples is None:
            keys = [key for stretch in plan.stretches for key in stretch.indices]
            keys = [key for row, key in enumerate(keys) if row not in contents.failed]
            rows = error.rows if isinstance(error, UnevenSamples) else ()
            name_samples(error, keys, rows or differing(samples_of(contents)))

    def _course(self) -> Plans:
        """The plans of a run that begins here, as this rank goes through them."""
        plans = self._plans if self.options.shard is None else self._plans.shared(self.options.share())
        if (receipts := self.options.receipts) is not None:
            self._notes = Notes(receipts, self.cursor, plans, self.options.shard)
        return plans

    def _closed_meanwhile(self) -> IteratorClosed:
        """Another thread has closed it, or the dataset, or the interpreter ends."""
        lifetime.go_quietly()
        if self.is_closed:
            self.close()  # what was begun since
        return IteratorClosed("the iterator was closed while next() waited.")

    # -- what fetches --------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """More is known now of what comes next."""
        if self.loop is not None:
            self.loop.wake()

    def was_hungry(self) -> bool:
        """Would it have fetched more since it was last asked, had it known what?"""
        return self.loop is not None and self.loop.was_hungry()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes of the moment; others after they have been replaced."""
        return () if self.loop is None else self.loop.pids

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
