"""A batch on its way to ``next()``, which gets its contents or an error.

It gets neither if all samples of the batch were left out.  Guarantees that a bad batch
never prevents the delivery of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ..errors import LeafError, SampleError, SampleNotSendable, SharedMemoryFull
from ..order.cursor import Cursor, Plan
from ..rules import Rules
from ..samples.rows import Rows
from ..samples.tree import Contents, Layout
from ..transport.slots import Slot
from ..worker.block import Block, Fault, raised, take_down_here
from ..worker.sheets import Payload
from .tally import Tally

_row = attrgetter("row")
# Makes the contents of a batch without the rows that failed.
_Contents = Callable[["Delivery", frozenset[int]], Contents]
# Returns the values that a serializer has sealed.
Opens = Callable[[Any], Sequence[Any]]


@dataclass(slots=True, eq=False)
class Room:
    """The memory of one batch: a slot and its layout.

    Both are None if the batch's samples are sent as objects.
    """

    layout: Layout | None = None
    # The layout, pickled for the workers.
    brief: bytes = b""
    slot: Slot | None = None
    # Where workers write; None: the rows are sent with the answers.
    address: int | None = None


OBJECTS = Room()


@dataclass(slots=True, eq=False)
class Delivery:
    """One batch on its way to ``next()``, or the mark that the run has ended.

    The prefetch thread makes it when it plans the batch, fills it as workers answer,
    and hands it over finished.
    """

    plan: Plan
    # Samples are objects, too, before it is known what they are like.
    room: Room = OBJECTS
    # How many rows haven't been fetched yet.
    missing: int = 0
    # Samples that came as objects, by row.
    odd: dict[int, Any] = field(default_factory=dict)
    # Values that have no column, by row.
    asides: dict[int, Any] = field(default_factory=dict)
    # Those of all rows, if they came together.
    all_asides: Rows | None = None
    # Samples that failed.
    faults: list[Fault] = field(default_factory=list)
    contents: Contents | None = None
    # The error of the batch as a whole.
    error: BaseException | None = None
    # How many of its blocks are with workers, which may write into its room.
    out: int = 0
    # Nobody wants it any more, since another run has begun.
    is_abandoned: bool = False
    # How often a worker with rows of it has died.  These are then fetched one by one,
    # and in the end sent one by one too.
    deaths: int = 0
    # A worker that could not be ended may write into its room.
    is_lost: bool = False
    # It is the end of the run, not a batch.
    is_end: bool = False
    # Its number among the deliveries of its run.
    number: int = 0

    def store(
        self,
        first: int,
        payload: Payload,
        opens: Opens,
    ) -> None:
        """Store the values that came with the answer to a block.

        ``first`` is the block's first row, and ``opens`` unseals values.
        """
        if payload.odd_rows:
            rows = [first + row for row in payload.odd_rows]
            self.odd.update(zip(rows, opens(payload.odd), strict=True))
        if payload.aside_rows:
            asides = opens(payload.asides)
            if isinstance(asides, Rows) and len(asides) == self.plan.rows:
                self.all_asides = asides
            else:
                rows = [first + row for row in payload.aside_rows]
                self.asides.update(zip(rows, asides, strict=True))

    def fail(
        self,
        row: int,
        error: LeafError,
        block: Block,
        worker: str,
    ) -> None:
        """Drop a sample that came as an object: a leaf can't take it apart.

        ``worker`` has sent it with the answer to ``block``.
        """
        del self.odd[row]
        found = block.sample(row - block.row)
        assert found is not None
        self.faults.append(take_down_here(error, *found, worker))

    @property
    def is_empty(self) -> bool:
        """True if all samples were left out: ``next()`` hands out no empty batch."""
        return not self.is_end and self.contents is None and self.error is None


def ending(
    at: Cursor,
    error: BaseException | None = None,
) -> Delivery:
    """Return the delivery that ends a run.

    ``error`` is the one that has ended it, if it concerns no single batch.
    """
    nothing = Plan(number=-1, rows=0, stretches=(), before=at, after=at)
    return Delivery(nothing, error=error, is_end=True)


def finish(
    batch: Delivery,
    rules: Rules,
    tally: Tally,
    contents: _Contents,
) -> None:
    """Set the batch's error, or its contents.

    ``contents`` makes these of the rows that haven't failed.
    """
    failed: frozenset[int] = frozenset()
    if batch.faults:
        failed = frozenset(fault.row for fault in batch.faults if fault.ends_row)
        is_barren = len(failed) == batch.plan.rows
        batch.error = _error_of(batch, rules, tally, is_barren)
    elif batch.error is None:
        tally.barren = 0
    if batch.error is None and len(failed) < batch.plan.rows:
        try:
            batch.contents = contents(batch, failed)
            tally.copies += batch.contents.copied
        except MemoryError as problem:
            # No memory is left for a copy.  The next batch may be leased again.
            batch.error = named(problem)


def _error_of(
    batch: Delivery,
    rules: Rules,
    tally: Tally,
    is_barren: bool,
) -> BaseException | None:
    """Return the error to raise in place of a batch.

    Return None if all its faults are left out, which are then counted.
    """
    faults = batch.faults
    most = rules.most_skipped
    skipped = tally.all_skipped
    grave: list[Fault] = []
    for fault in faults:
        if not (rules.skips_errors and fault.may_skip):
            grave.append(fault)
    # The first row's error, whichever worker was the first to answer.
    if grave:
        return batch.error or raised(min(grave, key=_row))
    if batch.error is not None:
        return batch.error
    if most is not None and skipped.count + len(faults) > most:
        text = (
            f"on_error=Skip(most={most}): more samples have failed; stats().skips "
            "lists those left out."
        )
        return _too_many(text, faults[-1])
    skipped.add(sorted(faults, key=_row))
    if is_barren:
        tally.barren += len(faults)
    else:
        tally.barren = 0
    # If every sample fails, ``next()`` would look for a good one without end.  Where a
    # sampler draws the order, it has no length, and there is no such limit.
    if tally.barren >= len(batch.plan.after.order) > 0:
        tally.barren = 0
        return _too_many(
            "on_error='skip' has left out a whole epoch: every sample failed.",
            faults[-1],
        )
    return None


def _too_many(text: str, last: Fault) -> SampleError:
    error = SampleError(f"{text} The last: {last.summary}")
    error.__cause__ = raised(last)
    return error


def not_sendable(what: str, problem: BaseException) -> BaseException:
    """Return the error for something that was lost on its way to this process."""
    if isinstance(problem, MemoryError):
        return named(problem)
    error = SampleNotSendable(f"{what}: {problem}")
    error.__cause__ = problem
    return error


def named(problem: BaseException) -> BaseException:
    """Return ``problem``, or for a bare MemoryError one that names the remedy."""
    if not isinstance(problem, MemoryError) or isinstance(problem, SharedMemoryFull):
        return problem
    details = ""
    if str(problem):
        details = f" ({problem})"
    text = (
        f"no memory is left for what the workers send{details}; lower batch_size or "
        "n_prefetch, or free memory."
    )
    error = SharedMemoryFull(text)
    error.__cause__ = problem
    return error
