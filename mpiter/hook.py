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
        """How many of the epoch's samples all ranks have had.

        With a ``batch_sampler`` or a stream it counts batches, as states do: only what
        gives the batches knows how many samples come before one.  Those of a stream are
        one worker's.
        """


class Keys(Protocol):
    """Keys that follow one another in one epoch's order."""

    @property
    def row(self) -> int:
        """Which sample of the batch has the first of them, counted from 0."""

    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int:
        """The first one's position in the epoch's order, or among a sampler's keys.

        It counts samples everywhere, with a ``batch_sampler`` too.
        """

    @property
    def indices(self) -> Sequence[Any]:
        """The keys of single samples, an array or a tuple."""


class Planned(Protocol):
    """A batch that was planned."""

    @property
    def number(self) -> int:
        """Its number in its loop: each later batch has a larger one.

        Numbers may be left out, since a run can end before what was planned has come.
        The end of a run has -1.
        """

    @property
    def rows(self) -> int:
        """How many rows workers fetch for it, as ``Fetched.rows`` counts them.

        A row is a sample; or the whole batch, where one worker makes that: with a
        ``collate_fn``, a ``batch_sampler``, ``__getitems__`` or a stream.
        """

    @property
    def samples(self) -> int | None:
        """How many samples it has, if none fails; None if only the stream knows."""

    @property
    def fills(self) -> int:
        """How many of its last samples come again, to fill up a step of all ranks."""

    @property
    def stretches(self) -> Iterable[Keys]:
        """The keys of its samples, in the order in which they lie in the batch.

        Mostly there is one.  A batch that crosses into the next epoch has one for each
        epoch, and one that is filled up may have a second of the same epoch.  With a
        stream there is none, since it has no keys.
        """

    @property
    def before(self) -> Position:
        """The position before it, where the batch that was planned before it ends."""

    @property
    def after(self) -> Position:
        """The position behind it.  It is in the next epoch once this one has ended.

        Only loaders with a sampler, as torch's have, and streams stay in the epoch:
        they learn of its end afterwards.
        """


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
    def rows(self) -> int:
        """How many rows it has; see ``Planned.rows``."""

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
    def plan(self) -> Planned:
        """What was planned.  At the end, both its positions are the place reached."""

    @property
    def faults(self) -> Sequence[Failed]:
        """The samples that failed, in the order of the batch."""

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays, tensors and numbers in what the user gets.

        It is the same with any workers, and 0 unless there is a batch.  What counts are
        the elements of NumPy's and JAX's arrays and of tensors, padding included; and
        numbers: 1 for a bool, 8 for an int or a float, 16 for a complex, and what a
        scalar of NumPy's takes.  They may lie in tuples, lists, dicts and other
        mappings, in a ``Jagged``, and in values of added leaves.  Texts, ``bytes``,
        sparse tensors and other objects count as nothing.  Each call counts anew.
        """

    @property
    def error(self) -> BaseException | None:
        """What is raised in place of a batch, or has ended the run."""

    @property
    def is_empty(self) -> bool:
        """True if all its samples were left out: the next batch comes in its place."""

    @property
    def is_end(self) -> bool:
        """True if it isn't a batch, but the end of the run."""


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
        options have changed.  A loader may have several at a time; of a stream it has
        one for each worker, each with its own runs and ends.
        """
        return self

    # -- in the prefetch thread; without workers only the first two, in the consumer's -

    def planned(
        self, plan: Planned, coming: Coming, began: float, ended: float
    ) -> None:
        """A batch was planned, which took from ``began`` to ``ended``.

        ``coming`` are the batches after it.  Where a stream ends shows only when it is
        read, so batches are planned that never come.
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
