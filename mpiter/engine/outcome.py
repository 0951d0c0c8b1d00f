"""What a finished batch is delivered as: its contents, an error, or nothing if all its samples were left out.

Runs in the prefetch thread, or in the consumer's if there are no workers.  Guarantees that a bad batch never prevents
the delivery of the next.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

from ..errors import SampleError, SampleNotSendable, SharedMemoryFull
from ..rules import Rules
from ..samples.tree import Contents
from ..worker.block import Fault, raised
from .run import Delivery
from .tally import Tally

_row = attrgetter("row")
_NONE = frozenset[int]()
_Contents = Callable[[Delivery, frozenset[int]], Contents]  # the contents of a batch without the rows that failed
_Error = TypeVar("_Error", bound=BaseException)


def finish(batch: Delivery, rules: Rules, tally: Tally, contents: _Contents) -> None:
    """Set the batch's contents, which ``contents`` makes of the rows that haven't failed, or its error."""
    failed = _NONE
    if batch.faults:
        batch.error = _error_of(batch, rules, tally)
        failed = frozenset(fault.row for fault in batch.faults if fault.ends_row)
    elif batch.error is None:
        tally.barren = 0
    if batch.error is None and len(failed) < batch.plan.rows:
        try:
            batch.contents = contents(batch, failed)
        except MemoryError as problem:  # there is none for a copy
            batch.error = named(problem)


def _error_of(batch: Delivery, rules: Rules, tally: Tally) -> BaseException | None:
    """Return the error to raise in place of a batch, or None if its faults are left out, which are then counted."""
    faults, error, order = batch.faults, batch.error, batch.plan.after.order
    if grave := [fault for fault in faults if not (rules.skips_errors and fault.may_skip)]:
        error = error or raised(min(grave, key=_row))
    most = rules.most_skipped
    if error is None and most is not None and tally.skipped + len(faults) > most:
        text = f"on_error=Skip(most={most}): more samples have failed; stats().skips lists those left out."
        error = _too_many(text, faults[-1])
    if error is None:
        tally.all_skipped.add(sorted(faults, key=_row))
        is_barren = sum(fault.ends_row for fault in faults) == batch.plan.rows
        tally.barren = tally.barren + len(faults) if is_barren else 0
        if tally.barren >= len(order) > 0:  # the order of a sampler has no length
            tally.barren = 0
            error = _too_many("on_error='skip' has left out a whole epoch: every sample failed.", faults[-1])
    return error


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


def named(problem: _Error) -> _Error | SharedMemoryFull:
    """Return ``problem`` itself, or for a bare MemoryError one that names the remedy."""
    if not isinstance(problem, MemoryError) or isinstance(problem, SharedMemoryFull):
        return problem
    details = f" ({problem})" if str(problem) else ""
    text = f"no memory is left for what the workers send{details}; lower batch_size or n_prefetch, or free memory."
    error = SharedMemoryFull(text)
    error.__cause__ = problem
    return error
