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
from ..errors import MpiterError, could_not_start, warn
from ..order.cursor import Cursor, Plans
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
from .pumping import Late, Pumping
from .run import Delivery, Run
from .tally import Skipped
from .team import Team


class Pump(Pumping):
    """A place, and a loop that fetches from there on."""

    _runs = 0
    _in_hand: Delivery | None = None  # taken from the loop, not yet handed out
    _patience = Patience(None)
    _lateness: Any = ()  # the type of what was said of a batch that may still come

    def go(self, cursor: Cursor, plans: Plans | None = None, seed: int | None = None) -> None:
        super().go(cursor, plans, seed)
        self._in_hand = None
        if self.loop is not None and self.loop.pid == os.getpid():
            self._begin(self.loop)
            self._has_stopped = False

    def _begin(self, loop: _PrefetchLoop) -> None:
        loop.go(self._run())

    def _run(self) -> Run:
        self._runs += 1
        self._taken = 0
        return Run(self._runs, self.cursor, self.seed, self._course())

    # -- handing out ---------------------------------------------------------------------------------------------

    def _take(self, loop: _PrefetchLoop) -> Delivery:
        if self._in_hand is None:
            self._in_hand = self._wait_for(loop)
        loop.mail.deliver()  # a warning may be an error to the user: the batch then stays in hand
        delivery, self._in_hand = self._in_hand, None
        self._has_stopped = delivery.is_end
        return delivery

    def _wait_for(self, loop: _PrefetchLoop) -> Delivery:
        began, glance_s = loop.tally.asked(), interval_for(self.options.dataset_timeout)
        self._patience = Patience(self.options.dataset_timeout)
        try:
            delivery = loop.get(self._waits, glance_s)
            while delivery.number != self._taken:  # Ctrl-C has taken one between the queue and the user
                self._begin(loop)
                delivery = loop.get(self._waits, glance_s)
            return delivery
        except Terminated:
            raise self._closed_meanwhile() from None
        except BaseException as error:
            self._has_stopped = not isinstance(error, self._lateness)  # else what is on its way may still come
            raise
        finally:
            loop.tally.waited(began, time.monotonic())
            loop.show_wait(False)

    def _waits(self, seconds: float) -> None:
        """No batch for so many seconds: look at what the workers do."""
        loop, limit = self.loop, self.options.dataset_timeout
        if loop is None:  # closed meanwhile
            return
        loop.show_wait(True)
        if limit is not None and self._patience.ends(seconds, not any(line.ready for line in loop.lines)):
            problem = self._late(limit, seconds, loop.doings() or "no worker is at a sample right now")
            self._lateness = type(problem)
            if not isinstance(problem, Warning):
                raise problem
            warn(problem)

    # -- the loop ------------------------------------------------------------------------------------------------

    def _launch(self) -> None:
        try:
            self._launch_loop()
        except OSError as error:
            if isinstance(error, MpiterError):
                raise
            raise could_not_start(error) from error

    def _launch_loop(self) -> None:
        options = self.options
        rules = options.rules(self.seed, as_samples=self._opens is Batch)
        tally, observe = options.make_tally(self._all_skipped), offered(users(options.dataset), "plan_observer")
        hire = partial(Team, rules, options.backend, options.serializer, options.copy, options.cargo)
        loop = _PrefetchLoop(rules, hire, tally, options.make_pilot(), observe)
        self._letting_go = lifetime.end_with(self, loop)
        with interrupts_later():  # Ctrl-C finds either nothing started or everything owned
            try:
                loop.launch(self._run())
            except BaseException:
                self._letting_go.detach()
                loop.stop()
                loop.join()
                raise
            self.loop, self._has_stopped = loop, False
        if self.is_closed:
            raise self._closed_meanwhile()


def pump_for(
    options: Options,
    opens: Callable[[Contents], Any],
    late: Late,
    counts: Callable[[Any], int | None] | None = None,
    skipped: Skipped | None = None,
) -> Pump | Alone:
    """A pump; where there are no workers, what does the same by itself."""
    return (Pump if options.has_workers else Alone)(options, opens, late, counts, skipped)
