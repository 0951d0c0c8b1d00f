"""The module-global registry of datasets: who works on which, in this process.

Runs in workers: processes or threads.  Every block names its dataset, since a process may serve
several iterators at once, and threads are workers of their own.
"""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import Any

from ..datasets.access import Reader
from . import info
from .here import NONE, Frame
from .mail import Outbox
from .reading import Reading, RunDelay
from .sheets import Writer


@dataclass(slots=True)
class Worker:
    """A worker's place of work: one dataset, and what is needed to fetch from it."""

    info: info.WorkerInfo
    dataset: Any
    writer: Writer
    cells: memoryview  # this worker's line of the board
    habits: Habits
    reader: Reader | None = None  # of many samples at once
    outbox: Outbox | None = None
    reading: Reading | None = None  # of its dataset, where one sees inside
    startup: str | None = None
    blocks: int = 0  # that it has fetched
    frame: Frame = field(default_factory=Frame)  # what its thread is fetching
    delay: RunDelay = field(default_factory=RunDelay)

    @property
    def read_ns(self) -> int:
        """Spent in the dataset's read() so far."""
        return 0 if self.reading is None else self.reading.ns


@dataclass(slots=True)
class Habits:
    """How a backend fetches, and what has been learnt of the dataset."""

    owns_globals: bool = True  # the global generators are this worker's to seed
    seeds_samples: bool = True  # …for each sample
    skips_errors: bool = False  # else nothing of a block is asked for after a sample that has failed
    seeds: frozenset[str] = NONE  # the global generators that the dataset draws from, as far as we know
    copies: bool = False  # samples that travel by reference: the dataset fills their memory again
    mark: Any = field(default=None)  # of the global generators after the last block


_registry: dict[int, dict[int, Worker]] = {}  # dataset id -> thread id -> worker


_numbers = itertools.count(1)


def new_key() -> int:
    """A dataset's key in the registry, which no other process gives."""
    return os.getpid() << 32 | next(_numbers)


def register(dataset: int, worker: Worker) -> None:
    _registry.setdefault(dataset, {})[threading.get_ident()] = worker


def forget(dataset: int) -> None:
    """In-process workers leave nothing behind."""
    _registry.pop(dataset, None)


def worker_for(dataset: int) -> Worker:
    """This thread's worker; the serial backend has one only, whoever calls."""
    posts = _registry[dataset]
    return posts.get(threading.get_ident()) or next(iter(posts.values()))
