"""How a worker begins: the initializer that every Pool runs once in each of its workers.

Runs in workers.  Guarantees that nothing it meets can kill the worker or start a respawn loop: a failure is kept and
answered to the first task.  In a process of its own it first makes itself at home (signals, environment, thread
limits, outgoing mail), then opens the dataset, then calls the user's ``worker_init``.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import fetch, heap, info, lifeline, limits, seeding
from .access import reader_of
from .blackbox import BlackBox
from .board import Board, Cell
from .bundles import users
from .errors import OptionError
from .fetch import Habits, Post
from .mail import Outbox
from .transport import Writer


@dataclass(frozen=True, slots=True)
class Wiring:
    """All that a worker must know, sent to it once."""

    dataset: int  # key in the registry
    cargo: Any  # opens to (dataset, worker_init)
    writer: Writer
    board: Board
    box: BlackBox | None  # for the stacks of processes that crash or are stuck
    workers: int
    seed: int
    backend: str
    environment: dict[str, str] | None  # of the caller; None for workers inside of its process
    log_level: int  # of the caller's root logger: what he doesn't want to hear isn't sent
    numbers: Iterator[int] | None = None  # for workers without a process of their own
    home: int = field(default_factory=os.getpid)  # the caller's process


_first_breath = threading.Lock()


def begin(wiring: Wiring) -> None:
    """Take up work.  Never raises."""
    own_process = wiring.environment is not None
    number = _number(wiring)
    cells = wiring.board.cells(number)
    cells[Cell.PID], cells[Cell.TASK] = threading.get_native_id(), -1
    nobody = info.WorkerInfo(number, wiring.workers, wiring.seed, None, wiring.backend)
    post = Post(nobody, None, wiring.writer, cells, _habits(wiring.backend))
    fetch.register(wiring.dataset, post)
    try:
        if own_process and os.getpid() == wiring.home:
            raise OptionError("the workers of pool= are threads of this process; pass backend=mpiter.Thread().")
        if own_process:
            lifeline.die_with_parent()
            post.outbox = _settle_in(wiring.environment or {})
            if wiring.box is not None:
                wiring.box.arm()
            logging.getLogger().setLevel(wiring.log_level)
        dataset, worker_init = wiring.cargo.open()
        post.dataset = dataset
        theirs = users(dataset)
        post.info = info.WorkerInfo(number, wiring.workers, wiring.seed, theirs, wiring.backend)
        post.reader = reader_of(dataset)
        if any(getattr(one, "repeatable", True) is False for one in (dataset, theirs)):
            post.habits.seeds = seeding.GLOBALS  # since it must not be fetched twice to find out
        info.was_asked()  # by the process that we were forked from
        _call_hooks(post, worker_init)
        if own_process:
            seeding.seed_globals(wiring.seed, -1, number)
            gc.freeze()
    except BaseException as error:
        post.startup = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    cells[Cell.READY] = 1


def _call_hooks(post: Post, worker_init: Any) -> None:
    """The user's function, then the dataset's own method (of its class: wrappers may answer to any name)."""
    info.enter(post.info)
    try:
        if worker_init is not None:
            worker_init(post.info)
        theirs = users(post.dataset)
        if callable(getattr(type(theirs), "worker_init", None)):
            theirs.worker_init(post.info)
    finally:
        info.enter(None)


def _settle_in(environment: dict[str, str]) -> Outbox:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, who closes us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in set(os.environ) - set(environment):
        del os.environ[name]
    os.environ.update(environment)
    limits.limit_libraries_to_come()
    heap.keep_memory()
    _stand_in_for_the_trainer()
    outbox = Outbox()
    outbox.open()
    return outbox


def _stand_in_for_the_trainer() -> None:
    """Offer ourselves to the out-of-memory killer first: a worker is replaced, the main process is not."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _number(wiring: Wiring) -> int:
    """This worker's place among its colleagues: by its process's number, else in order of appearance."""
    if wiring.numbers is None:
        numbers = re.findall(r"\d+", multiprocessing.current_process().name)
        return int(numbers[-1]) % wiring.workers if numbers else 0
    with _first_breath:
        return next(wiring.numbers) % wiring.workers


def _habits(backend: str) -> Habits:
    return Habits(
        lets_interrupts_pass=backend == "serial",
        restores_globals=backend == "serial",
        owns_globals=backend != "thread",
    )
