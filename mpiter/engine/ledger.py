"""The record of unfinished batches: which rows (samples of a batch) are with a worker,
and which are still to be sent.

Used by the prefetch thread only.  Guarantees that every planned row is settled exactly
once and sent again until it is; that batches leave in order (or, if asked, as they
finish); and that a room, the memory of a batch, is given back only when no worker can
write into it any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from ..order.cursor import Plan, Stretch
from ..rules import Rules
from ..worker.block import Block, Done, Fault, Keys, Place, make_block
from ..worker.board import Line
from .delivery import Delivery, Room

# A batch, and the range of its rows that are with no worker.
_Uncut = tuple[Delivery, int, int]


class Ledger:
    """The unfinished rows of one run; ``give_back`` is called with a batch that isn't
    handed out.
    """

    def __init__(
        self, rules: Rules, give_back: Callable[[Delivery], None] = lambda batch: None
    ) -> None:
        self._rules = rules
        self._give_back = give_back
        self.batches: OrderedDict[int, Delivery] = OrderedDict()  # on their way
        self.uncut: deque[_Uncut] = deque()  # rows to be sent to workers
        # Blocks that are with workers, by number.
        self.out: dict[int, tuple[Block, Delivery]] = {}

    def enter(self, plan: Plan, room: Room) -> None:
        """Add a batch that is to be fetched into ``room``."""
        batch = self.batches[plan.number] = Delivery(plan, room, plan.rows)
        self.uncut.append((batch, 0, plan.rows))

    def cut(
        self, number: int, parts: int, dataset: int, seed: int, sent: float
    ) -> Block:
        """Cut the next block from the first batch with unsent rows: one of ``parts``
        equal ones, or one row if 0.
        """
        batch, first, stop = self.uncut.popleft()
        # Else it isn't known which row was being fetched, or sent.
        whole = batch.deaths <= self._rules.shares_memory
        if parts and whole:
            rows = -(-batch.plan.rows // parts)
        else:
            rows = 1
        if first + rows < stop:
            self.uncut.appendleft((batch, first + rows, stop))
            stop = first + rows
        room = batch.room
        plan = batch.plan
        place = (
            plan.number,
            first,
            stop - first,
            tuple(_part(plan.stretches, first, stop)),
        )
        block = make_block(
            (
                number,
                dataset,
                seed,
                *place,
                room.brief,
                room.address,
                batch.deaths > 0,
                sent,
            )
        )
        batch.out += 1
        self.out[number] = block, batch
        return block

    def recall(self, numbers: Collection[int], is_lost: bool = False) -> int:
        """Queue the rows of these blocks to be sent again, before any others; return
        the number of rows.

        Their worker is dead; or, with ``is_lost``, it could not be killed and may still
        write into the batches' memory.
        """
        rows = 0
        for number in sorted(numbers, reverse=True):
            if (found := self.out.pop(number, None)) is None:
                continue
            block, batch = found
            batch.out -= 1
            batch.deaths += 1
            batch.is_lost |= is_lost
            if batch.is_abandoned:
                self._give_up(batch)
                continue
            self.uncut.appendleft((batch, block.row, block.row + block.rows))
            rows += block.rows
        return rows

    def in_hand(self, line: Line) -> tuple[Place, Any] | None:
        """Return place and key of the row that a worker's line names; None if it isn't
        in the block that is named.
        """
        found = self.out.get(line.block)
        if found is None:
            return None
        return found[0].sample(line.row)

    def count_as_failed(self, fault: Fault) -> None:
        """Count a row that is with no worker as failed, so that it isn't sent again."""
        uncut: deque[_Uncut] = deque()
        for batch, first, stop in self.uncut:
            if batch.plan.number != fault.batch or not first <= fault.row < stop:
                uncut.append((batch, first, stop))
                continue
            around = (batch, first, fault.row), (batch, fault.row + 1, stop)
            uncut.extend(part for part in around if part[1] < part[2])
            batch.missing -= 1
            batch.faults.append(fault)
        self.uncut = uncut

    def settle(self, done: Done) -> tuple[Block, Delivery] | None:
        """Note that a block was answered; return it with its batch, or None if the
        answer is no longer wanted.
        """
        found = self.out.pop(done.number, None)
        if found is None:
            # It was recalled: the answer is from a thread that was given up.
            return None
        block, batch = found
        batch.out -= 1
        if batch.is_abandoned:
            self._give_up(batch)  # the answer came late
            return None
        batch.missing -= block.rows
        batch.faults.extend(done.faults)
        return found

    def ask_no_more(self, batch: Delivery) -> None:
        """Send no further rows of a batch that has failed."""
        for other, first, stop in self.uncut:
            if other is batch:
                batch.missing -= stop - first
        self.uncut = deque(part for part in self.uncut if part[0] is not batch)

    def completed(self, most: int) -> list[Delivery]:
        """Remove and return at most ``most`` finished batches that may be handed
        over.
        """
        found = list[Delivery]()
        for batch in self.batches.values():
            if len(found) >= most:
                break
            if not (batch.missing or batch.out):
                found.append(batch)
            elif self._rules.in_order:
                break
        for batch in found:
            del self.batches[batch.plan.number]
        return found

    def abandon(self) -> None:
        """Drop all batches, because a new run begins or the run has failed."""
        self.uncut.clear()
        for batch in self.batches.values():
            batch.is_abandoned = True
            self._give_up(batch)
        self.batches.clear()

    def _give_up(self, batch: Delivery) -> None:
        if batch.out == 0:
            self._give_back(batch)


def _part(
    stretches: Iterable[Stretch], first: int, stop: int
) -> Iterator[tuple[int, int, int, Keys]]:
    """Yield the parts of a batch's stretches between two rows, lazily, since there may
    be very many stretches.
    """
    for row, epoch, position, keys in stretches:
        if row >= stop:
            return
        if row < first or row + len(keys) > stop:
            begin = max(first, row) - row
            end = min(stop, row + len(keys)) - row
            if begin >= end:
                continue
            row = row + begin
            position = position + begin
            keys = keys[begin:end]
        yield (
            row,
            epoch,
            position,
            keys.tobytes() if isinstance(keys, np.ndarray) else keys,
        )
