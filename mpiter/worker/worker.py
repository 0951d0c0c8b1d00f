"""How a worker begins: the initializer that every Pool runs once in each of its workers.

Runs in workers.  Guarantees that nothing it meets can kill the worker or start a respawn loop: a failure is kept and
answered to the first block.  In a process that we have started it first makes itself at home (signals, environment,
thread limits, outgoing mail); in others' (Ray's, MPI's) it is a guest and doesn't.  Then it opens the dataset, and
calls the user's ``worker_init``.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import re
import signal
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..datasets.access import reader_of, users
from ..datasets.ship import Kept
from ..errors import OptionError, WorkerStartError
from ..rules import Rules
from ..samples import byvalue
from ..samples.copying import Held
from . import allocator, forks, info, lifeline, limits, seeding
from .blackbox import BlackBox
from .board import Board, Cell
from .here import NONE
from .mail import Outbox
from .reading import RunDelay, watched
from .registry import Habits, Worker, register
from .sheets import Writer


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a worker must know, sent to it once."""

    dataset: int  # key in the registry
    cargo: Any  # opens to (dataset, worker_init)
    writer: Writer
    board: Board
    box: BlackBox | None  # for the stacks of processes that crash or are stuck
    rules: Rules
    backend: str
    environment: dict[str, str] | None  # of the caller; None for workers in a process that is not ours to arrange
    log_level: int  # of the caller's root logger: what he doesn't want to hear isn't sent
    home: int = field(default_factory=os.getpid)  # the caller's process
    drawn: set[str] = field(default_factory=set)  # global generators that other workers have seen the dataset draw from
    starts: Counter[int] = field(default_factory=Counter)  # of workers of each number, before this one


def begin(setup: Setup, number: int | None = None) -> None:
    """Take up work, as the worker of this number if it is known.  Never raises."""
    is_ours = setup.environment is not None  # a process that we have started and will end
    is_alone = not setup.rules.in_process  # in its process
    number = _number(setup) if number is None else number
    cells = setup.board.cells(number)
    cells[Cell.PID], cells[Cell.BLOCK] = threading.get_native_id(), -1
    nobody = info.WorkerInfo(number, setup.rules.workers, setup.rules.seed, None, setup.backend)
    habits = Habits(
        owns_globals=setup.backend != "thread",
        seeds_samples=setup.rules.seeds_samples,
        skips_errors=setup.rules.skips_errors,
        seeds=frozenset(setup.drawn),
    )
    worker = Worker(nobody, None, setup.writer, cells, habits)
    register(setup.dataset, worker)
    try:
        if is_ours and os.getpid() == setup.home:
            raise OptionError("the workers of pool= are threads of this process; pass backend=mpiter.Thread().")
        if is_ours:
            lifeline.die_with_parent()
            worker.outbox = _settle_in(setup.environment or {})
            if setup.box is not None:
                setup.box.arm()
            logging.getLogger().setLevel(setup.log_level)
        if is_ours and isinstance(setup.cargo, Kept):
            byvalue.was_forked()
        dataset, worker_init = forks.called(setup.cargo.open)
        _settle_at(worker, dataset, copies=setup.rules.in_process)
        if is_alone and not setup.rules.seeds_samples:
            seeding.seed_worker(setup.rules.seed, number + setup.starts[number] * setup.rules.workers)
        call_hooks(worker.info, worker_init)
        if is_alone:
            worker.reading = watched(worker.info.dataset)
        if is_alone and setup.rules.seeds_samples:
            seeding.seed_globals(setup.rules.seed, -1 - setup.starts[number], number)
        if is_ours:
            gc.freeze()
    except BaseException as error:
        if isinstance(error, RecursionError):
            _explain(error)
        worker.startup = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    cells[Cell.READY] = 1


def begin_here(dataset: Any, worker_init: Any, rules: Rules, copies: bool) -> Worker:
    """Where there are no workers, have the caller's thread be one; ``copies`` asks for samples that nobody else has."""
    nobody = info.WorkerInfo(0, 1, rules.seed, None, "serial")
    habits = Habits(seeds_samples=rules.seeds_samples, skips_errors=rules.skips_errors)
    cells = memoryview(bytearray(8 * len(Cell))).cast("q")
    worker = Worker(nobody, dataset, Writer(None, Held), cells, habits, delay=RunDelay(is_counted=False))
    try:
        _settle_at(worker, dataset, copies=rules.batch_size > 1)
        call_hooks(worker.info, worker_init)
    except Exception as error:
        raise WorkerStartError(f"worker 0 could not start:\n\n{traceback.format_exc()}") from error
    habits.copies |= copies
    return worker


def _settle_at(worker: Worker, dataset: Any, copies: bool) -> None:
    """Find out how the dataset is read; ``copies`` says whether it could fill memory again that others still read."""
    theirs = users(dataset)
    worker.dataset, worker.reader = dataset, reader_of(dataset)
    worker.info = worker.frame.worker = replace(worker.info, dataset=theirs)
    if any(getattr(one, "repeatable", True) is False for one in (dataset, theirs)):
        worker.habits.seeds = seeding.GLOBALS if worker.habits.seeds_samples else NONE  # not fetched twice to find out
        worker.habits.copies = copies
    info.was_asked()  # by the process that we were forked from


def _explain(error: RecursionError) -> None:
    """Why it may have been raised while the dataset was unpickled, when its attributes are not there yet."""
    if any(frame.name == "__getattr__" for frame in traceback.extract_tb(error.__traceback__)):
        error.add_note(
            "Its __getattr__ asks for an attribute that is not there yet while the dataset is unpickled, before "
            "anything of __init__: raise AttributeError there for the names that it uses itself, or give the class a "
            "__setstate__."
        )


def call_hooks(here: info.WorkerInfo, worker_init: Any) -> None:
    """The user's function, then the dataset's own method (of its class: wrappers may answer to any name)."""
    outer = info.here()
    info.enter(here)
    try:
        if worker_init is not None:
            forks.called(worker_init, here)
        if callable(getattr(type(here.dataset), "worker_init", None)):
            forks.called(here.dataset.worker_init, here)
    finally:
        info.enter(outer)


# By these numbers the caller's process knows the descriptors that lead to whoever started it as an MPI rank.  Here they
# are something else's, the fork server's say, and MPI would write there when a dataset imports it.
TO_THE_LAUNCHER = ("PMI_FD", "HYDI_CONTROL_FD")


def _settle_in(environment: dict[str, str]) -> Outbox:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    for name in TO_THE_LAUNCHER:
        os.environ.pop(name, None)
    limits.limit_libraries_to_come()
    allocator.keep_memory()
    _stand_in_for_the_trainer()
    outbox = Outbox()
    outbox.open()
    return outbox


def _stand_in_for_the_trainer() -> None:
    """Offer ourselves to the out-of-memory killer first: a worker is replaced, the main process is not."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


_DIGITS = re.compile(r"\d+")


def _number(setup: Setup) -> int:
    """This worker's place among its colleagues: by its process's number."""
    numbers = _DIGITS.findall(multiprocessing.current_process().name)
    return int(numbers[-1]) % setup.rules.workers if numbers else 0
