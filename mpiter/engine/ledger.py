"""The book of unfinished rows: which batches are on their way, what of them is with a worker, what must be asked again.

Runs in the prefetch thread alone.  Guarantees that every planned row is asked for until it is settled exactly once,
that batches leave in order (or, if asked, as they finish), and that a room is given up only when no worker can write
into it any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..order.cursor import Plan, Stretch
from ..worker.block import Block, Done, Fault, Keys, Place, make_block
from ..worker.board import Line
from .rooms import OBJECTS, Room
from .run import Delivery


@dataclass(frozen=True, slots=True)
class Suspect:
    """A row that was in a worker's hands when it died."""

    place: Place
    index: Any = field(compare=False)  # a list of keys, perhaps, which no set could hold


_Uncut = tuple[Delivery, int, int]  # rows of a batch that are with no worker, from one on to before another


class Ledger:
    """Unfinished rows, from plan to completion; ``give_back`` takes a room that was not handed out."""

    def __init__(self, give_back: Callable[[Room, bool], None], in_order: bool = True, is_blind: bool = False) -> None:
        self._give_back, self._in_order = give_back, in_order
        self._is_blind = is_blind  # the board doesn't show which row a worker has in hand: suspects go out one by one
        self.batches: OrderedDict[int, Delivery] = OrderedDict()  # on their way
        self.uncut: deque[_Uncut] = deque()  # rows that are to be asked for
        self._out: dict[int, tuple[Block, Delivery]] = {}

    @property
    def blocks(self) -> int:
        """How many are with workers."""
        return len(self._out)

    def enter(self, plan: Plan, room: Room | None) -> None:
        """A batch is to be made."""
        batch = self.batches[plan.number] = Delivery(plan, room, plan.rows)
        self.uncut.append((batch, 0, plan.rows))

    def seat(self, take: Callable[[int], Room | None]) -> list[Delivery]:
        """It is known now what samples are like: give the batches that were begun before their rooms."""
        found = [batch for batch in self.batches.values() if batch.room is None]
        for batch in found:
            batch.room = take(batch.plan.rows) or OBJECTS
        return found

    def cut(self, number: int, parts: int, dataset: int, seed: int, sent: float) -> Block:
        """Take a block: of the first batch with rows to be asked for, one of so many equal parts; of 0, a row."""
        batch, first, stop = self.uncut.popleft()
        rows = -(-batch.plan.rows // parts) if parts and not (self._is_blind and batch.is_suspect) else 1
        if first + rows < stop:
            self.uncut.appendleft((batch, first + rows, stop))
            stop = first + rows
        room, plan, singly = batch.room or OBJECTS, batch.plan, batch.is_suspect
        rows, stretches = stop - first, tuple(_part(plan.stretches, first, stop))
        place = plan.number, first, rows, stretches
        block = make_block((number, dataset, seed, *place, room.brief, room.address, singly, sent))
        batch.out += 1
        self._out[number] = block, batch
        return block

    def recall(self, numbers: Collection[int], is_lost: bool = False) -> int:
        """These blocks will not be answered: their rows are asked for again, first of all; how many they are.

        The worker that had them is dead.  ``is_lost``: or would not die, and may write into their rooms at any time.
        """
        rows = 0
        for number in sorted(numbers, reverse=True):
            if (found := self._out.pop(number, None)) is None:
                continue
            block, batch = found
            batch.out -= 1
            batch.is_suspect = True
            batch.is_lost |= is_lost
            if batch.is_abandoned:
                self._give_up(batch)
                continue
            self.uncut.appendleft((batch, block.row, block.row + block.rows))
            rows += block.rows
        return rows

    def recall_all(self, is_lost: bool = False) -> None:
        """No block will be answered any more."""
        self.recall(list(self._out), is_lost)

    def in_hand(self, line: Line) -> Suspect | None:
        """The row that a worker's line names, if it was asked for in the block that the line names."""
        found = self._out.get(line.block)
        sample = found[0].sample(line.row) if found is not None else None
        return None if sample is None else Suspect(*sample)

    def count_as_failed(self, fault: Fault) -> None:
        """A row that is with no worker counts as failed, and is not asked for again."""
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
        """Enter that a block is done; None if nobody waits for it any more."""
        found = self._out.pop(done.number, None)
        if found is None:
            return None  # recalled: of a thread that was given up
        block, batch = found
        batch.out -= 1
        if batch.is_abandoned:
            self._give_up(batch)  # a late answer
            return None
        batch.missing -= block.rows
        batch.faults.extend(done.faults)
        return found

    def ask_no_more(self, batch: Delivery) -> None:
        """A batch has failed: what is left of it is not wanted."""
        for other, first, stop in self.uncut:
            if other is batch:
                batch.missing -= stop - first
        self.uncut = deque(part for part in self.uncut if part[0] is not batch)

    def completed(self, most: int) -> list[Delivery]:
        """Batches that can be handed over, taken out of the book."""
        found = list[Delivery]()
        for batch in self.batches.values():
            if len(found) >= most:
                break
            if not (batch.missing or batch.out):
                found.append(batch)
            elif self._in_order:
                break
        for batch in found:
            del self.batches[batch.plan.number]
        return found

    def abandon(self) -> None:
        """Nobody waits for these batches any more."""
        self.uncut.clear()
        for batch in self.batches.values():
            batch.is_abandoned = True
            self._give_up(batch)
        self.batches.clear()

    def _give_up(self, batch: Delivery) -> None:
        if batch.out == 0 and batch.room is not None:
            self._give_back(batch.room, batch.is_lost)
            batch.room = None


def _part(stretches: Iterable[Stretch], first: int, stop: int) -> Iterator[tuple[int, int, int, Keys]]:
    """What of a batch's stretches, which may be countless, lies between two rows."""
    for row, epoch, position, keys in stretches:
        if row >= stop:
            return
        if row < first or row + len(keys) > stop:
            begin, end = max(first, row) - row, min(stop, row + len(keys)) - row
            if begin >= end:
                continue
            row, position, keys = row + begin, position + begin, keys[begin:end]
        yield row, epoch, position, keys.tobytes() if isinstance(keys, np.ndarray) else keys
