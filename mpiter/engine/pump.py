"""The pump of an iterator or a loader: hands out one batch after the other.

It begins at any position that it is sent to, and owns the prefetch loop.  Guarantees
that ``cursor`` tells what has been handed out, never what is prefetched; that Ctrl-C in
``next()`` loses and repeats nothing; and that ``close()`` works from any thread, in any
state, any number of times, and ends in bounded time, as do dropping the pump and
leaving the interpreter.
"""

from __future__ import annotations

import enum
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ..errors import (
    IteratorClosed,
    MpiterError,
    Notices,
    UnevenSamples,
    could_not_start,
    name_samples,
    warn,
)
from ..hook import Hook
from ..order.cursor import Cursor, Plans
from ..pool.backends import Cargo
from ..pool.endings import Patience, interval_for
from ..pool.starting import interrupts_later
from ..samples.batch import Batch, differing_in
from ..samples.tree import Contents
from ..stats import Stats
from ..worker import home
from . import lifetime
from .communicator import Terminated
from .delivery import Delivery, ending
from .hooks import Hooks, ToldDelivery
from .options import Options
from .prefetch import NO_RUN, Run, _PrefetchLoop
from .recovery import doings
from .tally import Skipped, Tally
from .team import Team

# Stands for a batch whose samples were all left out.
NOTHING = object()
# Makes an error of the limit, the seconds waited, and what the workers do.
Late = Callable[[float, float, str], Exception]
# Returns the batch in what was opened, and the number of its samples; 0 at the end.
Counts = Callable[[Any], tuple[Any, int]]


class Loop(lifetime.Endable, Protocol):
    """What fetches the batches of a pump: the prefetch loop, or this process itself."""

    # ``home.generation`` when it was made: a forked child has a later one.
    born: int
    tally: Tally
    notices: Notices

    @property
    def pids(self) -> tuple[int, ...]: ...
    def carries(self, cargo: Cargo) -> bool: ...
    def stats(self) -> Stats: ...
    def wake(self) -> None: ...


LoopT = TypeVar("LoopT", bound=Loop)


class Phase(enum.Enum):
    """Where a pump is in its plans."""

    AT_REST = "no run is under way; the next call begins one at the cursor"
    RUNNING = "a run is under way: its batches come one after the other"
    OVER = "every batch has been handed out, so next() raises StopIteration"


class Pumping(Generic[LoopT]):
    """A position, the plans for the batches after it, and a loop that fetches them.

    Derived classes make the loop.

    ::

                  next() or start()             there is no next batch
        AT_REST ─────────────────────► RUNNING ────────────────────────► OVER
           ▲  an error of the run, Ctrl-C │                                │
           └──────────────────────────────┴───────────── go() ─────────────┘

    Only the thread in ``next`` or ``go`` changes its phase.  Any thread may close it
    meanwhile, in any phase, and an iterator may be used again after that: so whether it
    is closed is a flag of its own.

    ``opens`` turns a batch's contents into the object that is handed out.  ``late``
    makes the warning or the error for a batch that takes longer than
    ``dataset_timeout``.  ``counts`` is for a stream, where only what ``opens`` has made
    tells how many samples it has.  ``skipped`` counts samples left out; a loader's
    outlives its pumps.
    """

    def __init__(
        self,
        options: Options,
        opens: Callable[[Contents], Any],
        late: Late,
        counts: Counts | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        self.options = options
        self._opens = opens
        self._late = late
        self._counts = counts
        self._all_skipped = skipped or Skipped()
        self.cursor = NO_RUN.cursor
        # The tokens of all ranks in the step of the last batch; None if the order
        # doesn't tell.
        self.step_tokens: int | None = None
        self.seed = NO_RUN.seed
        self._plans = NO_RUN.plans
        self.loop: LoopT | None = None
        self.is_closed = False
        self._phase = Phase.AT_REST
        self._hooks = Hooks()
        # Ends the loop when the pump is collected.
        self._letting_go: weakref.finalize[[lifetime.Endable], object] | None = None
        # Where the user was before batches that were left out whole.
        self._before: Cursor | None = None
        # The number of the run's deliveries that have been handed out.
        self._taken = 0
        # next() may be called by several threads.
        self._one_at_a_time = threading.RLock()
        home.locks.add(self._one_at_a_time)
        self._last_stats = Stats()

    def go(
        self,
        cursor: Cursor,
        plans: Plans | None = None,
        seed: int | None = None,
    ) -> None:
        """Continue from ``cursor`` and drop the batches in flight.

        ``plans`` and ``seed``, if given, replace the present ones.
        """
        self.cursor = cursor
        self.step_tokens = None
        if plans is not None:
            self._plans = plans
        if seed is not None:
            self.seed = seed
        self._before = None
        self._phase = Phase.AT_REST

    def change(self, options: Options) -> None:
        """Use ``options`` from the next batch on, with new workers."""
        was_closed = self.is_closed
        self.close()
        self.is_closed = was_closed
        self.options = options

    def refresh(self) -> None:
        """End the workers if the dataset has changed.  The next batch starts others."""
        if self.loop is not None and not self.loop.carries(self.options.cargo):
            self.change(self.options)

    def next(
        self,
        passed: Callable[[], object] = lambda: None,
    ) -> Any:
        """Return the next batch that has samples left.

        ``passed`` is called for each batch that has none and is skipped.
        """
        here: tuple[Cursor, Cursor | None] | None = None
        try:
            with self._one_at_a_time:
                while True:
                    here = self.cursor, self._before
                    if (batch := self._next()) is not NOTHING:
                        return batch
                    # The skipped batch is behind the cursor for good: an interrupt in
                    # ``passed`` must not bring it back.
                    here = None
                    passed()
        except BaseException as error:
            # Ctrl-C may have come when the batch was already taken from the loop, or
            # the cursor was behind it, and the caller won't get it.  So the cursor goes
            # back and the run is dropped: the next call fetches that batch again.
            # Ordinary errors take the place of a batch, which counts as handed out.
            if here is not None and not isinstance(error, Exception):
                self.cursor, self._before = here
                self._phase = Phase.AT_REST
            raise

    def _next(self) -> Any:
        """Return the next batch, or NOTHING if all its samples were left out."""
        loop = self._ready()
        delivery = self._take(loop)
        if not delivery.is_empty:
            return self._hand_out(loop, delivery)
        self._before = self._before or self.cursor
        self._tell(delivery)
        self._advance(delivery)
        return NOTHING

    def known_tokens(self) -> int:
        """Return the tokens of all ranks in the step of the last batch."""
        if self.step_tokens is None:
            # So that the attribute counts as missing.
            raise AttributeError(
                "step_tokens isn't known: no batch has come yet, or the dataset's "
                "order doesn't tell the tokens of its samples, as that of mpiter.Pack "
                "does."
            )
        return self.step_tokens

    def start(self) -> None:
        """Start fetching ahead now instead of when the first batch is asked for."""
        with self._one_at_a_time:
            self._ready()

    def _ready(self) -> LoopT:
        """Return the loop, with a run under way."""
        if self._phase is Phase.OVER:
            raise StopIteration
        if self.is_closed:
            raise IteratorClosed("the iterator is closed; make a new one.")
        loop = self.loop
        # In a forked child the loop is the parent's: its thread isn't here, and its
        # workers serve the parent.
        if loop is None or loop.born != home.generation:
            self.loop = None
            if self._plans.end_at(self.cursor):
                self._phase = Phase.OVER
                raise StopIteration
            self._hooks = Hooks(self.options.loops_hooks())
            loop = self._launch()
        if self._phase is Phase.AT_REST:
            self._begin(loop)
            self._phase = Phase.RUNNING
        return loop

    def _launch(self) -> LoopT:
        """Make ``self.loop``, which fetches batches, start it, and return it.

        If it has a run already, the pump is running then.
        """
        raise NotImplementedError

    def _begin(self, loop: LoopT) -> None:
        """Have the loop begin another run, after the last batch handed out."""
        raise NotImplementedError

    def _fetch(self, loop: LoopT) -> Delivery:
        """Return the loop's next delivery."""
        raise NotImplementedError

    def _take(self, loop: LoopT) -> Delivery:
        """Wait for the loop's next delivery, and note for how long."""
        tally = loop.tally
        began = time.monotonic()
        # Both are set at once, since another thread may read them at any time.
        tally.waits = tally.waits[0], began
        try:
            return self._fetch(loop)
        finally:
            ended = time.monotonic()
            tally.waits = tally.waits[0] + ended - began, None
            self._hooks.tell(Hook.waited, began, ended)

    def _hand_out(
        self,
        loop: LoopT,
        delivery: Delivery,
    ) -> Any:
        """Return the delivery's batch, or raise its error, or the end of all."""
        contents = delivery.contents
        plan = delivery.plan
        if contents is None:
            self._tell(delivery)
            self._advance(delivery)
            if delivery.error is not None:
                raise delivery.error
            self._phase = Phase.OVER
            raise StopIteration
        began = time.monotonic()
        try:
            batch = self._opens(contents)
        except Exception as error:
            # The samples can't be stacked.  The batch counts as handed out, else the
            # next call would give the same error, and so would all after it.
            self._tell(delivery, error=error)
            self._advance(delivery)
            if plan.samples is None:
                keys = [key for stretch in plan.stretches for key in stretch.indices]
                keys = [
                    key for row, key in enumerate(keys) if row not in contents.failed
                ]
                rows: tuple[int, ...] = ()
                if isinstance(error, UnevenSamples):
                    rows = error.rows
                name_samples(error, keys, rows or differing_in(contents))
            raise
        given = batch
        if self._counts is not None:
            given, samples = self._counts(batch)
            # The stream has ended, which shows only now.  To hooks it is the end of the
            # run, like any other; the caller still needs what was sent with it.
            if not samples:
                self._tell(ending(plan.before))
                self._advance(delivery)
                return batch
        elif plan.samples is not None:
            samples = plan.samples - len(delivery.faults)
        else:
            samples = contents.rows - len(contents.failed)
        loop.tally.handed_out(samples)
        self._tell(delivery, given, samples, began, time.monotonic())
        self._advance(delivery)
        return batch

    def _tell(
        self,
        delivery: Delivery,
        batch: Any = None,
        samples: int | None = None,
        began: float = 0.0,
        ended: float = 0.0,
        error: BaseException | None = None,
    ) -> None:
        """Tell the hooks what is handed out: the ``batch``, if the user gets one."""
        if self._hooks:
            told = ToldDelivery(delivery, batch, error or delivery.error)
            self._hooks.tell(Hook.handed_out, told, samples, began, ended)

    def _advance(self, delivery: Delivery) -> None:
        """Move the cursor behind a delivery."""
        if not delivery.is_end:
            after = delivery.plan.after
            before = self._before
            # To the user, this batch and those that were skipped before it are one
            # step.  An epoch that ended with a skipped one must show.
            if before is not None:
                after = after._replace(
                    is_new_epoch=after.epoch > before.epoch,
                    previous_epoch_detail=before.epoch_detail,
                )
            self.cursor = after
            self.step_tokens = delivery.plan.tokens
            if not delivery.is_empty:
                self._before = None
        self._taken += 1

    def _course(self) -> Plans:
        """Return the plans for this rank's part of a run that begins here."""
        if self.options.shard is None:
            plans = self._plans
        else:
            plans = self._plans.shared(self.options.share())
        self._hooks.tell(Hook.begun, self.cursor, plans)
        return plans

    def _closed_meanwhile(self) -> IteratorClosed:
        """Return the error for a ``next()`` during which the iterator was closed.

        Another thread may have closed it, or the dataset itself.
        """
        lifetime.go_quietly()
        # ``next()`` may have started a loop after the iterator was closed, which would
        # not be ended otherwise.
        if self.is_closed:
            self.close()
        return IteratorClosed("the iterator was closed while next() waited.")

    def wake(self) -> None:
        """Have the loop plan again, because a sampler has given more keys."""
        if self.loop is not None:
            self.loop.wake()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """The process ids of the present workers."""
        if self.loop is None:
            return ()
        return self.loop.pids

    @property
    def skipped(self) -> int:
        """The number of samples that were left out."""
        return self._all_skipped.count

    def stats(self) -> Stats:
        """Return a snapshot of the counters."""
        if self.loop is None:
            found = self._last_stats
        else:
            found = self.loop.stats()
        skipped = self._all_skipped
        return replace(found, skipped=skipped.count, skips=skipped.first)

    def close(self) -> None:
        """End the loop and free its memory; batches that were handed out stay valid."""
        self.is_closed = True
        loop = self.loop
        self.loop = None
        # A forked child leaves its parent's loop alone.
        if loop is not None and loop.pid == os.getpid():
            # Ctrl-C may have come before there was a finalizer.
            if self._letting_go is not None:
                self._letting_go.detach()
            try:
                self._last_stats = loop.stats()
            finally:
                loop.close()


class Pump(Pumping[_PrefetchLoop]):
    """Delivers batches that workers fetch ahead, by a prefetch loop."""

    def __init__(
        self,
        options: Options,
        opens: Callable[[Contents], Any],
        late: Late,
        counts: Counts | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        super().__init__(options, opens, late, counts, skipped)
        # The number of runs so far, which is the last one's own number.
        self._runs = NO_RUN.number
        # A delivery that was taken from the loop and isn't handed out yet.
        self._in_hand: Delivery | None = None
        self._patience = Patience(None)
        # The type of a warning after which the batch may still come.
        self._lateness: type[Exception] | tuple[()] = ()

    def go(
        self,
        cursor: Cursor,
        plans: Plans | None = None,
        seed: int | None = None,
    ) -> None:
        super().go(cursor, plans, seed)
        if self.loop is not None and self.loop.pid == os.getpid():
            self._begin(self.loop)
            self._phase = Phase.RUNNING

    def _begin(self, loop: _PrefetchLoop) -> None:
        loop.go(self._run())

    def _run(self) -> Run:
        self._runs += 1
        self._taken = 0
        self._in_hand = None
        return Run(self._runs, self.cursor, self.seed, self._course())

    def _take(self, loop: _PrefetchLoop) -> Delivery:
        if self._in_hand is None:
            self._in_hand = super()._take(loop)
        # The program may raise warnings as errors.  The batch then stays in hand, and
        # the next call returns it.
        loop.notices.give()
        delivery = self._in_hand
        self._in_hand = None
        # The loop fetches nothing more of this run.  If there is a next call, after an
        # error, it begins another.
        if delivery.is_end:
            self._phase = Phase.AT_REST
        return delivery

    def _fetch(self, loop: _PrefetchLoop) -> Delivery:
        limit = self.options.dataset_timeout
        self._patience = Patience(limit)
        glance_s = interval_for(limit)
        try:
            delivery = loop.communicator.get(self._waits, glance_s)
            # A delivery is missing: Ctrl-C came when it was out of the queue and not in
            # hand yet.  Begin again at the cursor, which is before it.
            while delivery.number != self._taken:
                self._begin(loop)
                delivery = loop.communicator.get(self._waits, glance_s)
            return delivery
        except Terminated:
            raise self._closed_meanwhile() from None
        except BaseException as error:
            # A warning that is raised as an error doesn't stop the workers: the batch
            # may still come, and the next call waits for it.
            if not isinstance(error, self._lateness):
                self._phase = Phase.AT_REST
            raise

    def _waits(self, seconds: float) -> None:
        """Warn, or raise an error, if a batch takes longer than ``dataset_timeout``."""
        loop = self.loop
        limit = self.options.dataset_timeout
        # There is no loop if another thread has closed the iterator meanwhile.
        if loop is None or limit is None:
            return
        is_starting = not any(line.ready for line in loop.lines)
        if self._patience.ends(seconds, is_starting):
            told = doings(loop.lines, loop.ledger, self.options.dataset)
            if not told:
                told = "no worker is at a sample right now"
            problem = self._late(limit, seconds, told)
            self._lateness = type(problem)
            if not isinstance(problem, Warning):
                raise problem
            warn(problem)

    def _launch(self) -> _PrefetchLoop:
        rules = self.options.rules(self.seed, as_samples=self._opens is Batch)
        hire = partial(Team, rules, self.options)
        loop = _PrefetchLoop(
            rules, hire, self._all_skipped, self._hooks, self.options.dataset
        )
        run = self._run()
        self._letting_go = lifetime.end_with(self, loop)
        # Ctrl-C is held back until the pump owns the loop.  In between it would leave
        # workers that nobody knows, or half a start.
        with interrupts_later():
            try:
                loop.launch(run)
            except BaseException as error:
                self._letting_go.detach()
                loop.close()
                # The system's limits, on processes or open files say, are named.
                if isinstance(error, OSError) and not isinstance(error, MpiterError):
                    raise could_not_start(error) from error
                raise
            self.loop = loop
            self._phase = Phase.RUNNING
        # Another thread closed the iterator before it had this loop to close.
        if self.is_closed:
            raise self._closed_meanwhile()
        return loop
