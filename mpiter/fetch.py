"""The module-level fetch function that every Pool runs, and the module-global registry of datasets behind it.

Runs in workers: processes, threads, or the caller itself.  Guarantees that whatever a dataset raises becomes a fault
of its row and never leaves by the Pool; that rows are finished in order, so that a count says which; that a task ends
soon after its time budget, but never with less than one row.  Assumes that ``worker.begin`` has put a post into the
registry for the dataset that a task names.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import info, limits, seeding
from .access import Reader
from .board import Cell
from .errors import SampleNotSendable
from .faults import take_down
from .mail import Outbox
from .task import Fault, Piece, Task, Ticket
from .transport import WorkerPen, Writer

_clock = time.monotonic_ns
_MOST_UNSEEN = 16  # samples between two looks at the clock…
_UNSEEN_NS = 1_000_000  # …and what they may take, as far as one knows


@dataclass(slots=True)
class Post:
    """A worker's place of work: one dataset, and what is needed to fetch from it."""

    info: info.WorkerInfo
    dataset: Any
    writer: Writer
    cells: memoryview  # this worker's line of the board
    habits: Habits
    reader: Reader | None = None  # of many samples at once
    outbox: Outbox | None = None
    startup: str | None = None
    tasks: int = 0


@dataclass(slots=True)
class Habits:
    """How a backend fetches, and what has been learnt of the dataset."""

    lets_interrupts_pass: bool = False  # it is the caller's own thread
    restores_globals: bool = False  # …whose random state is none of our business
    owns_globals: bool = True  # the global generators are this worker's to seed
    seeds: frozenset[str] = seeding.NONE  # the global generators that the dataset draws from, as far as we know
    mark: Any = field(default=None)  # of the global generators after the last task
    unseen: int = 1  # samples between two looks at the clock

    def let_pass(self, error: BaseException) -> None:
        """Raise again what is not the dataset's: Ctrl-C in the caller's own thread."""
        if self.lets_interrupts_pass and isinstance(error, KeyboardInterrupt):
            raise error


_registry: dict[int, dict[int, Post]] = {}  # dataset id -> thread id -> post


def register(dataset: int, post: Post) -> None:
    _registry.setdefault(dataset, {})[threading.get_ident()] = post


def forget(dataset: int) -> None:
    """In-process workers leave nothing behind."""
    _registry.pop(dataset, None)


def _post(dataset: int) -> Post:
    """This thread's post; the serial backend has one only, whoever calls."""
    posts = _registry[dataset]
    return posts.get(threading.get_ident()) or next(iter(posts.values()))


def _fetch_run(task: Task) -> Ticket:
    """Fetch what ``task`` asks for: the function that ``Pool.map_async`` is given."""
    post = _post(task.dataset)
    if post.startup is not None:
        return _ticket(task, post, startup=post.startup)
    is_first = post.tasks == 0 and post.habits.owns_globals and not post.habits.restores_globals
    if is_first:  # not while everybody starts: it takes some 20 ms of processor time
        limits.limit_loaded_libraries()
    post.cells[Cell.GENERATION], post.cells[Cell.TASK], post.cells[Cell.ACTIVE] = task.generation, task.number, 1
    outer, outer_place = info.here(), seeding.at(None)
    info.enter(post.info)
    try:
        ticket = _watched(task, post)
    except BaseException as error:  # ours, most likely; even so it must not leave by the Pool
        post.habits.let_pass(error)
        ticket = _all_failed(task, post, error)
    finally:
        info.enter(outer)
        seeding.back(outer_place)
        post.cells[Cell.ACTIVE] = 0
    post.tasks += 1
    if is_first:
        limits.limit_loaded_libraries()
    return ticket


def _ticket(task: Task, post: Post, rows: int = 0, seconds: float = 0.0, **rest: Any) -> Ticket:
    mail = post.outbox.take() if post.outbox else ()
    return Ticket(
        task.number, task.generation, post.info.id, rows, seconds, rest.pop("payloads", ()), mail=mail, **rest
    )


def _all_failed(task: Task, post: Post, error: BaseException) -> Ticket:
    faults = []
    for piece in task.pieces:
        for row, index in enumerate(piece.keys, piece.row):
            faults.append(take_down(error, piece, row, index, post.info.name))
    return _ticket(task, post, len(faults), faults=tuple(faults))


def _watched(task: Task, post: Post) -> Ticket:
    """Fetch with the global generators as the guarantee wants them, at no cost where nobody draws from them."""
    habits = post.habits
    if not habits.owns_globals:
        return _with_a_warning(task, post) if post.tasks == 0 else _fetch(task, post, seeding.NONE)
    callers = seeding.globals_state() if habits.restores_globals else None
    try:
        while True:
            seeds = habits.seeds
            if seeds == seeding.GLOBALS:
                return _fetch(task, post, seeds)
            before = habits.mark or seeding.globals_mark()
            ticket = _fetch(task, post, seeds)
            after = seeding.globals_mark()
            habits.mark = after if callers is None else None
            drawn = seeding.drawn_between(before, after)
            if callers is not None and seeding.has_used_reserve(callers):
                drawn |= {"numpy"}
            if drawn <= seeds:
                return ticket
            habits.seeds = seeds | drawn  # and this task is fetched again
            if callers is not None:
                seeding.restore_globals(callers)
    finally:
        if callers is not None and habits.seeds:
            seeding.restore_globals(callers)


def _with_a_warning(task: Task, post: Post) -> Ticket:
    """A thread's first task: the caller waits in next(), so whoever draws from the global generators is the dataset."""
    before = seeding.globals_mark()
    ticket = _fetch(task, post, seeding.NONE)
    if seeding.globals_mark() == before:
        return ticket
    name = type(post.dataset).__qualname__
    text = (
        f"{name} draws from the global random generators, which threads share: its samples depend on timing. "
        f"Draw from mpiter.get_rng() instead, or use processes."
    )
    return ticket._replace(mail=(*ticket.mail, ("warning", text, "builtins:RuntimeWarning", __file__, 0)))


def _fetch(task: Task, post: Post, seeds: frozenset[str]) -> Ticket:
    began = _clock()
    deadline = began + task.budget_ns
    payloads: list[Any] = []
    faults: list[Fault] = []
    rows = 0
    for piece in task.pieces:
        pen = post.writer.pen(task.brief, piece.address, piece.row, piece.rows)
        done = _fetch_piece(_Errand(task, post, piece, pen, faults, seeds, deadline, rows == 0))
        payloads.append(pen.payload())
        rows += done
        if done < piece.rows:
            break
    seconds = (_clock() - began) / 1e9
    return _ticket(task, post, rows, seconds, payloads=tuple(payloads), faults=tuple(faults))


@dataclass(slots=True)
class _Errand:
    """One piece being fetched."""

    task: Task
    post: Post
    piece: Piece
    pen: WorkerPen
    faults: list[Fault]
    seeds: frozenset[str]  # global generators
    deadline: int
    must_begin: bool  # nothing of this task is done yet: the budget must not end it

    def fault(self, error: BaseException, row: int, index: Any) -> None:
        self.pen.fail(row)
        self.faults.append(take_down(error, self.piece, row, index, self.post.info.name))


def _fetch_piece(errand: _Errand) -> int:
    """Fetch rows in order until the piece or the time is over; how many."""
    piece, cells = errand.piece, errand.post.cells
    seed, epoch, offset = errand.task.seed, piece.epoch, piece.position - piece.row
    seeding.at(lambda: (seed, epoch, offset + cells[Cell.ROW]), errand.seeds)
    cells[Cell.BATCH] = piece.batch
    indices = piece.keys
    done, total, stride = 0, len(indices), 1 if errand.task.singly else errand.pen.stride
    while done < total:
        count = _fetch_some(errand, indices, done, min(total, done + stride))
        if not count:
            break
        done += count
    return done


def _fetch_some(errand: _Errand, indices: list[Any], done: int, stop: int) -> int:
    """Fetch the rows ``done`` to ``stop`` of the piece and write them at once; 0 when time is up."""
    post, offset = errand.post, errand.piece.row
    cells, dataset = post.cells, post.dataset
    if (together := _read_together(errand, done, stop)) is not None:
        _write(errand, indices, offset + done, together)
        return len(together)
    samples: list[Any] = []
    at, look, unseen, seeds, keep = done, done, post.habits.unseen, errand.seeds, samples.append
    last, since = done, 0
    try:
        for at, index in enumerate(indices[done:stop], done):
            if at == look:  # time is read for every dear sample, but not for every cheap one
                now = _clock()
                if now > errand.deadline and (at or not errand.must_begin):
                    break
                if at > last:
                    unseen = _unseen(unseen, at - last, now - since)
                look, last, since = at + unseen, at, now
                cells[6] = now  # Cell.SINCE and, below, Cell.ROW, spelled out: this runs for every sample
            cells[5] = offset + at
            if seeds:
                seeding.step_to(0)
            keep(dataset[index])
    except BaseException as error:
        post.habits.let_pass(error)
        _write(errand, indices, offset + done, samples)
        errand.fault(error, offset + at, indices[at])
        return len(samples) + 1
    if len(samples) > last - done:
        post.habits.unseen = _unseen(unseen, done + len(samples) - last, _clock() - since)
    _write(errand, indices, offset + done, samples)
    return len(samples)


def _unseen(before: int, samples: int, took_ns: int) -> int:
    """How many samples may go by between two looks at the clock, when so many have just taken so long."""
    return max(1, min(2 * before, _MOST_UNSEEN, samples * _UNSEEN_NS // max(took_ns, 1)))


def _read_together(errand: _Errand, done: int, stop: int) -> Sequence[Any] | None:
    """The rows ``done`` to ``stop`` as the dataset gives them at once; None if they must be read one by one."""
    post, count, indices = errand.post, stop - done, errand.piece.indices
    if post.reader is None or count < 2 or errand.seeds or errand.task.singly or not isinstance(indices, bytes):
        return None
    now, cells = _clock(), post.cells
    if now > errand.deadline and (done or not errand.must_begin):
        return ()
    cells[Cell.SINCE], cells[Cell.ROW], cells[Cell.ACTIVE] = now, errand.piece.row + done, 2
    seeding.begin_anew()
    samples: Sequence[Any] = ()
    try:
        samples = post.reader(np.frombuffer(indices, np.int64)[done:stop])
    except BaseException as error:
        post.habits.let_pass(error)
    cells[Cell.ACTIVE] = 1
    if seeding.begin_anew():
        post.reader = None  # what it draws belongs to each sample's own place
        return None
    return samples if len(samples) == count else None


def _write(errand: _Errand, indices: list[Any], start: int, samples: Sequence[Any]) -> None:
    """Write the samples; one that cannot travel becomes the fault of its own row only."""
    if not len(samples):
        return
    habits, cells = errand.post.habits, errand.post.cells
    if len(samples) > 1:
        cells[Cell.ACTIVE] = 2  # whichever of them it is that a crash comes from
    try:
        errand.pen.write(start, samples)
        cells[Cell.ACTIVE] = 1
    except BaseException as whole:
        habits.let_pass(whole)
        for row, sample in enumerate(samples, start):
            cells[Cell.ACTIVE], cells[Cell.ROW] = 1, row
            try:
                errand.pen.write(row, [sample])
            except BaseException as error:
                habits.let_pass(error)
                index, kind = indices[row - errand.piece.row], type(sample).__qualname__
                unsendable = SampleNotSendable(
                    f"dataset[{index!r:.60}] returned {kind}, which cannot be sent from a worker: "
                    f"{str(error) or type(error).__name__}. Return arrays, numbers, strings or containers of them."
                )
                unsendable.__cause__ = error
                errand.fault(unsendable, row, index)
