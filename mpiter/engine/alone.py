"""Loading without workers: the consumer's thread fetches each batch when it is asked
for.

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
from collections.abc import Iterator
from functools import partial
from operator import is_
from typing import Any

from ..datasets.columns import Wrapping
from ..datasets.gathering import Gather, numbers_of
from ..errors import Notices, WorkerStartError
from ..order.cursor import Plan, Plans
from ..samples.batch import Batch, stacked
from ..samples.copying import bytes_in
from ..samples.tree import MANY, Aside, Contents
from ..stats import Stats
from ..worker import home
from ..worker.block import Block
from ..worker.caller import CallersWorker
from . import lifetime
from .delivery import Delivery, ending, finish, named
from .hook import Hook, Hooks
from .options import Options
from .pump import Pump, Pumping
from .tally import Skipped, Tally

# Between two batches whose processor time is measured.
_MEASURED_S = 0.25
_ASIDE = Aside()
_now = time.monotonic


class Alone(Pumping):
    """The pump of an iterator or a loader without workers: it fetches each batch
    itself, in ``next()``.
    """

    _going: Plans  # the plans of the run
    # May batches be read in one piece?
    _is_usual = False
    # Reads the columns of a batch, where the dataset has such.
    _gather: Gather | None = None
    # Of batches, never used twice.
    _numbers: Iterator[int]

    def start(self) -> None:
        """Open the dataset.  No batch is fetched ahead."""
        with contextlib.suppress(WorkerStartError):  # the first batch raises it
            super().start()

    def _next(self) -> Any:
        if (
            self._is_usual
            and not self._has_stopped
            and (batch := self._usual()) is not None
        ):
            return batch
        return super()._next()

    def _usual(self) -> Any:
        """Return the next batch if it is a whole one within an epoch; None if it must
        be planned first.

        Gives what ``next`` would, in fewer calls: a batch of columns takes 3 µs, and
        each call 0.1.
        """
        cursor = self.cursor
        reading = self.loop
        began = _now()
        if (
            reading is None
            or began > reading.plain_until
            or reading.born != home.generation
            or self._before
        ):
            return None
        tally = reading.tally
        # At once: another thread may look.
        tally.waits = tally.waits[0], began
        try:
            found = self._going.whole(cursor)
            if found is None:
                return None
            rows, samples, position, after = found
            if self._gather is not None:
                batch = self._gathered(rows)
            else:
                batch = self._read(reading.worker, rows, cursor.epoch, position)
        finally:
            tally.waits = tally.waits[0] + _now() - began, None
        if batch is None:
            return None
        tally.batches += 1
        tally.samples += samples
        self.cursor = after
        return batch

    def _gathered(self, rows: Any) -> Any:
        """Return a batch of columns; None if they must be read with a plan, whose error
        names the sample.
        """
        try:
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

    def _read(self, worker: CallersWorker, rows: Any, epoch: int, position: int) -> Any:
        """Return a batch of samples that were read one after the other; None if they
        must be read with a plan.
        """
        samples = worker.read(rows, self.seed, epoch, position)
        if self.is_closed:
            raise self._closed_meanwhile()
        if samples is None:
            return None
        try:
            return self._opens.of_rows(samples)  # type: ignore[attr-defined]
        except Exception:
            # Fetched again with a plan, the error names its sample.
            worker.give_again(samples)
            return None

    def _launch(self) -> None:
        self._numbers = itertools.count()
        self.loop = _Reading(
            self.options,
            self._opens is Batch,
            self.seed,
            self._all_skipped,
            self._hooks,
        )
        self._letting_go = lifetime.end_with(self, self.loop)
        self._has_stopped = True

    def _begin(self, loop: _Reading) -> None:
        loop.worker.give_again(())  # drops what Ctrl-C has left there
        self._going = self._course()
        is_small = self.options.batch_size <= MANY
        # A row is a sample, or the plans know how many it has.
        is_counted = self._counts is None
        # Which samples of a row that is a whole batch are to be left out is told to a
        # fetch only.
        is_told = self.options.on_error == "raise" or not isinstance(
            self.options.dataset, Wrapping
        )
        is_usual = is_small and is_counted and is_told and not self._hooks
        self._is_usual = is_usual and hasattr(self._opens, "of_rows")
        self._gather = loop.worker.gather

    def _fetch(self, loop: _Reading) -> Delivery:
        began = _now()
        try:
            plan = self._going.step(self.cursor, next(self._numbers))
            if plan is None:
                return ending(self.cursor)
            self._hooks.tell(Hook.planned, plan, self._going, began, _now())
            delivery = loop.fetch(plan, self.seed)
            if self.is_closed:
                raise self._closed_meanwhile()
            loop.notices.give()
            return delivery
        except BaseException as error:
            self._has_stopped = True
            # Which would end the caller's loop.
            if isinstance(error, StopIteration):
                raise RuntimeError("the order_sampler raised StopIteration") from error
            raise


class _Reading:
    """This process as the worker of one dataset, with the counters; takes the place of
    the prefetch loop.
    """

    pids = ()
    # Until then whole batches are read in one piece; then a ``fetch`` measures.
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
        self.cargo, self._rules = options.cargo, options.rules(seed, as_samples)
        self.worker, self.notices = (
            CallersWorker(*options.cargo, self._rules, options.copy),
            Notices(),
        )
        self.tally = Tally(skipped)
        self._hooks = hooks
        hooks.warn = self.notices.add

    def stop(self) -> None:
        """End the reading; may be called from any thread, and from the dataset's own
        code.
        """
        self._hooks.tell(Hook.close)

    close = stop

    def wake(self) -> None:
        """Do nothing: no thread fetches ahead."""

    def carries(self, cargo: tuple[Any, Any]) -> bool:
        """Return True if ``cargo`` has the very objects that are read here, even if
        they have been modified.
        """
        return all(map(is_, self.cargo, cargo))

    def stats(self) -> Stats:
        return Stats(**self.tally.look())

    def fetch(self, plan: Plan, seed: int) -> Delivery:
        """Return the planned batch, or the error in its place, as a delivery."""
        began = _now()
        tally = self.tally
        try:
            block = Block(
                plan.number,
                0,
                seed,
                plan.number,
                0,
                plan.rows,
                plan.stretches,
                sent=began,
            )
            done = self.worker.fetch(block)
            tally.fetched(done.rows, done.seconds, done.cpu_s)
            self._hooks.tell(Hook.answered, done)
            delivery = Delivery(plan, faults=list(done.faults))
            finish(delivery, self._rules, tally, partial(_contents, done.payload))
            if delivery.contents is not None:
                self.worker.keep_memory(_bytes_in(delivery.contents))
            return delivery
        except Exception as error:
            # - it has its cause.
            raise named(error)  # noqa: B904
        finally:
            if self.worker.is_plain and tally.began is not None:
                self.plain_until = began + _MEASURED_S
            else:
                self.plain_until = 0.0


def _bytes_in(contents: Contents) -> int:
    """Return the number of bytes of a batch, by its first sample if it has no
    columns.
    """
    if contents.objects:
        return len(contents.objects) * bytes_in(contents.objects[0])
    return sum(column.nbytes for column in contents.columns)


def _contents(payload: Any, batch: Delivery, failed: frozenset[int]) -> Contents:
    """Return the fetched samples: as columns where the dataset gave columns, else as
    the objects themselves.
    """
    _, rows, held = payload
    found = held.open()
    if type(found) is not list and (contents := stacked(found)) is not None:
        return contents
    count = batch.plan.rows
    if failed:
        samples = [*map(dict(zip(rows, found, strict=True)).get, range(count))]
    else:
        samples = list(found)
    return Contents(_ASIDE, count, objects=samples, failed=failed)


def pump_for(options: Options, *given: Any, **more: Any) -> Pump | Alone:
    """Return the pump for these options, one with workers or one without; the other
    arguments are ``Pumping``'s.
    """
    return (Alone if options.n_workers == 0 else Pump)(options, *given, **more)
