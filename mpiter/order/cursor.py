"""Chainer's iterator state machine: from one *cursor* to the next.

A cursor is a position between two batches.  A *plan* describes one coming batch as
*stretches*, contiguous ranges of positions, each within one epoch.  The epoch
arithmetic is exactly Chainer's: with ``wrap=True`` (its ``repeat=True``) a batch runs
on into the next epoch, several times if it is larger than the dataset.  The order
sampler is asked once per epoch boundary, as by Chainer.

Ranks go through one order together, without communicating.  A *step* is the batches of
all ranks together: one range of the order, cut into a batch for each.  A position
counts the samples handed out to all ranks together, so another number of ranks can go
on from it.  The last step of an epoch is filled up with samples from the epoch's
beginning.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OptionError
from .brought import Brought
from .dealing import dealt, tell_that_nothing_is_even
from .order import EpochOrder, Indices, Keys, Listed, Sampled

# Keys, at the most, of the batches that are planned in one call.
_AT_ONCE = 1 << 11
# The same where the order tells costs or tokens, and takes longer for each key.
_WEIGHED_AT_ONCE = 1 << 8


def listed(keys: Sequence[Any] | Indices) -> list[Any]:
    """Return keys as a list of Python's own numbers, or of other objects."""
    if isinstance(keys, np.ndarray):
        found: list[Any] = keys.tolist()
        return found
    return list(keys)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of the order that rank ``rank`` of ``size`` takes."""

    rank: int = 0
    size: int = 1
    # An epoch's last step is not filled up: some ranks get fewer samples than others,
    # or none.
    exact: bool = False

    def step(self, batch_size: int) -> int:
        """Return the number of samples that all ranks together take in one step."""
        return batch_size * self.size

    def _each(self, batch_size: int, left: int) -> tuple[int, int]:
        """Return how many samples each rank gets in the next step.

        And how many ranks get one more.  ``left`` samples are left of the epoch.
        """
        if left >= self.step(batch_size):
            return batch_size, 0
        if self.exact:
            return divmod(left, self.size)
        return -(-left // self.size), 0

    def rows(self, batch_size: int, left: int) -> tuple[int, int]:
        """Return where this rank's part of the next step begins and ends.

        ``left`` samples are left of the epoch.  Its first ones fill the step up.
        """
        rank = self.rank
        each, more = self._each(batch_size, left)
        first = rank * each + min(rank, more)
        return first, first + each + (rank < more)

    def counts(self, batch_size: int, left: int) -> list[int]:
        """Return how many samples each rank gets in the next step."""
        each, more = self._each(batch_size, left)
        return [each + (rank < more) for rank in range(self.size)]

    def has_more(self, batch_size: int, left: int, drop_last: bool) -> bool:
        """True if this rank gets another batch of the ``left`` samples of an epoch."""
        first, stop = self.rows(batch_size, left)
        if drop_last and left < self.step(batch_size):
            return False
        return first < stop


WHOLE = Share()


def batches_of(
    length: int,
    batch_size: int,
    drop_last: bool,
    share: Share = WHOLE,
) -> int:
    """Return the number of batches that a rank gets of ``length`` samples."""
    full, left = divmod(length, share.step(batch_size))
    return full + share.has_more(batch_size, left, drop_last)


class Cursor(NamedTuple):
    """A position between two batches: what the user has been handed so far."""

    # Samples of this epoch already handed out.
    position: int
    epoch: int
    # The last batch crossed an epoch boundary.
    is_new_epoch: bool
    order: EpochOrder
    # -1 stands for "no batch yet", as in Chainer's snapshots.
    previous_epoch_detail: float = -1.0

    @property
    def epoch_detail(self) -> float:
        return self.epoch + self.position / max(1, len(self.order))


# Takes half the time of ``Cursor(…)``.
make_cursor: Callable[[tuple[Any, ...]], Cursor] = partial(tuple.__new__, Cursor)


class Stretch(NamedTuple):
    """A contiguous range of an epoch's order.

    It has the keys at ``position``, ``position + 1``, … of ``epoch``.
    """

    # The row of the batch where it begins.
    row: int
    epoch: int
    position: int
    # A tuple if a sampler or an order has given other objects than ints.
    indices: Keys


class Plan(NamedTuple):
    """One planned batch: its samples, and the cursors before and after it."""

    number: int
    rows: int
    stretches: Iterable[Stretch]
    before: Cursor
    after: Cursor
    # The number of its samples, if a row is not a single one.
    samples: int | None = None
    # How many of its last samples come a second time, to fill up a step of all ranks.
    fills: int = 0
    # False for a stream's batch, which is requested by its number.
    has_keys: bool = True
    # The tokens of all ranks in this step; None if the order doesn't tell.
    tokens: int | None = None


# A whole batch within an epoch, which needs no plan: its rows' keys, the number of its
# samples, the position of the first, and the cursor after it.  A plain tuple, since a
# batch of columns takes 3 µs in all.
Whole = tuple[Sequence[Any] | Indices, int, int, Cursor]


class Plans:
    """Plans the batches that come after a cursor; derived classes say how."""

    # The number of epochs in all; None: no limit, or the one epoch of a loader.
    epochs: int | None = None

    @property
    def drops(self) -> int:
        """The samples of a full step, if a shorter one is left out at the end; else 0.

        It is a step of all ranks.
        """
        return 0

    def covers(self, cursor: Cursor) -> int | None:
        """Return the length of the epoch at ``cursor``, if it has each sample once.

        None if it may have others.
        """
        return None

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        """Return the plan of the batch after ``cursor``; None at the end."""
        raise NotImplementedError

    def ahead(self, cursor: Cursor, number: int) -> list[Plan]:
        """Return the next plans, numbered from ``number`` on.

        They are several if that is cheaper, and none at the end.
        """
        plan = self.step(cursor, number)
        if plan is None:
            return []
        return [plan]

    def knows(self, cursor: Cursor) -> bool:
        """True if ``step(cursor)`` needn't wait.

        It is known which keys come at ``cursor``, or that none come.
        """
        return True

    def whole(self, cursor: Cursor) -> Whole | None:
        """Return the next batch if it is a whole one within the epoch.

        Return None if it must be planned first.
        """
        return None

    def end_at(self, cursor: Cursor) -> bool:
        """True if it is certain, without asking a sampler, that no batch comes."""
        return False

    def shared(self, share: Share) -> Plans:
        """Return the plans of one of several ranks."""
        raise NotImplementedError

    def beyond(self, cursor: Cursor, start: int, stop: int) -> list[Any]:
        """Return the keys of samples number ``start`` to ``stop`` after ``cursor``.

        As many as are known by now.
        """
        return []


@dataclass(frozen=True, slots=True)
class Pace(Plans):
    """Cuts batches from the orders of the epochs, or one rank's share of them."""

    batch_size: int
    wrap: bool = True
    epochs: int | None = None
    drop_last: bool = False
    share: Share = WHOLE

    @property
    def drops(self) -> int:
        if self.drop_last:
            return self.share.step(self.batch_size)
        return 0

    def covers(self, cursor: Cursor) -> int | None:
        if cursor.order.covers:
            return len(cursor.order) or None
        return None

    def end_at(self, cursor: Cursor) -> bool:
        if self.epochs is None:
            return False
        return cursor.epoch >= self.epochs or len(cursor.order) == 0

    def shared(self, share: Share) -> Pace:
        return replace(self, share=share)

    def beyond(self, cursor: Cursor, start: int, stop: int) -> list[Any]:
        """Return the keys found by planning on.

        This is done with a copy of the order, whose cache would change otherwise.
        """
        now = cursor.order
        order: EpochOrder
        if isinstance(now, Sampled):
            # The sampler mustn't be asked here, so later epochs are unknown.
            order = Listed(now.array())
        else:
            order = copy.copy(now)
        place = cursor._replace(order=order)
        seen = 0
        found = list[Any]()
        while seen < stop and len(order):
            # Not that of a derived class, whose rows may be whole batches: what is
            # returned are the samples' keys.
            plan = Pace.step(self, place)
            if plan is None:
                break
            place = plan.after
            for stretch in plan.stretches:
                if isinstance(now, Sampled) and stretch.epoch > cursor.epoch:
                    return found
                first = max(0, start - seen)
                last = max(0, stop - seen)
                found += listed(stretch.indices[first:last])
                seen += len(stretch.indices)
        return found

    def step(self, cursor: Cursor, number: int = 0) -> Plan | None:
        plan = self._step(cursor, number)
        if plan is not None and plan.before.order.is_weighed:
            return self._weighed(plan)
        return plan

    def _weighed(self, plan: Plan) -> Plan:
        """Return the plan with the tokens of its step, and rows dealt by their cost."""
        before = plan.before
        here = before.position
        left = len(before.order) - here
        if self.wrap:
            left = self.share.step(self.batch_size)
        counts = self.share.counts(self.batch_size, left)
        rows = sum(counts)
        spans = [*_spans(before, here, here + rows, runs_on=self.wrap)]
        tokens = _told_of("tokens", spans)
        if tokens is not None:
            plan = plan._replace(tokens=int(tokens.sum()))
        if self.share.size == 1:
            return plan
        costs = _told_of("costs", spans)
        if costs is None:
            return plan
        # An epoch's last step may have so few rows with any batch size.
        if self.batch_size == 1:
            tell_that_nothing_is_even()
        mine = dealt(costs, counts, (before.epoch, here))[self.share.rank]
        stretches = tuple(_chosen(spans, mine))
        fills = sum(row >= left for row in mine)
        return plan._replace(stretches=stretches, fills=fills)

    def _step(self, cursor: Cursor, number: int) -> Plan | None:
        """Return the plan of the batch after ``cursor``, as the order has it."""
        position, epoch, _, order, _ = cursor
        if self.epochs is not None and epoch >= self.epochs:
            return None
        each = self.batch_size
        step = each * self.share.size
        stop = position + step
        length = len(order)
        # A step with which the epoch ends needs more care, and so does one that a short
        # step may follow, which may be left out.
        if self.wrap:
            if stop >= length:
                return self._wrapped(cursor, number)
        elif stop + step > length:
            return self._bounded(cursor, number)
        first = position + self.share.rank * each
        keys = order.take(first, first + each)
        stretch = Stretch(0, epoch, first, keys)
        detail = epoch + position / length
        after = Cursor(stop, epoch, False, order, detail)
        return Plan(number, each, (stretch,), cursor, after)

    def whole(self, cursor: Cursor) -> Whole | None:
        position, epoch, _, order, _ = cursor
        size = self.batch_size
        stop = position + size
        length = len(order)
        # Batches with which the epoch may end are planned: the last one, and one that a
        # short batch may follow.
        if self.wrap:
            is_last = stop >= length
        else:
            is_last = stop + size > length
        if (
            is_last
            or self.share is not WHOLE
            or order.is_weighed
            or (self.epochs is not None and epoch >= self.epochs)
        ):
            return None
        detail = epoch + position / length
        after = make_cursor((stop, epoch, False, order, detail))
        return order.keys(position, stop), size, position, after

    def ahead(self, cursor: Cursor, number: int) -> list[Plan]:
        """Return the plans of several full batches within the epoch at once."""
        position, epoch, _, order, _ = cursor
        length = len(order)
        each = self.batch_size
        step = each * self.share.size
        # As in ``step``, what is left after the last of them tells how the epoch ends.
        rest = 1 if self.wrap else step
        most = (length - rest - position) // step
        # Of several ranks, each plans its own part of a step.
        if (
            self.share.size > 1
            or most < 2
            or (self.epochs is not None and epoch >= self.epochs)
        ):
            return Plans.ahead(self, cursor, number)
        at_once = _WEIGHED_AT_ONCE if order.is_weighed else _AT_ONCE
        most = min(most, max(1, at_once // each))
        end = position + most * each
        keys = order.take(position, end)
        tokens = self._tokens_of_steps(order, position, end)
        plans = list[Plan]()
        for begin in range(0, most * each, each):
            stop = position + each
            detail = epoch + position / length
            after = make_cursor((stop, epoch, False, order, detail))
            stretch = Stretch(0, epoch, position, keys[begin : begin + each])
            plan = Plan(number, each, (stretch,), cursor, after)
            if tokens is not None:
                plan = plan._replace(tokens=tokens[begin // each])
            plans.append(plan)
            cursor = after
            number += 1
            position = stop
        return plans

    def _tokens_of_steps(
        self, order: EpochOrder, start: int, stop: int
    ) -> list[int] | None:
        """Return the tokens of each full step of one rank; None if none are told."""
        if not order.is_weighed:
            return None
        told = order.tokens(start, stop)
        if told is None:
            return None
        by_step = np.asarray(told).reshape(-1, self.batch_size).sum(axis=1)
        found: list[int] = by_step.astype(np.int64).tolist()
        return found

    def _wrapped(self, cursor: Cursor, number: int) -> Plan:
        """Return the plan of a batch that reaches or crosses the epoch's end."""
        each = self.batch_size
        step = self.share.step(each)
        here = cursor.position
        length = len(cursor.order)
        first, end = self.share.rows(each, step)
        if length == 0:
            raise OptionError(
                "Epoch size must be positive for an iterator that repeats: the "
                "dataset is empty."
            )
        epochs, order, position = cursor.order.onwards(here + step, here)
        detail = cursor.epoch_detail
        after = Cursor(position, cursor.epoch + epochs, True, order, detail)
        ours = _stretches(cursor, here + first, here + end, runs_on=True)
        return Plan(number, each, ours, cursor, after)

    def _bounded(self, cursor: Cursor, number: int) -> Plan | None:
        """Return the plan of a batch with which the epoch may end; None at the end."""
        each = self.batch_size
        share = self.share
        drop_last = self.drop_last
        here = cursor.position
        length = len(cursor.order)
        left = length - here
        # This rank gets nothing more of this epoch, though others may.  If it gets
        # something of a whole epoch, the next one goes on.
        if not share.has_more(each, left, drop_last):
            if share.has_more(each, length, drop_last):
                return self._step(_next_epoch(cursor), number)
            return None
        first, end = share.rows(each, left)
        stop = here + min(left, share.step(each))
        if share.has_more(each, length - stop, drop_last):
            after = cursor._replace(position=stop, is_new_epoch=False)
        else:
            after = _next_epoch(cursor)
        after = after._replace(previous_epoch_detail=cursor.epoch_detail)
        ours = _stretches(cursor, here + first, here + end, runs_on=False)
        fills = max(0, end - max(first, left))
        return Plan(number, end - first, ours, cursor, after, fills=fills)


def _next_epoch(cursor: Cursor) -> Cursor:
    epoch = cursor.epoch + 1
    order = cursor.order.following(cursor.position)
    return cursor._replace(position=0, epoch=epoch, is_new_epoch=True, order=order)


def _stretches(
    cursor: Cursor, start: int, stop: int, runs_on: bool
) -> Iterable[Stretch]:
    found = _Stretches(cursor, start, stop, runs_on)
    # An order of the user's may raise an error, which belongs to this plan: the batches
    # that were planned before come first.
    if isinstance(cursor.order, Brought):
        return tuple(found)
    return found


@dataclass(frozen=True, slots=True)
class _Stretches:
    """The stretches from one position to another.

    They are found one at a time, since there may be millions.  Beyond the epoch's end
    come the next epochs, or, to fill up its last step, its own first samples once more.
    """

    cursor: Cursor
    start: int
    stop: int
    runs_on: bool

    def __iter__(self) -> Iterator[Stretch]:
        for span in _spans(self.cursor, self.start, self.stop, self.runs_on):
            keys = span.order.take(span.position, span.position + span.rows)
            yield Stretch(span.row, span.epoch, span.position, keys)


class _Span(NamedTuple):
    """Positions of one epoch's order that follow one another."""

    # The row where it begins, of those that are asked for.
    row: int
    rows: int
    epoch: int
    order: EpochOrder
    position: int


def _spans(cursor: Cursor, start: int, stop: int, runs_on: bool) -> Iterator[_Span]:
    """Yield where the samples from ``start`` to ``stop`` are.  See ``_Stretches``."""
    _, epoch, _, order, _ = cursor
    # The part of one of the last ranks may begin in a later epoch; or, if it only fills
    # up the step, among the first samples of this one.
    if runs_on:
        passed, order, at = order.onwards(start, cursor.position)
        epoch += passed
    else:
        at = start % len(order)
    rows = stop - start
    row = 0
    while row < rows:
        found = min(len(order) - at, rows - row)
        yield _Span(row, found, epoch, order, at)
        row += found
        at = 0
        if runs_on and row < rows:
            # An order sampler was asked for this when the plan was made, by
            # ``onwards``, which has told it the cursor's position.
            order = order.later(1)
            epoch += 1


def _told_of(what: str, spans: Sequence[_Span]) -> NDArray[np.float64] | None:
    """Return the costs or the tokens of all samples; None if an order tells none."""
    found = list[Any]()
    for span in spans:
        told = getattr(span.order, what)(span.position, span.position + span.rows)
        if told is None:
            return None
        found.append(told)
    return np.concatenate(found)


def _chosen(spans: Sequence[_Span], rows: Sequence[int]) -> Iterator[Stretch]:
    """Yield the stretches of chosen rows, which rise."""
    row = 0
    for span in spans:
        ours = [one - span.row for one in rows if 0 <= one - span.row < span.rows]
        begin = 0
        # Those that follow one another are one stretch.
        for at in range(1, len(ours) + 1):
            if at < len(ours) and ours[at] == ours[at - 1] + 1:
                continue
            position = span.position + ours[begin]
            count = at - begin
            keys = span.order.take(position, position + count)
            yield Stretch(row, span.epoch, position, keys)
            row += count
            begin = at


class Horizon:
    """Plans the batches of a run, one after the other, as the prefetch loop needs them.

    Guarantees that each plan is made once, in order; that an order sampler's error
    comes after the batches that were planned before it; and that with samplers, which
    have state of their own and may be replaced between epochs, planning never crosses
    more than one epoch boundary ahead of the consumer.
    """

    _plans: Plans
    # Where the next plan begins; None: nothing is left to plan.
    _planned_to: Cursor | None
    # The numbers of batches are never used twice.
    _next_number = 0

    def __init__(self) -> None:
        self.end()

    def begin(self, cursor: Cursor, plans: Plans) -> None:
        self.end()
        self._plans = plans
        self._planned_to = cursor

    def end(self) -> None:
        self._planned_to = None
        # Plans that the loop hasn't taken yet.
        self._ahead: deque[Plan] = deque()
        # Why planning could not go on.
        self._dead_end: Exception | None = None
        # The rows of the largest batch planned so far.
        self.rows = 1

    @property
    def is_reached(self) -> bool:
        """True if every batch of the run has been planned and taken."""
        return self._planned_to is None and not self._ahead

    def peek(self) -> Plan | None:
        """Return the next plan, the same until ``take()``.

        Return None if there is none, or none is known yet.
        """
        to = self._planned_to
        if not self._ahead and to is not None and self._plans.knows(to):
            self._step(to)
        if self._ahead:
            return self._ahead[0]
        return None

    def take(self) -> None:
        self._ahead.popleft()

    def take_dead_end(self) -> Exception | None:
        """Return the error that ended planning, if any, and forget it.

        Its traceback may hold the iterator, which could then never be collected.
        """
        why = self._dead_end
        self._dead_end = None
        return why

    def is_beyond(self, epoch: int) -> bool:
        """True if planning must wait for a consumer that is in ``epoch``."""
        to = self._planned_to
        if self._ahead:
            to = self._ahead[0].before
        # Only samplers have a state that may get too far ahead.
        if to is None or type(to.order) is not Sampled:
            return False
        return to.epoch > epoch + 1

    def _step(self, cursor: Cursor) -> None:
        plans: list[Plan] = []
        try:
            plans = self._plans.ahead(cursor, self._next_number)
        except Exception as error:
            # The order sampler has failed.  The batches that were planned before come
            # first, then this error.
            self._dead_end = error
            # The caller's loop would take it for its end.
            if isinstance(error, StopIteration):
                self._dead_end = RuntimeError("the order_sampler raised StopIteration")
        self._ahead.extend(plans)
        self._next_number += len(plans)
        self._planned_to = None
        if plans:
            self._planned_to = plans[-1].after
        for plan in plans:
            self.rows = max(self.rows, plan.rows)
