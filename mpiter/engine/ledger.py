"""The record of unfinished batches: which rows are with a worker, which must be sent.

A row is a sample of a batch.  Used by the prefetch thread only.  Guarantees that every
planned row is settled exactly once and sent again until it is; that batches leave in
order (or, if asked, as they finish); and that a room, the memory of a batch, is given
back only when no worker can write into it any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from ..order.cursor import Plan, Stretch
from ..rules import Rules
from ..worker.block import Block, Done, Fault, Keys, Place, SentStretch, make_block
from ..worker.board import Line
from .delivery import OBJECTS, Delivery, Room

# A batch, and the range of its rows that are to be sent.
_Uncut = tuple[Delivery, int, int]


class Ledger:
    """The unfinished rows of one run.

    ``give_back`` is called with a batch that won't be handed out, once no worker can
    write into its room.
    """

    def __init__(
        self,
        rules: Rules,
        give_back: Callable[[Delivery], None] = lambda batch: None,
    ) -> None:
        self._rules = rules
        self._give_back = give_back
        # The batches of this run that aren't handed over, by number.
        self.batches: OrderedDict[int, Delivery] = OrderedDict()
        # Rows that are with no worker.
        self.uncut: deque[_Uncut] = deque()
        # Blocks that are with workers, by number: also those of earlier runs.
        self.out: dict[int, tuple[Block, Delivery]] = {}

    def enter(
        self,
        plan: Plan,
        room: Room,
    ) -> None:
        """Add a batch that is to be fetched into ``room``."""
        batch = Delivery(plan, room, missing=plan.rows)
        self.batches[plan.number] = batch
        self.uncut.append((batch, 0, plan.rows))

    def cut(
        self,
        number: int,
        parts: int,
        dataset: int,
        seed: int,
        sent: float,
    ) -> Block:
        """Cut the next block from the first batch with unsent rows.

        It is one of ``parts`` equal ones, or a single row if ``parts`` is 0.
        """
        batch, first, stop = self.uncut.popleft()
        # Workers have died over this batch, so its rows are sent singly: the next death
        # then tells which row was to blame.  Where the board is shared, one death names
        # the row already, unless the worker died when the answer was being written; so
        # one more death is allowed there.
        is_suspect = batch.deaths > self._rules.shares_memory
        rows = 1
        if parts and not is_suspect:
            rows = -(-batch.plan.rows // parts)
        if first + rows < stop:
            self.uncut.appendleft((batch, first + rows, stop))
            stop = first + rows
        room = batch.room
        if batch.is_lost and room.layout is not None and room.layout.is_ragged:
            # The worker that could not be ended may still write.  In other columns it
            # writes what is there already, but in a ragged one it may now write over
            # other rows of its block.  So these are sent as objects.
            room = OBJECTS
        plan = batch.plan
        stretches = tuple(_part(plan.stretches, first, stop))
        singly = batch.deaths > 0
        block = make_block(
            (
                number,
                dataset,
                seed,
                plan.number,
                first,
                stop - first,
                stretches,
                room.brief,
                room.address,
                singly,
                sent,
            )
        )
        batch.out += 1
        self.out[number] = block, batch
        return block

    def recall(
        self,
        numbers: Collection[int],
        is_lost: bool = False,
    ) -> int:
        """Queue the rows of these blocks to be sent again, before any others.

        They won't be answered: their worker is dead, couldn't send its answer, or never
        got them.  With ``is_lost`` it could not be killed, and may still write into the
        batches' memory.  Return the number of rows.
        """
        rows = 0
        # Each is put at the front of the queue, so the last block is put first.
        for number in sorted(numbers, reverse=True):
            found = self.out.pop(number, None)
            if found is None:
                continue
            block, batch = found
            batch.out -= 1
            batch.deaths += 1
            batch.is_lost |= is_lost
            # A batch of an earlier run isn't wanted any more.
            if batch.is_abandoned:
                self._give_up(batch)
                continue
            self.uncut.appendleft((batch, block.row, block.row + block.rows))
            rows += block.rows
        return rows

    def in_hand(self, line: Line) -> tuple[Place, Any] | None:
        """Return place and key of the row that a worker's line on the board names.

        The line may be read half updated: return None if it names no row of its block.
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
            # What is left of the block are the rows before this one, and those after.
            if first < fault.row:
                uncut.append((batch, first, fault.row))
            if fault.row + 1 < stop:
                uncut.append((batch, fault.row + 1, stop))
            batch.missing -= 1
            batch.faults.append(fault)
        self.uncut = uncut

    def settle(self, done: Done) -> tuple[Block, Delivery] | None:
        """Note the answer to a block, and return the block with its batch.

        Return None if the answer isn't wanted any more.
        """
        found = self.out.pop(done.number, None)
        # The worker had been given up, and the block's rows were sent to another one.
        # If it is a thread, it couldn't be killed, and has answered after all.
        if found is None:
            return None
        block, batch = found
        batch.out -= 1
        # The batch is of an earlier run, so its rows are dropped.  The worker that has
        # answered won't write into its room any more; if no other worker has a block of
        # the batch, the room is given back.
        if batch.is_abandoned:
            self._give_up(batch)
            return None
        batch.missing -= block.rows
        batch.faults.extend(done.faults)
        return found

    def ask_no_more(self, batch: Delivery) -> None:
        """Send no further rows of a batch that has failed."""
        uncut: deque[_Uncut] = deque()
        for part in self.uncut:
            other, first, stop = part
            if other is batch:
                batch.missing -= stop - first
            else:
                uncut.append(part)
        self.uncut = uncut

    def completed(self, most: int) -> list[Delivery]:
        """Remove and return at most ``most`` batches that may be handed over."""
        found = list[Delivery]()
        for batch in self.batches.values():
            if len(found) >= most:
                break
            # While a worker has a block of the batch, it may write into its room.
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
        # Until its last block is answered or recalled, a worker may write into it.
        if batch.out == 0:
            self._give_back(batch)


def _part(
    stretches: Iterable[Stretch],
    first: int,
    stop: int,
) -> Iterator[SentStretch]:
    """Yield the parts of a batch's stretches between two rows.

    It reads no further than it must, since there may be very many stretches.
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
        sent: Keys = keys
        if isinstance(keys, np.ndarray):
            sent = keys.tobytes()
        yield row, epoch, position, sent
