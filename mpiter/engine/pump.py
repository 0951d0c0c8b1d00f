"""Batches, one after the other, from whatever place one is sent to: what iterators and loaders own, one each.

Runs in the consumer's thread, and owns the prefetch loop: starts it when the first batch is asked for, waits for it,
sends it elsewhere, ends it.  Guarantees that ``cursor`` tells what has been handed out, never what is prefetched; that
Ctrl-C in ``next()`` loses and repeats nothing; and that ``close()`` works from any thread, in any state, any number of
times, and ends in bounded time, as do dropping the pump and leaving the interpreter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ..datasets.access import offered, users
from ..errors import IteratorClosed, MpiterError, could_not_start, warn
from ..order.cursor import Cursor, Plans
from ..pool.crew import Crew
from ..pool.starting import interrupts_later
from ..pool.stopwatch import interval_for
from ..pool.watch import Patience
from ..samples.batch import Batch
from ..samples.layout import Contents
from . import lifetime
from .alone import Alone
from .communicator import Terminated
from .options import Options
from .prefetch import _PrefetchLoop
from .pumping import Pumping
from .run import Delivery, Run
from .tally import Skipped

Late = Callable[[float, float, str], Exception]  # the limit, the seconds waited, what the workers do → what is said


class Pump(Pumping):
    """A place, and a loop that fetches from there on.

    ``late`` says what becomes of a batch that has been overdue for longer than ``dataset_timeout``: a warning, which is
    given, or an error, which is raised.
    """

    loop: _PrefetchLoop | None

    def __init__(
        self,
        options: Options,
        opens: Callable[[Contents], Any],
        late: Late,
        counts: Callable[[Any], int | None] | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        super().__init__(options, opens, counts, skipped)
        self._late = late
        self._runs = 0
        self._in_hand: Delivery | None = None  # taken from the loop, not yet handed out
        self._taken = 0  # deliveries of the run that have been handed out
        self._has_stopped = False  # the loop, which another run would set going
        self._patience = Patience(options.dataset_timeout)
        self._lateness: Any = ()  # the type of what was said of a batch that may still come

    # -- places --------------------------------------------------------------------------------------------------

    def go(self, cursor: Cursor, plans: Plans | None = None, seed: int | None = None) -> None:
        super().go(cursor, plans, seed)
        self._in_hand, self._has_stopped = None, False
        if self.loop is not None and self.loop.pid == os.getpid():
            self.loop.go(self._run())

    def change(self, options: Options) -> None:
        super().change(options)
        self._patience = Patience(options.dataset_timeout)

    def _run(self) -> Run:
        self._runs += 1
        self._taken = 0
        return Run(self._runs, self.cursor, self.seed, self._course())

    # -- handing out ---------------------------------------------------------------------------------------------

    def next(self, passed: Callable[[], object] | None = None) -> Any:
        """The next batch of which anything is left; StopIteration when there is none.

        ``passed`` is called for each of which nothing is: the cursor is then behind it.
        """
        with self._one_at_a_time:
            while True:
                if self._has_ended:
                    raise StopIteration
                loop = self._running_loop()
                if self._in_hand is None:
                    self._in_hand = self._wait_for(loop)
                loop.mail.deliver()  # a warning may be an error to the user: the batch then stays in hand
                delivery, self._in_hand = self._in_hand, None
                if not delivery.is_empty:
                    return self._hand_out(loop, delivery)
                self._before = self._before or self.cursor
                self._advance(delivery)
                if passed is not None:
                    passed()

    def start(self) -> None:
        """Fetch ahead from now on, not only when somebody asks."""
        with self._one_at_a_time:
            self._running_loop()

    def _wait_for(self, loop: _PrefetchLoop) -> Delivery:
        began, glance_s = loop.tally.asked(), interval_for(self.options.dataset_timeout)
        try:
            delivery = loop.get(self._waits, glance_s)
            while delivery.number != self._taken:  # Ctrl-C has taken one between the queue and the user
                loop.go(self._run())
                delivery = loop.get(self._waits, glance_s)
            return delivery
        except BaseException as error:
            self._interrupted(error)
            raise
        finally:
            loop.tally.waited(began, time.monotonic())
            loop.show_wait(False)

    def _hand_out(self, loop: _PrefetchLoop, delivery: Delivery) -> Any:
        if not delivery.counts:
            self._has_stopped = True
        if delivery.contents is None:
            self._advance(delivery)
            if delivery.error is not None:
                raise delivery.error
            self._has_ended = True
            raise StopIteration
        contents: Any = delivery.contents
        began = time.monotonic()
        try:
            batch = self._opens(contents)
        except Exception as error:  # samples that cannot be stacked; unlike Ctrl-C, they would come again
            self._advance(delivery)
            self._name_samples(error, contents, delivery.plan)
            raise
        loop.tally.opened(began, time.monotonic())
        samples = contents.rows - len(contents.failed) if delivery.samples is None else delivery.samples
        if self._counts is not None:
            samples = self._counts(batch)
        if samples is not None:
            loop.tally.handed_out(samples, loop.room_bytes)
        self._advance(delivery, has_come=True)
        return batch

    def _advance(self, delivery: Delivery, has_come: bool = False) -> None:
        """In this order: whatever Ctrl-C leaves undone, the next ``next()`` then goes on from the cursor."""
        if self._notes is not None and delivery.plan is not None:
            is_skipped = delivery.is_empty
            self._notes.batch(delivery.plan, delivery.faults, is_skipped, is_failed=not (has_come or is_skipped))
        elif self._notes is not None and delivery.error is None:
            self._notes.end()
        if delivery.counts:
            self.cursor = self._in_one_step(delivery.after)
            if not delivery.is_empty:
                self._before = None
        self._taken += 1

    def _interrupted(self, error: BaseException) -> None:
        """next() was left by Ctrl-C or the end of the loop: nothing has been handed out."""
        if isinstance(error, self._lateness):
            return  # what is on its way may still come
        if isinstance(error, Terminated):
            lifetime.go_quietly()
            raise IteratorClosed("the iterator was closed while next() waited.") from None
        self._has_stopped = True

    def _waits(self, seconds: float) -> None:
        """No batch for so many seconds: look at what the workers do."""
        loop, limit = self.loop, self.options.dataset_timeout
        if loop is None:
            return
        loop.show_wait(True)
        lines = loop.lines
        if limit is not None and self._patience.ends(seconds, not any(line.ready for line in lines)):
            problem = self._late(limit, seconds, loop.doings() or "no worker is at a sample right now")
            self._lateness = type(problem)
            if not isinstance(problem, Warning):
                raise problem
            warn(problem)

    # -- the loop ------------------------------------------------------------------------------------------------

    def _running_loop(self) -> _PrefetchLoop:
        if self.is_closed:
            raise IteratorClosed("the iterator is closed; make a new one.")
        if self.loop is not None and self.loop.pid != os.getpid():
            self.loop = None  # the parent's: this process has been forked
        self._patience.begin()
        if self.loop is None:
            if self._plans.end_at(self.cursor):
                self._has_ended = True
                raise StopIteration
            self._launch()
        elif self._has_stopped:
            self.loop.go(self._run())
        self._has_stopped = False
        assert self.loop is not None
        return self.loop

    def _launch(self) -> None:
        try:
            self._launch_loop()
        except OSError as error:
            if isinstance(error, MpiterError):
                raise
            raise could_not_start(error) from error

    def _launch_loop(self) -> None:
        loop = self._new_loop()
        self._letting_go = lifetime.end_with(self, loop)
        with interrupts_later():  # Ctrl-C finds either nothing started or everything owned
            try:
                loop.launch(self._run())
            except BaseException:
                self._letting_go.detach()
                loop.stop()
                loop.join()
                raise
            self.loop = loop
        if self.is_closed:  # meanwhile, by another thread
            self.close()
            raise IteratorClosed("the iterator was closed while next() waited.")

    def _new_loop(self) -> _PrefetchLoop:
        options = self.options
        rules = options.rules(self.seed, as_samples=self._opens is Batch)
        tally, observe = options.make_tally(self._all_skipped), offered(users(options.dataset), "plan_observer")
        transport = options.make_transport()
        make_crew = partial(Crew, rules, options.backend, transport, options.cargo)
        return _PrefetchLoop(rules, transport, make_crew, tally, options.make_pilot(), observe)

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


def pump_for(
    options: Options,
    opens: Callable[[Contents], Any],
    late: Late,
    counts: Callable[[Any], int | None] | None = None,
    skipped: Skipped | None = None,
) -> Pump | Alone:
    """A pump; where there are no workers, what does the same by itself."""
    if options.has_workers:
        return Pump(options, opens, late, counts, skipped)
    return Alone(options, opens, counts, skipped)
