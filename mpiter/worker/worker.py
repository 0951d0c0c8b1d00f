"""The start of a worker: the initializer that every Pool runs once in each of its
workers, and the worker's state.

Runs in workers.  Guarantees that a failure doesn't end the worker, which would be
replaced and fail again: it is kept, and is the answer to the first block.  A process
may serve several iterators at once, and each thread may be a worker. So every block
names its dataset, and a registry has the worker for each dataset and thread.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from ..datasets.columns import Reader, reader_of, users
from ..errors import with_traceback
from ..rules import Rules
from . import home, seeding
from .board import CELL, BlackBox, Board
from .here import NONE, Frame, WorkerInfo, here, was_asked
from .sheets import Writer


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker must know; sent to it once, when it starts."""

    dataset: int  # key in the registry
    # Its ``open`` returns (dataset, worker_init)
    cargo: Any
    writer: Writer
    board: Board
    # For the stacks of processes that crash or are stuck.
    box: BlackBox | None
    rules: Rules
    backend: str
    # The caller's; None in a process that we haven't started.
    environment: dict[str, str] | None
    # Global generators that other workers have seen the dataset draw from.
    drawn: set[str] = field(default_factory=set)
    # Workers that have ended, by their number.
    ended: Counter[int] = field(default_factory=Counter)


@dataclass(eq=False, slots=True)
class Worker:
    """A worker for one dataset: its state, and the objects that it fetches with."""

    info: WorkerInfo
    rules: Rules
    writer: Writer
    cells: memoryview  # this worker's line of the board
    dataset: Any = None
    reader: Reader | None = None  # fetches many samples at once
    # Why it couldn't start, with the traceback.
    startup: str | None = None
    # Number of blocks that it has fetched.
    blocks: int = 0
    # Global generators that the dataset draws from, as known so far.
    seeds: frozenset[str] = NONE
    # Of the global generators after the last block, see ``seeding.globals_mark``
    mark: Any = None
    # Copy samples, because the dataset overwrites their memory.
    copies: bool = False
    # When all samples of a block were last checked for that.
    looked: float = -1.0
    frame: Frame = field(default_factory=Frame)  # what its thread is fetching

    def take_notices(self) -> tuple[str, ...]:
        """Return and forget the warnings for the user that have come up since the last
        call.
        """
        taken = tuple(self.frame.notices)
        self.frame.notices = []
        return taken

    @property
    def owns_globals(self) -> bool:
        """True if this worker may seed the global generators: threads share them."""
        return not self.rules.in_process or self.info.backend == "serial"


_registry: dict[int, dict[int, Worker]] = {}  # dataset -> thread -> worker
_numbers = itertools.count(1)


def new_key() -> int:
    """Return a new key for a dataset in the registry, unique across processes."""
    return os.getpid() << 32 | next(_numbers)


def forget(dataset: int) -> None:
    _registry.pop(dataset, None)


def worker_for(dataset: int) -> Worker:
    """Return this thread's worker for a dataset, or the process's if this thread has
    none.
    """
    workers = _registry[dataset]
    return workers.get(threading.get_ident()) or next(iter(workers.values()))


def begin(setup: Setup, number: int) -> None:
    """Become worker ``number``; a failure is kept, never raised, unless in a process
    forked from the worker.
    """
    # A process that we have started and will end.
    rules = setup.rules
    is_ours = setup.environment is not None
    born = home.generation
    cells = setup.board.cells(number)
    cells[CELL.pid], cells[CELL.block] = threading.get_native_id(), -1
    info = WorkerInfo(number, rules.workers, rules.seed, None, setup.backend)
    worker = Worker(info, rules, setup.writer, cells, seeds=frozenset(setup.drawn))
    _registry.setdefault(setup.dataset, {})[threading.get_ident()] = worker
    # It isn't in the program's process, and is about to open the dataset.
    imports = is_ours
    try:
        if is_ours:
            home.die_with_parent()
            home.settle_in(setup.environment or {})
            home.ties.append(setup.board.go_private)
            if setup.box is not None:
                setup.box.arm()
        dataset, worker_init = setup.cargo.open(worker.frame.notices.append)
        imports = False
        settle_at(worker, dataset, copies=rules.in_process)
        if not rules.in_process:
            # A replacement is to draw other numbers than those that may have ended the
            # worker before it.
            seeding.begin_with(rules.seed, number + rules.workers * setup.ended[number])
        call_hooks(worker.info, worker_init)
        if is_ours:
            gc.freeze()
    except BaseException as error:
        if home.generation != born:
            raise
        worker.startup = with_traceback(error, rules.door.way_around if imports else "")
    cells[CELL.ready] = 1


def settle_at(worker: Worker, dataset: Any, copies: bool) -> None:
    """Find out how to read ``dataset``; with ``copies``, samples are copied if it says
    that it isn't repeatable.
    """
    theirs = users(dataset)
    worker.dataset, worker.reader = dataset, reader_of(dataset)
    worker.info = worker.frame.worker = replace(worker.info, dataset=theirs)
    if any(getattr(one, "repeatable", True) is False for one in (dataset, theirs)):
        # Can't be fetched twice to find out.
        worker.seeds = seeding.GLOBALS
        worker.copies = copies
    # Forget a call in the process that we were forked from.
    was_asked()


def call_hooks(info: WorkerInfo, worker_init: Any) -> None:
    """Call the user's ``worker_init``, then the method of this name of the dataset's
    class, if there is one.

    It is looked up in the class, because instances of wrappers may seem to have any
    attribute.
    """
    outer = here.now.worker
    here.now.worker = info
    try:
        if worker_init is not None:
            worker_init(info)
        if callable(getattr(type(info.dataset), "worker_init", None)):
            info.dataset.worker_init(info)
    finally:
        here.now.worker = outer
