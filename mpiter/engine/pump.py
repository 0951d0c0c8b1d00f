"""Batches, one after the other, from whatever place one is sent to: what iterators and loaders own, one each.

Runs in the consumer's thread, and owns what fetches: starts it when the first batch is asked for, waits for it, sends
it elsewhere, ends it.  Guarantees that ``cursor`` tells what has been handed out, never what is prefetched; that
Ctrl-C in ``next()`` loses and repeats nothing; and that ``close()`` works from any thread, in any state, any number of
times, and ends in bounded time, as do dropping the pump and leaving the interpreter.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import IteratorClosed, MpiterError, UnevenSamples, could_not_start, name_samples, warn
from ..order.cursor import Cursor, Plan, Plans
from ..pool.starting import interrupts_later
from ..pool.watch import Patience, interval_for
from ..samples.batch import Batch, differing, samples_of
from ..samples.tree import Contents
from ..stats import Stats
from ..worker import home
from . import lifetime
from .communicator import Terminated
from .hook import Hook, Hooks
from .options import Options
from .prefetch import _PrefetchLoop
from .run import Delivery, Run
from .tally import Skipped
from .team import Team

Late = Callable[[float, float, str], Exception]  # the limit, the seconds waited, what the workers do → what is said


class Pumping:
    """A place, plans for what follows, and an account of what was handed out; derived ones bring what fetches.

    ``opens`` makes of a batch's contents what is handed out.  ``late`` says what becomes of a batch that has been
    overdue for longer than ``dataset_timeout``: a warning, which is given, or an error, which is raised.  ``counts``
    says how many samples are in what ``opens`` has made, where rows are something else; None where it is no batch.
    ``skipped`` is told of what is left out, and is the owner's where that has one pump after the other.
    """

    loop: Any = None  # what fetches
    is_closed = False
    cursor: Cursor
    seed = 0
    _plans: Plans
    _hooks = Hooks()
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
        if self.loop is None or self.loop.born != home.generation:  # the parent's: this process has been forked
            self.loop = None
            if self._plans.end_at(self.cursor):
                self._has_ended = True
                raise StopIteration
            self._hooks = Hooks(self.options.hooks())
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
        if self._counts is not None:
            samples = self._counts(batch)
        elif plan.samples is not None:
            samples = plan.samples - len(delivery.faults)
        else:
            samples = contents.rows - len(contents.failed)
        if samples is not None:
            loop.tally.handed_out(samples)
        self._advance(delivery, samples, began, time.monotonic())
        return batch

    def _advance(self, delivery: Delivery, samples: int | None = None, began: float = 0.0, ended: float = 0.0) -> None:
        """Note that the user has it, in this order: what Ctrl-C leaves undone is begun anew from the cursor."""
        try:
            self._hooks.tell(Hook.handed_out, delivery, samples, began, ended)
        except BaseException:
            self._has_stopped = True  # receipts then say where they begin anew
            raise
        if not delivery.is_end:
            after, before = delivery.plan.after, self._before
            if before is not None:  # to the user all this is one step: an epoch that ends within it mustn't be lost
                is_new, detail = after.epoch > before.epoch, before.epoch_detail
                after = after._replace(is_new_epoch=is_new, previous_epoch_detail=detail)
            self.cursor = after
            if not delivery.is_empty:
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
        self._hooks.tell(Hook.begun, self.cursor, plans)
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

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The worker processes of the moment; others after they have been replaced."""
        return () if self.loop is None else self.loop.pids

    @property
    def skipped(self) -> int:
        """Samples that were left out."""
        return self._all_skipped.count

    def stats(self, looks: bool = True) -> Stats:
        """A snapshot of the counters; ``looks`` as the tally has it."""
        found = self._last_stats if self.loop is None else self.loop.stats(looks)
        skipped = self._all_skipped
        return replace(found, skipped=skipped.count, skips=skipped.first)

    def close(self) -> None:
        """End what fetches and give everything back; batches already handed out stay valid."""
        self.is_closed = True
        loop, self.loop = self.loop, None
        if loop is not None and loop.pid == os.getpid():
            self._letting_go.detach()
            try:
                self._last_stats = loop.stats()
            finally:
                loop.stop()
                loop.join()


class Pump(Pumping):
    """With workers: a prefetch loop fetches from the place on."""

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

    def _take(self, loop: _PrefetchLoop) -> Delivery:
        if self._in_hand is None:
            self._in_hand = self._wait_for(loop)
        loop.mail.deliver()  # a warning may be an error to the user: the batch then stays in hand
        delivery, self._in_hand = self._in_hand, None
        self._has_stopped = delivery.is_end
        return delivery

    def _wait_for(self, loop: _PrefetchLoop) -> Delivery:
        began, glance_s = loop.tally.asked(), interval_for(limit := self.options.dataset_timeout)
        if limit is not None:
            self._patience = Patience(limit)
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
            loop.tally.waited(began, ended := time.monotonic())
            self._hooks.tell(Hook.waited, began, ended)

    def _waits(self, seconds: float) -> None:
        """No batch for so many seconds: look at what the workers do."""
        loop, limit = self.loop, self.options.dataset_timeout
        if loop is None or limit is None:  # closed meanwhile; or it may wait for ever
            return
        if self._patience.ends(seconds, not any(line.ready for line in loop.lines)):
            problem = self._late(limit, seconds, loop.doings() or "no worker is at a sample right now")
            self._lateness = type(problem)
            if not isinstance(problem, Warning):
                raise problem
            warn(problem)

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
        hire = partial(Team, rules, options.backend, options.serializer, options.copy, options.cargo)
        loop = _PrefetchLoop(rules, hire, self._all_skipped, self._hooks)
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
