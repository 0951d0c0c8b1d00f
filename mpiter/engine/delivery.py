"""A batch on its way to ``next()``, which gets its contents, an error, or nothing if
all its samples were left out.

Guarantees that a bad batch never prevents the delivery of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ..errors import SampleError, SampleNotSendable, SharedMemoryFull
from ..order.cursor import Cursor, Plan
from ..rules import Rules
from ..samples.tree import Contents, Layout
from ..transport.slots import Slot
from ..worker.block import Fault, raised
from .tally import Tally

_row = attrgetter("row")
# The contents of a batch without the rows that failed.
_Contents = Callable[["Delivery", frozenset[int]], Contents]


@dataclass(slots=True, eq=False)
class Room:
    """The memory of one batch: a slot and its layout; both are None if the batch's
    samples are sent as objects.
    """

    layout: Layout | None = None
    # The layout, pickled
    brief: bytes = b""
    slot: Slot | None = None
    # Where workers write; None: the rows are sent with the answers.
    address: int | None = None


OBJECTS = Room()


@dataclass(slots=True, eq=False)
class Delivery:
    """One batch on its way to ``next()``, which gets its contents or an error; or the
    mark that the run has ended.

    The prefetch thread makes it when it plans the batch, fills it as workers answer,
    and hands it over finished.
    """

    plan: Plan
    # Also before it is known what samples are like.
    room: Room = OBJECTS
    # Rows that haven't been fetched yet.
    missing: int = 0
    # Samples that came as objects, by row.
    odd: dict[int, Any] = field(default_factory=dict)
    # Values that have no column, by row.
    asides: dict[int, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)  # samples that failed
    contents: Contents | None = None
    error: BaseException | None = None  # of the batch as a whole
    # Blocks with workers, which may write into its room.
    out: int = 0
    is_abandoned: bool = False
    # Of workers that had rows of it: these are then fetched, and in the end sent, one
    # by one.
    deaths: int = 0
    # A worker that could not be ended may write into its room.
    is_lost: bool = False
    # The end of the run, not a batch.
    is_end: bool = False
    number: int = 0  # among the deliveries of its run

    @property
    def is_empty(self) -> bool:
        """True if all samples were left out; ``next()`` then skips it, since the user
        never gets an empty batch.
        """
        return not self.is_end and self.contents is None and self.error is None


def ending(at: Cursor, error: BaseException | None = None) -> Delivery:
    """Return the delivery that ends a run; ``error`` is one that concerns no single
    batch, if there is one.
    """
    return Delivery(Plan(-1, 0, (), at, at), error=error, is_end=True)


def finish(batch: Delivery, rules: Rules, tally: Tally, contents: _Contents) -> None:
    """Set the batch's error, or its contents, which ``contents`` makes of the rows that
    haven't failed.
    """
    failed: frozenset[int] = frozenset()
    if batch.faults:
        failed = frozenset(fault.row for fault in batch.faults if fault.ends_row)
        batch.error = _error_of(
            batch, rules, tally, is_barren=len(failed) == batch.plan.rows
        )
    elif batch.error is None:
        tally.barren = 0
    if batch.error is None and len(failed) < batch.plan.rows:
        try:
            batch.contents = contents(batch, failed)
            tally.copies += batch.contents.copied
        except MemoryError as problem:  # there is none for a copy
            batch.error = named(problem)


def _error_of(
    batch: Delivery, rules: Rules, tally: Tally, is_barren: bool
) -> BaseException | None:
    """Return the error to raise in place of a batch, or None if its faults are left
    out, which are then counted.
    """
    faults = batch.faults
    most = rules.most_skipped
    skipped = tally.all_skipped
    if grave := [
        fault for fault in faults if not (rules.skips_errors and fault.may_skip)
    ]:
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
        tally.barren = tally.barren + len(faults)
    else:
        tally.barren = 0
    # The order of a sampler has no length.
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
    """Return ``problem`` itself, or for a bare MemoryError one that names the
    remedy.
    """
    if not isinstance(problem, MemoryError) or isinstance(problem, SharedMemoryFull):
        return problem
    if str(problem):
        details = f" ({problem})"
    else:
        details = ""
    text = (
        f"no memory is left for what the workers send{details}; lower batch_size or "
        "n_prefetch, or free memory."
    )
    error = SharedMemoryFull(text)
    error.__cause__ = problem
    return error
