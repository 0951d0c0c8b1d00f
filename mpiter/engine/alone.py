"""Loading without workers: the consumer's thread fetches each batch when asked for it.

This process acts as the worker: a batch is one block, and a list holds the very objects
that the dataset has returned. Guarantees what the pump guarantees, and that the
caller's random generators are left as they were.  A dataset that uses the memory of a
sample again is noticed sooner or later, and samples are then copied; batches before may
be wrong.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import is_
from typing import Any

from ..datasets.columns import Wrapping
from ..datasets.gathering import Gather, numbers_of
from ..errors import Notices, WorkerStartError
from ..hook import Hook
from ..order.cursor import Plan, Plans
from ..pool.backends import Cargo
from ..samples.batch import Batch, stacked
from ..samples.copying import bytes_in
from ..samples.rows import Rows
from ..samples.tree import MANY, Aside, Contents, tree_of
from ..stats import Stats
from ..worker import home
from ..worker.block import Block
from ..worker.caller import CallersWorker
from ..worker.sheets import Payload
from ..worker.underway import Closed
from . import lifetime
from .delivery import Delivery, ending, finish, named
from .hooks import Hooks, ToldPlan
from .options import Options
from .pump import Counts, Late, Phase, Pump, Pumping
from .tally import Skipped, Tally

# The time between two batches whose processor time is measured.
_MEASURED_S = 0.25
_ASIDE = Aside()
_now = time.monotonic
_RUNNING = Phase.RUNNING


class Alone(Pumping["_Reading"]):
    """The pump without workers, which fetches each batch itself, in ``next()``."""

    # The plans of the run.
    _going: Plans
    # Whole batches may be read in one piece.
    _is_usual = False
    # Makes a batch of a list of samples, where that is possible.
    _of_rows: Any = None
    # Reads the columns of a batch, where the dataset has such.
    _gather: Gather | None = None
    # The numbers of batches, never used twice.
    _numbers: Iterator[int]

    def start(self) -> None:
        """Open the dataset.  No batch is fetched ahead."""
        # With workers an error in the start comes from the first ``next()``, and here
        # it does too: that opens the dataset once more.
        with contextlib.suppress(WorkerStartError):
            super().start()

    def _next(self) -> Any:
        if (
            self._is_usual
            and self._phase is _RUNNING
            and (batch := self._usual()) is not None
        ):
            return batch
        return super()._next()

    def _usual(self) -> Any:
        """Return the next batch if it is a whole one; None if it must be planned first.

        Gives what ``next`` would, in fewer calls: a batch of columns takes 3 µs, and
        each call 0.1.
        """
        cursor = self.cursor
        reading = self.loop
        began = _now()
        # These are planned: the first batch, also in a forked child; one that is to be
        # measured; and one before which batches were skipped.
        if (
            reading is None
            or began > reading.plain_until
            or reading.born != home.generation
            or self._before
        ):
            return None
        tally = reading.tally
        # Both are set at once, since another thread may read them at any time.
        tally.waits = tally.waits[0], began
        try:
            found = self._going.whole(cursor)
            if found is None:
                return None
            rows, samples, position, after = found
            if self._gather is not None:
                batch = self._gathered(rows)
            else:
                batch = reading.worker.read(
                    rows, self.seed, cursor.epoch, position, self._of_rows
                )
                # The dataset's own code, or another thread, has closed the iterator.
                if self.is_closed:
                    raise self._closed_meanwhile()
        finally:
            tally.waits = tally.waits[0] + _now() - began, None
        if batch is None:
            return None
        tally.batches += 1
        tally.samples += samples
        self.cursor = after
        return batch

    def _gathered(self, rows: Any) -> Any:
        """Return a batch of columns; None if they must be read with a plan.

        An error is left to the plan, by which it names its sample.
        """
        try:
            # A sampler's keys come as a list, and may be other objects than numbers.
            if type(rows) is list:
                rows = numbers_of(rows)
            if rows is None:
                return None
            columns = self._gather(rows)  # type: ignore[misc]
            if columns is None:
                return None
            return self._opens.of_columns(columns)  # type: ignore[attr-defined]
        except Exception:
            return None

    def _launch(self) -> _Reading:
        self._numbers = itertools.count()
        as_samples = self._opens is Batch
        loop = self.loop = _Reading(
            self.options, as_samples, self.seed, self._all_skipped, self._hooks
        )
        self._letting_go = lifetime.end_with(self, loop)
        self._phase = Phase.AT_REST
        return loop

    def _begin(self, loop: _Reading) -> None:
        # Ctrl-C may have left samples of another position.
        loop.worker.begin_anew()
        self._going = self._course()
        options = self.options
        is_small = options.batch_size <= MANY
        # A row is a sample, or the plans know how many it has.
        is_counted = self._counts is None
        # Where a row is a whole batch, only ``fetch`` learns which of its samples were
        # left out, so such rows are planned.
        leaves_out = options.on_error != "raise"
        is_told = not (leaves_out and isinstance(options.dataset, Wrapping))
        is_usual = is_small and is_counted and is_told and not self._hooks
        self._of_rows = getattr(self._opens, "of_rows", None)
        self._is_usual = is_usual and self._of_rows is not None
        self._gather = loop.worker.gather

    def _fetch(self, loop: _Reading) -> Delivery:
        began = _now()
        try:
            plan = self._going.step(self.cursor, next(self._numbers))
            if plan is None:
                return ending(self.cursor)
            if self._hooks:
                told = ToldPlan(plan)
                self._hooks.tell(Hook.planned, told, self._going, began, _now())
            delivery = loop.fetch(plan, self.seed)
            if self.is_closed:
                raise self._closed_meanwhile()
            loop.notices.give()
            return delivery
        except Closed:
            self._phase = Phase.AT_REST
            raise self._closed_meanwhile() from None
        except BaseException as error:
            self._phase = Phase.AT_REST
            # The caller's loop would take it for its end.
            if isinstance(error, StopIteration):
                other = RuntimeError("the order_sampler raised StopIteration")
                self._tell(ending(self.cursor, other))
                raise other from error
            # The loop, too, hands over an error that concerns no single batch as the
            # end of the run, but not a warning that the program raises as an error.
            is_ours = isinstance(error, Exception) and not isinstance(error, Warning)
            if is_ours and not self.is_closed:
                self._tell(ending(self.cursor, error))
            raise


class _Reading:
    """This process as the worker of one dataset, in place of the prefetch loop."""

    pids = ()
    # Until this time whole batches are read in one piece; then a ``fetch`` measures.
    plain_until = 0.0

    def __init__(
        self,
        options: Options,
        as_samples: bool,
        seed: int,
        skipped: Skipped,
        hooks: Hooks,
    ) -> None:
        self.pid = os.getpid()
        self.born = home.generation
        self.cargo = options.cargo
        self._rules = options.rules(seed, as_samples)
        self.worker = CallersWorker(*options.cargo, self._rules, options.copy)
        self.notices = Notices()
        self.tally = Tally(skipped)
        self._hooks = hooks
        hooks.warn = self.notices.add

    def stop(self) -> None:
        """End the reading: any thread may call this, and the dataset's own code."""
        self.worker.close()
        self._hooks.tell(Hook.close)

    close = stop

    def wake(self) -> None:
        """Do nothing: no thread fetches ahead."""

    def carries(self, cargo: Cargo) -> bool:
        """Return True if ``cargo`` is what is read here, even if it was modified."""
        return all(map(is_, self.cargo, cargo))

    def stats(self) -> Stats:
        return replace(self.tally.look(), _concurrency=self._rules.concurrency)

    def fetch(self, plan: Plan, seed: int) -> Delivery:
        """Return the planned batch, or the error in its place, as a delivery."""
        began = _now()
        tally = self.tally
        try:
            # There is one registered dataset, and the block is the whole batch.
            dataset = 0
            row = 0
            block = Block(
                plan.number,
                dataset,
                seed,
                plan.number,
                row,
                plan.rows,
                plan.stretches,
                sent=began,
            )
            done = self.worker.fetch(block)
            self.notices.add(*done.notices)
            tally.fetched(done.rows, done.seconds, done.cpu_s)
            self._hooks.tell(Hook.answered, done)
            delivery = Delivery(plan, faults=list(done.faults))
            finish(delivery, self._rules, tally, partial(_contents, done.payload))
            if delivery.contents is not None:
                self.worker.keep_memory(_bytes_in(delivery.contents))
            return delivery
        except Exception as error:
            # The error is raised as it is, and has its own cause.
            raise named(error)  # noqa: B904
        finally:
            # Reading in one piece isn't measured, so it goes on for a short time only.
            if self.worker.is_plain and tally.began is not None:
                self.plain_until = began + _MEASURED_S
            else:
                self.plain_until = 0.0


def _bytes_in(contents: Contents) -> int:
    """Return the bytes of a batch, by its first sample if it has no columns."""
    if contents.objects:
        return len(contents.objects) * bytes_in(contents.objects[0])
    return sum(column.nbytes for column in contents.columns)


def _contents(
    payload: Payload | None,
    batch: Delivery,
    failed: frozenset[int],
) -> Contents:
    """Return the fetched samples, as columns if the dataset gave columns."""
    assert payload is not None
    found = payload.odd.open()
    if type(found) is not list:
        contents = stacked(found)
        if contents is None and type(found) is Rows:
            # Values of a column differ: lists of several lengths, or a None.
            tree, _ = tree_of(found)
            contents = stacked(found, tree)
        if contents is not None:
            return contents
    count = batch.plan.rows
    if failed:
        by_row = dict(zip(payload.odd_rows, found, strict=True))
        samples = [*map(by_row.get, range(count))]
    else:
        samples = list(found)
    return Contents(_ASIDE, count, objects=samples, failed=failed)


def pump_for(
    options: Options,
    opens: Callable[[Contents], Any],
    late: Late,
    counts: Counts | None = None,
    skipped: Skipped | None = None,
) -> Pump | Alone:
    """Return the pump for these options; the other arguments are ``Pumping``'s."""
    if options.fetches_here:
        return Alone(options, opens, late, counts, skipped)
    return Pump(options, opens, late, counts, skipped)
