"""How a worker begins, and what it knows: the initializer that every Pool runs once in each of its workers.

Runs in workers.  Guarantees that nothing it meets can kill the worker or start a respawn loop: a failure is kept and
answered to the first block.  In a process that we have started it first makes itself at home; in others' (Ray's,
MPI's) it is a guest and doesn't.  Then it opens the dataset, and calls the user's ``worker_init``.

Every block names its dataset, since a process may serve several iterators at once, and threads are workers of their
own: a registry has the worker of each.
"""

from __future__ import annotations

import gc
import itertools
import logging
import multiprocessing
import os
import re
import threading
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from ..datasets.columns import Reader, reader_of, users
from ..datasets.ship import Kept
from ..errors import OptionError
from ..rules import Rules
from ..samples import byvalue
from . import home, seeding
from .board import BlackBox, Board, Cell
from .here import NONE, Frame, WorkerInfo, here, was_asked
from .mail import Outbox
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
    log_level: int  # of the caller's root logger: records below it aren't sent
    home: int = field(default_factory=os.getpid)  # the caller's process
    drawn: set[str] = field(default_factory=set)  # global generators that other workers have seen the dataset draw from
    starts: Counter[int] = field(default_factory=Counter)  # of workers of each number, before this one


@dataclass(eq=False, slots=True)
class Worker:
    """A worker: one dataset, and all that is needed to fetch from it."""

    info: WorkerInfo
    rules: Rules
    writer: Writer
    cells: memoryview  # this worker's line of the board
    dataset: Any = None
    reader: Reader | None = None  # of many samples at once
    outbox: Outbox | None = None
    startup: str | None = None  # why it cannot work at all
    blocks: int = 0  # that it has fetched
    seeds: frozenset[str] = NONE  # the global generators that the dataset draws from, as far as we know
    mark: Any = None  # of the global generators after the last block
    copies: bool = False  # samples that travel by reference: the dataset fills their memory again
    looked: float = -1.0  # when it was last found out whether it does, by all samples of a block
    frame: Frame = field(default_factory=Frame)  # what its thread is fetching

    @property
    def owns_globals(self) -> bool:
        """May this worker seed the global generators?"""
        return self.info.backend != "thread"


_registry: dict[int, dict[int, Worker]] = {}  # dataset -> thread -> worker
_numbers = itertools.count(1)


def new_key() -> int:
    """A dataset's key in the registry, which no other process gives."""
    return os.getpid() << 32 | next(_numbers)


def forget(dataset: int) -> None:
    """Forget the workers of this process."""
    _registry.pop(dataset, None)


def worker_for(dataset: int) -> Worker:
    """This thread's worker, or the only one."""
    workers = _registry[dataset]
    return workers.get(threading.get_ident()) or next(iter(workers.values()))


def begin(setup: Setup, number: int | None = None) -> None:
    """Become a worker, with this number if it is known.  Never raises."""
    rules, is_ours = setup.rules, setup.environment is not None  # a process that we have started and will end
    if number is None:  # by the number of this process among the Pool's
        numbers = re.findall(r"\d+", multiprocessing.current_process().name)
        number = int(numbers[-1]) % rules.workers if numbers else 0
    cells = setup.board.cells(number)
    cells[Cell.PID], cells[Cell.BLOCK] = threading.get_native_id(), -1
    info = WorkerInfo(number, rules.workers, rules.seed, None, setup.backend)
    worker = Worker(info, rules, setup.writer, cells, seeds=frozenset(setup.drawn))
    _registry.setdefault(setup.dataset, {})[threading.get_ident()] = worker
    try:
        if is_ours:
            if os.getpid() == setup.home:
                raise OptionError("the workers of pool= are threads of this process; pass backend=mpiter.Thread().")
            home.die_with_parent()
            home.settle_in(setup.environment or {})
            worker.outbox = Outbox()
            if setup.box is not None:
                setup.box.arm()
            logging.getLogger().setLevel(setup.log_level)
            if isinstance(setup.cargo, Kept):
                byvalue.was_forked()
        dataset, worker_init = setup.cargo.open()
        settle_at(worker, dataset, copies=rules.in_process)
        if not rules.in_process and not rules.seeds_samples:
            seeding.seed_worker(rules.seed, number + setup.starts[number] * rules.workers)
        call_hooks(worker.info, worker_init)
        if not rules.in_process and rules.seeds_samples:
            seeding.seed_globals(rules.seed, -1 - setup.starts[number], number)
        if is_ours:
            gc.freeze()
    except BaseException as error:
        worker.startup = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    cells[Cell.READY] = 1


def settle_at(worker: Worker, dataset: Any, copies: bool) -> None:
    """Find out how the dataset is read; with ``copies``, samples are copied if it may fill their memory again."""
    theirs = users(dataset)
    worker.dataset, worker.reader = dataset, reader_of(dataset)
    worker.info = worker.frame.worker = replace(worker.info, dataset=theirs)
    if any(getattr(one, "repeatable", True) is False for one in (dataset, theirs)):
        worker.seeds = seeding.GLOBALS if worker.rules.seeds_samples else NONE  # not fetched twice to find out
        worker.copies = copies
    was_asked()  # by the process that we were forked from


def call_hooks(info: WorkerInfo, worker_init: Any) -> None:
    """Call the user's function, then the dataset's own method (of its class: wrappers may answer to any name)."""
    outer, here.now.worker, born = here.now.worker, info, home.generation
    try:
        if worker_init is not None:
            worker_init(info)
        if callable(getattr(type(info.dataset), "worker_init", None)):
            info.dataset.worker_init(info)
        home.end_child(born)
    except BaseException as error:
        home.end_child(born, error)
        raise
    finally:
        here.now.worker = outer
