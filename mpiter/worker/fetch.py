"""The module-level fetch function that every Pool runs.

Runs in workers: processes or threads.  Guarantees that whatever a dataset raises becomes a fault
of its row and never leaves by the Pool; that rows are finished in order, so that a count says which; that a task ends
soon after its time budget, but never with less than one row.  Assumes that ``worker.begin`` has put a worker into the
registry for the dataset that a task names.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..samples.caution import copied
from ..samples.reuse import Reused
from ..transport.transport import WorkerPen
from . import forks, info, lifeline, limits, parts, seeding
from .board import Cell
from .faults import Faults, take_down, unsendable
from .here import NONE
from .registry import Worker, worker_for
from .task import Piece, Task, Ticket

_clock = time.monotonic_ns
_MOST_UNSEEN = 16  # samples between two looks at the clock…
_UNSEEN_NS = 1_000_000  # …and what they may take, as far as one knows


def _fetch_run(task: Task) -> Ticket:
    """Fetch what ``task`` asks for: the function that ``Pool.map_async`` is given."""
    worker = worker_for(task.dataset)
    if worker.startup is not None:
        return _ticket(task, worker, startup=worker.startup)
    is_first = worker.tasks == 0 and worker.habits.owns_globals
    if is_first:  # not while everybody starts: it takes some 20 ms of processor time
        limits.limit_loaded_libraries()
    worker.cells[Cell.RUN], worker.cells[Cell.TASK], worker.cells[Cell.ACTIVE] = task.run, task.number, 1
    # whoever fetches already, in this thread: a dataset may have an iterator of its own
    outer, place, hearer = info.here(), seeding.at(None), parts.tell(None)
    info.enter(worker.info)
    try:
        ticket = _watched(task, worker)
    except BaseException as error:  # ours, most likely; even so it must not leave by the Pool
        ticket = _all_failed(task, worker, error)
    finally:
        info.enter(outer)
        seeding.back(place)
        parts.tell(hearer)
        worker.cells[Cell.ACTIVE] = 0
    if worker.habits.seeds:
        ticket = ticket._replace(drawn=worker.habits.seeds)
    worker.tasks += 1
    if is_first:
        limits.limit_loaded_libraries()
    return ticket


def _ticket(task: Task, worker: Worker, rows: int = 0, seconds: float = 0.0, **rest: Any) -> Ticket:
    mail = worker.outbox.take() if worker.outbox else ()
    return Ticket(task.number, task.run, worker.info.id, rows, seconds, rest.pop("payloads", ()), mail=mail, **rest)


def _all_failed(task: Task, worker: Worker, error: BaseException) -> Ticket:
    faults = []
    for piece in task.pieces:
        for row, index in enumerate(piece.keys, piece.row):
            faults.append(take_down(error, piece, row, index, worker.info))
    return _ticket(task, worker, len(faults), faults=tuple(faults))


def _watched(task: Task, worker: Worker) -> Ticket:
    """Fetch with the global generators as the guarantee wants them, at no cost where nobody draws from them."""
    habits = worker.habits
    if not habits.seeds_samples:
        return _fetch(task, worker, NONE)
    if not habits.owns_globals:
        return _with_a_warning(task, worker) if worker.tasks == 0 else _fetch(task, worker, NONE)
    while True:
        seeds = habits.seeds
        if seeds == seeding.GLOBALS:
            return _fetch(task, worker, seeds)
        before = habits.mark or seeding.globals_mark()
        ticket = _fetch(task, worker, seeds)
        habits.mark = seeding.globals_mark()
        drawn = seeding.drawn_between(before, habits.mark)
        if drawn <= seeds:
            return ticket
        habits.seeds = seeds | drawn  # and this task is fetched again


def _with_a_warning(task: Task, worker: Worker) -> Ticket:
    """A thread's first task: the caller waits in next(), so whoever draws from the global generators is the dataset."""
    before = seeding.globals_mark()
    ticket = _fetch(task, worker, NONE)
    if seeding.globals_mark() == before:
        return ticket
    name = type(worker.dataset).__qualname__
    text = (
        f"{name} draws from the global random generators, which threads share: its samples depend on timing. "
        f"Draw from mpiter.get_rng() instead, or use processes."
    )
    return ticket._replace(mail=(*ticket.mail, ("warning", text, "builtins:RuntimeWarning", __file__, 0)))


def _fetch(task: Task, worker: Worker, seeds: frozenset[str]) -> Ticket:
    began, cpu_ns = _clock(), time.thread_time_ns()
    worker.packing_ns, read_ns, delay_ns = 0, worker.read_ns, worker.delay.ns()
    deadline = began + task.budget_ns
    payloads: list[Any] = []
    faults = Faults()
    rows = 0
    for piece in task.pieces:
        pen = worker.writer.pen(task.brief, piece.address, piece.row, piece.rows)
        done = _fetch_piece(_Fetching(task, worker, piece, pen, faults, seeds, deadline, rows == 0))
        payloads.append(pen.payload())
        rows += done
        if done < piece.rows:
            break
    return _ticket(
        task,
        worker,
        rows,
        (_clock() - began) / 1e9,
        payloads=tuple(payloads),
        faults=tuple(faults.found),
        began=began / 1e9,
        queue_s=max(0.0, began / 1e9 - task.sent) if task.sent else 0.0,
        cpu_s=(time.thread_time_ns() - cpu_ns) / 1e9,
        pack_s=worker.packing_ns / 1e9,
        read_s=(worker.read_ns - read_ns) / 1e9,
        delay_s=(worker.delay.ns() - delay_ns) / 1e9,
    )


@dataclass(slots=True)
class _Fetching:
    """One piece being fetched."""

    task: Task
    worker: Worker
    piece: Piece
    pen: WorkerPen
    faults: Faults
    seeds: frozenset[str]  # global generators
    deadline: int
    must_begin: bool  # nothing of this task is done yet: the budget must not end it

    def fault(self, error: BaseException, row: int, index: Any) -> None:
        self.pen.fail(row)
        self.faults.add(error, self.piece, row, index, self.worker.info)

    def part(self, error: BaseException, key: Any, at: int) -> None:
        """One of the samples of the row under way has failed."""
        self.faults.add_part(error, self.piece, self.worker.cells[Cell.ROW], key, at, self.worker.info)

    def let_pass(self, error: BaseException) -> None:
        """Nothing: in a worker whatever is raised is the dataset's."""


def _fetch_piece(fetching: _Fetching) -> int:
    """Fetch rows in order until the piece or the time is over; how many."""
    piece, cells = fetching.piece, fetching.worker.cells
    seed, epoch, offset = fetching.task.seed, piece.epoch, piece.position - piece.row
    seeding.at(lambda: (seed, epoch, offset + cells[Cell.ROW]), fetching.seeds)
    cells[Cell.BATCH] = piece.batch
    parts.tell(fetching)
    indices = piece.keys
    done, total, habits = 0, len(indices), fetching.worker.habits
    while done < total:
        stride = 1 if fetching.task.singly or habits.caution.is_singly else fetching.pen.stride
        try:
            count = _fetch_some(fetching, indices, done, min(total, done + stride))
        except Reused as found:  # the samples are lost: they are fetched again
            cells[Cell.ACTIVE] = 1
            habits.caution.heed(found, fetching.pen.stride)
            continue
        if not count:
            break
        habits.caution.learn()
        done += count
        if fetching.task.singly:
            lifeline.look()  # while the board names the sample
    return done


def _fetch_some(fetching: _Fetching, indices: list[Any], done: int, stop: int) -> int:
    """Fetch the rows ``done`` to ``stop`` of the piece and write them at once; 0 when time is up."""
    worker, offset = fetching.worker, fetching.piece.row
    cells, dataset = worker.cells, worker.dataset
    if (together := _read_together(fetching, done, stop)) is not None:
        _write(fetching, indices, offset + done, together, at_once=True)
        return len(together)
    caution = worker.habits.caution
    samples, keep = caution.collect()
    at, look, unseen, seeds, born = done, done, worker.habits.unseen, fetching.seeds, forks.generation
    last, since, first, believes = done, 0, None, caution.believes
    try:
        for at, index in enumerate(indices[done:stop], done):
            if at == look:  # time is read for every dear sample, but not for every cheap one
                now = _clock()
                if now > fetching.deadline and (at or not fetching.must_begin):
                    break
                if at > last:
                    unseen = _unseen(unseen, at - last, now - since)
                look, last, since = at + unseen, at, now
                if believes and first is None:
                    look = at + 1  # come back as soon as there is one
                    first = copied(samples[0]) if samples else None
                cells[6] = now  # Cell.SINCE and, below, Cell.ROW, spelled out: this runs for every sample
            cells[5] = offset + at
            if seeds:
                seeding.step_to(0)
            keep(dataset[index])
            if forks.generation != born:
                forks.end_child(born)
    except BaseException as error:
        forks.end_child(born, error)
        _write(fetching, indices, offset + done, samples, first)
        fetching.fault(error, offset + at, indices[at])
        return len(samples) + 1
    if len(samples) > last - done:
        worker.habits.unseen = _unseen(unseen, done + len(samples) - last, _clock() - since)
    _write(fetching, indices, offset + done, samples, first)
    return len(samples)


def _unseen(before: int, samples: int, took_ns: int) -> int:
    """How many samples may go by between two looks at the clock, when so many have just taken so long."""
    return max(1, min(2 * before, _MOST_UNSEEN, samples * _UNSEEN_NS // max(took_ns, 1)))


def _read_together(fetching: _Fetching, done: int, stop: int) -> Sequence[Any] | None:
    """The rows ``done`` to ``stop`` as the dataset gives them at once; None if they must be read one by one."""
    worker, count, indices = fetching.worker, stop - done, fetching.piece.indices
    if (
        worker.reader is None
        or count < 2
        or worker.habits.caution.copies
        or fetching.seeds
        or fetching.task.singly
        or not isinstance(indices, bytes)
    ):
        return None
    now, cells = _clock(), worker.cells
    if now > fetching.deadline and (done or not fetching.must_begin):
        return ()
    cells[Cell.SINCE], cells[Cell.ROW], cells[Cell.ACTIVE] = now, fetching.piece.row + done, 2
    seeding.begin_anew()
    samples: Sequence[Any] = ()
    with contextlib.suppress(BaseException):  # it is asked again, sample by sample
        samples = forks.called(worker.reader, np.frombuffer(indices, np.int64)[done:stop])
    cells[Cell.ACTIVE] = 1
    if seeding.begin_anew():
        worker.reader = None  # what it draws belongs to each sample's own place
        return None
    return samples if len(samples) == count else None


def _write(
    fetching: _Fetching,
    indices: list[Any],
    start: int,
    samples: Sequence[Any],
    first: Any = None,
    at_once: bool = False,
) -> None:
    """Write the samples, of which the ``first`` was copied; one that cannot travel is the fault of its own row only."""
    if not len(samples):
        return
    worker, began = fetching.worker, _clock()
    try:
        _pack(fetching, indices, start, samples, first, at_once)
    finally:
        worker.packing_ns += _clock() - began


def _pack(
    fetching: _Fetching, indices: list[Any], start: int, samples: Sequence[Any], first: Any, at_once: bool
) -> None:
    habits, cells = fetching.worker.habits, fetching.worker.cells
    if first is not None:
        habits.caution.confirm(samples[0], first)
    if len(samples) > 1:
        cells[Cell.ACTIVE] = 2  # whichever of them it is that a crash comes from
    try:
        fetching.pen.write(start, samples, at_once)
        cells[Cell.ACTIVE] = 1
    except Reused:
        raise
    except BaseException:
        for row, sample in enumerate(samples, start):
            cells[Cell.ACTIVE], cells[Cell.ROW] = 1, row
            try:
                fetching.pen.write(row, [sample])
            except BaseException as error:
                index = indices[row - fetching.piece.row]
                fetching.fault(unsendable(sample, f"dataset[{index!r:.60}]", error), row, index)
