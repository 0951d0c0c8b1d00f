"""Hooks: objects whose methods are called when something happens to batches.

Receipts, the trace and the copying ahead of a staged dataset are hooks.  This module
has the base class, and describes what its methods are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from .setting import Setting

__all__ = [
    "Coming",
    "Failed",
    "Fetched",
    "HandedOut",
    "Hook",
    "Keys",
    "Planned",
    "Position",
    "Setting",
]


class Position(Protocol):
    """A position between two batches."""

    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int:
        """How many of the epoch's samples all ranks have had."""


class Keys(Protocol):
    """Keys that follow one another in one epoch's order."""

    @property
    def row(self) -> int:
        """The row of the batch that has the first of them."""

    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int:
        """The first one's position in the epoch's order."""

    @property
    def indices(self) -> Sequence[Any]:
        """The keys, an array or a tuple."""


class Planned(Protocol):
    """A batch that was planned."""

    @property
    def number(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def samples(self) -> int | None:
        """The number of samples, if a row is not a single one."""

    @property
    def fills(self) -> int:
        """How many of its last samples come again, to fill up a step of all ranks."""

    @property
    def stretches(self) -> Iterable[Keys]: ...
    @property
    def before(self) -> Position: ...
    @property
    def after(self) -> Position: ...


class Coming(Protocol):
    """The batches of a run."""

    @property
    def epochs(self) -> int | None:
        """The number of epochs; None: no limit, or a loader's one."""

    @property
    def drops(self) -> int:
        """How many samples a full step has, if a shorter one is left out; else 0."""

    def covers(self, cursor: Any) -> int | None:
        """Return the length of the epoch at a position, if each sample comes once.

        None if the keys may be any.
        """

    def beyond(self, cursor: Any, start: int, stop: int) -> Sequence[Any]:
        """Return the keys of samples number ``start`` to ``stop`` after a position.

        As many as are known by now.
        """


class Fetched(Protocol):
    """A block, rows of one batch, that a worker has fetched."""

    @property
    def worker(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def began(self) -> float: ...
    @property
    def seconds(self) -> float: ...
    @property
    def cpu_s(self) -> float:
        """Processor time within ``seconds``."""

    @property
    def queue_s(self) -> float:
        """How long the block lay with the worker before it began."""


class Failed(Protocol):
    """A sample that failed."""

    @property
    def index(self) -> object: ...
    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def summary(self) -> str:
        """The type and the message of its error."""


class HandedOut(Protocol):
    """What ``next()`` is about to return or to raise."""

    @property
    def plan(self) -> Planned: ...
    @property
    def faults(self) -> Sequence[Failed]: ...
    @property
    def nbytes(self) -> int:
        """The bytes of the batch's arrays and numbers."""

    @property
    def error(self) -> BaseException | None: ...
    @property
    def is_empty(self) -> bool:
        """True if all its samples were left out: the next batch comes in its place."""

    @property
    def is_end(self) -> bool:
        """True if it is no batch, but the end of the run."""


class Hook:
    """The base class of hooks; each method does nothing unless it is overridden.

    Pass one, or several in a list, as ``hooks=`` to any iterator or loader.  A dataset
    may bring one by a method ``mpiter_hook()``; it must not keep that hook, since
    workers get a copy of the dataset.

    Methods must return quickly.  Times are in seconds, of ``time.monotonic()``.  A hook
    that raises is called no more, with a warning; the training goes on.

    >>> import mpiter
    >>> class Bytes(mpiter.Hook):
    ...     total = 0
    ...     def handed_out(self, batch, samples, began, ended):
    ...         self.total += batch.nbytes
    >>> counted = Bytes()
    >>> with mpiter.batches([1.0, 2.0, 3.0], 2, n_processes=0, hooks=counted) as stream:
    ...     batches = list(stream)
    >>> counted.total
    24
    """

    def check(self, setting: Setting) -> None:
        """Raise an OptionError if the hook can't serve this iterator or loader.

        Called when that is made.
        """

    def for_loop(self, setting: Setting) -> Hook:
        """Return the hook for one loop: itself, unless each is to have its own.

        A *loop* begins with the first batch, and again after ``close()`` and after
        options have changed.  A loader may have several at a time.
        """
        return self

    # -- in the prefetch thread; without workers only the first two, in the consumer's -

    def planned(
        self, plan: Planned, coming: Coming, began: float, ended: float
    ) -> None:
        """A batch was planned, which took from ``began`` to ``ended``.

        ``coming`` are the batches after it.
        """

    def answered(self, done: Fetched) -> None:
        """A worker has fetched a block (rows of one batch)."""

    def in_flight(self, batches: int, ready: int) -> None:
        """``batches`` batches are in flight, and ``ready`` of them are finished."""

    def lost(self, worker: int) -> None:
        """A worker has died, and is replaced."""

    # -- in the consumer's thread ------------------------------------------------------

    def begun(self, position: Position, coming: Coming) -> None:
        """A run (the batches from one position on) begins."""

    def waited(self, began: float, ended: float) -> None:
        """``next()`` has waited for a batch between these times.

        This comes before ``handed_out``, perhaps several times.
        """

    def handed_out(
        self,
        batch: HandedOut,
        samples: int | None,
        began: float,
        ended: float,
    ) -> None:
        """The user is about to get a batch of ``samples`` samples.

        It was opened between the times ``began`` and ``ended``.  ``samples`` is None
        for an error, an empty batch or the end.
        """

    def close(self) -> None:
        """The loop has ended, or its iterator was collected.

        May be called several times, later, from any thread.
        """
