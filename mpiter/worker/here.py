"""What this thread, or this task of an event loop, is fetching, and for which worker.

``get_worker_info``, ``get_rng`` and seeding look it up here.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..errors import OptionError

NONE: frozenset[str] = frozenset()
# What a sample's draws depend on: seed, epoch and position.
SeedWords = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker that a dataset's code runs in.

    Attributes:
        id: number of the worker, from 0 on; the replacement of a dead worker has the
            same.
        num_workers: number of workers.
        seed: seed of the iterator, or of the loader's epoch.
        dataset: the dataset, as this worker has it.
        backend: "process", "thread", "serial", "ray" or "mpi".

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
        """The worker in words, such as "process worker 0"."""
        return f"{self.backend} worker {self.id}"


class Hearer(Protocol):
    """The fetch of a block, which hears of samples that fail within a row."""

    def part(
        self,
        error: BaseException,
        key: object,
        at: int,
    ) -> None: ...

    def let_pass(self, error: BaseException) -> None: ...


class Frame:
    """What a thread is fetching: its worker, the sample's place and seed.

    As it is made, nothing is fetched.
    """

    __slots__ = (
        "at",
        "beyond",
        "drawn",
        "hearer",
        "notices",
        "reading",
        "seeds",
        "worker",
    )

    def __init__(self) -> None:
        self.worker: WorkerInfo | None = None
        # Returns the place of the sample that is being fetched.
        self.at: Callable[[], SeedWords] | None = None
        # The global generators that are seeded for each sample.
        self.seeds = NONE
        # The sample's number in a row that is made of several.
        self.beyond = 0
        # The sample's place, and the generator that ``get_rng`` made for it.
        self.drawn: tuple[SeedWords, np.random.Generator] | None = None
        # Warnings for the user, which the next answer takes along.
        self.notices: list[str] = []
        # None outside of a fetch.
        self.hearer: Hearer | None = None
        # Begins to read samples with these keys, which are then taken by their number.
        # None: they are read from the dataset one by one.
        self.reading: Callable[[Any, Sequence[object]], Any] | None = None


_now: ContextVar[Frame] = ContextVar("mpiter's frame")


class Here(threading.local):
    def __init__(self) -> None:
        # True once dataset code has called ``get_worker_info``.
        self.asked = False

    @property
    def now(self) -> Frame:
        """The frame of this thread, or of this task of an event loop."""
        frame = _now.get(None)
        if frame is None:
            frame = Frame()
            _now.set(frame)
        return frame

    @now.setter
    def now(self, frame: Frame) -> None:
        _now.set(frame)


here = Here()


def get_worker_info() -> WorkerInfo | None:
    """Return the worker that this code runs in, or None outside of a fetch.

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
    """True if dataset code has called ``get_worker_info`` since the last call here."""
    asked = here.asked
    here.asked = False
    return asked


def call_own_init(dataset: Any, info: WorkerInfo) -> None:
    """Call the ``worker_init`` of a dataset, if its class has one.

    It is looked up in the class, because instances of wrappers may seem to have any
    attribute.
    """
    own = getattr(type(dataset), "worker_init", None)
    if inspect.iscoroutinefunction(own):
        raise OptionError(
            f"{type(dataset).__qualname__}.worker_init is `async def`, and nothing "
            "awaits it: open a client for coroutines on first use."
        )
    if not callable(own):
        return
    # One within another dataset is a worker's dataset as well.
    if info.dataset is not dataset:
        info = replace(info, dataset=dataset)
    outer = here.now.worker
    here.now.worker = info
    try:
        dataset.worker_init(info)
    finally:
        here.now.worker = outer


# -- a row that is made of several samples ---------------------------------------------
#
# The samples that fail are left out, and each has a fault of its own.


class AllLeftOut(Exception):
    """All samples of a row of several have failed, and their faults are recorded."""


class NotOfASample(Exception):
    """A row of several samples has failed, though no sample has.

    The cause is the reason.
    """


def leave_out(error: BaseException, key: object, at: int) -> None:
    """Record that sample number ``at`` of the row has failed.

    Outside of a fetch nobody would hear of it, so ``error`` is raised again.
    """
    if here.now.hearer is None:
        raise error
    here.now.hearer.part(error, key, at)


def let_pass(error: BaseException) -> None:
    """Raise ``error`` again if it isn't the failure of a sample.

    In the caller's own thread Ctrl-C and SystemExit aren't; outside of a fetch nothing
    is.
    """
    if here.now.hearer is None:
        raise error
    here.now.hearer.let_pass(error)
