"""The start of a worker: the initializer that every Pool runs once in each worker.

Also has the worker's state.  Runs in workers.  Guarantees that a failure doesn't end
the worker, which would be replaced and fail again: it is kept, and is the answer to the
first block.  A process may serve several iterators at once, and each thread may be a
worker. So every block names its dataset, and a registry has the worker for each dataset
and thread.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..datasets.columns import Reader, has_getitems, reader_of, users
from ..errors import OptionError, with_traceback
from ..rules import Rules
from . import home, seeding
from .board import CELL, BlackBox, Board
from .here import NONE, Frame, WorkerInfo, call_own_init, here, was_asked
from .sheets import Writer
from .underway import UnderWay, is_async

WorkerInit = Callable[[WorkerInfo], Any]


class Cargo(Protocol):
    """The packed dataset, as a worker knows it."""

    def open(self, notice: Callable[[str], object]) -> tuple[Any, WorkerInit | None]:
        """Return (dataset, worker_init); call ``notice`` with warnings for the user."""
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker must know; sent to it once, when it starts."""

    dataset: int  # key in the registry
    cargo: Cargo
    writer: Writer
    board: Board
    # Takes the stacks of processes that crash or are stuck.
    box: BlackBox | None
    rules: Rules
    backend: str
    # The caller's environment, or None in a process that we haven't started.
    environment: dict[str, str] | None
    # The global generators that other workers have seen the dataset draw from.
    drawn: set[str] = field(default_factory=set)
    # How many workers have ended, by their number.
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
    blocks: int = 0  # that it has fetched
    # In a thread: the next block is watched for draws from the global generators.
    is_watched: bool = True
    # The global generators that the dataset draws from, as far as is known.
    seeds: frozenset[str] = NONE
    # The mark of the global generators after the last block.
    mark: seeding.Mark | None = None
    # Samples are copied, because the dataset overwrites their memory.
    copies: bool = False
    # When all samples of a block were last checked for that.
    looked: float = -1.0
    frame: Frame = field(default_factory=Frame)  # what its thread is fetching
    # The samples that it reads at the same time, if it may have several.
    under_way: UnderWay | None = None
    # The user was told why it reads one at a time all the same.
    is_told_why_singly: bool = False

    def take_notices(self) -> tuple[str, ...]:
        """Return and forget the warnings for the user that have come up."""
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


def hurry(dataset: int) -> None:
    """Have the workers of this process wait for no sample any more."""
    for worker in [*_registry.get(dataset, {}).values()]:
        if worker.under_way is not None:
            worker.under_way.close()


def forget(dataset: int) -> None:
    hurry(dataset)
    _registry.pop(dataset, None)


def own_worker() -> Worker | None:
    """Return a worker that this thread is."""
    for workers in [*_registry.values()]:
        found = workers.get(threading.get_ident())
        if found is not None:
            return found
    return None


def worker_for(dataset: int) -> Worker:
    """Return this thread's worker for a dataset, or the process's if it has none.

    Another library's Pool may call us in another thread than at the start.
    """
    workers = _registry.get(dataset)
    if workers is None:
        raise OptionError(
            "a worker got rows to fetch before it had begun: the backend's Pool must "
            "have each worker call initializer(*initargs) first."
        )
    mine = workers.get(threading.get_ident())
    return mine or next(iter(workers.values()))


def begin(setup: Setup, number: int) -> None:
    """Become worker ``number``.

    A failure is kept and never raised, except in a process that was forked from the
    worker.
    """
    rules = setup.rules
    # We have started this process, and will end it.
    is_ours = setup.environment is not None
    born = home.generation
    cells = setup.board.cells(number)
    cells[CELL.pid] = threading.get_native_id()
    cells[CELL.block] = -1
    info = WorkerInfo(
        id=number,
        num_workers=rules.workers,
        seed=rules.seed,
        dataset=None,
        backend=setup.backend,
    )
    worker = Worker(
        info=info,
        rules=rules,
        writer=setup.writer,
        cells=cells,
        seeds=frozenset(setup.drawn),
    )
    workers = _registry.setdefault(setup.dataset, {})
    workers[threading.get_ident()] = worker
    # Until the dataset is open, what fails is most likely an import, of which forked
    # workers need none.
    imports = is_ours
    try:
        if is_ours:
            home.die_with_parent()
            home.settle_in(setup.environment or {})
            home.ties.append(setup.board.go_private)
            if setup.box is not None:
                setup.box.arm()
        setup.writer.learn_leaves()
        dataset, worker_init = setup.cargo.open(worker.frame.notices.append)
        imports = False
        settle_at(worker, dataset, copies=rules.in_process)
        if not rules.in_process:
            # A replacement is to draw other numbers than those that may have ended the
            # worker before it.
            before = setup.ended[number]
            seeding.begin_with(rules.seed, number + rules.workers * before)
        call_hooks(worker.info, worker_init)
        if is_ours:
            gc.freeze()
    except BaseException as error:
        # The dataset has forked this process.  It isn't the worker, and must not wait
        # for blocks.
        if home.generation != born:
            raise
        advice = ""
        if imports:
            advice = rules.door.way_around
        worker.startup = with_traceback(error, advice)
    cells[CELL.ready] = 1


def settle_at(
    worker: Worker,
    dataset: object,
    copies: bool,
) -> None:
    """Find out how to read ``dataset``.

    With ``copies``, samples are copied if it says that it isn't repeatable.
    """
    theirs = users(dataset)
    worker.dataset = dataset
    worker.reader = reader_of(dataset)
    worker.info = replace(worker.info, dataset=theirs)
    worker.frame.worker = worker.info
    rules = worker.rules
    wants = rules.concurrency > 1 or (rules.concurrency and is_async(dataset))
    # Our own datasets, and arrays, read many at once better than threads.  In place of
    # a user's ``__getitems__`` the user asks for single samples.
    if wants and (worker.reader is None or has_getitems(dataset)):
        worker.reader = None
        worker.under_way = UnderWay(dataset, worker.info, rules.concurrency)
    # What draws, or overwrites its samples, is found out by fetching a block twice.
    # Such a dataset can't be, so it counts as doing both.
    if any(getattr(one, "repeatable", True) is False for one in (dataset, theirs)):
        worker.seeds = seeding.GLOBALS
        worker.copies = copies
    # A call in the process that we were forked from is forgotten.
    was_asked()


def call_hooks(
    info: WorkerInfo,
    worker_init: WorkerInit | None,
) -> None:
    """Call the user's ``worker_init``, then the dataset's own, if its class has one."""
    outer = here.now.worker
    here.now.worker = info
    try:
        if worker_init is not None:
            worker_init(info)
        call_own_init(info.dataset, info)
    finally:
        here.now.worker = outer
