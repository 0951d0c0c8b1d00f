"""What this thread is fetching, and for which worker: for dataset code that asks, and for what must be found as it was.

Runs in workers, and without any in the caller's thread during a fetch.  What fetches puts a ``Frame`` of its own in
place for that time; outside of a fetch the frame is empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker that a dataset's code runs in.

    Attributes:
        id: from 0 on; a worker's successor has the same.
        num_workers: how many there are.
        seed: of the iterator, or of the loader's epoch.
        dataset: the worker's own copy of it.
        backend: its name: "process", "thread", "serial", "ray" or "mpi".

    >>> from mpiter import batches
    >>> def tell(info):
    ...     print(f"{info.name} of {info.num_workers}")
    >>> x = next(batches([1, 2], 2, n_processes=0, worker_init=tell))
    serial worker 0 of 1
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    backend: str

    @property
    def name(self) -> str:
        """Backend and number in words."""
        return f"{self.backend} worker {self.id}"


class Frame:
    """The state of one fetch; as made here, of no fetch."""

    __slots__ = ("at", "beyond", "drawn", "hearer", "keys", "seeds", "worker")

    def __init__(self) -> None:
        self.worker: WorkerInfo | None = None
        self.at: Callable[[], tuple[int, int, int]] | None = None  # the sample: its seed, epoch and position
        self.seeds = NONE  # the global generators that are seeded for each sample
        self.beyond = 0  # samples into a row that is made of several
        self.drawn: Any = None  # the generator that this sample has asked for, and its place
        self.hearer: Any = None  # the fetch, which is told of samples that fail within a row
        self.keys: list[Any] | None = None  # that the dataset is asked for, one after the other


class Here(threading.local):
    """The state of the fetch that a thread is at."""

    def __init__(self) -> None:
        self.now = Frame()
        self.asked = False  # has dataset code called ``get_worker_info``?


here = Here()


def get_worker_info() -> WorkerInfo | None:
    """The worker this code runs in, or None outside of a fetch.

    >>> from mpiter import batches
    >>> class Numbers:
    ...     def __len__(self):
    ...         return 2
    ...     def __getitem__(self, index):
    ...         return index, get_worker_info().name
    >>> next(batches(Numbers(), 2, n_processes=0, shuffle=False))
    (array([0, 1]), ['serial worker 0', 'serial worker 0'])
    >>> get_worker_info() is None
    True
    """
    here.asked = True
    return here.now.worker


def was_asked() -> bool:
    """Has dataset code called ``get_worker_info`` since this was asked last?"""
    asked, here.asked = here.asked, False
    return asked


# -- a row that is made of several samples: those that fail are left out of it, each with a fault of its own --------


class AllLeftOut(Exception):
    """All samples of a row were left out; their faults are noted already."""


class NotOfASample(Exception):
    """A row of several samples has failed, and none of the samples; the cause says how."""


def leave_out(error: BaseException, key: Any, at: int) -> None:
    """Note that a sample has failed, number ``at`` of the row's."""
    if here.now.hearer is None:
        raise error
    here.now.hearer.part(error, key, at)


def let_pass(error: BaseException) -> None:
    """Raise Ctrl-C in the caller's own thread again, which isn't a failure of the sample."""
    if here.now.hearer is None:
        raise error
    here.now.hearer.let_pass(error)
