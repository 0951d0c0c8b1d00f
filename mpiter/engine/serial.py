"""The loop without workers: a batch is fetched in the consumer's thread, when it is asked for.

Has the interface of the prefetch loop.  There is nothing to schedule, to pack or to recover: indices come from the
plans, samples from the dataset, and a batch holds the very objects that the dataset has returned.  Guarantees that
Ctrl-C passes through; that the caller's random generators are found as they were; and that a dataset which fills
memory again that the batch's first sample lies in is found out: from then on its samples are copied as they come.
"""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, is_
from typing import Any

import numpy as np

from ..datasets.access import Reader, reader_of, users
from ..errors import SharedMemoryFull, WorkerStartError
from ..machine import memory_total
from ..order.cursor import Plan, Stretch
from ..order.horizon import Horizon
from ..rules import Rules
from ..samples import tensors
from ..samples.batch import stacked
from ..samples.caution import copied
from ..samples.layout import Contents, Layout
from ..samples.leaves import Aside
from ..samples.rows import Rows
from ..samples.tree import describe
from ..stats import Stats
from ..transport.memory import Arena
from ..worker import forks, info, parts, seeding
from ..worker.board import COUNTED, FIGURES, Board
from ..worker.faults import Faults
from ..worker.mail import Inbox
from ..worker.task import Piece, Ticket
from ..worker.worker import call_hooks
from .communicator import Terminated
from .observing import Observer, Observing
from .outcome import error_of, named
from .run import Delivery, Run
from .tally import Tally

_PUBLISH_S = 0.25  # `mpiter top` looks once a second
_BOARD_BYTES = 1 << 14
_FEW, _LOOKED_AT = 16, 1024  # parts of a sample, and elements of an array, that tell whether it has changed
_MANY = 100_000  # rows
_ASIDE = Aside()
_counted = attrgetter(*COUNTED)


class SerialLoop:
    """One iterator's."""

    lines = ()
    pids: tuple[int, ...] = ()
    room_bytes = 0

    def __init__(
        self,
        rules: Rules,
        cargo: tuple[Any, Any],
        tally: Tally,
        observe: Callable[[], Observer] | None,
        copies: bool,
    ) -> None:
        self.pid = os.getpid()
        self.tally, self.mail = tally, Inbox()
        self._rules, self._cargo, self._copies = rules, cargo, copies
        self._observing = Observing(observe, self.mail.warn)
        self._horizon = Horizon()
        self._run: Run
        self._here: info.WorkerInfo | None = None  # what the dataset's code is told of its worker; None: not yet open
        self._reader: Reader | None = None
        self._seeds, self._callers = seeding.NONE, seeding.Kept()  # the generators that the dataset draws from
        self._rows: list[Any] = []  # of the batch that is fetched
        self._together: Any = None  # …or all of it, where it lies in columns already
        self._faults = Faults()
        self._stretch: Stretch
        self._number = 0  # the batch's
        self._board: Board | None = None
        self._arena: Arena | None = None
        self._delivered = 0
        self._published = 0.0
        self._is_fetching = self._stopping = False

    def launch(self, run: Run) -> None:
        """Get the dataset ready."""
        with contextlib.suppress(WorkerStartError):  # the first batch says so
            self._open()
        self.go(run)

    def go(self, run: Run) -> None:
        """Go on from another place."""
        self._run, self._delivered = run, 0
        self._horizon.begin(run.cursor, run.plans)

    def get(self, stalled: Callable[[float], None], glance_s: float) -> Delivery:
        """The next delivery; ``stalled`` is for loops that keep one waiting."""
        self._is_fetching = True
        try:
            if self._stopping:
                raise Terminated
            delivery = self._next()
        finally:
            self._is_fetching = False
            if self._stopping:
                self._dispose()
        if self._stopping:  # meanwhile, by another thread or by the dataset
            raise Terminated
        delivery.number = self._delivered
        self._delivered += 1
        return delivery

    def stop(self) -> None:
        """End, once a fetch that is under way comes back."""
        self._stopping = True
        if not self._is_fetching:
            self._dispose()

    def join(self) -> None:
        """There is no thread to wait for."""

    def wake(self) -> None:
        """There is no thread to wake."""

    def was_hungry(self) -> bool:
        """It never fetches ahead."""
        return False

    def show_wait(self, lasts: bool) -> None:
        """``next()`` works, and doesn't wait."""

    def doings(self) -> str:
        """What workers do: there are none."""
        return ""

    def carries(self, cargo: tuple[Any, Any]) -> bool:
        """Is it about these very objects, however they have changed?"""
        return all(map(is_, self._cargo, cargo))

    def stats(self, looks: bool = True) -> Stats:
        """The counters."""
        return Stats(**self.tally.counters(), **self.tally.look(looks))

    # -- a batch -------------------------------------------------------------------------------------------------

    def _next(self) -> Delivery:
        """Fetch what comes next; whatever goes wrong is delivered, but for Ctrl-C."""
        began = time.monotonic()
        try:
            if self._here is None:
                self._open()
            plan = self._horizon.peek()
            if plan is None:
                assert self._horizon.is_reached, "what comes next is known when it is asked for"
                return Delivery(self._run.cursor, error=self._horizon.take_dead_end(), counts=False)
            self._horizon.take()
            self._number = plan.number
            self._observing.planned(plan, self._run.plans)
            self.tally.ordered(began, time.monotonic())
            return self._fetched(plan)
        except Exception as error:
            self._horizon.end()
            return Delivery(self._run.cursor, error=named(error), counts=False)

    def _fetched(self, plan: Plan) -> Delivery:
        began, cpu_ns = time.monotonic(), time.thread_time_ns()
        outer, place, hearer = info.here(), seeding.at(None), parts.tell(self)  # of a fetch that we are a part of
        info.enter(self._here)
        try:
            self._fetch_seeded(plan)
            rows, together, faults = self._rows, self._together, self._faults.found
        finally:
            self._rows, self._together, self._faults = [], None, Faults()
            info.enter(outer)
            seeding.back(place)
            parts.tell(hearer)
        seconds, cpu_s = time.monotonic() - began, (time.thread_time_ns() - cpu_ns) / 1e9
        ticket = Ticket(plan.number, self._run.number, 0, plan.rows, seconds, (), began=began, cpu_s=cpu_s)
        self.tally.answered(ticket, again=False)
        self._publish(began)
        failed: frozenset[int] = frozenset()
        if faults:
            error = error_of(plan, faults, self._rules, self.tally)
            failed = frozenset(fault.row for fault in faults if fault.ends_row)
            if error is not None or len(failed) == plan.rows:
                return Delivery(plan.after, error=error, plan=plan, faults=faults)
        else:
            self.tally.barren = 0
        contents = None if together is None else stacked(together)
        if contents is None:
            contents = Contents(_ASIDE, plan.rows, objects=rows or list(together), failed=failed)
        samples = None if plan.samples is None else plan.samples - len(faults)
        return Delivery(plan.after, contents, samples=samples, plan=plan, faults=faults)

    def _fetch_seeded(self, plan: Plan) -> None:
        """Fetch with the global generators as the guarantee wants them, and leave them to the caller as they were."""
        if not self._rules.seeds_samples:
            self._fetch(plan)
            return
        before = seeding.globals_mark()
        callers = self._callers.now(before)
        try:
            while True:
                self._fetch(plan)
                if self._seeds == seeding.GLOBALS:
                    return
                drawn = seeding.drawn_between(before, seeding.globals_mark())
                if seeding.has_used_reserve(callers):
                    drawn |= {"numpy"}
                if drawn <= self._seeds:
                    return
                self._seeds |= drawn  # and this batch is fetched again
                seeding.restore_globals(callers)
        except BaseException:  # Ctrl-C, before it was known what is drawn from
            seeding.restore_globals(callers)
            raise
        finally:
            if self._seeds:
                seeding.restore_globals(callers)

    def _fetch(self, plan: Plan) -> None:
        while True:
            self._rows, self._together, self._faults, first = [], None, Faults(), None
            for self._stretch in plan.stretches:
                if not self._read_together(plan):
                    first = self._read_each(plan, first)
                if self._faults.found and not self._rules.skips_errors:
                    return
            if first is None or _glimpse(self._rows[0]) == first:
                return
            self._copies = True  # and this batch is fetched again

    def _read_each(self, plan: Plan, first: Any) -> Any:
        """Ask for the samples of a stretch one by one; gives back what the batch's first one looks like."""
        row, epoch, position, indices = self._stretch
        keys = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
        rows, rest, stop, seed, born = self._rows, iter(keys), row + len(keys), self._run.seed, forks.generation
        dataset = self._cargo[0]
        if self._seeds or self._copies:
            dataset = _WithCare(dataset, bool(self._seeds), self._copies)
        seeding.at(lambda: (seed, epoch, position - row + len(rows)), self._seeds)
        outer = forks.asks_for(keys)
        try:
            while len(rows) < stop:
                try:
                    for key in rest if rows else islice(rest, 1):
                        rows.append(dataset[key])
                    forks.end_child(born)
                except BaseException as error:
                    forks.end_child(born, error)
                    self.let_pass(error)
                    self._add_fault(error, keys[len(rows) - row])
                    if not self._rules.skips_errors:
                        break
                    rows.append(None)
                if len(rows) == 1 < plan.rows:
                    first = self._look_at_first(rows[0], plan.rows)
        finally:
            forks.asks_for(outer)
        return first

    def _look_at_first(self, sample: Any, rows: int) -> list[bytes] | None:
        """What it looks like; raises SharedMemoryFull if no memory could hold so many of them."""
        if rows > _MANY and (size := Layout(describe(sample), rows).size) > memory_total():
            raise SharedMemoryFull(
                f"a batch of {rows} samples like the first one takes {size / 1e9:.0f} GB, more than there is; lower "
                f"batch_size."
            )
        return None if self._copies else _glimpse(sample)

    def _read_together(self, plan: Plan) -> bool:
        """Ask for the samples of a stretch at once; False where they must be asked for one by one."""
        _, epoch, position, indices = self._stretch
        if self._reader is None or self._copies or self._seeds or len(indices) < 2 or type(indices) is tuple:
            return False
        seeding.at(lambda: (self._run.seed, epoch, position))
        samples: Any = ()
        try:
            samples = forks.called(self._reader, indices)
        except BaseException as error:
            self.let_pass(error)  # the dataset is asked again, sample by sample
        if seeding.begin_anew():
            self._reader = None  # what it draws belongs to each sample's own place
            return False
        if len(samples) != len(indices):
            return False
        if type(samples) in (Rows, np.ndarray) and len(indices) == plan.rows:
            self._together = samples
        else:
            self._rows.extend(samples)
        return True

    # -- what has failed -----------------------------------------------------------------------------------------

    def _add_fault(self, error: BaseException, key: Any) -> None:
        assert self._here is not None
        row, epoch, position, indices = self._stretch
        piece = Piece(self._number, row, epoch, position, tuple(indices), ())
        self._faults.add(error, piece, len(self._rows), key, self._here)

    def part(self, error: BaseException, key: Any, at: int) -> None:
        """One of the samples of the row under way has failed."""
        self.let_pass(error)
        assert self._here is not None
        row, epoch, position, _ = self._stretch
        self._faults.add_part(
            error, Piece(self._number, row, epoch, position, (), ()), len(self._rows), key, at, self._here
        )

    def let_pass(self, error: BaseException) -> None:
        """Raise Ctrl-C again, which is for the caller."""
        if isinstance(error, KeyboardInterrupt):
            raise error

    # -- the beginning and the end -------------------------------------------------------------------------------

    def _open(self) -> None:
        """Call ``worker_init``, and find out how the dataset is read."""
        dataset, worker_init = self._cargo
        theirs = users(dataset)
        here = info.WorkerInfo(0, 1, self._rules.seed, theirs, "serial")
        try:
            if any(getattr(one, "repeatable", True) is False for one in (dataset, theirs)):  # nothing is fetched twice
                self._seeds = seeding.GLOBALS if self._rules.seeds_samples else seeding.NONE
                self._copies = self._rules.batch_size > 1
            self._reader = reader_of(dataset)
            info.was_asked()
            call_hooks(here, worker_init)
        except Exception as error:
            raise WorkerStartError(f"worker 0 could not start:\n\n{traceback.format_exc()}") from error
        try:
            self._arena = Arena(_BOARD_BYTES)
            self._board = Board(1, self._arena)
        except OSError:
            self._arena = None  # and `mpiter top` doesn't see it
        self._here = here

    def _publish(self, now: float) -> None:
        """What has been counted, for `mpiter top`."""
        is_due = now > self._published + _PUBLISH_S or self.tally.batches == 1
        if self._board is not None and is_due:
            self._published = now
            figures = (*_counted(self.tally), *[0] * (len(FIGURES) - len(COUNTED)))
            self._board.publish(self.tally.began or 0.0, 0.0, figures)

    def _dispose(self) -> None:
        board, self._board, arena, self._arena = self._board, None, self._arena, None
        if board is not None:
            board.close()
        if arena is not None:
            arena.close()
        self._observing.close()
        self.tally.close()


@dataclass(frozen=True, slots=True)
class _WithCare:
    """A dataset whose samples each need seeds, or a copy."""

    dataset: Any
    seeds: bool
    copies: bool

    def __getitem__(self, key: Any) -> Any:
        if self.seeds:
            seeding.step_to(0)
        sample = self.dataset[key]
        return copied(sample) if self.copies else sample


def _glimpse(sample: Any) -> list[bytes]:
    """Some bytes of each array in a sample, which others would hardly have in common with it."""
    kind = type(sample)
    if kind in (tuple, list):
        return [some for part in sample[:_FEW] for some in _glimpse(part)]
    if kind is dict:
        return [some for part in islice(sample.values(), _FEW) for some in _glimpse(part)]
    if isinstance(sample, np.generic):
        return []
    array = sample if kind is np.ndarray else tensors.as_array(sample)
    if array is None:
        return []
    if array.size <= _LOOKED_AT:
        return [array.tobytes()]
    elements = array.ravel("K") if array.flags.forc else array.flat  # never a copy of all of them
    return [elements[:: 1 + array.size // _LOOKED_AT].tobytes()]
