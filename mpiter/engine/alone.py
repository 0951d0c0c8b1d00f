"""No workers: each batch is fetched in the consumer's thread, when it is asked for.

Has the interface of the pump.  There is nothing to schedule, to pack or to recover: indices come from the plans,
samples from the dataset, and a list holds the very objects that the dataset has returned.  Guarantees that ``cursor``
tells what has been handed out; that Ctrl-C in ``next()`` passes through, and loses and repeats nothing; that the
caller's random generators are found as they were; and that a dataset which fills memory again that the batch's first
sample lies in is found out: from then on its samples are copied as they come.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any

import numpy as np

from ..datasets.access import Reader, offered, reader_of, users
from ..errors import IteratorClosed, SharedMemoryFull, WorkerStartError
from ..machine import memory_total
from ..order.cursor import Cursor, Pace, Plan, Plans, Stretch
from ..order.order import Order
from ..order.share import WHOLE
from ..samples import tensors
from ..samples.batch import Batch, stacked
from ..samples.caution import copied
from ..samples.layout import Contents, Layout
from ..samples.leaves import Aside
from ..samples.rows import Rows
from ..samples.tree import describe
from ..stats import Stats
from ..transport.memory import Arena
from ..worker import forks, info, parts, seeding
from ..worker.board import COUNTED, FIGURES, Board, Line
from ..worker.faults import Faults
from ..worker.here import NONE, Frame, here
from ..worker.mail import Inbox
from ..worker.task import Fault, Piece, Ticket
from ..worker.worker import call_hooks
from . import lifetime
from .observing import Observing
from .options import Options
from .outcome import error_of, named
from .pumping import Pumping
from .tally import Skipped, Tally

_PUBLISH_S = 0.25  # `mpiter top` looks once a second
_BOARD_BYTES = 1 << 14
_FEW, _LOOKED_AT = 16, 1024  # parts of a sample, and elements of an array, that tell whether it has changed
_MANY = 100_000  # rows
_ASIDE = Aside()
_counted = attrgetter(*COUNTED)
_now = time.monotonic
_Fetched = tuple[Contents | None, BaseException | None, list[Fault]]  # …and what has failed of the batch
_KEYS = 1 << 12  # that an order is asked for at once
_HELD = 3  # references: of the list or tuple that holds it, of the variable, of the call that counts them
_CONSTANT = {int, float, complex, bool, str, bytes, type(None), np.float32, np.float64, np.int64}


class Alone(Pumping):
    """A place, and the dataset that is asked for the batches from there on."""

    loop: _Reading | None
    worker_pids: tuple[int, ...] = ()

    def __init__(
        self,
        options: Options,
        opens: Callable[[Contents], Any],
        counts: Callable[[Any], int | None] | None = None,
        skipped: Skipped | None = None,
    ) -> None:
        super().__init__(options, opens, counts, skipped)
        self._opens_rows = getattr(opens, "of_rows", self._as_contents)
        self._going: Plans  # the plans of the run
        self._number = 0  # of the next batch, never used twice
        self._is_torn = True  # another run begins with the next batch
        self._each = self._room = 0  # rows of a usual batch, and what must be left of an epoch behind one
        self._epochs = math.inf
        self._keys_of: Order | None = None  # the order that these are of…
        self._keys_from, self._keys = 0, list[Any]()  # …from there on

    def go(self, cursor: Cursor, plans: Plans | None = None, seed: int | None = None) -> None:
        super().go(cursor, plans, seed)
        self._is_torn = True

    # -- handing out ---------------------------------------------------------------------------------------------

    def next(self, passed: Callable[[], object] | None = None) -> Any:
        """The next batch of which anything is left; StopIteration when there is none.

        ``passed`` is called for each of which nothing is: the cursor is then behind it.
        """
        with self._one_at_a_time:
            while True:
                if self._has_ended:
                    raise StopIteration
                reading = self.loop
                if reading is None or self._is_torn or self.is_closed or reading.born != forks.generation:
                    reading = self._ready()
                tally, began = reading.tally, _now()
                tally.waits = tally.waits[0], began  # at once, for those who look from another thread
                try:
                    if self._each and (batch := self._usual(reading, began)) is not None:
                        return batch
                    plan = self._planned(reading)
                    contents, error, faults = reading.fetch(plan, self.seed)
                except BaseException:
                    self._is_torn = True
                    raise
                finally:
                    if tally.waits[1] is not None:
                        tally.waited(began, _now())
                if self.is_closed:
                    raise self._closed_meanwhile()
                reading.mail.deliver()
                if error is not None:
                    self._advance(plan, faults, is_failed=True)
                    raise error
                if contents is not None:
                    return self._handed_out(reading, plan, contents, faults)
                self._before = self._before or self.cursor
                self._advance(plan, faults, is_skipped=True)
                if passed is not None:
                    passed()

    def _as_contents(self, rows: list[Any]) -> Any:
        return self._opens(Contents(_ASIDE, len(rows), objects=rows))

    def _closed_meanwhile(self) -> IteratorClosed:
        """By another thread, or by the dataset."""
        lifetime.go_quietly()
        return IteratorClosed("the iterator was closed while next() waited.")

    def _ready(self) -> _Reading:
        """The dataset, open, and a run under way."""
        if self.is_closed:
            raise IteratorClosed("the iterator is closed; make a new one.")
        reading = self.loop
        if reading is None or reading.born != forks.generation:  # the parent's: this process has been forked
            if self._plans.end_at(self.cursor):
                self._has_ended = True
                raise StopIteration
            reading = self.loop = _Reading(self.options, self._opens is Batch, self.seed, self._all_skipped)
            self._letting_go = lifetime.end_with(self, reading)
        if self._is_torn:
            self._going, self._each = self._course(), 0
            if type(self._going) is Pace and self._going.share is WHOLE and reading.is_usual and self._notes is None:
                self._each = self._going.batch_size if self._going.batch_size <= _MANY else 0
                self._room = 1 if self._going.wrap else self._each
                self._epochs = math.inf if self._going.epochs is None else self._going.epochs
            self._is_torn = False
        return reading

    def _usual(self, reading: _Reading, began: float) -> Any:
        """The next batch in one piece, if it is a whole one within an epoch; None if it must be planned first.

        It does what ``next`` does otherwise, in fewer calls: a batch of 16 small samples takes 6 µs, and a call 0.1.
        """
        cursor, each = self.cursor, self._each
        position, order = cursor.position, cursor.order
        stop, length = position + each, len(order)
        if (
            stop + self._room > length
            or cursor.epoch >= self._epochs
            or not reading.is_plain
            or self._before is not None
        ):
            return None
        at = position - self._keys_from
        if order is not self._keys_of or not 0 <= at <= len(self._keys) - each:
            self._keys_of, self._keys_from, at = order, position, 0
            self._keys = order.take(position, min(length, position + max(each, _KEYS))).tolist()
            reading.tally.order_s += _now() - began
        rows = reading.read(self._keys[at : at + each], cursor.epoch, position, self.seed)
        if rows is None:
            return None
        fetched = _now()
        if self.is_closed:
            raise self._closed_meanwhile()
        try:
            batch = self._opens_rows(rows)
        except Exception:  # this time with a plan, which says whose fault it is
            return self._handed_out(reading, self._planned(reading), Contents(_ASIDE, each, objects=rows), [])
        ended = _now()
        tally, seconds = reading.tally, fetched - began
        tally.tasks += 1
        tally.fetch_s += seconds
        tally.fetch_cpu_s += seconds * reading.cpu_share
        tally.deliver_s += ended - fetched
        tally.waits = tally.waits[0] + fetched - began, None
        seconds /= each
        tally.sample_s = 0.75 * tally.sample_s + 0.25 * seconds if tally.sample_s else seconds
        tally.batches += 1
        tally.samples += each
        if ended > reading.next_published:
            reading.publish(ended)
        self._number += 1
        self.cursor = Cursor(stop, cursor.epoch, False, order, cursor.epoch + position / length)
        return batch

    def _planned(self, reading: _Reading) -> Plan:
        """What comes next; StopIteration if that is nothing."""
        began = time.monotonic()
        try:
            plan = self._going.step(self.cursor, self._number)
        except StopIteration as error:  # which would mean something else to whoever calls next()
            raise RuntimeError("the order_sampler raised StopIteration") from error
        if plan is None:
            if self._notes is not None:
                self._notes.end()
            self._has_ended = True
            raise StopIteration
        self._number += 1
        reading.observing.planned(plan, self._going)
        reading.tally.ordered(began, time.monotonic())
        return plan

    def _handed_out(self, reading: _Reading, plan: Plan, contents: Contents, faults: list[Fault]) -> Any:
        began = time.monotonic()
        try:
            batch = self._opens(contents)
        except Exception as error:  # samples that cannot be stacked; unlike Ctrl-C, they would come again
            self._advance(plan, faults, is_failed=True)
            self._name_samples(error, contents, plan)
            raise
        reading.tally.opened(began, time.monotonic())
        if self._counts is not None:
            samples = self._counts(batch)
        elif plan.samples is not None:
            samples = plan.samples - len(faults)
        else:
            samples = contents.rows - len(contents.failed)
        if samples is not None:
            reading.handed_out(samples)
        self._advance(plan, faults)
        return batch

    def _advance(self, plan: Plan, faults: list[Fault], is_skipped: bool = False, is_failed: bool = False) -> None:
        """In this order: whatever Ctrl-C leaves undone, the next ``next()`` then goes on from the cursor."""
        if self._notes is not None:
            self._notes.batch(plan, faults, is_skipped, is_failed)
        self.cursor = self._in_one_step(plan.after)
        if not is_skipped:
            self._before = None

    # -- what a pump with workers does -----------------------------------------------------------------------------

    def start(self) -> None:
        """Nothing is fetched ahead; the dataset is opened."""
        with self._one_at_a_time, contextlib.suppress(WorkerStartError):  # the first batch says so
            self._ready().open(self.seed)

    def wake(self) -> None:
        """There is no thread to wake."""

    def was_hungry(self) -> bool:
        """It never fetches ahead."""
        return False

    def close(self) -> None:
        self._is_torn = True
        super().close()


class _Reading:
    """A dataset that is read here: how it is asked, what it draws from, and what has been counted."""

    lines: tuple[Line, ...] = ()  # there are no workers
    pids: tuple[int, ...] = ()

    def __init__(self, options: Options, as_samples: bool, seed: int, skipped: Skipped) -> None:
        self.pid, self.born = os.getpid(), forks.generation
        self.cargo = options.cargo
        self.mail = Inbox()
        self.tally = options.make_tally(skipped)
        self.observing = Observing(offered(users(options.dataset), "plan_observer"), self.mail.warn)
        self._rules = options.rules(seed, as_samples)
        self._copies = options.copy
        self._here: info.WorkerInfo | None = None  # what the dataset's code is told of its worker; None: not yet open
        self._reader: Reader | None = None
        self._seeds, self._callers = NONE, seeding.Kept()  # the generators that the dataset draws from
        self._seed = seed
        self._rows: list[Any] = []  # of the batch that is fetched
        self._together: Any = None  # …or all of it, where it lies in columns already
        self._found = Faults()
        self._stretch: Stretch
        self._number = 0  # the batch's
        self._begun: tuple[list[Any], BaseException, Any] | None = None  # an error, and what came before it
        self._board: Board | None = None
        self._arena: Arena | None = None
        self.next_published = 0.0
        self.is_usual = type(self.tally) is Tally and offered(users(options.dataset), "plan_observer") is None
        self.cpu_share = 1.0  # of the seconds of fetching, how many were work; measured now and then
        self._first = 0, 0  # epoch and position of the first row
        self._frame = Frame()  # of a batch that is read in one piece
        self._frame.at, self._frame.hearer = self._place, self
        self.is_plain = False  # are samples asked for one by one, and as they come?
        self.is_measured = True  # the processor time of the next batch that is read in one piece
        self._is_fetching = self._stopping = False

    def stop(self) -> None:
        """End, once a fetch that is under way comes back."""
        self._stopping = True
        if not self._is_fetching:
            self._dispose()

    def join(self) -> None:
        """There is no thread to wait for."""

    def carries(self, cargo: tuple[Any, Any]) -> bool:
        """Is it about these very objects, however they have changed?"""
        return all(map(is_, self.cargo, cargo))

    def stats(self, looks: bool = True) -> Stats:
        """The counters."""
        return Stats(**self.tally.counters(), **self.tally.look(looks))

    # -- a batch -------------------------------------------------------------------------------------------------

    def fetch(self, plan: Plan, seed: int) -> _Fetched:
        """The batch; neither contents nor error where nothing is left of it."""
        if self._here is None:
            self.open(seed)
        self._is_fetching, self._number, self._seed = True, plan.number, seed
        try:
            return self._fetched(plan)
        except Exception as error:
            problem = named(error)
            if problem is error:
                raise
            raise problem from error
        finally:
            self._is_fetching = False
            if self._stopping:
                self._dispose()

    def handed_out(self, samples: int) -> None:
        """Count a batch that was planned; the next one may be read in one piece."""
        self.tally.handed_out(samples, 0)
        self.is_plain = self._reader is None and not (self._seeds or self._copies)

    def _place(self) -> tuple[int, int, int]:
        """Of the sample that is asked for."""
        epoch, position = self._first
        return self._seed, epoch, position + len(self._rows)

    def read(self, keys: list[Any], epoch: int, position: int, seed: int) -> list[Any] | None:
        """The samples of a whole batch, one by one; None if ``fetch`` must do it.

        After an error ``fetch`` goes on with the samples that came before it; else it asks for all of them again.
        """
        before, self._is_fetching = seeding.globals_mark(), True
        callers, born, rest = self._callers.now(before), forks.generation, iter(keys)
        rows: list[Any] = []
        self._rows, self._first, self._seed, dataset = rows, (epoch, position), seed, self.cargo[0]
        frame, outer = self._frame, here.now
        frame.beyond, frame.drawn, frame.keys = 0, None, keys
        here.now = frame
        cpu_ns, began = (time.thread_time_ns(), _now()) if self.is_measured else (0, 0.0)
        first = None
        try:
            rows.append(dataset[next(rest)])
            first = None if _is_its_own(rows) else _glimpse(rows[0])
            for key in rest:
                rows.append(dataset[key])
        except BaseException as error:
            if forks.generation != born:
                forks.end_child(born, error)
            if isinstance(error, KeyboardInterrupt):
                if self._rules.seeds_samples:
                    seeding.restore_globals(callers)
                raise
            if not self._has_drawn(before, callers):
                self._begun = rows, error, first
            return None
        finally:
            here.now, frame.keys = outer, None
            self._rows, self._is_fetching = [], False
            if self._stopping:
                self._dispose()
        if forks.generation != born:
            forks.end_child(born)
        if cpu_ns:
            self.cpu_share = (time.thread_time_ns() - cpu_ns) / 1e9 / max(1e-9, _now() - began)
            self.is_measured = False
        if self._has_drawn(before, callers):
            return None
        if first is not None and _glimpse(rows[0]) != first:
            self._copies, self.is_plain = True, False  # and this batch is fetched again
            return None
        return rows

    def _has_drawn(self, before: tuple[Any, ...], callers: dict[str, Any]) -> bool:
        """Has the dataset drawn from the global generators?  Then they are as they were, and it is asked once more."""
        drawn = _drawn(before, callers) if self._rules.seeds_samples else NONE
        if not drawn:
            return False
        self._seeds |= drawn
        self.is_plain = False
        seeding.restore_globals(callers)
        return True

    def _fetched(self, plan: Plan) -> _Fetched:
        began, cpu_ns = time.monotonic(), time.thread_time_ns()
        outer, place, hearer = info.here(), seeding.at(None), parts.tell(self)  # of a fetch that we are a part of
        info.enter(self._here)
        try:
            self._fetch_seeded(plan)
            rows, together, faults = self._rows, self._together, self._found.found
        finally:
            self._rows, self._together, self._found = [], None, Faults()
            info.enter(outer)
            seeding.back(place)
            parts.tell(hearer)
        seconds, cpu_s = time.monotonic() - began, (time.thread_time_ns() - cpu_ns) / 1e9
        self.tally.answered(Ticket(plan.number, 0, 0, plan.rows, seconds, (), began=began, cpu_s=cpu_s), again=False)
        if began > self.next_published:
            self.publish(began)
        failed = frozenset[int]()
        if faults:
            error = error_of(plan, faults, self._rules, self.tally)
            failed = frozenset(fault.row for fault in faults if fault.ends_row)
            if error is not None or len(failed) == plan.rows:
                return None, error, faults
        else:
            self.tally.barren = 0
        contents = None if together is None else stacked(together)
        if contents is None:
            contents = Contents(_ASIDE, plan.rows, objects=rows or list(together), failed=failed)
        return contents, None, faults

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
                drawn = _drawn(before, callers)
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
            self._rows, self._together, self._found, first = [], None, Faults(), None
            for self._stretch in plan.stretches:
                if not self._read_together(plan):
                    first = self._read_each(plan, first)
                if self._found.found and not self._rules.skips_errors:
                    return
            if first is None or _glimpse(self._rows[0]) == first:
                return
            self._copies = True  # and this batch is fetched again

    def _read_each(self, plan: Plan, first: Any) -> Any:
        """Ask for the samples of a stretch one by one; gives back what the batch's first one looks like."""
        row, epoch, position, indices = self._stretch
        keys = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
        rows, rest, stop, seed, born = self._rows, iter(keys), row + len(keys), self._seed, forks.generation
        begun, self._begun = self._begun, None
        if begun is not None:
            rows += begun[0]
            first = begun[2]
            rest = iter(keys[len(rows) + 1 :])
        dataset = self.cargo[0]
        if self._seeds or self._copies:
            dataset = _WithCare(dataset, bool(self._seeds), self._copies)
        seeding.at(lambda: (seed, epoch, position - row + len(rows)), self._seeds)
        outer = forks.asks_for(keys)
        try:
            while len(rows) < stop:
                try:
                    if begun is not None:
                        error, begun = begun[1], None
                        raise error
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
        seeding.at(lambda: (self._seed, epoch, position))
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
        self._found.add(error, piece, len(self._rows), key, self._here)

    def part(self, error: BaseException, key: Any, at: int) -> None:
        """One of the samples of the row under way has failed."""
        self.let_pass(error)
        assert self._here is not None
        row, epoch, position, _ = self._stretch
        self._found.add_part(
            error, Piece(self._number, row, epoch, position, (), ()), len(self._rows), key, at, self._here
        )

    def let_pass(self, error: BaseException) -> None:
        """Raise Ctrl-C again, which is for the caller."""
        if isinstance(error, KeyboardInterrupt):
            raise error

    # -- the beginning and the end -------------------------------------------------------------------------------

    def open(self, seed: int) -> None:
        """Call ``worker_init``, and find out how the dataset is read."""
        if self._here is not None:
            return
        dataset, worker_init = self.cargo
        theirs = users(dataset)
        here = info.WorkerInfo(0, 1, seed, theirs, "serial")
        try:
            if any(getattr(one, "repeatable", True) is False for one in (dataset, theirs)):  # nothing is fetched twice
                self._seeds = seeding.GLOBALS if self._rules.seeds_samples else NONE
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
        self._here = self._frame.worker = here

    def publish(self, now: float) -> None:
        """What has been counted, for `mpiter top`."""
        if self._board is not None:
            self.next_published, self.is_measured = now + _PUBLISH_S if self.tally.batches else 0.0, True
            figures = (*_counted(self.tally), *[0] * (len(FIGURES) - len(COUNTED)))
            self._board.publish(self.tally.began or 0.0, 0.0, figures)

    def _dispose(self) -> None:
        board, self._board, arena, self._arena = self._board, None, self._arena, None
        if board is not None:
            board.close()
        if arena is not None:
            arena.close()
        self.observing.close()
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


def _drawn(before: tuple[Any, ...], callers: dict[str, Any]) -> frozenset[str]:
    """The generators that were drawn from since."""
    drawn = seeding.drawn_between(before, seeding.globals_mark())
    return drawn | {"numpy"} if seeding.has_used_reserve(callers) else drawn


def _is_its_own(rows: list[Any]) -> bool:
    """Does nobody but this list hold the first sample, so that nobody can fill its arrays again?"""
    sample = rows[0]
    kind = type(sample)
    if getrefcount(sample) > _HELD:
        return False
    if kind is np.ndarray:
        return sample.base is None
    if kind is not tuple:
        return kind in _CONSTANT
    for part in sample:
        if type(part) is np.ndarray:
            if part.base is not None or getrefcount(part) > _HELD:
                return False
        elif type(part) not in _CONSTANT:
            return False
    return True


def _glimpse(sample: Any) -> list[bytes]:
    """Some bytes of each array in a sample, which others would hardly have in common with it."""
    kind = type(sample)
    if kind is np.ndarray and sample.size <= _LOOKED_AT:
        return [sample.tobytes()]
    if kind is tuple or kind is list:
        found: list[bytes] = []
        for part in sample[:_FEW]:
            if type(part) not in _CONSTANT:
                found += _glimpse(part)
        return found
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
